"""Rounds of private best responses in a matrix game, over supports of static size."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core._pairs import Pair
from dpjax.geometry import sample_vertices
from dpjax.random._normal import normal
from dpjax.solvers.erm._minimise import in_double
from dpjax.solvers.games._nested import Measured, in_full, measured_once, noisy_mean, unmeasured
from dpjax.solvers.vertices._steps import shrunk


class Lines(NamedTuple):
    """Sums over the records of rows and columns of the payoffs, in units of half their interval.

    Attributes:
      row: From i to a pair of `[dy]` (*secret*).
      column: From j to a pair of `[dx]` (*secret*).
      shape: (dx, dy).
      num_records: By which sums are divided.
    """

    row: Callable[[jax.Array], Pair]
    column: Callable[[jax.Array], Pair]
    shape: tuple[int, int]
    num_records: ArrayLike


class Supports(NamedTuple):
    """The small game: K slots a player, of which some are not filled.

    Attributes:
      i: Row of each slot, `[K]` int32; released.
      j: Column of each slot, `[K]` int32; released.
      rows: Sums of these rows, a pair of `[K, dy]` (*secret*).
      columns: Sums of these columns, a pair of `[K, dx]` (*secret*).
      known: Measured payoffs, and which slots hold a strategy of their own; released.
      x: Weights of rows, `[K]`; released.
      y: Weights of columns, `[K]`; released.
    """

    i: jax.Array
    j: jax.Array
    rows: Pair
    columns: Pair
    known: Measured
    x: jax.Array
    y: jax.Array


def first_supports(key: jax.Array, lines: Lines, slots: int) -> Supports:
    """One strategy each, drawn uniformly, in the first of so many slots."""
    (dx, dy), dtype = lines.shape, jnp.result_type(float)
    row_key, column_key = jax.random.split(key)
    i = jax.random.randint(row_key, (), 0, dx, jnp.int32)
    j = jax.random.randint(column_key, (), 0, dy, jnp.int32)
    integers, none = jnp.zeros(slots, jnp.int32), jnp.zeros(slots, bool)
    known = unmeasured((slots, slots), dtype)._replace(here=none, there=none)

    def empty(width: int) -> Pair:
        return Pair(jnp.zeros((slots, width), dtype), jnp.zeros((slots, width), dtype))

    weights = jnp.zeros(slots, dtype).at[0].set(1)
    start = Supports(integers, integers, empty(dy), empty(dx), known, weights, weights)
    return _added(start, lines, i, j, 0)


def best_responses(
    key: jax.Array, at: Supports, sharpness: ArrayLike, moved: ArrayLike
) -> tuple[jax.Array, jax.Array]:
    """A row and a column drawn from the softmax of what they gain against the mixtures.

    Args:
      key: For the draws.
      at: The supports and their mixtures.
      sharpness: By which sums are multiplied.
      moved: Range by which one record moves the logits, without rounding.
    """
    row_key, column_key = jax.random.split(key)
    dtype = at.x.dtype
    weight = shrunk(jnp.asarray(sharpness, dtype), jnp.asarray(moved, dtype), dtype)
    i = sample_vertices(row_key, in_double(_logits)(at.columns, at.y, -weight), 1)[0]
    j = sample_vertices(column_key, in_double(_logits)(at.rows, at.x, weight), 1)[0]
    return i, j


def _logits(lines: Pair, mixture: jax.Array, weight: jax.Array) -> jax.Array:
    """Of a mixture of lines, `[d]`, up to a shift that makes the largest 0."""
    scores = weight.astype(jnp.float64) * (mixture.astype(jnp.float64) @ in_full(lines))
    return (scores - jnp.max(scores)).astype(mixture.dtype)


def noisy_gap(
    key: jax.Array, at: Supports, i: jax.Array, j: jax.Array, lines: Lines, stddev: ArrayLike
) -> jax.Array:
    """What the best responses gain together against the mixtures, a mean with noise, `[]`."""
    row = Pair(*(part[:, j] for part in at.rows))
    column = Pair(*(part[:, i] for part in at.columns))
    gains = Pair(*in_double(_gain)(row, at.x, column, at.y))
    return noisy_mean(gains, lines.num_records, stddev, normal(key, (), at.x.dtype))


def _gain(row: Pair, x: jax.Array, column: Pair, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    gain = x.astype(jnp.float64) @ in_full(row) - y.astype(jnp.float64) @ in_full(column)
    rounded = gain.astype(x.dtype)
    return rounded, (gain - rounded.astype(jnp.float64)).astype(x.dtype)


def small_sums(at: Supports) -> Pair:
    """Sums of the payoffs of the small game, a pair of `[K, K]`."""
    return Pair(*(part[:, at.j] for part in at.rows))


def measured(key: jax.Array, at: Supports, lines: Lines, stddev: ArrayLike) -> Supports:
    """With noisy means of the payoffs that have none yet, and an equilibrium."""
    new = at.known.here[:, None] & at.known.there[None, :] & (at.known.precision == 0)
    known, _, found = measured_once(key, at.known, small_sums(at), lines.num_records, stddev, new)
    return at._replace(known=known, x=found.x, y=found.y)


def double_oracle(
    key: jax.Array,
    at: Supports,
    lines: Lines,
    rounds: tuple[ArrayLike, ArrayLike],
    stddev: ArrayLike,
    sharpness: ArrayLike,
    moved: ArrayLike,
) -> Supports:
    """Rounds of best responses, measurement of what is new, and equilibrium.

    Args:
      key: For noise and draws.
      at: Where they start; with one strategy each its equilibrium is known.
      lines: The payoffs.
      rounds: The first, and the one after the last; round t fills slot t + 1.
      stddev: Of the noise in a payoff.
      sharpness: As of `best_responses`.
      moved: As of `best_responses`.
    """

    def one(t: jax.Array, at: Supports) -> Supports:
        noise, draw = jax.random.split(jax.random.fold_in(key, t))
        at = _added(at, lines, *best_responses(draw, at, sharpness, moved), t + 1)
        return measured(noise, at, lines, stddev)

    first, last = (jnp.asarray(t, jnp.int32) for t in rounds)
    return jax.lax.fori_loop(first, last, one, at)


def _added(at: Supports, lines: Lines, i: jax.Array, j: jax.Array, slot: ArrayLike) -> Supports:
    """With a row and a column more; a slot stays empty where its strategy is there already."""

    def put(lines: Pair, line: Pair) -> Pair:
        return Pair(*(all_.at[slot].set(one) for all_, one in zip(lines, line, strict=True)))

    return at._replace(
        i=at.i.at[slot].set(i),
        j=at.j.at[slot].set(j),
        known=at.known._replace(
            here=at.known.here.at[slot].set(~jnp.any(at.known.here & (at.i == i))),
            there=at.known.there.at[slot].set(~jnp.any(at.known.there & (at.j == j))),
        ),
        rows=put(at.rows, lines.row(i)),
        columns=put(at.columns, lines.column(j)),
    )


def mixtures(
    at: Supports, x: jax.Array, y: jax.Array, shape: tuple[int, int]
) -> tuple[jax.Array, jax.Array]:
    """Weights `[dx]` and `[dy]` over all strategies, from those of slots; 0 in empty ones."""
    return (
        jnp.zeros(shape[0], x.dtype).at[at.i].add(x),
        jnp.zeros(shape[1], y.dtype).at[at.j].add(y),
    )

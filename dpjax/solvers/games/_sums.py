"""Sums over records of rows and columns of payoffs, and noisy means of them."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import PyTree, check_type, wide
from dpjax.core._pairs import Pair
from dpjax.problems import Saddle
from dpjax.solvers._parts import part_size, sum_of_parts
from dpjax.solvers.erm._double import in_double
from dpjax.transforms import rounding_allowance
from dpjax.transforms.clipping._weighted_sum import bounded_sum
from dpjax.transforms.noise._independent import plus_noise

Interval = tuple[ArrayLike, ArrayLike]


def game_interval(problem: Saddle) -> tuple[float, float]:
    """The public interval of payoffs that a problem states.

    Raises:
      TypeError: If the problem is no `Saddle`.
      ValueError: If its loss is not affine in each block, or it states no interval.
    """
    check_type("problem", problem, Saddle, "one over vertices, a Saddle")
    _ = problem.payoffs
    if problem.payoff_interval is None:
        raise ValueError(
            "payoff_interval must be stated: the public interval of a record's loss at every pair "
            "of vertices"
        )
    return problem.payoff_interval


def present(batch: PyTree, mask: jax.Array) -> jax.Array:
    """Records that take part and hold no NaN or inf, bool `[B]`."""
    for leaf in jax.tree.leaves(batch):
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            mask = mask & jnp.all(jnp.isfinite(leaf), axis=tuple(range(1, leaf.ndim)))
    return mask


def line_sum(
    line: Callable[[PyTree], jax.Array],
    batch: PyTree,
    mask: jax.Array,
    interval: Interval,
    together: int = 1,
) -> Pair:
    """Sum over records of a row or column, in units of half the interval from its middle.

    One record adds numbers in [-1, 1], 0 where its payoff is NaN; the sum is exact, to twice the
    precision of a float.

    Args:
      line: `line(record) -> [d]`.
      batch: Records, leaves `[B, ...]`.
      mask: Which rows count, bool `[B]`.
      interval: (low, high).
      together: How many such sums a caller's `vmap` makes at once, which then share memory.

    Returns:
      A pair of `[d]`.
    """
    low, high = (jnp.asarray(end, float) for end in interval)
    centre, half = low / 2 + high / 2, high / 2 - low / 2

    def part_sum(part: PyTree, here: jax.Array) -> Pair:
        payoffs = wide(jax.vmap(line)(part))
        unit = jnp.clip((payoffs - centre) / half, -1, 1)
        unit = jnp.where(jnp.isnan(unit), 0, unit)
        return bounded_sum(unit, here.astype(unit.dtype), 1.0, cut=True)

    formed = together * _largest(line, jax.tree.map(lambda leaf: leaf[0], batch))
    total: Pair = sum_of_parts(part_sum, batch, mask, part_size(formed))
    return total


def _largest(line: Callable[[PyTree], jax.Array], record: PyTree) -> int:
    """Numbers in the largest array that a line of one record forms."""

    def of(jaxpr: Any) -> int:
        params = jax.tree.leaves([list(eqn.params.values()) for eqn in jaxpr.eqns])
        inner = [of(sub) for sub in params if hasattr(sub, "eqns")]
        outs = [var.aval for eqn in jaxpr.eqns for var in eqn.outvars]
        return max([1, *inner, *(math.prod(getattr(out, "shape", ())) for out in outs)])

    return of(jax.make_jaxpr(line)(record).jaxpr)


def larger(rows: int) -> float:
    """By what factor noise is larger for what rounding may add to sums of so many records."""
    return 1 + rounding_allowance(rows, jnp.float64)


def in_full(pair: Pair) -> jax.Array:
    """The sum of both parts, in float64."""
    return pair.high.astype(jnp.float64) + pair.low.astype(jnp.float64)


def noisy_mean(
    sums: Pair, num_records: ArrayLike, stddev: ArrayLike, draws: jax.Array
) -> jax.Array:
    """Means `[*p]` with noise, to the grid of `plus_noise`, computed in float64.

    Args:
      sums: Over the records.
      num_records: By which they are divided.
      stddev: Of the noise in a mean, scalar.
      draws: Standard normal, `[*p]`.
    """

    def noisy(sums: Pair, *floats: jax.Array) -> jax.Array:
        number, scale, normals = (leaf.astype(jnp.float64) for leaf in floats)
        means = in_full(sums) / number
        return plus_noise(means, scale, normals).astype(draws.dtype)

    numbers = (jnp.asarray(value, draws.dtype) for value in (num_records, stddev))
    return in_double(noisy)(sums, *numbers, draws)

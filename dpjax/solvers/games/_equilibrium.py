"""Exact equilibria of small matrix games, by the simplex method."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import check_shape
from dpjax.solvers.erm._minimise import in_double

_TOLERANCE = 1e-9  # of reduced costs and pivots, for payoffs in [-1, 1]
_JITTER = 1e-7  # without ties no pivot is degenerate
_PIVOTS = 6  # a strategy; random games take up to 3.4
_ABSENT = 2.0  # what an absent strategy loses: more than any that is there


class Equilibrium(NamedTuple):
    """Optimal strategies of a matrix game.

    Attributes:
      x: Strategy of the minimising row player, `[rows]`; 0 for absent rows.
      y: Strategy of the maximising column player, `[columns]`; 0 for absent columns.
      value: $x^\\top H y$, `[]`.
      solved: Whether the method ended by itself, `[]` bool; False where it met its cap on pivots,
        and then x and y are those of the last pivot.
    """

    x: jax.Array
    y: jax.Array
    value: jax.Array
    solved: jax.Array


class _Tableau(NamedTuple):
    """Of max 1'u subject to B'u <= 1, condensed: only columns of the non-basic variables.

    Attributes:
      table: Constraints and, in the last row, reduced costs; right-hand sides in the last column.
      basic: Variable of each constraint, `[columns]`: below `rows` u, from there on a slack.
      free: Non-basic variable of each column of the table, `[rows]`.
      pivots: Number of pivots so far, `[]`.
    """

    table: jax.Array
    basic: jax.Array
    free: jax.Array
    pivots: jax.Array


def equilibrium(
    payoffs: jax.Array, rows: ArrayLike | None = None, columns: ArrayLike | None = None
) -> Equilibrium:
    r"""The equilibrium of $\min_x \max_y x^\top H y$, under `jit` and `vmap` too.

    The linear program $\max 1^\top u : B^\top u \le 1, u \ge 0$, with B the payoffs scaled to
    positive numbers, starts at u = 0 and needs no first phase: x is u over its sum, y the duals.
    Strategies that are absent stay in the array with payoffs that make them strictly dominated.

    Privacy: post-processing of released payoffs; no cost, whether or not it was solved.

    Args:
      payoffs: H `[rows, columns]`, what the row player pays; released.
      rows: Which rows are there, bool `[rows]`; at least one. None for all.
      columns: Which columns are there, bool `[columns]`; at least one. None for all.

    Returns:
      An `Equilibrium`, computed in float64; its gap is below 1e-6 times the range of the payoffs.

    Raises:
      ValueError: If shapes do not fit.

    Example:
      >>> import jax.numpy as jnp
      >>> found = equilibrium(jnp.array([[1.0, -1.0], [-1.0, 1.0]]))
      >>> [round(float(p), 4) for p in found.x], bool(found.solved)
      ([0.5, 0.5], True)

    Source: Dantzig 1951, "A proof of the equivalence of the programming problem and the game
    problem".
    """
    check_shape("payoffs", payoffs, (None, None))
    number, others = payoffs.shape
    here = jnp.ones(number, bool) if rows is None else jnp.asarray(rows)
    there = jnp.ones(others, bool) if columns is None else jnp.asarray(columns)
    check_shape("rows", here, (number,))
    check_shape("columns", there, (others,))
    return Equilibrium(*in_double(_solved)(payoffs, here, there))


def _solved(payoffs: jax.Array, here: jax.Array, there: jax.Array) -> tuple[jax.Array, ...]:
    number, others = payoffs.shape
    both = here[:, None] & there[None, :]
    exact = payoffs.astype(jnp.float64)
    low = jnp.min(jnp.where(both, exact, jnp.inf))
    high = jnp.max(jnp.where(both, exact, -jnp.inf))
    half = jnp.maximum((high - low) / 2, jnp.finfo(payoffs.dtype).tiny)
    unit = (exact - low) / half - 1 + _JITTER * _jitter(number, others)
    absent = _ABSENT * (there[None, :].astype(unit.dtype) - here[:, None].astype(unit.dtype))
    last = _simplex(jnp.where(both, unit, absent) + (_ABSENT + 1))
    # basic variables have the right-hand sides, and the duals of slacks are their reduced costs
    weights = jnp.zeros(number + others, unit.dtype)
    x = _distribution(weights.at[last.basic].set(last.table[:-1, -1])[:number], here)
    y = _distribution(weights.at[last.free].set(last.table[-1, :-1])[number:], there)
    value = x @ jnp.where(both, exact, 0) @ y
    solved = jnp.min(last.table[-1, :-1]) >= -_TOLERANCE
    return x.astype(payoffs.dtype), y.astype(payoffs.dtype), value.astype(payoffs.dtype), solved


def _jitter(rows: int, columns: int) -> jax.Array:
    """Fixed numbers in [0, 1) that look unrelated, `[rows, columns]`."""
    i = jnp.arange(rows, dtype=jnp.int32).astype(jnp.float64)[:, None]
    j = jnp.arange(columns, dtype=jnp.int32).astype(jnp.float64)[None, :]
    mixed = 2**0.5 * i * i + 3**0.5 * j * j + 5**0.5 * i * j + 7**0.5 * i + 11**0.5 * j
    return mixed - jnp.floor(mixed)


def _distribution(weights: jax.Array, here: jax.Array) -> jax.Array:
    """Weights of those that are there, normalised; uniform if there are none."""
    weights = jnp.where(here, jnp.maximum(weights, 0), 0)
    total = jnp.sum(weights)
    uniform = here / jnp.sum(here)
    return jnp.where(total > 0, weights / jnp.where(total > 0, total, 1), uniform)


def _simplex(matrix: jax.Array) -> _Tableau:
    """The last tableau for a positive matrix `[rows, columns]`: optimal, or at the cap."""
    rows, columns = matrix.shape
    table = jnp.ones((columns + 1, rows + 1), matrix.dtype)
    table = table.at[:-1, :-1].set(matrix.T).at[-1, :-1].set(-1).at[-1, -1].set(0)
    slacks = rows + jnp.arange(columns, dtype=jnp.int32)
    start = _Tableau(table, slacks, jnp.arange(rows, dtype=jnp.int32), jnp.zeros((), jnp.int32))

    def goes_on(at: _Tableau) -> jax.Array:
        return (at.pivots < _PIVOTS * (rows + columns)) & (jnp.min(at.table[-1, :-1]) < -_TOLERANCE)

    def pivot(at: _Tableau) -> _Tableau:
        entering = _least(at.table[-1, :-1])  # Dantzig's rule
        column = at.table[:, entering]
        usable = column[:-1] > _TOLERANCE
        ratio = jnp.where(usable, at.table[:-1, -1] / jnp.where(usable, column[:-1], 1), jnp.inf)
        leaving = _least(ratio)
        size = column[leaving]
        row = at.table[leaving] / size
        table = at.table - column[:, None] * row[None, :]
        table = table.at[:, entering].set(-column / size)
        table = table.at[leaving].set(row.at[entering].set(1 / size))
        basic, free = at.basic[leaving], at.free[entering]
        return _Tableau(
            table, at.basic.at[leaving].set(free), at.free.at[entering].set(basic), at.pivots + 1
        )

    return jax.lax.while_loop(goes_on, pivot, start)


def _least(values: jax.Array) -> jax.Array:
    """Index of the smallest; `argmin` is lowered outside of the scope of 64 bits."""
    index = jnp.arange(values.shape[0], dtype=jnp.int32)
    return jnp.min(jnp.where(values == jnp.min(values), index, values.shape[0] - 1))

"""Matrix games from nested noisy measurements of the payoffs."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import dp_event as dpe
from jax.typing import ArrayLike, DTypeLike

from dpjax.core import (
    PyTree,
    check_finite,
    check_key,
    check_type,
    check_unstacked,
    static_field,
    wide,
)
from dpjax.core._checks import known_numbers
from dpjax.core._pairs import Pair, add_pairs
from dpjax.privacy import Budget, Guarantee, calibrate_gaussian
from dpjax.problems import Saddle
from dpjax.random._normal import normal
from dpjax.sampling import FullBatch
from dpjax.solvers import _request as requests
from dpjax.solvers._parts import part_size
from dpjax.solvers._summary import register_solver
from dpjax.solvers.erm._minimise import in_double
from dpjax.solvers.games._equilibrium import Equilibrium, equilibrium
from dpjax.solvers.games._robust import robust_strategies
from dpjax.transforms import rounding_allowance
from dpjax.transforms.clipping._microbatch import in_whole_parts
from dpjax.transforms.clipping._weighted_sum import bounded_sum
from dpjax.transforms.noise._independent import plus_noise

_SHARES = (0.2, 0.3, 0.5)  # of the budget mu^2, one a round
_LINES = 16  # rows or columns that a pass over the records adds up
_KEPT = 2.0  # deviations of noise by which a strategy may be worse, and is measured again
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

    def part_sum(part: PyTree, here: jax.Array, _: object) -> Pair:
        payoffs = wide(jax.vmap(line)(part))
        unit = jnp.clip((payoffs - centre) / half, -1, 1)
        unit = jnp.where(jnp.isnan(unit), 0, unit)
        return bounded_sum(unit, here.astype(unit.dtype), 1.0, cut=True)

    formed = together * _largest(line, jax.tree.map(lambda leaf: leaf[0], batch))
    total: Pair = in_whole_parts(part_sum, batch, mask, part_size(formed), add_pairs)
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


class GameState(NamedTuple):
    """State of `NestedGame`.

    Attributes:
      params: Strategies, or points of the two domains; released.
      key: For the noise (*secret*).
    """

    params: PyTree
    key: jax.Array


class Game:
    """What solvers of games have in common: they read all records once, and release strategies."""

    sampler: FullBatch
    num_records: ArrayLike
    interval: Interval
    relation: str

    def _check(self, *positive: str, counts: Iterable[str] = (), **choices: Sequence[str]) -> None:
        requests.check_once(self.sampler)
        check_finite("interval", self.interval)
        low, high = (known_numbers("interval", end) for end in self.interval)
        if low is not None and high is not None and not np.all(low < high):
            raise ValueError(f"interval must be (low, high) with low < high, got {self.interval}")
        requests.check_values(
            self,
            positive=("num_records", *positive),
            counts=counts,
            relation=requests.RELATIONS[:2],
            **choices,
        )

    expected_records = requests.records_in_full("num_records")

    @classmethod
    def _public_fields(
        cls, problem: Saddle, num_records: int, budget: Budget, overrides: Iterable[str]
    ) -> dict[str, Any]:
        relation = requests.requested_relation(cls, num_records, budget, overrides)
        interval = game_interval(problem)
        return {"num_records": num_records, "interval": interval, "relation": relation}

    def init(self, problem: Saddle, *, key: jax.Array) -> GameState:
        """The state before the step; the key (*secret*) is for noise and draws."""
        check_key("key", key)
        game_interval(problem)
        return GameState(problem.init, key)

    def finalize(self, problem: Saddle, state: GameState) -> PyTree:
        """The parameters that the strategies make."""
        return problem.assemble(state.params)


@register_solver
@dataclasses.dataclass(frozen=True)
class NestedGame(Game):
    r"""A matrix game of noisy mean payoffs, measured three times on fewer and fewer strategies.

    Round r adds Gaussian noise to the payoffs of the strategies $C_x \times C_y$ that are left,

    $$ H = \frac{\sum_r H_r / s_r^2}{\sum_r 1 / s_r^2}, \qquad
       s_r = \frac{z\,h}{n} \sqrt{\frac{|C_x|\,|C_y|}{w_r}}, \qquad w = (.2, .3, .5) $$

    with h half the length of the interval, and solves the game of *all* of H. Strategies that the
    equilibrium plays, or that are worse than its value by at most twice their noise, stay. The
    others keep their early, noisier payoffs as constraints. The strategies released are those whose
    expected loss is least, given H and its noise: with little noise an equilibrium, with much of it
    what is clearly good, down to uniform play. Works with problems of losses affine in each block,
    `Saddle.matrix_game`, `Saddle.game` and others of `smoothness=(0, 0)`, where an array of all
    payoffs at vertices can be held.

    Guarantee: one Gaussian release, `GaussianDpEvent(noise_multiplier)`. Payoffs are clipped to the
    interval, so a record moves the sum of m of them, in units of h, by at most $\sqrt m$ in the l2
    norm under add-or-remove-one and twice that under replace-one. Which payoffs a round measures
    follows from released ones, and given these its privacy loss is that of a Gaussian of
    $\mu_r^2 = w_r \mu^2$ at most, whatever their number. Sums are exact, divided in float64; the
    noise is larger by `rounding_allowance`. Released means are rounded to multiples of a power of
    two near 1/32 of the noise.

    | input | effect |
    | --- | --- |
    | no record | the game of noise alone |
    | NaN or inf in a record | it contributes nothing |
    | a payoff of NaN | counts as the middle of the interval |
    | `num_records` off | payoffs shrink or grow from the middle, which keeps equilibria |

    Attributes (data may be swept under `vmap`; static ones shape the program; all *public*):
      sampler: `FullBatch(1)` (static).
      noise_multiplier: z, noise over add-or-remove sensitivity, scalar (data).
      num_records: n, by which sums are divided, scalar (data).
      interval: (low, high), where payoffs are clipped to (data).
      relation: Neighbouring relation of the guarantee (static).

    Raises:
      ValueError: If a value is outside its bound.
      TypeError: If the sampler is of another kind.

    Source: own; the noise is that of Dwork, McSherry, Nissim and Smith 2006.
    """

    sampler: FullBatch = dataclasses.field(metadata={"static": True})
    noise_multiplier: ArrayLike
    num_records: ArrayLike
    interval: Interval = (-1.0, 1.0)
    relation: str = static_field(default="replace_one")

    def __post_init__(self) -> None:
        self._check("noise_multiplier")

    @classmethod
    def for_budget(
        cls, problem: Saddle, num_records: int, budget: Budget, **overrides: Any
    ) -> "NestedGame":
        """The solver whose noise just meets the budget.

        Args:
          problem: `Saddle` of a loss affine in each block, with `payoff_interval`.
          num_records: *Public* number of records (or near it, under add-or-remove-one).
          budget: epsilon, delta > 0 and relation to meet; the relation defaults to replace-one.
          **overrides: `interval`, or `noise_multiplier` at the caller's own risk of the budget.

        Returns:
          A solver whose `guarantee().epsilon(budget.delta) <= budget.epsilon`.

        Raises:
          ValueError: If a value is outside its bound, the loss is not affine in each block, or the
            budget cannot be met.
          TypeError: If the problem is no `Saddle`, `num_records` no integer, or an override no
            field.

        Warns:
          NoiseWarning: If noise on all payoffs, measured at once, is at least 6 times half their
            interval.

        Example:
          >>> import dpjax
          >>> game = dpjax.problems.Saddle.matrix_game((50, 50))
          >>> solver = NestedGame.for_budget(game, 30_000, dpjax.Budget(1.0, 1e-6))
          >>> round(2 / solver.noise_multiplier, 4)
          0.2367
        """
        fields = cls._public_fields(problem, num_records, budget, overrides)
        noise = calibrate_gaussian(1.0, 1, budget, relation=fields["relation"])
        solver = cls(FullBatch(1), **({"noise_multiplier": noise} | fields | overrides))
        payoffs = math.prod(domain.num_vertices for domain in problem.domains)
        of_all = solver.noise_multiplier * math.sqrt(payoffs) / num_records
        return requests.checked_payoffs(solver, of_all)

    def step(
        self, problem: Saddle, batch: PyTree, mask: jax.Array, state: GameState
    ) -> tuple[GameState, None]:
        """Measures the payoffs in three rounds, and solves for the strategies."""
        key, draw = jax.random.split(state.key)
        sums = all_sums(problem, batch, present(batch, mask), self.interval)
        scale = self.noise_multiplier * larger(mask.shape[0]) / self.num_records
        known = unmeasured(sums.high.shape, sums.high.dtype)
        x, y = nested_measurement(draw, sums, self.num_records, scale, known)
        return GameState(placed(problem, x, y, state.params), key), None

    def guarantee(self) -> Guarantee:
        """The guarantee of the release (host); raises ValueError for stacked fields."""
        check_unstacked(self, "noise_multiplier")
        # the accountant doubles the sensitivity under replace-one
        event = dpe.GaussianDpEvent(np.asarray(self.noise_multiplier).item())
        return Guarantee(event, self.relation, self.sampler.failure_probability())


def all_sums(problem: Saddle, batch: PyTree, mask: jax.Array, interval: Interval) -> Pair:
    """Sums of the payoffs at all pairs of vertices, a pair of `[dx, dy]`."""
    payoffs = problem.payoffs
    rows, columns = (domain.num_vertices for domain in problem.domains)
    # the fewer lines, the fewer passes over the records
    along = payoffs.row if rows <= columns else payoffs.column

    def line(index: jax.Array) -> Pair:
        return line_sum(lambda record: along(record, index), batch, mask, interval, _LINES)

    indices = jnp.arange(min(rows, columns), dtype=jnp.int32)
    sums = jax.lax.map(line, indices, batch_size=_LINES)
    return sums if rows <= columns else Pair(*(part.T for part in sums))


class Measured(NamedTuple):
    """What is known of mean payoffs; released.

    Attributes:
      total: Measured payoffs over their variances, added up, `[rows, columns]`.
      precision: Sum of one over these variances, 0 where there is none, `[rows, columns]`.
      here: Which rows there are, bool `[rows]`.
      there: Which columns there are, bool `[columns]`.
    """

    total: jax.Array
    precision: jax.Array
    here: jax.Array
    there: jax.Array


def unmeasured(shape: tuple[int, ...], dtype: DTypeLike) -> Measured:
    """Nothing of all strategies."""
    zeros = jnp.zeros(shape, dtype)
    return Measured(zeros, zeros, jnp.ones(shape[0], bool), jnp.ones(shape[1], bool))


def measured_once(
    key: jax.Array,
    known: Measured,
    sums: Pair,
    num_records: ArrayLike,
    stddev: ArrayLike,
    which: jax.Array,
    limit: float = math.inf,
) -> tuple[Measured, jax.Array, Equilibrium]:
    """One more measurement of some payoffs, the payoffs as far as known, and their equilibrium.

    To clip payoffs to the `limit` 1 of their means pays where noise is far above them; where it is
    small, it hides by how much strategies are worse.
    """
    dtype = sums.high.dtype
    stddev = jnp.asarray(stddev, dtype)
    values = noisy_mean(sums, num_records, stddev, normal(key, sums.high.shape, dtype))
    weight = jnp.where(which, stddev**-2, 0)
    known = known._replace(total=known.total + weight * values, precision=known.precision + weight)
    payoffs = known.total / jnp.where(known.precision > 0, known.precision, 1)
    payoffs = jnp.clip(payoffs, -limit, limit)
    return known, payoffs, equilibrium(payoffs, known.here, known.there)


def nested_measurement(
    key: jax.Array,
    sums: Pair,
    num_records: ArrayLike,
    scale: ArrayLike,
    known: Measured,
    limit: float = math.inf,
) -> tuple[jax.Array, jax.Array]:
    """The nested measurement of mean payoffs, in units of half their interval.

    Args:
      key: For the noise.
      sums: Over records, a pair of `[rows, columns]`.
      num_records: By which they are divided.
      scale: Noise of the mean of a single payoff, by which the budget is spent.
      known: What was measured before, and of which strategies.
      limit: What payoffs are clipped to.

    Returns:
      x `[rows]` and y `[columns]`, by `robust_strategies`.
    """
    dtype, exact = sums.high.dtype, jax.lax.Precision.HIGHEST

    def measure(carry: PyTree, at: PyTree) -> tuple[PyTree, PyTree]:
        known, rows, columns = carry
        number, share = at
        left = jnp.sum(rows) * jnp.sum(columns)
        stddev = jnp.asarray(scale, dtype) * jnp.sqrt(left.astype(dtype) / share)
        own, which = jax.random.fold_in(key, number), rows[:, None] & columns[None, :]
        measured = measured_once(own, known, sums, num_records, stddev, which, limit)
        known, payoffs, (x, y, value, _) = measured
        variance = jnp.where(known.precision > 0, 1 / known.precision, 0)
        noise = jnp.sqrt(jnp.matmul(variance, y**2, precision=exact))
        noise_of_columns = jnp.sqrt(jnp.matmul(x**2, variance, precision=exact))
        loss = jnp.matmul(payoffs, y, precision=exact) - value
        gain = value - jnp.matmul(x, payoffs, precision=exact)
        rows = known.here & ((x > 0) | (loss <= _KEPT * noise))
        columns = known.there & ((y > 0) | (gain <= _KEPT * noise_of_columns))
        return (known, rows, columns), (x, y)

    rounds = jnp.arange(len(_SHARES), dtype=jnp.int32), jnp.asarray(_SHARES, dtype)
    (known, _, _), (x, y) = jax.lax.scan(measure, (known, known.here, known.there), rounds)
    payoffs = known.total / jnp.where(known.precision > 0, known.precision, 1)
    last = x[-1], y[-1]
    return robust_strategies(payoffs, known.precision, known.here, known.there, last)


def placed(problem: Saddle, x: jax.Array, y: jax.Array, like: PyTree) -> PyTree:
    """The points of the domains with these weights, of the types of others."""
    points = (domain.point(w) for domain, w in zip(problem.domains, (x, y), strict=True))
    return tuple(point.astype(old.dtype) for point, old in zip(points, like, strict=True))

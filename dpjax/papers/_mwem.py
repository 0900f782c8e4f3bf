"""Multiplicative weights with the exponential mechanism, and measurements."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from dp_accounting import dp_event as dpe

from dpjax.core import (
    PyTree,
    check_int,
    check_key,
    check_scalar,
    check_unstacked,
    derived,
    static_field,
)
from dpjax.core._pairs import Pair, pair_of
from dpjax.privacy import Budget, Guarantee, bounded_range_eta
from dpjax.problems import QueryRelease
from dpjax.queries._workload import num_records, spread_cells
from dpjax.sampling import FullBatch
from dpjax.solvers._request import checked_answers, requested_relation, within_budget
from dpjax.solvers._summary import register_solver
from dpjax.solvers.queries._budget import Number, drawn_event, drawn_rho, gaussian_event
from dpjax.solvers.queries._selection import (
    ReleasedDistribution,
    check_range,
    check_selection,
    distribution,
    log_of,
    per_half_record,
    select_query,
)
from dpjax.transforms.noise import _noisy_counts as counting
from dpjax.transforms.noise._independent import plus_gaussian


class MWEMState(NamedTuple):
    """State of `MWEM`.

    Attributes:
      weights: Of the queries, `[m]`; the distribution is the softmax of their `adjoint`.
      average: Mean of the distributions, `[k]`.
      chosen: Queries measured so far, `[T]` int32; -1 where there is none yet.
      measured: Their noisy answers, `[T]`.
      answers: Sums over the data, `[m]`, integers where queries are: *secret*, and redacted.
      targets: What selections compare with, `QueryRelease.targets` `[m]`: *secret*, and redacted.
      count: Steps so far, `[]` int32.
      key: For the draws (*secret*).
    """

    weights: jax.Array
    average: jax.Array
    chosen: jax.Array
    measured: jax.Array
    answers: Any
    targets: Any
    count: jax.Array  # type: ignore[assignment]
    key: jax.Array


class MWEMInfo(NamedTuple):
    """Released in a step.

    Attributes:
      index: The query that was chosen, `[]` int32.
      measured: Its noisy answer, `[]`.
    """

    index: jax.Array  # type: ignore[assignment]
    measured: jax.Array


@register_solver
@dataclasses.dataclass(frozen=True)
class MWEM:
    r"""Select the worst query, measure it, and move a distribution towards all measurements.

    In each of T steps a query j is drawn by the exponential mechanism from the gaps
    $\pm \langle q_j, P_n - D \rangle$, measured, $y = \langle q_j, P_n \rangle + \sigma \xi$, and
    the weights w of D, the softmax of $M^\top w$, take `replays` steps

    $$ w_i \leftarrow w_i + \eta \, (y_i - \langle q_i, D \rangle) $$

    over all queries measured so far. Where queries are integers, a sum is measured with noise
    rounded to integers, and divided by n after that.

    Guarantee: a draw is of bounded range `score_range` / (`num_records` `noise_scale`); a record
    moves a measurement by `answer_range` / `num_records`, and the noise is Gaussian. The event is T
    times both. The distance of the sampler of integer noise from it is declared as failure
    probability, whatever the queries. Under add-or-remove-one queries are scored centred at
    mid-range. Idealised in one respect: scores are summed and sampled in floating point.

    | input | effect |
    | --- | --- |
    | `noise_scale` or `stddev` 0 | no noise there; the event is non-private |
    | no record | raises |

    Attributes (data may be swept under `vmap`; static ones shape the program; all *public*):
      sampler: `FullBatch(T)` (static).
      noise_scale: Of the Gumbel noise on scores, in units of an answer (data).
      stddev: sigma, in units of an answer (data).
      num_records: n, by which counts are divided (data).
      score_range: Range of the change of n times the scores by one record (static).
      answer_range: Largest change of n times an answer by one record (static).
      step_size: eta (data).
      replays: Steps over the measurements after each (static).
      relation: Neighbouring relation of the guarantee (static).

    Raises:
      ValueError: If a value is outside its bound.
      TypeError: If the sampler is of another kind.

    Source: Hardt, Ligett and McSherry 2012.
    """

    sampler: FullBatch = dataclasses.field(metadata={"static": True})
    noise_scale: Number
    stddev: Number
    num_records: Number
    score_range: float = dataclasses.field(metadata={"static": True})
    answer_range: float = dataclasses.field(metadata={"static": True})
    step_size: Number = 1.0
    replays: int = static_field(default=20)
    relation: str = static_field(default="replace_one")

    def __post_init__(self) -> None:
        check_scalar("answer_range", self.answer_range)
        check_selection(self, ("step_size", "answer_range"), ("noise_scale", "stddev"))
        check_int("replays", self.replays, minimum=1)

    @classmethod
    def for_budget(
        cls,
        problem: QueryRelease,
        num_records: int,
        budget: Budget,
        *,
        steps: int = 50,
        **overrides: Any,
    ) -> "MWEM":
        """The solver of so many steps whose noise just meets the budget, half of it on each kind.

        Args:
          problem: As in `FrankWolfeRelease.for_budget`.
          num_records: As in `FrankWolfeRelease.for_budget`.
          budget: As in `FrankWolfeRelease.for_budget`.
          steps: T.
          **overrides: `step_size`, `replays`, or a noise at the caller's own risk of the budget.

        Returns:
          A solver whose `guarantee().epsilon(budget.delta) <= budget.epsilon`.

        Raises:
          ValueError: If a value is outside its bound, or the budget cannot be met.
          TypeError: If `num_records` or `steps` is not an integer, or an override no field.
        """
        relation = requested_relation(cls, num_records, budget, overrides)
        check_int("steps", steps, minimum=1)
        sensitivity = problem.sensitivity(relation)
        # rho of Gaussian noise on an answer is (change / stddev)^2 / 2
        each = drawn_rho(budget, failure=steps * counting.MOST_SHORTFALL) / (2 * steps)
        fields: dict[str, Any] = {
            "noise_scale": sensitivity.score_range
            * (1 + 1e-12)
            / (num_records * float(bounded_range_eta(each))),
            "stddev": sensitivity.linf / (num_records * math.sqrt(2 * each)),
            "num_records": num_records,
            "score_range": sensitivity.score_range,
            "answer_range": sensitivity.linf,
            "relation": relation,
        }
        solver = cls(FullBatch(steps), **(fields | overrides))
        within_budget(solver, budget, overrides, "noise_scale")
        return checked_answers(solver, solver.stddev, problem)

    def init(self, problem: QueryRelease, *, key: jax.Array) -> MWEMState:
        """The state before the first step: uniform. The key (*secret*) is for the draws."""
        check_key("key", key)
        sensitivity = problem.sensitivity(self.relation)
        check_range(self, "score_range", sensitivity.score_range)
        check_range(self, "answer_range", sensitivity.linf)
        steps = self.sampler.steps
        zeros, sums = jnp.zeros(problem.workload.num_queries), problem.workload.sums_dtype
        return MWEMState(
            weights=zeros,
            average=spread_cells(problem.workload, jnp.zeros(problem.workload.universe_size)),
            chosen=jnp.full(steps, -1, jnp.int32),
            measured=jnp.zeros(steps),
            answers=zeros.astype(sums) if jnp.issubdtype(sums, jnp.integer) else pair_of(zeros),
            targets=problem.no_targets(),
            count=jnp.zeros((), jnp.int32),
            key=key,
        )

    def prologue(self, problem: QueryRelease, data: PyTree, state: MWEMState) -> MWEMState:
        """Computes the answers, once."""
        number, histogram = num_records(data), problem.workload.histogram(data)
        problem.check_number(number)
        answers = problem.workload.sums(histogram, number)
        return state._replace(answers=answers, targets=problem.targets(data))

    def step(
        self, problem: QueryRelease, batch: PyTree, mask: jax.Array, state: MWEMState
    ) -> tuple[MWEMState, MWEMInfo]:
        """One selection, one measurement, and the replays; records are not looked at."""
        del batch, mask
        workload = problem.workload
        select, measure = jax.random.split(jax.random.fold_in(state.key, state.count))
        current = workload.answers(distribution(workload, state.weights))
        gaps, rest = problem.gaps(state.targets, current, self.num_records)
        sharpness = 1 / jnp.asarray(self.noise_scale, rest.dtype)
        sharpness = per_half_record(sharpness, self, rest.dtype)
        index = select_query(select, gaps, sharpness, rest).index
        dtype = state.measured.dtype
        answer = jax.tree.map(lambda each: each[index], state.answers)
        value = self._measure(measure, answer).astype(dtype)
        chosen = state.chosen.at[state.count].set(index)
        measured = state.measured.at[state.count].set(value)
        there = chosen >= 0

        def replay(_: int, weights: jax.Array) -> jax.Array:
            answers = workload.answers(distribution(workload, weights))
            moves = jnp.where(there, measured - answers[chosen], 0) * self.step_size
            return weights.at[chosen].add(moves.astype(weights.dtype))

        weights = jax.lax.fori_loop(0, self.replays, replay, state.weights)
        now = distribution(workload, weights).astype(state.average.dtype)
        average = state.average + (now - state.average) / (state.count + 1)
        after = MWEMState(
            weights,
            average,
            chosen,
            measured,
            state.answers,
            state.targets,
            state.count + 1,
            state.key,
        )
        return after, MWEMInfo(index, value)

    def _measure(self, key: jax.Array, total: jax.Array | Pair) -> jax.Array:
        # divided after the noise, for quotients are rounded by what a record does
        stddev = self.stddev * self.num_records
        if isinstance(total, Pair):
            return plus_gaussian(key, total, stddev) / self.num_records
        return counting.noisy_counts(key, total, stddev, self._tables) / self.num_records

    def finalize(self, problem: QueryRelease, state: MWEMState) -> ReleasedDistribution:
        """The mean of the distributions after each step."""
        return ReleasedDistribution(log_of(state.average), problem.workload.answers(state.average))

    def redact(self, state: MWEMState) -> MWEMState:
        """The state without what follows from the data directly."""
        return state._replace(answers=None, targets=None)

    @derived
    def _tables(self) -> counting.CountTables | None:
        return counting.count_tables(self.stddev, self.num_records)

    def guarantee(self) -> Guarantee:
        """The guarantee of the whole run (host); raises ValueError for stacked fields."""
        check_unstacked(self, "noise_scale", "stddev", "num_records")
        n = float(self.num_records)
        one = dpe.ComposedDpEvent(
            [
                drawn_event(self.score_range / n, float(self.noise_scale)),
                gaussian_event(self.answer_range / n, float(self.stddev), self.relation),
            ]
        )
        event = dpe.SelfComposedDpEvent(one, self.sampler.steps)
        # of the one number a step; what a record does not move has one law, whatever it is
        failure = self.sampler.steps * counting.noisy_counts_shortfall(float(self.stddev) * n)
        return Guarantee(event, self.relation, self.sampler.failure_probability() + failure)

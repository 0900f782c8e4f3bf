"""Query release as a game: mirror descent on data, mirror ascent on queries."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.core import check_finite, check_int, check_unstacked, static_field
from dpjax.core._moved import moved_setting
from dpjax.privacy import Budget, Guarantee, PureZCDpEvent, bounded_range_rho
from dpjax.problems import QueryRelease
from dpjax.sampling import FullBatch
from dpjax.solvers import _request as requests
from dpjax.solvers._summary import register_solver
from dpjax.solvers.queries._budget import Number, drawn_rho
from dpjax.solvers.queries._selection import SelectionRelease, SelectionState, check_selection

_STEPS, _STEP = 300, 2.0  # see for_budget


@register_solver
@dataclasses.dataclass(frozen=True)
class SaddleRelease(SelectionRelease):
    r"""Mirror descent-ascent on $\min_x \max_y \sum_j y_j \langle q_j, P_n - x \rangle$.

    From uniform $x_1$, with $\bar x_t$ the mean of $x_1, \dots, x_t$ and t from 1,

    $$ s_t \sim \exp(\tau_y (t - 1) \langle s, M (P_n - \bar x_{t-1}) \rangle), \qquad
       x_{t+1} \propto x_t \, e^{\tau_x s_t} $$

    over signed queries s; the result is $\bar x_T$.

    Guarantee: the draws are the mechanism. A record moves the scores of draw t by a vector of range
    $\eta_t = \tau_y (t - 1)$ `score_range` / `num_records`, so the first draw sees no data, and the
    event is `ZCDpEvent` of the sum of `bounded_range_rho(eta_t)`. Queries are scored centred at
    mid-range under add-or-remove-one. The draw after the last step is not made. Idealised in one
    respect: scores are summed and sampled in floating point.

    | input | effect |
    | --- | --- |
    | `dual_step_size` 0 | queries drawn uniformly; no data are used |
    | no record | raises |

    Attributes (data may be swept under `vmap`; static ones shape the program; all *public*):
      sampler: `FullBatch(T - 1)`, the number of draws (static).
      dual_step_size: tau_y (data).
      step_size: tau_x (data).
      num_records: n, by which counts are divided (data).
      score_range: Range of the change of n times the scores by one record (static).
      relation: Neighbouring relation of the guarantee (static).

    Raises:
      ValueError: If a value is outside its bound.
      TypeError: If the sampler is of another kind.

    Source: González, Guzmán and Paquette, "Mirror descent algorithms with nearly
    dimension-independent rates for differentially-private stochastic saddle-point problems", 2024;
    mirror descent for saddle points of Nemirovski, Juditsky, Lan and Shapiro 2009; the
    exponential mechanism of McSherry and Talwar 2007.
    """

    sampler: FullBatch = dataclasses.field(metadata={"static": True})
    dual_step_size: Number
    step_size: Number
    num_records: Number
    score_range: float = dataclasses.field(metadata={"static": True})
    relation: str = static_field(default="replace_one")

    def __post_init__(self) -> None:
        check_selection(self, ("step_size",), ("dual_step_size",))

    @classmethod
    def for_budget(
        cls,
        problem: QueryRelease,
        num_records: int,
        budget: Budget,
        *,
        steps: int | None = None,
        as_published: bool = False,
        **overrides: Any,
    ) -> "SaddleRelease":
        r"""The solver of so many draws whose inverse temperature just meets the budget.

        300 draws with $\tau_x = 2 \sqrt{\log k / T}$ did best on Adult, at epsilon 0.1 and at 1.
        The bounds on the expected error ask for steps smaller than that, and for a tau_y below what
        the budget allows, and do much worse.

        Args:
          problem: As in `FrankWolfeRelease.for_budget`.
          num_records: As in `FrankWolfeRelease.for_budget`.
          budget: As in `FrankWolfeRelease.for_budget`.
          steps: T - 1, if it is to be fixed.
          as_published: Deprecated: use `dpjax.papers.query_release.saddle`.
          **overrides: `step_size`, or `dual_step_size` at the caller's own risk of the budget.

        Returns:
          A solver whose `guarantee().epsilon(budget.delta) <= budget.epsilon`.

        Raises:
          ValueError: If a value is outside its bound, or the budget cannot be met.
          TypeError: If `num_records` or `steps` is not an integer, or an override no field.
        """
        if as_published:
            make = moved_setting("query_release", "saddle", "as_published=True", depth=3)
            return make(problem, num_records, budget, steps=steps, **overrides)
        relation = requests.requested_relation(cls, num_records, budget, overrides)
        if steps is not None:
            check_int("steps", steps, minimum=1)
        log_k = math.log(max(2, problem.workload.universe_size))
        score_range = problem.sensitivity(relation).score_range
        count = _STEPS + 1 if steps is None else steps + 1
        # of draws 1, ..., T - 1 in units of the first; eta^2 / 8 is above the rho of a draw
        draws = np.arange(count - 1.0)
        check_finite("epsilon", budget.epsilon)
        eta = (1 - 1e-12) * budget.epsilon / max(np.sum(draws), 1.0)
        if budget.delta > 0:
            squares = max(np.sum(np.square(draws)), 1.0)
            eta = max(eta, math.sqrt(8 * drawn_rho(budget) / squares))
        sizes = num_records * eta / score_range, _STEP * math.sqrt(log_k / count)
        fields = {
            "dual_step_size": sizes[0],
            "step_size": sizes[1],
            "num_records": num_records,
            "score_range": score_range,
            "relation": relation,
        }
        solver = cls(FullBatch(count - 1), **(fields | overrides))
        requests.within_budget(solver, budget, overrides, "dual_step_size")
        last = 1 / (solver.dual_step_size * count)  # noise in the scores of the last draw
        return requests.checked_answers(solver, requests.drawn_noise(last, problem, count), problem)

    def reference(self, state: SelectionState) -> jax.Array:
        """The answers of the mean of the iterates before the present one."""
        # the mean of count + 1 iterates, less the last
        past = jnp.maximum(state.count, 1).astype(state.current.dtype)
        return state.averaged + (state.averaged - state.current) / past

    def sharpness(self, count: jax.Array) -> Any:
        """tau_y times the number of iterates that the mean is of."""
        return jnp.asarray(self.dual_step_size, float) * count

    def gains(self, count: jax.Array) -> tuple[Any, Any]:
        """Nothing is forgotten, and tau_x."""
        del count
        return 0.0, jnp.asarray(self.step_size, float)

    def share(self, state: SelectionState) -> Any:
        """Of an iterate in the mean."""
        return 1 / (state.count + 2.0)

    def guarantee(self) -> Guarantee:
        """The guarantee of the whole run (host); raises ValueError for stacked fields."""
        check_unstacked(self, "dual_step_size", "num_records")
        change = float(self.dual_step_size) * self.score_range / float(self.num_records)
        etas = change * np.arange(self.sampler.steps)
        rho = float(np.sum(bounded_range_rho(etas)))
        event = PureZCDpEvent(rho, epsilon=math.fsum(etas))
        return Guarantee(event, self.relation, self.sampler.failure_probability())

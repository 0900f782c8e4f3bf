"""Query release by Frank-Wolfe in the dual: queries, or signs of marginals, picked privately."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from dp_accounting import dp_event as dpe

from dpjax.core import check_choice, check_int, check_unstacked, static_field
from dpjax.core._moved import moved_setting
from dpjax.privacy import Budget, Guarantee
from dpjax.problems import QueryRelease
from dpjax.queries import Marginals, Workload
from dpjax.sampling import FullBatch
from dpjax.solvers._request import (
    check_values,
    checked_answers,
    drawn_noise,
    requested_relation,
    within_budget,
)
from dpjax.solvers._summary import register_solver
from dpjax.solvers.queries import _selection as selection
from dpjax.solvers.queries._budget import Number, drawn_event, drawn_rho, largest_range
from dpjax.solvers.queries._selection import SelectionInfo, SelectionRelease, SelectionState

_VERTICES = ("queries", "marginals")
_SCHEDULES = ("constant", "sqrt")
_OUTPUTS = ("tail", "average", "last", "uniform")
_NOISES = ("gumbel", "laplace")
_CHOSEN = 2**31 - 1  # folded into the key for which step is put out; no step is that late


@register_solver
@dataclasses.dataclass(frozen=True)
class FrankWolfeRelease(SelectionRelease):
    r"""Frank-Wolfe on the entropy-regularised dual, towards vertices drawn privately.

    With $D_t = \mathrm{softmax}(M^\top w_t)$ from $w_0 = 0$, in each of T steps

    $$ s_t \sim \exp(\langle s, M (P_n - D_t) \rangle / \tau), \qquad
       w_{t+1} = (1 - \alpha \eta_t) w_t + \eta_t s_t $$

    where $\alpha \eta_t$ is capped at 1 and $\eta_t$ then at $1 / \alpha$. Vertices are all queries
    and their negatives, or all signs of the cells of one marginal, which moves a whole table in a
    step. At $\alpha = 0$ this is multiplicative weights.

    Guarantee: the draws are the mechanism; all else follows from them. A record changes the scores
    of a draw by a vector of range `score_range` / `num_records`, which follows from the workload
    and the relation and is checked against them; so a draw is of bounded range
    $\eta$ = `score_range` / (`num_records` $\tau$), and the event is T times `ZCDpEvent` of
    `dpjax.privacy.bounded_range_rho(eta)`. With Laplace noise a draw is $\eta$-DP, which is
    $\eta \tanh(\eta / 2)$-zCDP. Under add-or-remove-one single queries are scored centred at
    mid-range. `dpjax.privacy.BoundedRangeGuarantee` of the same draws is tighter, but does not
    compose. Idealised in one respect: scores are summed and sampled in floating point.

    | input | effect |
    | --- | --- |
    | `noise_scale` 0 | the best vertex; the event is non-private |
    | no record | raises |

    Attributes (data may be swept under `vmap`; static ones shape the program; all *public*):
      sampler: `FullBatch(T)` (static).
      noise_scale: tau, scale of the Gumbel or Laplace noise, in units of an answer (data).
      step_size: eta (data).
      num_records: n, by which counts are divided (data).
      score_range: Range of the change of n times the scores by one record (static).
      alpha: Weight of the entropy, >= 0 (data).
      vertices: `"queries"` or `"marginals"`, for `dpjax.queries.Marginals` alone (static).
      schedule: `"constant"`, or `"sqrt"` for $\eta_t = \eta / \sqrt{t + 1}$ (static).
      output: The mean distribution of the last half of the steps (`"tail"`) or of all
        (`"average"`), the `"last"`, or one of the first T at random (`"uniform"`) (static).
      noise: `"gumbel"`, or `"laplace"` on each score, as published (static).
      relation: Neighbouring relation of the guarantee (static).

    Raises:
      ValueError: If a value is outside its bound.
      TypeError: If the sampler is of another kind.

    Source: Micali, Lezane and Betken, "Differentially private algorithms for linear queries via
    stochastic convex optimization", 2024; Frank and Wolfe 1956; the exponential mechanism
    of McSherry and Talwar 2007; multiplicative weights of Hardt and Rothblum 2010.
    """

    sampler: FullBatch = dataclasses.field(metadata={"static": True})
    noise_scale: Number
    step_size: Number
    num_records: Number
    score_range: float = dataclasses.field(metadata={"static": True})
    alpha: Number = 0.0
    vertices: str = static_field(default="queries")
    schedule: str = static_field(default="constant")
    output: str = static_field(default="tail")
    noise: str = static_field(default="gumbel")
    relation: str = static_field(default="replace_one")

    def __post_init__(self) -> None:
        selection.check_selection(self, ("step_size",), ("noise_scale", "alpha"))
        check_values(self, vertices=_VERTICES, schedule=_SCHEDULES, output=_OUTPUTS, noise=_NOISES)
        if self.noise == "laplace" and self.vertices != "queries":
            raise ValueError(
                f"noise must be 'gumbel' for vertices = {self.vertices!r}, got {self.noise!r}"
            )

    @classmethod
    def for_budget(
        cls,
        problem: QueryRelease,
        num_records: int,
        budget: Budget,
        *,
        steps: int | None = None,
        vertices: str | None = None,
        as_published: bool = False,
        **overrides: Any,
    ) -> "FrankWolfeRelease":
        r"""The solver of so many steps whose noise just meets the budget.

        With single queries T is $n \sqrt{\rho \log k} / \log 2m$, at which the bound on the error
        is least, between 10 and 400 (runs got no better beyond), and
        $\eta = 0.8 \sqrt{2 \log k / T}$. With marginals T is 200 and the step falls as the root of
        its number.

        Args:
          problem: `QueryRelease`; the workload is used, never data.
          num_records: *Public* number of records (or near it, under add-or-remove-one).
          budget: epsilon, delta and relation to meet; the relation defaults to replace-one.
          steps: T, if it is to be fixed.
          vertices: Default: `"marginals"` where the workload is of marginals.
          as_published: Deprecated: use `dpjax.papers.query_release.frank_wolfe`.
          **overrides: `output`, `alpha`, `step_size`, or `noise_scale` at the caller's own risk of
            the budget.

        Returns:
          A solver whose `guarantee().epsilon(budget.delta) <= budget.epsilon`.

        Raises:
          ValueError: If a value is outside its bound, or the budget cannot be met.
          TypeError: If `num_records` or `steps` is not an integer, or an override no field.

        Example:
          >>> import dpjax
          >>> workload = dpjax.queries.Marginals.all_kway(dpjax.queries.Domain({"a": 4, "b": 5}), 1)
          >>> problem = dpjax.problems.QueryRelease(workload)
          >>> solver = FrankWolfeRelease.for_budget(problem, 1000, dpjax.Budget(1.0, 1e-6))
          >>> solver.guarantee().epsilon(1e-6) <= 1.0
          True
        """
        if as_published:
            make = moved_setting("query_release", "frank_wolfe", "as_published=True", depth=3)
            return make(problem, num_records, budget, steps=steps, **overrides)
        relation = requested_relation(cls, num_records, budget, overrides)
        workload = problem.workload
        vertices = vertices or ("marginals" if isinstance(workload, Marginals) else "queries")
        check_choice("vertices", vertices, _VERTICES)
        marginals = vertices == "marginals"
        if steps is None:
            steps = 200 if marginals else _steps(workload, num_records, budget)
        check_int("steps", steps, minimum=1)
        score_range = selection.needed_range(problem, relation, vertices)
        # a hair more, since the division is rounded
        scale = (1 + 1e-12) * score_range / (num_records * largest_range(budget, steps))
        step_size = 1.0 if marginals else 0.8 * math.sqrt(2 * _log_cells(workload) / steps)
        fields: dict[str, Any] = {"noise_scale": scale, "step_size": step_size}
        fields |= {"num_records": num_records, "score_range": score_range, "vertices": vertices}
        fields |= {"schedule": "sqrt" if marginals else "constant", "relation": relation}
        solver = cls(FullBatch(steps), **(fields | overrides))
        within_budget(solver, budget, overrides, "noise_scale")
        return checked_answers(solver, drawn_noise(solver.noise_scale, problem, steps), problem)

    @property
    def averaged(self) -> bool:  # type: ignore[override]
        """Whether an average is kept."""
        return self.output != "last"

    def reference(self, state: SelectionState) -> jax.Array:
        """The answers of the present distribution."""
        return state.current

    def sharpness(self, count: jax.Array) -> jax.Array:
        """1 / tau."""
        return 1 / jnp.asarray(self.noise_scale, float)

    def gains(self, count: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Of step `count`: alpha eta, and eta."""
        size = jnp.asarray(self.step_size, float)
        if self.schedule == "sqrt":
            size = size / jnp.sqrt(count + 1.0)
        alpha = jnp.asarray(self.alpha, float)
        capped = jnp.where(alpha > 0, 1 / jnp.where(alpha > 0, alpha, 1), jnp.inf)
        return jnp.minimum(1, alpha * size), jnp.minimum(size, capped)

    def share(self, state: SelectionState) -> jax.Array:
        """Of the new distribution, numbered `count + 1`."""
        number = state.count + 1
        if self.output == "average":
            return 1 / (number + 1.0)
        if self.output == "tail":
            return 1 / jnp.maximum(1.0, number - self.sampler.steps // 2)
        # each takes the place of the one kept with the odds that make all of them alike
        key = jax.random.fold_in(jax.random.fold_in(state.key, _CHOSEN), state.count)
        taken = jax.random.uniform(key) * (number + 1) < 1
        return (taken & (number < self.sampler.steps)).astype(float)

    def select(self, problem: QueryRelease, state: SelectionState) -> SelectionInfo:
        """The draw of a step."""
        if self.noise == "gumbel":
            return super().select(problem, state)
        key = jax.random.fold_in(state.key, state.count)
        gaps, rest = self.gaps(problem, state)
        sharpness = 1 / jnp.asarray(self.noise_scale, rest.dtype)
        scale = 1 / selection.per_half_record(sharpness, self, rest.dtype)
        return selection.loudest_query(key, gaps, scale, rest)

    def guarantee(self) -> Guarantee:
        """The guarantee of the whole run (host); raises ValueError for stacked fields."""
        check_unstacked(self, "noise_scale", "num_records")
        eta = self.score_range / float(self.num_records)
        one = drawn_event(eta, float(self.noise_scale), pure=self.noise == "laplace")
        event = dpe.SelfComposedDpEvent(one, self.sampler.steps)
        return Guarantee(event, self.relation, self.sampler.failure_probability())


def _log_cells(workload: Workload) -> float:
    return math.log(max(2, workload.universe_size))


def _steps(workload: Workload, num_records: int, budget: Budget) -> int:
    scale = num_records * math.sqrt(_log_cells(workload)) / math.log(2 * workload.num_queries)
    if budget.delta == 0:  # noise grows as T, not as its root
        best = (scale * budget.epsilon) ** (2 / 3)
    else:
        best = scale * math.sqrt(drawn_rho(budget))
    return min(400, max(10, round(best)))

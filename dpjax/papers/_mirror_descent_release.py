"""Query release by accelerated mirror descent on the regularised maximum."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from dp_accounting import dp_event as dpe

from dpjax.core import (
    PyTree,
    check_choice,
    check_int,
    check_positive,
    check_unstacked,
    derived,
    static_field,
)
from dpjax.core._moved import moved_setting
from dpjax.privacy import Budget, Guarantee
from dpjax.problems import QueryRelease
from dpjax.queries._workload import num_records, spread_cells
from dpjax.sampling import FullBatch
from dpjax.solvers import _request as requests
from dpjax.solvers._summary import register_solver
from dpjax.solvers.queries._budget import (
    Number,
    drawn_event,
    gaussian_event,
    gaussian_stddev,
    histogram_change,
    largest_range,
)
from dpjax.solvers.queries._selection import (
    SelectionInfo,
    SelectionRelease,
    SelectionState,
    check_selection,
    counts,
    select_query,
)
from dpjax.transforms.noise import _noisy_counts as counting

_NOISES = ("gumbel", "histogram-once", "per-step")
_ONCE = 2**31 - 1  # folded into the key for the noise drawn before the first step


@register_solver
@dataclasses.dataclass(frozen=True)
class MirrorDescentRelease(SelectionRelease):
    r"""Accelerated mirror descent on $\max_j |\langle q_j, P_n - D \rangle| + \alpha H(D)$.

    With $\gamma_t = 2 / (t + c + 2)$, $D_t = \mathrm{softmax}(M^\top w_t)$, its average
    $\bar D_t$, and s the signed query that is (noisily) worst at
    $(1 - \gamma_t) \bar D_t + \gamma_t D_t$,

    $$ w_{t+1} = (1 - \gamma_t) w_t + \frac{\gamma_t}{\alpha} s_t, \qquad
       \bar D_{t+1} = (1 - \gamma_t) \bar D_t + \gamma_t D_{t+1} $$

    Three ways to look at the data: a draw a step by the exponential mechanism (`"gumbel"`, the
    default); one noisy histogram, after which all steps are post-processing (`"histogram-once"`);
    or a fresh noisy histogram a step (`"per-step"`, as published). The last two have the same
    guarantee at noise $\sigma$ and $\sigma \sqrt T$, and one histogram tells no less than T.

    Guarantee: `"gumbel"` as `FrankWolfeRelease`. Otherwise Gaussian noise on the histogram by
    `num_records`, which a record moves by $\sqrt 2$ / n in the l2 norm under replace-one and 1 / n
    under add-or-remove-one; the event is one `GaussianDpEvent`, or T. The noise of counts
    is rounded to integers; its sampler's distance is declared as failure probability.

    | input | effect |
    | --- | --- |
    | `noise_scale` 0 | no noise; the event is non-private |
    | no record | raises |

    Attributes (data may be swept under `vmap`; static ones shape the program; all *public*):
      sampler: `FullBatch(T)` (static).
      noise_scale: tau of the Gumbel noise on answers, or sigma of the noise on each cell's share
        (data).
      alpha: Weight of the entropy, > 0 (data).
      offset: c, >= 0; larger is slower and smoother (data).
      smoothing: Scale of Gumbel noise on the scores of `"histogram-once"`, free of privacy (data).
      num_records: n, by which counts are divided (data).
      score_range: Range of the change of n times the scores by one record (static).
      noise: `"gumbel"`, `"histogram-once"` or `"per-step"` (static).
      relation: Neighbouring relation of the guarantee (static).

    Raises:
      ValueError: If a value is outside its bound.
      TypeError: If the sampler is of another kind.

    Source: Micali, Lezane and Betken, "Differentially private algorithms for linear queries via
    stochastic convex optimization", 2024; accelerated mirror descent of Lan 2012 and
    Tseng 2008, with the step for the entropy that makes its potential telescope.
    """

    sampler: FullBatch = dataclasses.field(metadata={"static": True})
    noise_scale: Number
    alpha: Number
    offset: Number
    num_records: Number
    score_range: float = dataclasses.field(metadata={"static": True})
    smoothing: Number = 0.0
    noise: str = static_field(default="gumbel")
    relation: str = static_field(default="replace_one")

    def __post_init__(self) -> None:
        check_selection(self, (), ("noise_scale", "offset", "smoothing"))
        check_positive("alpha", self.alpha)
        check_choice("noise", self.noise, _NOISES)

    @classmethod
    def for_budget(
        cls,
        problem: QueryRelease,
        num_records: int,
        budget: Budget,
        *,
        steps: int = 300,
        noise: str = "gumbel",
        as_published: bool = False,
        width: float | None = None,
        **overrides: Any,
    ) -> "MirrorDescentRelease":
        r"""The solver of so many steps whose noise just meets the budget.

        $\alpha = 0.6 / \sqrt{T \log k}$ and $c = \sqrt{8 / (\tau \alpha)} / 4$.

        Args:
          problem: As in `FrankWolfeRelease.for_budget`.
          num_records: As in `FrankWolfeRelease.for_budget`.
          budget: As in `FrankWolfeRelease.for_budget`.
          steps: T.
          noise: As the attribute.
          as_published: Deprecated: use `dpjax.papers.query_release.mirror_descent`.
          width: Deprecated, as `as_published`, which alone needs it.
          **overrides: `alpha`, `offset`, `smoothing`, or `noise_scale` at the caller's own risk of
            the budget.

        Returns:
          A solver whose `guarantee().epsilon(budget.delta) <= budget.epsilon`.

        Raises:
          ValueError: If a value is outside its bound, or the budget cannot be met.
          TypeError: If `num_records` or `steps` is not an integer, or an override no field.
        """
        if as_published:
            make = moved_setting("query_release", "mirror_descent", "as_published=True", depth=3)
            return make(problem, num_records, budget, width=width, **overrides)
        relation = requests.requested_relation(cls, num_records, budget, overrides)
        check_int("steps", steps, minimum=1)
        check_choice("noise", noise, _NOISES)
        log_k = math.log(max(2, problem.workload.universe_size))
        score_range = problem.sensitivity(relation).score_range
        change = histogram_change(relation) / num_records
        alpha = 0.6 / math.sqrt(steps * log_k)
        tau = score_range / (num_records * largest_range(budget, steps)) * (1 + 1e-12)
        if noise == "gumbel":
            scales = tau, 0.0
        else:
            draws = steps if noise == "per-step" else 1
            failure = 2 * draws * counting.MOST_SHORTFALL
            sigma = gaussian_stddev(change, budget, draws=draws, failure=failure)
            scales = sigma, tau if noise == "histogram-once" else 0.0
        offset = math.sqrt(8 / (tau * alpha / 16)) / 16
        fields: dict[str, Any] = {
            "noise_scale": scales[0],
            "smoothing": scales[1],
            "alpha": alpha,
            "offset": offset,
            "num_records": num_records,
            "score_range": score_range,
            "noise": noise,
            "relation": relation,
        }
        solver = cls(FullBatch(steps), **(fields | overrides))
        requests.within_budget(solver, budget, overrides, "noise_scale")
        if solver.noise == "gumbel":
            return requests.checked_answers(
                solver, requests.drawn_noise(solver.noise_scale, problem, steps), problem
            )
        draws = steps if solver.noise == "per-step" else 1
        return requests.checked_answers(solver, solver.noise_scale / math.sqrt(draws), problem)

    def init(self, problem: QueryRelease, *, key: jax.Array) -> SelectionState:
        """The state before the first step: uniform. The key (*secret*) is for the draws."""
        state = super().init(problem, key=key)
        if self.noise == "gumbel":
            return state
        if self.noise == "histogram-once":
            return state._replace(targets=jnp.zeros_like(state.weights))
        zeros = jnp.zeros(problem.workload.universe_size, jnp.int32)
        return state._replace(targets=spread_cells(problem.workload, zeros))

    def prologue(
        self, problem: QueryRelease, data: PyTree, state: SelectionState
    ) -> SelectionState:
        """Computes the targets, or draws the one noisy histogram that they are the answers of."""
        if self.noise == "gumbel":
            return super().prologue(problem, data, state)
        everyone = jnp.ones(num_records(data), bool)
        cells = counts(problem.workload, data, everyone)
        if self.noise == "per-step":
            return state._replace(targets=cells)
        noisy = self._noisy(cells, jax.random.fold_in(state.key, _ONCE))
        return state._replace(targets=problem.workload.answers(noisy))

    def select(self, problem: QueryRelease, state: SelectionState) -> SelectionInfo:
        """The draw of a step; of noisy answers it is post-processing."""
        if self.noise == "gumbel":
            return super().select(problem, state)
        key = jax.random.fold_in(state.key, state.count)
        gaps = self.noisy_answers(problem, state) - self.reference(state)
        return select_query(key, gaps, self.sharpness(state.count))

    def noisy_answers(self, problem: QueryRelease, state: SelectionState) -> jax.Array:
        """Answers `[m]` of the one noisy histogram, or of that of this step; *released*."""
        if self.noise == "histogram-once":
            return state.targets
        key = jax.random.fold_in(jax.random.fold_in(state.key, state.count), 1)
        return problem.workload.answers(self._noisy(state.targets, key))

    def _noisy(self, counts: jax.Array, key: jax.Array) -> jax.Array:
        # divided after the noise, for quotients are rounded by what a record does
        stddev = self.noise_scale * self.num_records
        return counting.noisy_counts(key, counts, stddev, self._tables) / self.num_records

    def reference(self, state: SelectionState) -> jax.Array:
        """Answers between those of the average and those of the present distribution."""
        return state.averaged + self._gamma(state.count) * (state.current - state.averaged)

    def sharpness(self, count: jax.Array) -> Any:
        """1 / tau; infinite where the scores are noisy already."""
        del count
        scales = {"gumbel": self.noise_scale, "histogram-once": self.smoothing, "per-step": 0.0}
        return 1 / jnp.asarray(scales[self.noise], float)

    def gains(self, count: jax.Array) -> tuple[Any, Any]:
        """Of step `count`: gamma, and gamma / alpha."""
        gamma = self._gamma(count)
        return gamma, gamma / self.alpha

    def share(self, state: SelectionState) -> Any:
        """Gamma."""
        return self._gamma(state.count)

    def _gamma(self, count: jax.Array) -> Any:
        return jnp.minimum(1.0, 2 / (count + jnp.asarray(self.offset, float) + 2))

    @derived
    def _tables(self) -> counting.CountTables | None:
        if self.noise == "gumbel":
            return None
        return counting.count_tables(self.noise_scale, self.num_records)

    def guarantee(self) -> Guarantee:
        """The guarantee of the whole run (host); raises ValueError for stacked fields."""
        check_unstacked(self, "noise_scale", "num_records")
        n, scale = float(self.num_records), float(self.noise_scale)
        failure = self.sampler.failure_probability()
        if self.noise == "gumbel":
            event = drawn_event(self.score_range / n, scale)
        else:
            event = gaussian_event(histogram_change(self.relation) / n, scale, self.relation)
            draws = self.sampler.steps if self.noise == "per-step" else 1
            # of the two cells that a record may change; all others have one law anyhow
            failure += 2 * draws * counting.noisy_counts_shortfall(n * scale)
        if self.noise != "histogram-once":
            event = dpe.SelfComposedDpEvent(event, self.sampler.steps)
        return Guarantee(event, self.relation, failure)

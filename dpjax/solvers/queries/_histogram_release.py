"""Query release from one noisy histogram."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax.core import PyTree, check_choice, check_key, check_unstacked, derived, static_field
from dpjax.privacy import Budget, Guarantee
from dpjax.problems import QueryRelease
from dpjax.queries._workload import spread_cells
from dpjax.sampling import FullBatch
from dpjax.solvers import _request as requests
from dpjax.solvers._summary import register_solver
from dpjax.solvers.queries import _budget as budgets
from dpjax.solvers.queries._selection import ReleasedDistribution, counts, log_of
from dpjax.transforms.noise import _noisy_counts as counting

_PROJECTIONS = ("simplex", "none")
_MOST_HIDDEN = 0.05  # noise of the sum of all cells, as a share of the records


class HistogramState(NamedTuple):
    """State of `HistogramRelease`.

    Attributes:
      noisy: The noisy shares of the cells, `[k]`; released.
      key: For the noise (*secret*).
    """

    noisy: jax.Array
    key: jax.Array


class Measurement:
    """Base of solvers that draw noise once, on sums of all records."""

    sampler: FullBatch
    stddev: budgets.Number
    num_records: budgets.Number
    relation: str

    def __post_init__(self) -> None:
        requests.check_once(self.sampler)
        requests.check_values(
            self, positive=("num_records",), nonnegative=("stddev",), relation=requests.RELATIONS
        )

    def _noisy(self, key: jax.Array, sums: jax.Array, group: np.ndarray | None = None) -> jax.Array:
        """Integer sums with rounded noise, as shares of the records."""
        # divided after the noise, for quotients are rounded by what a record does
        scales = jnp.asarray(self.stddev, float) * self.num_records
        return counting.noisy_counts(key, sums, scales, self._tables, group) / self.num_records

    @derived
    def _tables(self) -> counting.CountTables | None:
        return counting.count_tables(self.stddev, self.num_records)


@register_solver
@dataclasses.dataclass(frozen=True)
class HistogramRelease(Measurement):
    r"""Gaussian noise on the share of every cell, and the nearest distribution.

    $$ Y = \frac1n (c + \mathrm{round}(n \sigma \xi)), \qquad \xi \sim N(0, I_k) $$

    with c the counts of the cells and n `num_records`: integers are released, divided by n.
    With projection `"none"` the answers are those of Y, which are unbiased; the distribution is
    always the projection. Under add-or-remove-one Y is divided by its sum before, so that shares
    are of the records there are, unless noise hides that sum by more than 5%.

    Guarantee: one Gaussian release of the histogram, which a record moves by $\sqrt 2$ / n in the
    l2 norm under replace-one and by 1 / n under add-or-remove-one; `GaussianDpEvent`, which
    holds for rounded noise on counts too. The sampler's distance from it is declared as failure
    probability.

    | input | effect |
    | --- | --- |
    | `stddev` 0 | no noise; the event is non-private |
    | no record | raises |

    Attributes (data may be swept under `vmap`; static ones shape the program; all *public*):
      sampler: `FullBatch(1)` (static).
      stddev: sigma, in units of a share (data).
      num_records: n, by which counts are divided (data).
      projection: Of the answers: `"simplex"` or `"none"` (static).
      relation: Neighbouring relation of the guarantee (static).

    Raises:
      ValueError: If a value is outside its bound.
      TypeError: If the sampler is of another kind.

    Source: Dwork, McSherry, Nissim and Smith 2006.
    """

    sampler: FullBatch = dataclasses.field(metadata={"static": True})
    stddev: budgets.Number
    num_records: budgets.Number
    projection: str = static_field(default="simplex")
    relation: str = static_field(default="replace_one")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("projection", self.projection, _PROJECTIONS)

    @classmethod
    def for_budget(
        cls, problem: QueryRelease, num_records: int, budget: Budget, **overrides: Any
    ) -> "HistogramRelease":
        """The solver whose noise just meets the budget.

        Args:
          problem: `QueryRelease`.
          num_records: *Public* number of records (or near it, under add-or-remove-one).
          budget: epsilon, delta and relation to meet; the relation defaults to replace-one.
          **overrides: `projection`, or `stddev` at the caller's own risk of the budget.

        Returns:
          A solver whose `guarantee().epsilon(budget.delta) <= budget.epsilon`.

        Raises:
          ValueError: If a value is outside its bound, or the budget cannot be met.
          TypeError: If `num_records` is not an integer, or an override no field.

        Example:
          >>> import dpjax
          >>> workload = dpjax.queries.Marginals.all_kway(dpjax.queries.Domain({"a": 4, "b": 5}), 1)
          >>> problem = dpjax.problems.QueryRelease(workload)
          >>> solver = HistogramRelease.for_budget(problem, 1000, dpjax.Budget(1.0, 1e-6))
          >>> solver.guarantee().epsilon(1e-6) <= 1.0
          True
        """
        relation = requests.requested_relation(cls, num_records, budget, overrides)
        change = budgets.histogram_change(relation) / num_records
        stddev = budgets.gaussian_stddev(change, budget, failure=2 * counting.MOST_SHORTFALL)
        given: dict[str, Any] = {"stddev": stddev, "num_records": num_records, "relation": relation}
        solver = cls(FullBatch(1), **(given | overrides))
        return requests.checked_answers(solver, solver.stddev, problem)

    def init(self, problem: QueryRelease, *, key: jax.Array) -> HistogramState:
        """The state before the step; the key (*secret*) is for the noise."""
        check_key("key", key)
        zeros = jnp.zeros(problem.workload.universe_size)
        return HistogramState(spread_cells(problem.workload, zeros), key)

    def step(
        self, problem: QueryRelease, batch: PyTree, mask: jax.Array, state: HistogramState
    ) -> tuple[HistogramState, None]:
        """Draws the noisy histogram of all records."""
        dtype, (key, draw) = state.noisy.dtype, jax.random.split(state.key)
        cells = counts(problem.workload, batch, mask)
        return HistogramState(self._noisy(draw, cells).astype(dtype), key), None

    def finalize(self, problem: QueryRelease, state: HistogramState) -> ReleasedDistribution:
        """The nearest distribution in the l2 norm, and the answers."""
        nearest = optax.projections.projection_simplex(state.noisy / self.total(state.noisy))
        answered = state.noisy if self.projection == "none" else nearest
        return ReleasedDistribution(log_of(nearest), problem.workload.answers(answered))

    def total(self, noisy: jax.Array) -> jax.Array:
        """What noisy cells `[k]` say of the number of records, over the public number, `[]`.

        1 under replace-one, where that is their number, and where noise hides it.
        """
        hidden = jnp.asarray(self.stddev, float) * len(noisy) ** 0.5 > _MOST_HIDDEN
        unknown = hidden | (self.relation == "replace_one")
        return jnp.where(unknown, 1, jnp.maximum(jnp.sum(noisy), 1e-3))

    def guarantee(self) -> Guarantee:
        """The guarantee of the release (host); raises ValueError for stacked fields."""
        check_unstacked(self, "stddev", "num_records")
        change = budgets.histogram_change(self.relation) / float(self.num_records)
        event = budgets.gaussian_event(change, float(self.stddev), self.relation)
        # of the two cells that a record may change; all others have one law, whatever it is
        failure = 2 * counting.noisy_counts_shortfall(float(self.stddev) * float(self.num_records))
        return Guarantee(event, self.relation, self.sampler.failure_probability() + failure)

"""Query release by one Gaussian release of answers and a log-linear fit."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.core import PyTree, check_unstacked, derived, static_field
from dpjax.core._checks import check_int, check_key, check_positive, known_numbers
from dpjax.core._pairs import Pair
from dpjax.privacy import Budget, Guarantee
from dpjax.problems import QueryRelease
from dpjax.queries import Hierarchy, Marginals, Tree
from dpjax.queries._workload import Tables, Workload, check_sums
from dpjax.sampling import FullBatch
from dpjax.solvers._request import checked_answers, requested_relation
from dpjax.solvers._summary import register_solver
from dpjax.solvers.queries._budget import Number, gaussian_event, gaussian_stddev
from dpjax.solvers.queries._histogram_release import Measurement
from dpjax.solvers.queries._log_linear import fit_log_linear
from dpjax.solvers.queries._selection import ReleasedDistribution, counts
from dpjax.transforms.noise import _noisy_counts as counting
from dpjax.transforms.noise._independent import plus_gaussian

_PRIOR = 2.0, 0.5, 0.1  # of marginals, by the number of attributes
_SPREAD = 2.0  # variance of log probabilities under the prior of other queries
_PROBES = 8
_MOST_LONG_FITS = 2**20  # cells
FLOOR = 1e-6  # of noise that the fit assumes, in units of an answer, where there is none


class GaussianFitState(NamedTuple):
    """State of `GaussianFit`.

    Attributes:
      measured: Noisy answers of the measured queries, `[m]`; released.
      key: For the noise (*secret*).
    """

    measured: jax.Array
    key: jax.Array


@dataclasses.dataclass(frozen=True)
class AnswersMeasurement(Measurement):
    """Base of solvers that draw noise once, on the answers to a workload.

    Guarantee: one Gaussian release. A record moves the answers by `measured.sensitivity`, table by
    table divided by n, and the event is `GaussianDpEvent` of the l2 norm of these in units of the
    tables' noise. The distance of the sampler of integer noise from it is declared as failure
    probability.
    """

    sampler: FullBatch = dataclasses.field(metadata={"static": True})
    measured: Workload
    stddev: Number
    num_records: Number

    @classmethod
    def for_budget(
        cls,
        problem: QueryRelease,
        num_records: int,
        budget: Budget,
        *,
        measured: Workload | None = None,
        allocation: Sequence[float] | None = None,
        **overrides: Any,
    ) -> Self:
        r"""The solver whose noise just meets the budget.

        Args:
          problem: `QueryRelease`.
          num_records: *Public* number of records (or near it, under add-or-remove-one).
          budget: epsilon, delta and relation to meet; the relation defaults to replace-one.
          measured: What to measure; default: the workload of the problem.
          allocation: Relative precision $1 / \sigma^2$ of each marginal, `[c]`, > 0; to minimise a
            sum of weighted squared errors before the fit, the roots of the weights. Default: equal.
          **overrides: Fields of the fit, or `stddev` at the caller's own risk of the budget.

        Returns:
          A solver whose `guarantee().epsilon(budget.delta) <= budget.epsilon`.

        Raises:
          ValueError: If a value is outside its bound, or the budget cannot be met.
          TypeError: If `num_records` is not an integer, or an override no field.

        Example:
          >>> import dpjax
          >>> from dpjax.solvers import GaussianFit
          >>> workload = dpjax.queries.Marginals.all_kway(dpjax.queries.Domain({"a": 4, "b": 5}), 2)
          >>> problem = dpjax.problems.QueryRelease(workload)
          >>> solver = GaussianFit.for_budget(problem, 1000, dpjax.Budget(1.0, 1e-6))
          >>> solver.guarantee().epsilon(1e-6) <= 1.0
          True
        """
        relation = requested_relation(cls, num_records, budget, overrides)
        measured = problem.workload if measured is None else measured
        change = _changes(measured, relation, False) / num_records
        stddev = _stddev(measured, change, budget, allocation)
        given: dict[str, Any] = {"sampler": FullBatch(1), "measured": measured, "stddev": stddev}
        given |= {"num_records": num_records, "relation": relation}
        check_sums(num_records, measured.sensitivity("add_or_remove_one"))
        solver = cls(**(given | overrides))
        return checked_answers(solver, solver.stddev, problem)

    def init(self, problem: QueryRelease, *, key: jax.Array) -> GaussianFitState:
        """The state before the step; the key (*secret*) is for the noise."""
        check_key("key", key)
        have, want = self.measured.domain, problem.workload.domain
        if have != want:
            raise ValueError(f"measured must be over the domain of the workload {want}, got {have}")
        return GaussianFitState(jnp.zeros(self.measured.num_queries), key)

    def step(
        self, problem: QueryRelease, batch: PyTree, mask: jax.Array, state: GaussianFitState
    ) -> tuple[GaussianFitState, None]:
        """Draws the noisy answers of all records."""
        dtype, (key, draw) = state.measured.dtype, jax.random.split(state.key)
        sums = self._sums(batch, mask)
        if not isinstance(sums, Pair):
            noisy = self._noisy(draw, sums, None if jnp.ndim(self.stddev) == 0 else self._group())
        else:
            # divided after the noise, for quotients are rounded by what a record does
            noisy = plus_gaussian(draw, sums, self.stddevs() * self.num_records)
            noisy = noisy / self.num_records
        return GaussianFitState(noisy.astype(dtype), key), None

    def stddevs(self) -> jax.Array:
        """The noise of each measured answer, `[m]`."""
        stddev = jnp.asarray(self.stddev, float)
        if stddev.ndim == 0:
            return jnp.full(self.measured.num_queries, stddev)
        return stddev[self._group()]

    def _group(self) -> np.ndarray:
        """The marginal that each answer belongs to, `[m]`, where each has its own noise."""
        shape, measured = jnp.shape(self.stddev), self.measured
        if not isinstance(measured, Tables) or shape[0] != len(measured.sizes):
            raise ValueError(
                "stddev must be one number, or one for each marginal or level measured, got shape "
                f"{list(shape)}"
            )
        return measured.clique_of

    def total(self, values: jax.Array, noise: jax.Array) -> jax.Array | float:
        """What tables `[m]` of this noise say of the number of records, over the public number.

        1 under replace-one, where that is their number, and without tables; else in (0, inf).
        """
        measured = self.measured
        if self.relation == "replace_one" or not isinstance(measured, Tables):
            return 1.0
        weights = 1 / (jnp.square(noise) * jnp.asarray(measured.sizes)[measured.clique_of])
        first = jnp.asarray(measured.offsets)
        return jnp.maximum(jnp.sum(values * weights) / jnp.sum(weights[first]), 1e-3)

    def _sums(self, records: PyTree, mask: jax.Array) -> jax.Array | Pair:
        return self.measured.sums(counts(self.measured, records, mask), mask.shape[0])

    @derived
    def _tables(self) -> counting.CountTables | None:
        if not (isinstance(self.measured, Workload) and _moved(self.measured)):
            return None
        stddev = known_numbers("stddev", self.stddev)
        number = known_numbers("num_records", self.num_records)
        if stddev is None or number is None:
            return None
        if 0 < number.ndim < stddev.ndim:  # stacked, of one for each marginal
            number = number[..., None]
        tables = len(self.measured.sizes) if isinstance(self.measured, Tables) else None
        if stddev.shape == (tables,) and np.all(stddev == stddev[0]):
            stddev = stddev[0]  # one table for all
        return counting.count_tables(stddev, number)

    def guarantee(self) -> Guarantee:
        """The guarantee of the release (host); raises ValueError for stacked fields."""
        check_unstacked(self, "num_records")
        check_sums(int(self.num_records), self.measured.sensitivity("add_or_remove_one"))
        stddev = np.asarray(self.stddev, float)
        change = _changes(self.measured, self.relation, stddev.ndim == 0) / float(self.num_records)
        if np.any((stddev == 0) & (change > 0)):
            event = gaussian_event(1.0, 0.0, self.relation)
        else:
            ratio = np.divide(change, stddev, out=np.zeros_like(change), where=change > 0)
            event = gaussian_event(float(np.linalg.norm(ratio)), 1.0, self.relation)
        scales = np.atleast_1d(stddev) * float(self.num_records)
        shortfalls = sum(map(counting.noisy_counts_shortfall, scales))
        failure = _moved(self.measured) / scales.size * shortfalls
        return Guarantee(event, self.relation, self.sampler.failure_probability() + failure)


@register_solver
@dataclasses.dataclass(frozen=True)
class GaussianFit(AnswersMeasurement):
    r"""Gaussian noise on all answers at once, then the most probable log-linear distribution.

    $$ y_j = \langle q_j, P_n \rangle + \sigma_j \xi_j, \qquad
       \min_u \sum_j \frac{(\langle q_j, p(u) \rangle - y_j)^2}{2 \sigma_j^2}
       + \sum_i \frac14 \sqrt{1 + \frac{4 u_i^2}{\tau_i^2}} $$

    with $p(u) = \mathrm{softmax}(\sum_i u_i q_i)$. For marginals u has a weight for each cell of
    each table *below* the measured ones too, and the prior's scales tau go by the number of
    attributes: main effects are large, interactions of two smaller, of three smaller yet.
    So noise in a large table is smoothed towards what its margins say, and nothing needs to be
    stopped early or tuned. Under add-or-remove-one marginals are first divided by what they say of
    the number of records. The fit is post-processing.

    Where queries are integers the sums are released with noise rounded to integers, and divided by
    n after that.

    Guarantee: one Gaussian release. A record moves the answers by `measured.sensitivity`, table by
    table divided by n, and the event is `GaussianDpEvent` of the l2 norm of these in units of the
    tables' noise. The distance of the sampler of integer noise from it is declared as failure
    probability.

    | input | effect |
    | --- | --- |
    | `stddev` 0 | no noise; the event is non-private |
    | no record | raises |

    Attributes (data may be swept under `vmap`; static ones shape the program; all *public*):
      sampler: `FullBatch(1)` (static).
      measured: The workload that is measured; need not be the one that is answered (data).
      stddev: sigma in units of an answer, one number, or `[c]`, one for each marginal (data).
      num_records: n, by which counts are divided (data).
      prior: tau of weights of one, two, and three or more attributes; of other workloads' queries
        the first, in units of 1 / query; None for 2, 0.5, 0.1, and of other workloads for what
        gives log probabilities a variance of 2 (data).
      fit_steps: Most evaluations by L-BFGS, which ends from 100 on where 20 of them gain less than
        1e-3 an answer; None for 1000, or 100 of more than 2^20 cells (static).
      relation: Neighbouring relation of the guarantee (static).

    Raises:
      ValueError: If a value is outside its bound.
      TypeError: If the sampler is of another kind.

    Source: fits of noisy marginals of Barak et al. 2007 and McKenna, Sheldon and Miklau 2019; the
    hierarchical prior is that of log-linear models (Bishop, Fienberg and Holland 1975).
    """

    prior: Number | tuple[float, ...] | None = None
    fit_steps: int | None = static_field(default=None)
    relation: str = static_field(default="replace_one")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prior is None and isinstance(self.measured, Marginals):
            vars(self).update(prior=_PRIOR)
        if self.fit_steps is None and isinstance(self.measured, Workload):
            few = self.measured.universe_size <= _MOST_LONG_FITS
            vars(self).update(fit_steps=1000 if few else 100)
        check_positive("prior", self.prior)
        check_int("fit_steps", self.fit_steps, minimum=1)

    def finalize(self, problem: QueryRelease, state: GaussianFitState) -> ReleasedDistribution:
        """The fit, and its answers."""
        noise = jnp.maximum(self.stddevs(), FLOOR)
        total = self.total(state.measured, noise)
        values, noise = state.measured / total, noise / total
        queries, precision = self.measured, 1 / noise
        if isinstance(queries, Marginals):
            hierarchy = _hierarchy(queries)
            prior = jnp.asarray(self.prior, float)
            size = prior.shape[0] if prior.ndim else 1
            taus = jnp.atleast_1d(prior)[np.minimum(hierarchy.order, size) - 1]
            estimate, error = hierarchy.combine(values, noise)
            variance = jnp.square(jnp.clip(estimate, 0, 1) * (1 - jnp.clip(estimate, 0, 1)))
            scale = 1 / jnp.sqrt(variance / error**2 + 1 / taus**2)
            start = _start(hierarchy, estimate, error)
            queries = hierarchy.closure
            values, precision = hierarchy.lift(values), hierarchy.lift(precision)
        else:
            size = queries.universe_size
            if self.prior is None:
                probes = jax.random.rademacher(jax.random.fold_in(state.key, 1), (_PROBES, size))
                tau = _scale_of_weights(queries, probes.astype(values.dtype))
            else:
                tau = jnp.ravel(jnp.asarray(self.prior, float))[0]
            taus = jnp.full(noise.shape, tau)
            mean = queries.answers(jnp.full(size, 1 / size))
            # about the variance of each query under the uniform distribution
            spread = jnp.maximum(jnp.abs(mean - jnp.square(mean)), 1e-3)
            scale = 1 / jnp.sqrt((spread / noise) ** 2 + 1 / taus**2)
            start = jnp.zeros_like(noise)
            if isinstance(queries, Tree):
                start = _start_of_blocks(queries, values, noise)
        given = (values, precision, taus, start, scale)
        assert self.fit_steps is not None
        log_probs, _ = fit_log_linear(queries, *given, steps=self.fit_steps)
        return ReleasedDistribution(log_probs, problem.workload.answers(jnp.exp(log_probs)))


def _scale_of_weights(queries: Workload, probes: jax.Array) -> jax.Array:
    r"""The tau at which log p, of weights of variance tau^2, has a variance of 2 over the cells.

    From random signs `[P, k]`, for the trace of $M^\top M$ without what all cells share.
    """
    centred = probes - jnp.mean(probes, axis=1, keepdims=True)
    squares = jax.lax.map(lambda probe: jnp.sum(jnp.square(queries.answers(probe))), centred)
    each = jnp.mean(squares) / queries.universe_size
    return jnp.sqrt(_SPREAD / jnp.maximum(each, FLOOR))


def _moved(measured: Workload) -> int:
    """How many integer answers a record moves at most; noise on all others has one law anyhow."""
    most = 2 * len(measured.sizes) if isinstance(measured, Tables) else measured.num_queries
    return most if jnp.issubdtype(measured.sums_dtype, jnp.integer) else 0


def _changes(measured: Workload, relation: str, together: bool) -> np.ndarray:
    """L2 norm of what a record changes of n times the answers, in all or in each marginal."""
    if together or not isinstance(measured, Tables):
        return np.asarray(measured.sensitivity(relation).l2_answers)
    # a record is in one cell of each table, and replaced it leaves that for another
    varied = np.array(measured.sizes) > 1
    return np.sqrt(2.0 * varied) if relation == "replace_one" else np.ones(len(varied))


def _stddev(
    measured: Workload, change: np.ndarray, budget: Budget, allocation: Sequence[float] | None
) -> np.ndarray:
    if allocation is not None and not isinstance(measured, Tables):
        raise ValueError(f"allocation needs marginals or a tree, got {type(measured).__name__}")
    precision = np.ones_like(change) if allocation is None else np.asarray(allocation, float)
    check_positive("allocation", precision)
    if precision.shape != change.shape:
        raise ValueError(
            f"allocation must have one entry for each of {change.size} marginals, got shape "
            f"{list(precision.shape)}"
        )
    relative = 1 / np.sqrt(precision)
    # as if scaled to noise 1: the l2 norm of what a record changes
    total = float(np.sqrt(np.sum((change / relative) ** 2)))
    failure = _moved(measured) * counting.MOST_SHORTFALL
    return gaussian_stddev(total, budget, failure=failure) * relative


_hierarchy = functools.lru_cache(maxsize=16)(Hierarchy)


def _start(hierarchy: Hierarchy, estimate: jax.Array, spread: jax.Array) -> jax.Array:
    """Weights near those of the fit: logs of single attributes' shares, and half of what pairs add.

    Half, since what two attributes share with a third is counted in each of the three pairs.
    """
    single = jnp.asarray(hierarchy.order == 1)
    floored = jnp.maximum(estimate, spread / 2)
    logs = jnp.where(single, jnp.log(floored), 0)
    # about 0, as the prior is
    tables = jnp.asarray(hierarchy.closure.clique_of)
    sums = jax.ops.segment_sum(logs, tables, len(hierarchy.closure.sizes))
    logs = jnp.where(single, logs - (sums / jnp.asarray(hierarchy.closure.sizes))[tables], 0)
    cells, first, second = hierarchy.parents
    product = floored[first] * floored[second]
    excess = (estimate[cells] - product) / jnp.maximum(product, 2 * spread[cells])
    return logs.at[cells].set(0.5 * jnp.clip(excess, -1, 2))


def _start_of_blocks(tree: Tree, values: jax.Array, noise: jax.Array) -> jax.Array:
    """Weights near those of the fit: logs of the shares that parts have of a block, shrunk."""
    shares = jnp.maximum(values, 0) + noise
    weights: list[jax.Array] = []
    for first, size in zip(tree.offsets, tree.sizes, strict=True):
        own = shares[first : first + size]
        above = np.arange(size) // (tree.branching if weights else size)
        sums = jax.ops.segment_sum(own, above, int(above[-1]) + 1)
        weights.append(jnp.log(own * np.bincount(above)[above] / sums[above]))
    return jnp.concatenate(weights)

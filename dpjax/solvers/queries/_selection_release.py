"""The loop of query release by selection: compare, select, move, average."""

import abc
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from dpjax.core import PyTree, check_key, check_scalar, check_type
from dpjax.problems import QueryRelease
from dpjax.queries import Marginals
from dpjax.queries._workload import num_records
from dpjax.sampling import FullBatch
from dpjax.solvers._request import RELATIONS, check_values
from dpjax.solvers.queries._budget import Number
from dpjax.solvers.queries._state import (
    SHARPEST,
    ReleasedDistribution,
    SelectionInfo,
    SelectionState,
    distribution,
    fixed_point,
    log_of,
    select_marginal,
    select_query,
)
from dpjax.solvers.vertices._steps import shrunk


class SelectionRelease(abc.ABC):
    r"""One loop for Frank-Wolfe, accelerated mirror descent and mirror descent-ascent.

    With w the weights of the queries, $D = \mathrm{softmax}(M^\top w)$ and r the answers of a
    reference, each step draws a vertex s (a signed query, or the signs of a whole marginal) and

    $$ P[s] \propto e^{\beta_t \langle s, \mathrm{targets} - r \rangle}, \qquad
       w \leftarrow (1 - \gamma_t) w + g_t s, \qquad
       \bar D \leftarrow (1 - \lambda_t) \bar D + \lambda_t D $$

    A method says what its `reference`, `sharpness`, `gains` and `share` are. Data enter through the
    targets alone, which are computed once: a step reads no record.
    """

    sampler: FullBatch
    num_records: Number
    score_range: float
    relation: str
    vertices: str = "queries"
    averaged = True

    @abc.abstractmethod
    def reference(self, state: SelectionState) -> jax.Array:
        """Answers of the distribution that the targets are compared with, `[m]`."""

    @abc.abstractmethod
    def sharpness(self, count: jax.Array) -> jax.Array:
        """The inverse temperature of the draw of step `count`, in units of 1 / answer."""

    @abc.abstractmethod
    def gains(self, count: jax.Array) -> tuple[Number, Number]:
        """The share of the weights that is forgotten, and the weight of the vertex drawn."""

    @abc.abstractmethod
    def share(self, state: SelectionState) -> Number:
        """The share of the new distribution in the average."""

    def init(self, problem: QueryRelease, *, key: jax.Array) -> SelectionState:
        """The state before the first step: uniform. The key (*secret*) is for the draws."""
        check_key("key", key)
        if self.vertices == "marginals":
            tables_of(problem)
        bound = needed_range(problem, self.relation, self.vertices)
        if bound > self.score_range * (1 + 1e-9):
            raise ValueError(
                f"score_range must be >= {bound} for this workload under {self.relation}, got "
                f"{self.score_range}: for_budget sets it"
            )
        workload = problem.workload
        weights = jnp.zeros(workload.num_queries)
        uniform = distribution(workload, weights)
        current = workload.answers(uniform)
        kept = self.averaged
        return SelectionState(
            weights=weights,
            current=current,
            average=uniform if kept else None,
            averaged=current if kept else None,
            targets=problem.no_targets(),
            count=jnp.zeros((), jnp.int32),
            key=key,
        )

    def prologue(
        self, problem: QueryRelease, data: PyTree, state: SelectionState
    ) -> SelectionState:
        """Computes the targets, once."""
        problem.check_number(num_records(data))
        return state._replace(targets=problem.targets(data, centred=self.vertices == "queries"))

    def step(
        self, problem: QueryRelease, batch: PyTree, mask: jax.Array, state: SelectionState
    ) -> tuple[SelectionState, SelectionInfo]:
        """One draw and one move; records are not looked at."""
        info = self.select(problem, state)
        return self.move(problem, info, state), info

    def gaps(self, problem: QueryRelease, state: SelectionState) -> tuple[jax.Array, jax.Array]:
        """What the scores are made of, as by `QueryRelease.gaps`. **Not private**."""
        return problem.gaps(
            state.targets,
            self.reference(state),
            self.num_records,
            centred=self.vertices == "queries",
        )

    def select(self, problem: QueryRelease, state: SelectionState) -> SelectionInfo:
        """The draw of a step."""
        key = jax.random.fold_in(state.key, state.count)
        gaps, rest = self.gaps(problem, state)
        sharpness = self.sharpness(state.count)
        if self.vertices == "marginals":
            workload = tables_of(problem)
            # a record is in one cell of a marginal, or leaves it for another
            logit = 2 / (fixed_point(workload, rest.dtype) * float(jnp.finfo(rest.dtype).eps))
            sharpness = per_half_record(sharpness, self, rest.dtype, logit)
            return select_marginal(key, workload, gaps, sharpness, rest)
        return select_query(key, gaps, per_half_record(sharpness, self, rest.dtype), rest)

    def move(
        self, problem: QueryRelease, info: SelectionInfo, state: SelectionState
    ) -> SelectionState:
        """The state after what was drawn; data are not looked at."""
        workload = problem.workload
        forgotten, gain = self.gains(state.count)
        vertex = jnp.zeros_like(state.weights)
        signs = info.signs.astype(vertex.dtype)
        if self.vertices == "queries":
            vertex = vertex.at[info.index].set(signs[0])
        else:
            start = jnp.asarray(tables_of(problem).offsets)[info.index]
            vertex = vertex.at[start + jnp.arange(signs.shape[0])].add(signs, mode="drop")
        weights = jnp.astype((1 - forgotten) * state.weights + gain * vertex, state.weights.dtype)
        now = distribution(workload, weights)
        current = workload.answers(now).astype(state.current.dtype)
        average, averaged = state.average, state.averaged
        if self.averaged:
            share = jnp.asarray(self.share(state), now.dtype)
            average = average + share * (now - average)
            averaged = averaged + share.astype(current.dtype) * (current - averaged)
        return SelectionState(
            weights, current, average, averaged, state.targets, state.count + 1, state.key
        )

    def finalize(self, problem: QueryRelease, state: SelectionState) -> ReleasedDistribution:
        """The average, or the last distribution where none is kept."""
        if not self.averaged:
            last = distribution(problem.workload, state.weights)
            return ReleasedDistribution(log_of(last), state.current)
        return ReleasedDistribution(log_of(state.average), problem.workload.answers(state.average))

    def redact(self, state: SelectionState) -> SelectionState:
        """The state without the targets, which no draw covers."""
        return state._replace(targets=None)


def tables_of(problem: QueryRelease) -> Marginals:
    """The workload, whose tables are drawn; raises TypeError if it has none."""
    if not isinstance(problem.workload, Marginals):
        raise TypeError(
            "the workload must be Marginals for vertices = 'marginals', got "
            f"{type(problem.workload).__name__}"
        )
    return problem.workload


def per_half_record(
    sharpness: Number, solver: Any, dtype: DTypeLike, logit: float = 0.0
) -> jax.Array:
    """The sharpness in units of 1 / (half a record), less what rounding may add to the range.

    Args:
      sharpness: In units of 1 / answer; may be infinite.
      solver: Of `num_records` and `score_range`.
      dtype: Of the draw.
      logit: As of `shrunk`.
    """
    number = jnp.asarray(solver.num_records, dtype)
    sharpness = jnp.minimum(jnp.asarray(sharpness, dtype), SHARPEST)
    return shrunk(sharpness, sharpness * solver.score_range / number, dtype, logit) / (2 * number)


def needed_range(problem: QueryRelease, relation: str, vertices: str) -> float:
    """Range of the change of n times the scores of such vertices by one record."""
    sensitivity = problem.sensitivity(relation)
    if vertices == "queries":
        return float(sensitivity.score_range)
    # of signs of answers that are not centred; a table of one cell answers 1 for all records
    return 2 * float(max(sensitivity.score_range, sensitivity.linf))


def check_selection(solver: Any, positive: tuple[str, ...], nonnegative: tuple[str, ...]) -> None:
    """Raises unless the fields that all methods have are within their bounds."""
    what = "FullBatch, since the targets are of all records"
    check_type("sampler", solver.sampler, FullBatch, what)
    check_scalar("score_range", solver.score_range)
    positive = (*positive, "num_records", "score_range")
    check_values(solver, positive=positive, nonnegative=nonnegative, relation=RELATIONS)

"""Methods that draw queries one after another: their states, draws and steps."""

import abc
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from dpjax.core import PyTree, check_key, check_scalar, check_type, wide
from dpjax.core._pairs import Pair, add_pairs, pair_of, scale_pair
from dpjax.geometry import L1Ball, log_normalize, sample_vertices
from dpjax.problems import QueryRelease
from dpjax.queries import Marginals, Workload
from dpjax.queries._workload import check_counted, num_records, spread_cells
from dpjax.random._normal import laplace
from dpjax.sampling import FullBatch
from dpjax.solvers._request import RELATIONS, check_values
from dpjax.solvers.queries._budget import Number
from dpjax.solvers.vertices._steps import shrunk

SHARPEST = 1e30  # stands for infinity, of which no multiple of 0 is 0


class ReleasedDistribution(NamedTuple):
    """The result of a method of query release; post-processing of what its guarantee covers.

    Attributes:
      log_probs: Of each cell of the universe, `[k]`; they sum to 1 as probabilities.
      answers: Released answers, `[m]`: those of the distribution, unless the method says otherwise.
    """

    log_probs: jax.Array
    answers: jax.Array


class SelectionState(NamedTuple):
    """State of a method that moves a distribution towards queries it selects.

    Attributes:
      weights: Of the queries, `[m]`; the distribution is the softmax of their `adjoint`.
      current: Its answers, `[m]`.
      average: Running average of the distributions, `[k]`; None where none is kept.
      averaged: Its answers, `[m]`, or None.
      targets: What is compared with a distribution: `QueryRelease.targets`, `[m]`; or noisy
        answers (`histogram-once`); or the histogram `[k]`, if noise is added to it in each step.
        Follows from the data: *secret* (but for `histogram-once`), and redacted.
      count: Steps so far, `[]` int32.
      key: For the draws (*secret*).
    """

    weights: jax.Array
    current: jax.Array
    average: PyTree
    averaged: PyTree
    targets: PyTree
    count: jax.Array  # type: ignore[assignment]
    key: jax.Array


class SelectionInfo(NamedTuple):
    """Released in a step: what was selected.

    Attributes:
      index: Of the query, or of the marginal, `[]` int32.
      signs: 1 or -1: `[1]` of the query, or of the cells of the marginal and 0 beyond, `[largest]`;
        int8.
    """

    index: jax.Array  # type: ignore[assignment]
    signs: jax.Array


def distribution(workload: Workload, weights: jax.Array) -> jax.Array:
    """The softmax over the universe of the weighted sum of queries, `[k]`."""
    return jnp.exp(log_normalize(wide(workload.adjoint(weights))))


def counts(workload: Workload, records: ArrayLike, mask: jax.Array) -> jax.Array:
    """How many records that are not masked lie in each cell, `[k]` int32 (*secret*)."""
    zeros = spread_cells(workload, jnp.zeros(workload.universe_size, jnp.int32))
    check_counted(mask.shape[0])
    cells = workload.record_cells(records)
    return spread_cells(workload, zeros.at[cells].add(mask.astype(jnp.int32)))


def log_of(probabilities: jax.Array) -> jax.Array:
    """Log probabilities that sum to 1, of nonnegative numbers that nearly do, `[k]`."""
    return log_normalize(jnp.log(probabilities))


def select_query(
    key: jax.Array, gaps: jax.Array, sharpness: Number, rest: ArrayLike = 0.0
) -> SelectionInfo:
    r"""Draws a query and a sign from the softmax of `sharpness` times $\pm$ the gaps.

    Args:
      key: For the draw.
      gaps: `[m]`; integers are not rounded before the largest is subtracted.
      sharpness: Scalar.
      rest: Added to the gaps, small against them or their unit: `[m]`.
    """
    high, low = pair_of(gaps)
    size = gaps.shape[0]
    drawn = L1Ball(size, jnp.minimum(sharpness, SHARPEST)).sample(key, high, 1, low=low + rest)[0]
    return _signed_query(drawn, size)


def loudest_query(
    key: jax.Array, gaps: jax.Array, scale: Number, rest: ArrayLike = 0.0
) -> SelectionInfo:
    r"""The query and sign whose $\pm$ gap with fresh Laplace noise of this scale is largest.

    Gaps and rest are as for `select_query`.
    """
    top = jnp.max(jnp.abs(gaps))
    rest = jnp.broadcast_to(jnp.asarray(rest), gaps.shape)
    behind = jnp.concatenate([gaps - top, -gaps - top]).astype(float)
    behind = behind + jnp.concatenate([rest, -rest])
    noise = scale * laplace(key, behind.shape, behind.dtype)
    return _signed_query(jnp.argmax(behind + noise).astype(jnp.int32), gaps.shape[0])


def _signed_query(drawn: jax.Array, size: int) -> SelectionInfo:
    return SelectionInfo(drawn % size, jnp.where(drawn < size, 1, -1).astype(jnp.int8)[None])


def select_marginal(
    key: jax.Array, workload: Marginals, gaps: jax.Array, sharpness: Number, rest: ArrayLike = 0.0
) -> SelectionInfo:
    r"""Draws a marginal S and a sign of each of its cells, by the exponential mechanism.

    $$ P[S, s] \propto 2^{-|S|} \exp(\beta \sum_{c \in S} s_c d_c) $$

    which factorises: S by $\sum_c \log\cosh(\beta d_c)$, then each sign by a logistic function.

    Args:
      key: For the draw.
      workload: The marginals.
      gaps: d, `[m]`: integers, or floats of size at most 2^26.
      sharpness: beta, scalar.
      rest: Added to integer gaps, at most 1/2: `[m]`.
    """
    which, sign = jax.random.split(key)
    if not jnp.issubdtype(gaps.dtype, jnp.integer):
        whole = jnp.round(gaps)
        gaps, rest = whole.astype(int), gaps - whole
    rest = jnp.broadcast_to(jnp.asarray(rest), gaps.shape)
    sharpness = jnp.minimum(sharpness, SHARPEST).astype(rest.dtype)
    index = sample_vertices(which, marginal_logits(workload, gaps, sharpness, rest), 1)[0]
    # signs of the chosen marginal alone, by Gumbels whose tails reach far enough
    largest = max(workload.sizes)
    start = jnp.asarray(workload.offsets)[index]
    cells = jnp.arange(largest)
    inside = cells < jnp.asarray(workload.sizes)[index]
    places = jnp.minimum(start + cells, gaps.shape[0] - 1)
    chosen = jnp.where(inside, gaps[places].astype(rest.dtype) + rest[places], 0)
    up, down = jax.random.gumbel(sign, (2, largest), rest.dtype, mode="high")
    signs = jnp.where(chosen * sharpness + up >= down - chosen * sharpness, 1, -1)
    return SelectionInfo(index, jnp.where(inside, signs, 0).astype(jnp.int8))


def marginal_logits(
    workload: Marginals, gaps: jax.Array, sharpness: jax.Array, rest: jax.Array
) -> jax.Array:
    r"""Of each marginal, up to a common shift: $\sum_c \log\cosh(\beta d_c)$.

    With $\log\cosh x = |x| + \log(1 + e^{-2 |x|}) - \log 2$. All sums over cells are of integers,
    to which cells that a record is not in add the same in neighbours: the moduli of integer gaps,
    and of `rest` and logarithms multiples of a power of two. Differences from the marginal of the
    largest are rounded last.

    Args:
      workload: The marginals, N.
      gaps: Integers `[m]`.
      sharpness: beta, scalar.
      rest: `[m]`; d is the gaps and these.

    Returns:
      `[N]`.
    """
    cell = fixed_point(workload, rest.dtype)
    signs = jnp.where(gaps == 0, jnp.sign(rest), jnp.sign(gaps).astype(rest.dtype))
    energy = jnp.abs(gaps.astype(rest.dtype) + rest) * sharpness
    logs = jnp.log1p(jnp.exp(-2 * energy)) - jnp.log(2.0).astype(rest.dtype)
    parts = [jnp.abs(gaps)]
    parts += [jnp.round(part * cell).astype(gaps.dtype) for part in (signs * rest, logs)]
    zeros = jnp.zeros(len(workload.sizes), gaps.dtype).at[jnp.asarray(workload.clique_of)]
    sums = [zeros.add(part) for part in parts]
    top = jnp.argmax(sums[0])
    moduli, rests, least = (pair_of(each - each[top]) for each in sums)
    rests, least = (scale_pair(pair, 1 / cell) for pair in (rests, least))
    total = add_pairs(_times(add_pairs(moduli, rests), sharpness), least)
    return add_pairs(total, pair_of(jnp.broadcast_to(-jnp.max(total.high), total.high.shape))).high


def fixed_point(workload: Marginals, dtype: DTypeLike) -> float:
    """A power of two, such multiples of whose inverse below 1 add up over any marginal's cells."""
    bits = 30 if jnp.finfo(dtype).bits == 32 else 62
    return 2.0 ** (bits - (max(workload.sizes) - 1).bit_length())


def _times(pair: Pair, factor: jax.Array) -> Pair:
    """The product, to about the square of a float's precision (Veltkamp 1968; Dekker 1971)."""
    splitter = 2.0 ** ((jnp.finfo(factor.dtype).nmant + 2) // 2) + 1

    def halves(value: jax.Array) -> tuple[jax.Array, jax.Array]:
        large = splitter * value
        high = large - (large - value)
        return high, value - high

    product = pair.high * factor
    (a, b), (c, d) = halves(pair.high), halves(factor)
    lost = ((a * c - product) + a * d + b * c) + b * d
    return add_pairs(pair_of(product), pair_of(lost + pair.low * factor))


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
        check_range(self, "score_range", needed_range(problem, self.relation, self.vertices))
        workload = problem.workload
        weights = jnp.zeros(workload.num_queries)
        uniform = distribution(workload, weights)
        current = workload.answers(uniform)
        kept, mean = (uniform, current) if self.averaged else (None, None)
        count = jnp.zeros((), jnp.int32)
        return SelectionState(weights, current, kept, mean, problem.no_targets(), count, key)

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
        answers, centred = self.reference(state), self.vertices == "queries"
        return problem.gaps(state.targets, answers, self.num_records, centred=centred)

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
    what = "Marginals for vertices = 'marginals'"
    check_type("the workload", problem.workload, Marginals, what)
    return cast(Marginals, problem.workload)


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


def check_range(solver: Any, name: str, bound: float) -> None:
    """Raises ValueError if the workload needs a larger range than this field of the solver."""
    given = getattr(solver, name)
    if bound > given * (1 + 1e-9):
        raise ValueError(
            f"{name} must be >= {bound} for this workload under {solver.relation}, got {given}: "
            "for_budget sets it"
        )


def check_selection(solver: Any, positive: tuple[str, ...], nonnegative: tuple[str, ...]) -> None:
    """Raises unless the fields that all methods have are within their bounds."""
    what = "FullBatch, since the targets are of all records"
    check_type("sampler", solver.sampler, FullBatch, what)
    check_scalar("score_range", solver.score_range)
    positive = (*positive, "num_records", "score_range")
    check_values(solver, positive=positive, nonnegative=nonnegative, relation=RELATIONS)

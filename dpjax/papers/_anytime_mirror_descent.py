"""Anytime mirror descent on sampled vertices: convex risks over polytopes, in one pass."""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from dpjax.core import PyTree, check_int, static_field
from dpjax.core._pairs import add_pairs, pair_of, scale_pair
from dpjax.geometry import log_normalize, sample_vertices
from dpjax.papers._vertex_plan import (
    BlockProblem,
    Constants,
    Setting,
    VertexPlan,
    draw_grid,
    geometric,
    setting_of,
)
from dpjax.papers._vertex_solver import SinglePass, VertexSolver
from dpjax.privacy import Budget
from dpjax.solvers._summary import register_solver
from dpjax.solvers.vertices._steps import add_scores, coordinates, no_scores

OUTPUT_SHARE = 0.1  # of all draws, for the result
_LOG2_E = math.log2(math.e)


class AnytimeState(NamedTuple):
    """State of `AnytimeMirrorDescent`, over p coordinates and m vertices.

    Attributes:
      scores: Sum of gradients times step size, a pair of `[p]`, of `[m]` on a polytope; *secret*,
        and redacted by `dpjax.solve`, as the next.
      average: The sum of all iterates so far, as `(exponent, mass)` with $2^{exponent}$ times mass
        a vertex's sum, `[m]` each, mass a pair and the exponent that of the largest term: nothing
        under- or overflows, and the number of terms rounds nothing.
      indices: The vertices drawn last, `[K]` int32.
      count: Steps so far, `[]` int32.
      key: For the draws (*secret*).
    """

    scores: PyTree
    average: PyTree
    indices: jax.Array
    count: jax.Array  # type: ignore[assignment]
    key: jax.Array


@register_solver
@dataclasses.dataclass(frozen=True)
class AnytimeMirrorDescent(VertexSolver):
    r"""Mirror descent with gradients at vertices drawn from the *average* of its iterates.

    With $x_t$ the softmax of the scores and one disjoint batch $B_t$ a step,

    $$ w_t = \frac1t \sum_{i \le t} x_i, \qquad
       u \leftarrow u - \tau \nabla \ell(\hat w; B_t) $$

    where $\hat w$ is the mean of K vertices drawn from $w_t$, anew at the times 1 to q and at the
    multiples of q. The result is a last such mean.

    Guarantee: the draws are the mechanism. A record moves the scores of all iterates after its
    batch by one vector of range at most $\eta = c\,\tau\,\omega / b_t$ (as in
    `SaddleMirrorDescent`). A draw from $w_t$ is a draw from an iterate chosen without looking at
    the data, then forgotten, so it is $\eta^2/8$-zCDP as well. The event counts K draws at every
    refresh after a record's batch, for the batch where this comes to most. What rounding of scores
    and averages may add is taken off the step size.

    | input | effect |
    | --- | --- |
    | empty batch | scores stay |
    | NaN or inf in a record's gradient | contributes nothing (unless `assume_bounded`) |

    Attributes (data may be swept under `vmap`; static ones shape the program; all *public*):
      sampler: `TaperedPartition` or `DisjointPartition` (replace-one), or `IndependentPartition`;
        S steps, and the sizes to divide batch sums by (static).
      step_size: tau, of length 1 (data).
      grad_range: omega, of length 1, in units of a record's gradient (data).
      num_draws: K (static).
      refresh: q, steps between draws (static).
      output_draws: Vertices drawn for the result, once; None for K (static).
      assume_bounded: Skip the clipping: the caller answers for `grad_range` (static).
      relation: Neighbouring relation of the guarantee (static).

    Raises:
      ValueError: If a value is outside its bound.
      TypeError: If the sampler is of another kind.

    Source: González, Guzmán and Paquette, "Mirror descent algorithms with nearly
    dimension-independent rates for differentially-private stochastic saddle-point problems", 2024;
    anytime online-to-batch conversion of Cutkosky 2019; the exponential mechanism of
    McSherry and Talwar 2007; Maurey's sampling (Pisier 1981).
    """

    sampler: SinglePass = dataclasses.field(metadata={"static": True})
    step_size: PyTree
    grad_range: PyTree
    num_draws: int = static_field(default=1)
    refresh: int = static_field(default=1)
    output_draws: int | None = static_field(default=None)
    assume_bounded: bool = static_field(default=False)
    relation: str = static_field(default="replace_one")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("num_draws", self.num_draws, minimum=1)
        check_int("refresh", self.refresh, minimum=1)
        if self.output_draws is not None:
            check_int("output_draws", self.output_draws, minimum=1)

    @classmethod
    def plan(
        cls,
        problem: BlockProblem,
        num_records: int,
        budget: Budget,
        *,
        certified: bool = False,
        steps: int | None = None,
        num_draws: int | None = None,
        refresh: int | None = None,
    ) -> VertexPlan:
        r"""Steps, draws, refreshes and step size from explicit bounds and public constants alone.

        The least over integers T, K and q of

        $$ \frac{\ell}{\tau T} + \frac{\tau L^2}{2} + \min\Big(\frac{4 L_2}{K},
           \frac{8 L_1}{\sqrt K} \Big) + \frac{2 L_1}{K'} + 1_{q > 1} \Big(4 \tau q A_K^2 +
           \frac{4 L_1 q (1 + \log(T/q))}{T}\Big), \qquad \tau \le \frac{1}{4 L q} $$

        with $A_K = 2 L_2 / K + L_1 \sqrt{2 (1 + \log 2m) / K}$, under the privacy budget, and
        K' draws for the result.

        Args:
          problem: `SimplexRisk`; its constants are used, never data.
          num_records: *Public* number of records (a bound on it under add-or-remove-one).
          budget: What must hold; the relation defaults to replace-one.
          certified: Whether to minimise the bound itself, rather than what is typical, as in
            `SaddleMirrorDescent.plan`.
          steps: Number of steps, if it is to be fixed.
          num_draws: K, if it is to be fixed.
          refresh: q, if it is to be fixed.

        Returns:
          The plan, with its bound on the expected excess risk.

        Raises:
          ValueError: If a value is outside its bound, or the budget cannot be met.
          TypeError: If `problem` is none over vertices, or `budget` no `Budget`.

        Example:
          >>> import dpjax
          >>> ball = dpjax.geometry.L1Ball(100)
          >>> problem = dpjax.problems.SimplexRisk.linear(
          ...     lambda margin, y: 0.5 * (margin - y) ** 2, ball, grad_range=4.0, smoothness=1.0)
          >>> plan = AnytimeMirrorDescent.plan(problem, 100_000, dpjax.Budget(1.0, 1e-6))
          >>> plan.steps > 10
          True
        """
        setting = setting_of(problem, num_records, budget, certified, one_block=True)
        return _best_plan(
            setting,
            setting.candidates("steps", steps, lambda n: geometric(n, 250)),
            setting.candidates("num_draws", num_draws, lambda n: draw_grid(n)[:250]),
            setting.candidates("refresh", refresh, lambda n: geometric(min(n, 2000), 40)),
        )

    def start(self, problem: BlockProblem, key: PyTree) -> AnytimeState:
        """The state before the first step."""
        (domain,) = problem.domains
        m = domain.num_vertices
        return AnytimeState(
            no_scores(domain),
            (jnp.full(m, -jnp.inf), pair_of(jnp.zeros(m))),
            jnp.zeros(self.num_draws, jnp.int32),
            jnp.zeros((), jnp.int32),
            key,
        )

    def prepare(self, problem: BlockProblem, state: AnytimeState) -> AnytimeState:
        """Adds the present iterate to the average."""
        iterate = log_normalize(coordinates(problem.domains[0]).logits(*state.scores))
        exponent, mass = state.average
        scaled = iterate * _LOG2_E
        largest = jnp.maximum(exponent, jnp.floor(scaled))
        # powers of two change no digit: what is rounded is each term, once
        mass = scale_pair(mass, _two_to(exponent - largest, iterate.dtype))
        mass = add_pairs(mass, pair_of(jnp.exp2(scaled - largest)))
        return state._replace(average=(largest, mass))

    def logits(self, problem: BlockProblem, state: AnytimeState) -> tuple[jax.Array]:
        """What a draw now is the softmax of, `[m]`, up to a shift. **Not private**."""
        del problem
        exponent, mass = state.average
        return (exponent / _LOG2_E + jnp.log(mass.high),)

    def draws_now(self, state: AnytimeState) -> jax.Array:
        """Whether this step draws anew."""
        time = state.count + 1
        return (time <= self.refresh) | (time % self.refresh == 0)

    def sample(self, problem: BlockProblem, state: AnytimeState) -> tuple[jax.Array]:
        """Vertices `[K]` from the average if it is time, else those drawn last."""
        key = jax.random.fold_in(state.key, state.count)

        def draw(state: AnytimeState) -> jax.Array:
            return sample_vertices(key, self.logits(problem, state)[0], self.num_draws)

        if self.refresh == 1:
            return (draw(state),)
        return (jax.lax.cond(self.draws_now(state), draw, lambda state: state.indices, state),)

    def accept(
        self, problem: BlockProblem, indices: tuple[jax.Array], state: AnytimeState
    ) -> AnytimeState:
        """Keeps the vertices to take gradients at."""
        del problem
        return state._replace(indices=indices[0])

    def advance(
        self, problem: BlockProblem, batch: PyTree, mask: jax.Array, state: AnytimeState
    ) -> AnytimeState:
        """The part of a step that sees data: new scores, given what was drawn."""
        gradients = problem.gradients_at_vertices((state.indices,), batch)
        # of an average's logits: of logarithms up to 65 in base 2, in terms and in the sum
        weights = self._step_weights(state.count, state.scores.high.dtype, logit=700)
        (term,) = self._sums(problem, gradients, mask, weights)
        scores = add_scores(problem.domains[0], state.scores, term, 1)
        return state._replace(scores=scores, count=state.count + 1)

    def finalize(self, problem: BlockProblem, state: AnytimeState) -> PyTree:
        """The mean of vertices drawn from the average of all iterates."""
        (logits,) = self.logits(problem, self.prepare(problem, state))
        key = jax.random.fold_in(state.key, state.count)
        indices = sample_vertices(key, logits, self._last_draws)
        return problem.assemble((problem.domains[0].average(indices),))

    def redact(self, state: AnytimeState) -> AnytimeState:
        """The state without what no draw covers."""
        return state._replace(scores=None, average=None)

    def _exposure(self) -> tuple[np.ndarray, float]:
        left = refreshes_left(self.sampler.steps, self.refresh)
        return self.num_draws * (left - 1) + self._last_draws, 1.0

    @staticmethod
    def _tail(plan: PyTree) -> int:
        return taper_tail(plan.output_draws, plan.num_draws, plan.refresh)

    @property
    def _last_draws(self) -> int:
        return self.num_draws if self.output_draws is None else self.output_draws


def output_draws(steps: int, num_draws: int, refresh: int) -> int:
    """Draws for the result: a tenth of all others, since they are drawn only once."""
    return max(num_draws, math.ceil(OUTPUT_SHARE * num_draws * refreshes_left(steps, refresh)[0]))


def taper_tail(output: int, num_draws: int, refresh: int) -> int:
    """The draws for the result in units of a step's draws."""
    return (output - num_draws) * refresh // num_draws


def refreshes_left(steps: int, refresh: int) -> np.ndarray:
    """Draws after each batch, `[steps]`: at times 2..q, at multiples of q, and after the last.

    Batch t (from 0) is used between times t + 1 and t + 2; there are steps + 1 times.
    """
    times = np.arange(1, steps + 2)
    drawn = (times <= refresh) | (times % refresh == 0) | (times == steps + 1)
    return np.cumsum(drawn[::-1])[::-1][1:]


def _best_plan(
    setting: Setting, steps: np.ndarray, draws: np.ndarray, refreshes: np.ndarray
) -> VertexPlan:
    """The best plan of the anytime method over numbers of steps, draws and refreshes."""
    grids = (steps, draws, refreshes)
    many, count, every = np.meshgrid(*grids, indexing="ij", sparse=True)
    last = np.maximum(count, OUTPUT_SHARE * count * many / every)
    number = count * (1 / every + every / many + OUTPUT_SHARE)  # of draws a step, about
    candidates = _Bound(setting.constants, many + 1, count, every, last)
    sizes = candidates.best_size(setting.about_room(many, number), setting.typical)
    objective = np.where(every <= many + 1, candidates.at(sizes, setting.typical), np.inf)
    at = np.unravel_index(int(np.argmin(objective)), objective.shape)
    chosen, k, q = (int(grid[i]) for grid, i in zip(grids, at, strict=True))
    last_k = output_draws(chosen, k, q)
    left = k * (refreshes_left(chosen, q) - 1) + last_k
    room = setting.room(left, taper_tail(last_k, k, q))
    bound = _Bound(setting.constants, *(np.asarray(float(v)) for v in (chosen + 1, k, q, last_k)))
    size = bound.best_size(room, setting.typical)
    step_size = (float(size) / setting.constants.half_ranges[0],)
    stated = float(bound.at(size, (1.0, 1.0)))
    return VertexPlan(chosen, k, q, step_size, "anytime", stated, last_k)


class _Bound(NamedTuple):
    """The bound of the anytime method, for arrays of T iterates, K draws, q, and K' at the end.

    `weights` multiply sampling errors and squared gradients.
    """

    constants: Constants
    iterates: np.ndarray
    draws: np.ndarray
    every: np.ndarray
    last: np.ndarray

    def best_size(self, room: np.ndarray, weights: tuple[float, float]) -> np.ndarray:
        """The best size tau L within the room."""
        half, log_m = self.constants.half_ranges[0], self.constants.log_vertices[0]
        slope = weights[1] * half / 2 + weights[0] * self._drift()
        free = np.sqrt(log_m * half / self.iterates / slope)
        most = np.where(self.every > 1, 1 / (4 * self.every), np.inf)
        return np.minimum(np.minimum(free, room), most)

    def at(self, size: np.ndarray, weights: tuple[float, float]) -> np.ndarray:
        """The bound at a size tau L."""
        half, log_m = self.constants.half_ranges[0], self.constants.log_vertices[0]
        smooth, third = self.constants.joint_smoothness, self.constants.third_order
        held = 4 * smooth * self.every * (1 + np.log(self.iterates / self.every)) / self.iterates
        sampling = (
            np.minimum(4 * third / self.draws, 8 * smooth / np.sqrt(self.draws))
            + 2 * smooth / self.last
            + size * self._drift()
            + np.where(self.every > 1, held, 0)
        )
        regret = log_m * half / (size * self.iterates) + weights[1] * half * size / 2
        return regret + weights[0] * sampling

    def _drift(self) -> np.ndarray:
        """How gradients change between two draws, in units of tau L; A_K^2 is its last factor.

        That is the mean square of the largest change of a gradient by sampling K vertices.
        """
        smooth, third = self.constants.joint_smoothness, self.constants.third_order
        spread = np.sqrt(2 * (1 + math.log(2) + self.constants.log_vertices[0]) / self.draws)
        variation = np.minimum(2 * third / self.draws + smooth * spread, 2 * smooth) ** 2
        return 4 * self.every * variation / self.constants.half_ranges[0] * (self.every > 1)


def _two_to(exponent: jax.Array, dtype: DTypeLike) -> jax.Array:
    """2 to integers `<= 0`, given as floats, exactly; 0 below the normal range and for -inf."""
    info = jnp.finfo(dtype)
    integers = jnp.dtype(f"int{info.bits}")
    bias = info.maxexp - 1
    biased = jnp.maximum(exponent, -bias).astype(integers) + np.array(bias, integers)
    return jax.lax.bitcast_convert_type(biased << info.nmant, info.dtype)

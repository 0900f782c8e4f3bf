"""Entropic mirror descent on sampled vertices: saddle points and convex risks, in one pass."""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.core import PyTree, check_choice, check_int, check_key, static_field
from dpjax.privacy import Budget
from dpjax.solvers._summary import register_solver
from dpjax.solvers._vertex_problem import VertexProblem
from dpjax.solvers.vertices._plan import (
    Constants,
    Setting,
    VertexPlan,
    draw_grid,
    geometric,
    setting_of,
)
from dpjax.solvers.vertices._steps import add_scores, draw_vertices, no_scores, range_sums
from dpjax.solvers.vertices._vertex_solver import SinglePass, VertexSolver

OUTPUTS = ("played", "fresh")


class MirrorState(NamedTuple):
    """State of `SaddleMirrorDescent`; one entry a block in each tuple.

    Attributes:
      scores: Sums of gradients times step size, pairs of `[p]`, of `[m]` on a polytope. They follow
        from the data: *secret*, and redacted by `dpjax.solve`.
      counts: How often each vertex was drawn for the output, `[m]` int32.
      played: The vertices drawn last, `[K]` int32.
      count: Steps so far, `[]` int32.
      key: For the draws (*secret*).
    """

    scores: PyTree
    counts: tuple[jax.Array, ...]
    played: tuple[jax.Array, ...]
    count: jax.Array  # type: ignore[assignment]
    key: jax.Array


@register_solver
@dataclasses.dataclass(frozen=True)
class SaddleMirrorDescent(VertexSolver):
    r"""Mirror descent-ascent in which vertices drawn from the iterates are all that is released.

    With one disjoint batch $B_t$ a step, the gradient averaged over it, and $\hat x_t, \hat y_t$
    the means of K vertices drawn from the softmax of the scores u and v,

    $$ u \leftarrow u - \tau_x \nabla_x f(\hat x_t, \hat y_t; B_t), \qquad
       v \leftarrow v + \tau_y \nabla_y f(\hat x_t, \hat y_t; B_t) $$

    The result is the mean of the points drawn. Works with `dpjax.problems.Saddle`, and with
    `SimplexRisk`, which has one block: then it is private stochastic convex optimisation, and the
    result one point.

    Guarantee: the draws are the mechanism. A record moves the scores of one block, in all draws
    after its batch, by one vector of range at most $\eta = c\,\tau\,\omega / b_t$, with omega
    `grad_range` (enforced by scaling each record's gradient), $b_t$ the public size of its batch
    and c = 2 under replace-one, 1 under add-or-remove-one (each record picks its batch on its own).
    So each draw is $\eta^2/8$-zCDP, and a record of batch t meets $(S - t) K$ of them a block, t
    from 0 ($K + 1$ for K if fresh): the draws after the last step included, those before its own
    left out. The event is that of the batch where this comes to most. Scores are sums of centred
    gradients, exact in twice the precision; what rounding remains is taken off the step sizes.

    | input | effect |
    | --- | --- |
    | empty batch | scores stay |
    | NaN or inf in a record's gradient | contributes nothing (unless `assume_bounded`) |

    Attributes (data may be swept under `vmap`; static ones shape the program; all *public*):
      sampler: `TaperedPartition` or `DisjointPartition` (replace-one), or `IndependentPartition`;
        S steps, and the sizes to divide batch sums by (static).
      step_size: tau of each block (data).
      grad_range: omega of each block, in units of a record's gradient (data).
      num_draws: K, vertices that stand for an iterate (static).
      output: `"played"`, the mean of the points at which gradients were taken; `"fresh"`, of one
        more draw a step, which those gradients do not depend on (static).
      assume_bounded: Skip the clipping: the caller answers for `grad_range` (static).
      relation: Neighbouring relation of the guarantee (static).

    Raises:
      ValueError: If a value is outside its bound.
      TypeError: If the sampler is of another kind.

    Source: González, Guzmán and Paquette, "Mirror descent algorithms with nearly
    dimension-independent rates for differentially-private stochastic saddle-point problems", 2024;
    mirror descent for saddle points of Nemirovski, Juditsky, Lan and Shapiro 2009; the
    exponential mechanism of McSherry and Talwar 2007; Maurey's sampling (Pisier 1981).
    """

    sampler: SinglePass = dataclasses.field(metadata={"static": True})
    step_size: PyTree
    grad_range: PyTree
    num_draws: int = static_field(default=1)
    output: str = static_field(default="played")
    assume_bounded: bool = static_field(default=False)
    relation: str = static_field(default="replace_one")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("num_draws", self.num_draws, minimum=1)
        check_choice("output", self.output, OUTPUTS)

    @classmethod
    def plan(
        cls,
        problem: VertexProblem,
        num_records: int,
        budget: Budget,
        *,
        output: str | None = None,
        certified: bool = False,
        steps: int | None = None,
        num_draws: int | None = None,
    ) -> VertexPlan:
        r"""Steps, draws and step sizes from explicit bounds and public constants alone.

        With blocks b of half-ranges $L_b$ and $\ell_b = \log m_b$, after T iterates of K draws,

        $$ \sum_b \frac{2 \ell_b}{\tau_b T} + \frac52 \tau_b L_b^2 + \text{(sampling error)}, \qquad
           \sum_b (\tau_b L_b)^2 \le \frac{2 \rho}{c^2 K'} \min_t \frac{b_t^2}{T - 1 - t} $$

        for saddle points, and $\ell / (\tau T) + \tau L^2 / 2$ for one block, is least over
        integers. The second inequality is the privacy budget: c is 2 under replace-one, else 1, K'
        the draws a step and block, and $b_t$ the sizes of tapered batches.

        Args:
          problem: `Saddle` or `SimplexRisk`; its constants are used, never data.
          num_records: *Public* number of records (a bound on it under add-or-remove-one).
          budget: What must hold; the relation defaults to replace-one.
          output: `"played"`, `"fresh"`, or None for the better bound.
          certified: Whether to minimise the bound itself, rather than what is typical: the bound
            without its worst case over comparators, with a fifth of the sampling error and, for one
            block, a tenth of the squared gradients, which is about what runs on synthetic games
            and regressions show. Either way the plan's `bound` is the bound.
          steps: Number of steps, if it is to be fixed.
          num_draws: Number of draws, if it is to be fixed.

        Returns:
          The plan, with its bound on the expected duality gap or excess risk.

        Raises:
          ValueError: If a value is outside its bound, or the budget cannot be met.
          TypeError: If `problem` is none over vertices, or `budget` no `Budget`.

        Example:
          >>> import dpjax
          >>> game = dpjax.problems.Saddle.matrix_game((1000, 1000))
          >>> plan = SaddleMirrorDescent.plan(game, 1_000_000, dpjax.Budget(1.0, 1e-8))
          >>> plan.num_draws, round(plan.bound, 2)
          (1, 0.11)
        """
        setting = setting_of(problem, num_records, budget, certified)
        grids = (
            setting.candidates("steps", steps, lambda n: geometric(n, 2000)),
            setting.candidates("num_draws", num_draws, draw_grid),
        )
        kinds = OUTPUTS if output is None else (output,)
        return min(_best_plan(setting, kind, *grids) for kind in kinds)[1]

    def init(self, problem: VertexProblem, *, key: jax.Array) -> MirrorState:
        """The state before the first step; the key (*secret*) is for the draws."""
        return MirrorState(
            tuple(map(no_scores, problem.domains)),
            tuple(jnp.zeros(d.num_vertices, jnp.int32) for d in problem.domains),
            tuple(jnp.zeros(self.num_draws, jnp.int32) for _ in problem.domains),
            jnp.zeros((), jnp.int32),
            check_key("key", key),
        )

    def draws_now(self, state: MirrorState) -> bool:
        """Every step draws."""
        del state
        return True

    def sample(self, problem: VertexProblem, state: MirrorState) -> tuple[jax.Array, ...]:
        """Vertices of each block, `[K]`, or `[K + 1]` with a fresh one at the end."""
        now = jax.random.fold_in(state.key, state.count)
        return tuple(
            draw_vertices(jax.random.fold_in(now, b), domain, score, self._draws)
            for b, (domain, score) in enumerate(zip(problem.domains, state.scores, strict=True))
        )

    def accept(
        self, problem: VertexProblem, indices: tuple[jax.Array, ...], state: MirrorState
    ) -> MirrorState:
        """Counts the vertices that make up the output, and keeps those to take gradients at."""
        del problem
        k = self.num_draws
        counts = tuple(
            count.at[drawn[k:] if self.output == "fresh" else drawn].add(1)
            for count, drawn in zip(state.counts, indices, strict=True)
        )
        return state._replace(counts=counts, played=tuple(drawn[:k] for drawn in indices))

    def advance(
        self, problem: VertexProblem, batch: PyTree, mask: jax.Array, state: MirrorState
    ) -> MirrorState:
        """The part of a step that sees data: new scores, given what was drawn."""
        gradients = problem.gradients_at_vertices(state.played, batch)
        weights = self._step_weights(state.count, state.scores[0].high.dtype)
        terms = range_sums(
            problem.domains, gradients, mask, self.grad_range, weights, self.assume_bounded
        )
        scores = tuple(map(add_scores, problem.domains, state.scores, terms, problem.signs))
        return state._replace(scores=scores, count=state.count + 1)

    def finalize(self, problem: VertexProblem, state: MirrorState) -> PyTree:
        """The mean of the points drawn in every step, and once more after the last."""
        counts = self.accept(problem, self.sample(problem, state), state).counts
        drawn = (state.count + 1) * (self.num_draws if self.output == "played" else 1)
        return problem.assemble(
            tuple(
                domain.point(count.astype(float) / drawn)
                for domain, count in zip(problem.domains, counts, strict=True)
            )
        )

    def _exposure(self) -> tuple[np.ndarray, float]:
        return self._draws * np.arange(self.sampler.steps, 0, -1), 1.0

    @property
    def _draws(self) -> int:
        return self.num_draws + (self.output == "fresh")


def _best_plan(
    setting: Setting, output: str, steps: np.ndarray, draws: np.ndarray
) -> tuple[float, VertexPlan]:
    """The least objective of mirror descent over numbers of steps and of draws, and its plan."""
    steps, draws = steps[:, None], draws[None, :]
    fresh = output == "fresh"
    sampling = _sampling_error(setting.constants, steps + 1, draws, output)
    _, objective = _step_sizes(setting, steps + 1, setting.about_room(steps, draws + fresh))
    objective = objective + setting.typical[0] * sampling
    at = np.unravel_index(int(np.argmin(objective)), objective.shape)
    chosen, count = int(steps[at[0], 0]), int(draws[0, at[1]])
    room = setting.room((count + fresh) * np.arange(chosen, 0, -1))
    sizes, _ = _step_sizes(setting, np.array(chosen + 1), room)
    terms = _terms(setting._replace(certified=True), np.array(chosen + 1))
    bound = float(_regret(terms, sizes) + sampling[at])
    ranges = setting.constants.half_ranges
    step_size = tuple(float(s / r) for s, r in zip(sizes, ranges, strict=True))
    return float(objective[at]), VertexPlan(chosen, count, 1, step_size, output, bound)


def _terms(setting: Setting, iterates: np.ndarray) -> list[tuple[np.ndarray, float]]:
    """(a_b, c_b) of each block, with regret sum_b a_b / s_b + c_b s_b at sizes s_b = tau_b L_b."""
    constants = setting.constants
    # a saddle point's comparator depends on the run: a second copy of the regret, and a deviation
    # of up to 2 L, pay for that
    far, slope = (2.0, 2.5) if setting.certified else (1.0, 0.5)
    if len(constants.half_ranges) == 1:
        far, slope = 1.0, 0.5 * setting.typical[1]
    pairs = zip(constants.log_vertices, constants.half_ranges, strict=True)
    return [(far * log_m * half / iterates, slope * half) for log_m, half in pairs]


def _regret(terms: list[tuple[np.ndarray, float]], sizes: list[np.ndarray]) -> np.ndarray:
    return np.asarray(sum(a / s + c * s for s, (a, c) in zip(sizes, terms, strict=True)))


def _step_sizes(
    setting: Setting, iterates: np.ndarray, room: np.ndarray
) -> tuple[list[np.ndarray], np.ndarray]:
    """Sizes with sum of squares <= room^2 that make the regret terms small, and these terms."""
    terms = _terms(setting, iterates)
    # where privacy binds, sum a_b / s_b is least at s_b ~ a_b^(1/3); what one block leaves over
    # goes to the other
    norm = np.sqrt(sum(a ** (2 / 3) for a, _ in terms))
    free = [np.sqrt(a / c) for a, c in terms]
    sizes = [
        np.minimum(s, room * a ** (1 / 3) / norm) for s, (a, _) in zip(free, terms, strict=True)
    ]
    for b in range(len(sizes)):
        others = sum(s**2 for i, s in enumerate(sizes) if i != b)
        sizes[b] = np.minimum(free[b], np.sqrt(np.maximum(room**2 - others, sizes[b] ** 2)))
    return sizes, _regret(terms, sizes)


def _sampling_error(
    constants: Constants, iterates: np.ndarray, draws: np.ndarray, output: str
) -> np.ndarray:
    """What standing for an iterate by K of its vertices adds to the bound."""
    smooth, third = constants.joint_smoothness, constants.third_order
    saddle = len(constants.half_ranges) > 1
    if output == "fresh":
        factor = 4 if saddle else 1
        bias = np.minimum(
            4 * factor * third / draws,
            (16 * math.sqrt(2) if saddle else 8.0) * smooth / np.sqrt(draws),
        )
        if not saddle:
            return bias + 2 * smooth / iterates
        log_total = sum(constants.log_vertices)
        return bias + 4 * smooth / iterates + 4 * smooth * np.sqrt(log_total / iterates)
    # gradients at the points that are played; nothing if the loss is linear in each block
    played = 4 * sum(constants.smoothness) / draws
    if third > 0:
        return played + 0 * iterates
    # no third derivative: gradients at sampled points are unbiased, and the average of the points
    # is near that of the iterates in the directions of the m_b columns of the Hessian
    spreads = [np.sqrt(2 * (math.log(2) + m) / (iterates * draws)) for m in constants.log_vertices]
    near = 2 * sum(w * s for w, s in zip(constants.smoothness, spreads, strict=True))
    if saddle:
        near = near + constants.coupling * sum(spreads)
    return np.minimum(played, near)

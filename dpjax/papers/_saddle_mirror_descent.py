"""Entropic mirror descent on sampled vertices: saddle points and convex risks, in one pass."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from dpjax.core import PyTree, check_choice, check_int, static_field
from dpjax.papers._mirror_descent_plan import OUTPUTS, curved_losses, least_plan
from dpjax.papers._vertex_plan import BlockProblem, VertexPlan, draw_grid, geometric, setting_of
from dpjax.papers._vertex_solver import SinglePass, VertexSolver
from dpjax.papers.estimators import polar_estimate
from dpjax.privacy import Budget
from dpjax.solvers._summary import register_solver
from dpjax.solvers.vertices._steps import add_scores, draw_vertices, no_scores


class MirrorState(NamedTuple):
    """State of `SaddleMirrorDescent`; one entry a block in each tuple.

    Attributes:
      scores: Sums of gradients times step size, pairs of `[p]`, of `[m]` on a polytope. They follow
        from the data: *secret*, and redacted by `dpjax.solve`.
      counts: How often each vertex was drawn for the output, `[m]` int32; of what weight, `[m]`,
        if the average is linear.
      played: The vertices drawn last, `[K]` int32; one of the second block where `polar`.
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

    The result is the mean of the points drawn. Where losses curve in x, the values of
    $\nabla_y f$ at $\hat x_t$ are off by the variance of the draws over K. With `polar` they are
    `polar_estimate` of the K draws of x, unbiased for `max_loss` of quadratic losses, and one
    vertex of y is drawn a step. Works with `dpjax.problems.Saddle`, and with
    `SimplexRisk`, which has one block: then it is private stochastic convex optimisation, and the
    result one point.

    Guarantee: the draws are the mechanism. A record moves the scores of one block, in all draws
    after its batch, by one vector of range at most $\eta = c\,\tau\,\omega / b_t$, with omega
    `grad_range` (enforced by scaling each record's gradient), $b_t$ the public size of its batch
    and c = 2 under replace-one, 1 under add-or-remove-one (each record picks its batch on its own).
    So each draw is $\eta^2/8$-zCDP, and a record of batch t meets $(S - t) K$ of them a block, t
    from 0 ($K + 1$ for K if fresh; 1 in the second block if `polar`): the draws after the last step
    included, those before its own left out. The event is that of the batch where this comes to
    most. Scores are sums of centred gradients, exact in twice the precision; what rounding remains
    is taken off the step sizes.

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
      polar: Whether the second block gets `polar_estimate` of its values, for a loss affine in y
        and convex in x; `grad_range` bounds the range of that estimate. Wants K >= 2 (static).
      average: `"uniform"`, or `"linear"` for weights t + 1 of all vertices drawn in step t, which
        forgets the start: less error in runs, and no bound (static).
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
    polar: bool = static_field(default=False)
    average: str = static_field(default="uniform")
    assume_bounded: bool = static_field(default=False)
    relation: str = static_field(default="replace_one")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("num_draws", self.num_draws, minimum=1)
        check_choice("output", self.output, OUTPUTS)
        check_choice("average", self.average, ("uniform", "linear"))
        if self.polar and len(self.step_size) != 2:
            raise ValueError(f"polar wants 2 blocks, got step sizes of {len(self.step_size)}")
        if self.polar:
            check_int("num_draws", self.num_draws, minimum=2)

    @classmethod
    def plan(
        cls,
        problem: BlockProblem,
        num_records: int,
        budget: Budget,
        *,
        output: str | None = None,
        polar: bool | None = None,
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
        the draws a step and block, and $b_t$ the sizes of tapered batches. For `max_loss` of k
        quadratic losses, polar estimates of range $b'$ and the largest loss at the mean of fresh
        draws, in expectation,

        $$ \frac{\ell_x}{\tau_x T} + \frac{\tau_x L_x^2}2 + \frac{2 \log k}{\tau_y T}
           + \tau_y \frac{b'^2 + (b + b')^2}8 + \frac{2 L_1}T + L_x \sqrt{\frac{2 \log k}T} $$

        Args:
          problem: `Saddle` or `SimplexRisk`; its constants are used, never data.
          num_records: *Public* number of records (a bound on it under add-or-remove-one).
          budget: What must hold; the relation defaults to replace-one.
          output: `"played"`, `"fresh"`, or None for the better bound.
          polar: Whether values are polar estimates; None for what is better by these numbers where
            the problem is a `max_loss`, else False.
          certified: Whether to minimise the bound itself, rather than what is typical: the bound
            without its worst case over comparators, with a fifth of the sampling error and, for one
            block, a tenth of the squared gradients, which is about what runs on synthetic games
            and regressions show. Either way the plan's `bound` is the bound.
          steps: Number of steps, if it is to be fixed.
          num_draws: Number of draws, if it is to be fixed.

        Returns:
          The plan, with its bound on the expected duality gap; on the expected excess risk for one
          block, and on that of the largest loss where `polar`.

        Raises:
          ValueError: If a value is outside its bound, the budget cannot be met, or `polar` is asked
            for of no `max_loss`, or one of affine losses.
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
        kinds: tuple[str, ...] = OUTPUTS
        if output is not None:
            check_choice("output", output, OUTPUTS)
            kinds = (output,)
        losses = curved_losses(problem)
        if polar and losses is None:
            raise ValueError(f"polar wants a max_loss of losses that are not affine, got {problem}")
        if num_draws == 1 and polar is None:
            polar = False
        return least_plan(setting, losses, kinds, polar, *grids)

    def start(self, problem: BlockProblem, key: PyTree) -> MirrorState:
        """The state before the first step."""
        return MirrorState(
            tuple(map(no_scores, problem.domains)),
            tuple(jnp.zeros(d.num_vertices, self._counted) for d in problem.domains),
            tuple(jnp.zeros(k, jnp.int32) for k in self._played),
            jnp.zeros((), jnp.int32),
            key,
        )

    def draws_now(self, state: MirrorState) -> bool:
        """Every step draws."""
        del state
        return True

    def sample(self, problem: BlockProblem, state: MirrorState) -> tuple[jax.Array, ...]:
        """Vertices of each block, `[K]`, or `[K + 1]` with a fresh one at the end."""
        now = jax.random.fold_in(state.key, state.count)
        blocks = enumerate(zip(problem.domains, state.scores, self._repeats, strict=True))
        return tuple(
            draw_vertices(jax.random.fold_in(now, b), domain, score, count)
            for b, (domain, score, count) in blocks
        )

    def accept(
        self, problem: BlockProblem, indices: tuple[jax.Array, ...], state: MirrorState
    ) -> MirrorState:
        """Counts the vertices that make up the output, and keeps those to take gradients at."""
        del problem
        weight: ArrayLike = 1
        if self.average == "linear":
            weight = (state.count + 1) / (self.sampler.steps + 1)
        counts = tuple(
            count.at[drawn[-shown:]].add(weight)
            for count, drawn, shown in zip(state.counts, indices, self._shown, strict=True)
        )
        played = tuple(drawn[:k] for drawn, k in zip(indices, self._played, strict=True))
        return state._replace(counts=counts, played=played)

    def advance(
        self, problem: BlockProblem, batch: PyTree, mask: jax.Array, state: MirrorState
    ) -> MirrorState:
        """The part of a step that sees data: new scores, given what was drawn."""
        gradients = problem.gradients_at_vertices(state.played, batch)
        if self.polar:
            gradients = gradients[0], _polar_values(problem, state.played, batch)
        weights = self._step_weights(state.count, state.scores[0].high.dtype)
        terms = self._sums(problem, gradients, mask, weights)
        scores = tuple(map(add_scores, problem.domains, state.scores, terms, problem.signs))
        return state._replace(scores=scores, count=state.count + 1)

    def finalize(self, problem: BlockProblem, state: MirrorState) -> PyTree:
        """The mean of the points drawn in every step, and once more after the last."""
        counts = self.accept(problem, self.sample(problem, state), state).counts
        return problem.assemble(
            tuple(
                domain.point(count.astype(float) / jnp.sum(count).astype(float))
                for domain, count in zip(problem.domains, counts, strict=True)
            )
        )

    def _exposure(self) -> tuple[np.ndarray, float]:
        return np.arange(self.sampler.steps, 0, -1), 1.0

    @property
    def _counted(self) -> DTypeLike:
        return jnp.result_type(float) if self.average == "linear" else jnp.int32

    @property
    def _played(self) -> tuple[int, ...]:
        """Vertices of each block at whose mean a step takes gradients."""
        others = 1 if self.polar else self.num_draws
        return (self.num_draws,) + (others,) * (len(self.step_size) - 1)

    @property
    def _repeats(self) -> tuple[int, ...]:
        """Vertices of each block drawn in a step; where `polar` none of y is fresh."""
        fresh = self.output == "fresh"
        return tuple(k + (fresh and (b == 0 or not self.polar)) for b, k in enumerate(self._played))

    @property
    def _shown(self) -> tuple[int, ...]:
        """Vertices of each block that enter the result, the last ones drawn in a step."""
        if self.average == "linear":
            return self._repeats
        return self._played if self.output == "played" else (1,) * len(self._played)


def _polar_values(problem: BlockProblem, played: tuple[jax.Array, ...], batch: PyTree) -> jax.Array:
    """Values of each record's losses at the mean of the first player's distribution, `[B, k]`."""
    first, second = problem.domains
    y = second.average(played[1])
    points = jax.vmap(lambda index: first.average(index[None]))(played[0])
    return polar_estimate(lambda x: problem.gradients_at((x, y), batch)[1], points)

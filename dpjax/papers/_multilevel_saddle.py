"""Mirror descent with bias-reduced multilevel gradients, for second-order smooth losses."""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.core import PyTree, check_int, static_field
from dpjax.core._pairs import Pair
from dpjax.papers._vertex_plan import BlockProblem, Setting, draft_sampler, setting_of
from dpjax.papers._vertex_solver import SinglePass, VertexSolver
from dpjax.papers.estimators import Multilevel, draw_levels, multilevel
from dpjax.privacy import Budget
from dpjax.solvers._summary import register_solver
from dpjax.solvers.vertices._steps import add_scores, draw_vertices, no_scores

_TAPER_GAIN = 1.5


class MultilevelPlan(NamedTuple):
    """What a plan chose.

    Attributes:
      levels: Level of each estimate, drawn without data.
      max_level: Largest level M.
      steps: Batches in all: 3 for an estimate of level 0, 4 * 2^N + 1 for level N.
      step_size: Step size of each block, in units of 1 / gradient.
    """

    levels: tuple[int, ...]
    max_level: int
    steps: int
    step_size: tuple[float, ...]


class MultilevelState(NamedTuple):
    """State of `MultilevelSaddle`; one entry a block in each tuple.

    Attributes:
      scores: As in `MirrorState`: *secret*, and redacted by `dpjax.solve`.
      points: Points `[P, p]` of the present estimate, means of vertices drawn.
      counts: How often each vertex was drawn for the output, `[m]` int32.
      count: Batches so far, `[]` int32.
      key: For the draws (*secret*).
    """

    scores: PyTree
    points: tuple[jax.Array, ...]
    counts: tuple[jax.Array, ...]
    count: jax.Array  # type: ignore[assignment]
    key: jax.Array


@register_solver
@dataclasses.dataclass(frozen=True)
class MultilevelSaddle(VertexSolver):
    r"""Mirror descent-ascent whose gradients are multilevel estimates at vertices drawn.

    An estimate of level N takes $2^{N+1}$ vertices of each block,

    $$ g = 2^N C_M \big(\nabla f(\hat x_{N+1}; B) - \nabla f(\hat x_N; B)\big)
           + \nabla f(\hat x_0; B) $$

    over $\kappa_N$ unit batches, 3 at level 0 and $4 \cdot 2^N + 1$ above, so that all levels have
    one sensitivity. The result is the mean of one more vertex an estimate. Levels are drawn on the
    host without data, and fixed in the solver. Works with `Saddle` and `SimplexRisk`.

    Experimental: its rate is the best known for losses that are neither quadratic nor only once
    smooth, but its constants are large; `SaddleMirrorDescent` is the default.

    Guarantee: the draws are the mechanism, as in `SaddleMirrorDescent`. Each of the gradients of a
    record is clipped to range omega, so an estimate moves by at most
    $c\,\omega\,\bar\kappa_N / (\kappa_N b_t) \le c\,\omega / b_t$. A record meets $2^{N+1} + 1$
    draws of each block in every estimate after its own; the event is that of the record for which
    this comes to most.

    | input | effect |
    | --- | --- |
    | empty batch | scores stay |
    | NaN or inf in a record's gradient | contributes nothing (unless `assume_bounded`) |

    Attributes (data may be swept under `vmap`; static ones shape the program; all *public*):
      sampler: As in `SaddleMirrorDescent`, one step a unit batch (static).
      step_size: tau of each block (data).
      grad_range: omega of each block (data).
      levels: Level of each estimate (static); `sampler.steps` is the sum of their $\kappa_N$.
      max_level: M, largest level that could have been drawn (static).
      antithetic: Whether coarse gradients are averaged over two halves: one gradient more, less
        variance (static).
      assume_bounded: Skip the clipping: the caller answers for `grad_range` (static).
      relation: Neighbouring relation of the guarantee (static).

    Raises:
      ValueError: If a value is outside its bound, or the steps are not those of the levels.
      TypeError: If the sampler is of another kind.

    Source: González, Guzmán and Paquette, "Mirror descent algorithms with nearly
    dimension-independent rates for differentially-private stochastic saddle-point problems", 2024;
    multilevel estimators of Blanchet and Glynn 2015; see also `SaddleMirrorDescent`.
    """

    sampler: SinglePass = dataclasses.field(metadata={"static": True})
    step_size: PyTree
    grad_range: PyTree
    levels: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    max_level: int = dataclasses.field(metadata={"static": True})
    antithetic: bool = static_field(default=False)
    assume_bounded: bool = static_field(default=False)
    relation: str = static_field(default="replace_one")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("max_level", self.max_level, minimum=0)
        object.__setattr__(self, "levels", tuple(int(n) for n in self.levels))
        if not self.levels or min(self.levels) < 0 or max(self.levels) > self.max_level:
            raise ValueError(f"levels must be >= 1 numbers in 0..{self.max_level}")
        needed = int(batches_of(np.array(self.levels), self._estimator).sum())
        if self.sampler.steps != needed:
            raise ValueError(
                f"sampler.steps must be {needed} for these levels, got {self.sampler.steps}"
            )

    @classmethod
    def plan(
        cls,
        problem: BlockProblem,
        num_records: int,
        budget: Budget,
        *,
        seed: int = 0,
        max_level: int | None = None,
    ) -> MultilevelPlan:
        r"""Levels, batches and step size, from public constants alone.

        Privacy just allows the step size that the error bound asks for: with
        $G^2 = L_0^2 + L_2^2 + \ell L_1^2$ and U the sum of $2^N$ over estimates, $\tau =
        \sqrt{\ell / (G^2 U)}$ and a unit batch has $b_0 = c L_0 \sqrt{3 \ell / \rho} / G$ records
        (for two blocks), cut by 1.5 since batches are tapered;
        $M = \lfloor \log_2 \sqrt U \rfloor$.

        Args:
          problem: `Saddle` or `SimplexRisk`; its constants are used, never data.
          num_records: *Public* number of records (a bound on it under add-or-remove-one).
          budget: What must hold; the relation defaults to replace-one.
          seed: For the levels; a new one for every run makes estimates unbiased over runs.
          max_level: Largest level, if it is to be fixed.

        Returns:
          The plan.

        Raises:
          ValueError: If a value is outside its bound, or the budget cannot be met.
          TypeError: If `problem` is none over vertices, or `budget` no `Budget`.

        Example:
          >>> import dpjax
          >>> problem = dpjax.problems.Saddle(
          ...     lambda x, y, rec: x @ rec["A"] @ y, (9, 9), grad_range=2.0, third_order=1.0)
          >>> MultilevelSaddle.plan(problem, 100_000, dpjax.Budget(1.0, 1e-6)).max_level > 0
          True
        """
        return _best_plan(setting_of(problem, num_records, budget), seed, max_level)

    def start(self, problem: BlockProblem, key: PyTree) -> MultilevelState:
        """The state before the first batch."""
        points = self._estimator.num_points
        return MultilevelState(
            tuple(map(no_scores, problem.domains)),
            tuple(jnp.zeros((points, d.dim)) for d in problem.domains),
            tuple(jnp.zeros(d.num_vertices, jnp.int32) for d in problem.domains),
            jnp.zeros((), jnp.int32),
            key,
        )

    def draws_now(self, state: MultilevelState) -> jax.Array:
        """Whether an estimate begins with this batch."""
        return jnp.asarray(self._tables()[0])[state.count]

    draws_last = False

    def sample(self, problem: BlockProblem, state: MultilevelState) -> tuple[jax.Array, ...]:
        """If an estimate begins a pool of vertices, and one for the output; else -1.

        `[2^(M+1) + 1]` a block, -1 where the level has no use for a draw.
        """
        size = self._estimator.num_draws + 1
        used = jnp.append(jnp.any(self._weights(state) > 0, axis=0), True)
        now = jax.random.fold_in(state.key, state.count)

        def draw(scores: tuple[Pair, ...]) -> tuple[jax.Array, ...]:
            return tuple(
                jnp.where(used, draw_vertices(jax.random.fold_in(now, b), domain, score, size), -1)
                for b, (domain, score) in enumerate(zip(problem.domains, scores, strict=True))
            )

        def none(scores: tuple[Pair, ...]) -> tuple[jax.Array, ...]:
            return tuple(jnp.full(size, -1, jnp.int32) for _ in scores)

        return jax.lax.cond(self.draws_now(state), draw, none, state.scores)

    def accept(
        self, problem: BlockProblem, indices: tuple[jax.Array, ...], state: MultilevelState
    ) -> MultilevelState:
        """Makes the points of the level of what was drawn, if anything was."""
        weights = self._weights(state)

        def take(state: MultilevelState) -> MultilevelState:
            points, counts = [], []
            for b, (domain, drawn) in enumerate(zip(problem.domains, indices, strict=True)):
                zeros = jnp.zeros((weights.shape[0], domain.num_vertices))
                # weights are 0 where nothing was drawn
                pool = jnp.maximum(drawn[:-1], 0)
                on_vertices = zeros.at[:, pool].add(weights.astype(zeros.dtype))
                points.append(jax.vmap(domain.point)(on_vertices).astype(zeros.dtype))
                counts.append(state.counts[b].at[drawn[-1]].add(1))
            return state._replace(points=tuple(points), counts=tuple(counts))

        return jax.lax.cond(self.draws_now(state), take, lambda state: state, state)

    def advance(
        self, problem: BlockProblem, batch: PyTree, mask: jax.Array, state: MultilevelState
    ) -> MultilevelState:
        """The part of a step that sees data: new scores, given the points in the state."""
        level = jnp.asarray(self._tables()[1])[state.count]
        estimator = self._estimator
        levels = range(self.max_level + 1)
        dtype = state.scores[0].high.dtype
        records = jnp.asarray([estimator.records(n) for n in levels], dtype)[level]
        factor = jnp.asarray([estimator.factor(n) for n in levels], dtype)[level]
        # a step of a batch is of a record's share of a unit batch; estimates are rounded once more
        weights = self._step_weights(
            state.count, dtype, gain=factor / records, total=8 * mask.shape[0]
        )
        sums = [
            self._sums(
                problem,
                problem.gradients_at(tuple(p[i] for p in state.points), batch),
                mask,
                tuple(weight / records for weight in weights),
            )
            for i in range(estimator.num_points)
        ]
        stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *sums)
        terms, _ = estimator.update(stacked, estimator.init(None), level=level)
        scores = tuple(map(add_scores, problem.domains, state.scores, terms, problem.signs))
        return state._replace(scores=scores, count=state.count + 1)

    def finalize(self, problem: BlockProblem, state: MultilevelState) -> PyTree:
        """The mean of the vertices drawn for the output, one an estimate."""
        return problem.assemble(
            tuple(
                domain.point(count.astype(float) / jnp.maximum(jnp.sum(count), 1))
                for domain, count in zip(problem.domains, state.counts, strict=True)
            )
        )

    def _exposure(self) -> tuple[np.ndarray, np.ndarray]:
        levels, estimator = np.array(self.levels), self._estimator
        ratios = [estimator.factor(n) / estimator.records(n) for n in range(self.max_level + 1)]
        repeated = np.repeat(levels, batches_of(levels, estimator))
        return draws_left(levels, estimator), np.array(ratios)[repeated]

    @property
    def _updates(self) -> int:
        return len(self.levels) - 1  # the last estimate moves nothing that is drawn

    @property
    def _estimator(self) -> Multilevel:
        return multilevel(self.max_level, self.antithetic)

    def _tables(self) -> tuple[np.ndarray, np.ndarray]:
        """For each batch: whether its estimate begins there, and its level."""
        levels = np.array(self.levels, np.int32)
        sizes = batches_of(levels, self._estimator)
        starts = np.zeros(self.sampler.steps, bool)
        starts[np.cumsum(sizes) - sizes] = True
        return starts, np.repeat(levels, sizes)

    def _weights(self, state: MultilevelState) -> jax.Array:
        return self._estimator.weights(jnp.asarray(self._tables()[1])[state.count])


def batches_of(levels: np.ndarray, estimator: Multilevel) -> np.ndarray:
    """Batches of each estimate."""
    sizes = [estimator.records(level) for level in range(estimator.max_level + 1)]
    return np.array(sizes)[levels]


def draws_left(levels: np.ndarray, estimator: Multilevel) -> np.ndarray:
    """For each batch, the draws of one block after its estimate: 2^(N+1) + 1 in each later one."""
    each = 2 ** (levels.astype(np.int64) + 1) + 1
    after = np.cumsum(each[::-1])[::-1] - each
    return np.repeat(after, batches_of(levels, estimator))


def _best_plan(setting: Setting, seed: int, max_level: int | None) -> MultilevelPlan:
    """Unit batches such that privacy just allows the step size that the error bound asks for."""
    constants, rho, influence = setting.constants, setting.rho, setting.influence
    half, log_m = max(constants.half_ranges), sum(constants.log_vertices)
    smooth = constants.joint_smoothness
    blocks = len(constants.half_ranges)
    if math.isinf(constants.third_order):
        raise ValueError(
            "third_order must be stated to plan multilevel estimates, got None: set it in the "
            "problem (0 for quadratics), or use SaddleMirrorDescent"
        )
    moment = math.sqrt(half**2 + constants.third_order**2 + log_m * smooth**2)
    unit = influence * half * math.sqrt(1.5 * blocks * log_m / rho) / moment / _TAPER_GAIN
    unit = max(1.0, unit)
    total = max(1.0, setting.num_records / (1 + 5 * unit))
    top = math.floor(math.log2(math.sqrt(total))) if max_level is None else max_level
    size = math.sqrt(log_m / (moment**2 * total))
    batches = int(setting.num_records // unit)
    levels = draw_levels(seed, top, batches)
    used = np.cumsum(batches_of(levels, multilevel(top)))
    levels = levels[: int(np.searchsorted(used, batches, side="right"))]
    spent = sum((influence * size * 2 * half) ** 2 / 8 for half in constants.half_ranges)
    # the realised number of draws may exceed its mean: then the last estimates are left out
    while len(levels) and spent * _worst(setting, levels, top) > rho * (1 - 1e-6):
        levels = levels[: max(len(levels) - max(1, len(levels) // 50), 0)]
    if len(levels) < 2:  # the last estimate moves nothing that is drawn
        raise ValueError(
            f"num_records = {setting.num_records} is too few for two multilevel estimates at "
            f"rho = {rho:.3g}"
        )
    steps = int(batches_of(levels, multilevel(top)).sum())
    return MultilevelPlan(tuple(int(n) for n in levels), top, steps, (size,) * blocks)


def _worst(setting: Setting, levels: np.ndarray, top: int) -> float:
    """The largest number of draws after a batch over its squared size."""
    left = draws_left(levels, multilevel(top))
    sizes = draft_sampler(setting.num_records, len(left), setting.influence).sizes
    return float(np.max(left / np.square(sizes)))

"""Private nonsmooth nonconvex optimisation: clipped displacements on smoothed private oracles."""

import dataclasses
import math
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from dpjax.core import (
    PyTree,
    Sampler,
    Transform,
    check_between,
    check_choice,
    check_key,
    check_nonnegative,
    check_positive,
    check_unstacked,
    static_field,
    wide,
)
from dpjax.core._moved import moved_setting, renamed_fields
from dpjax.core._pairs import in_dtypes_of
from dpjax.privacy import Budget, Guarantee, joint_release
from dpjax.sampling import DisjointPartition
from dpjax.sampling._participation import participation_of
from dpjax.solvers import _request as requests
from dpjax.solvers._summary import register_solver
from dpjax.solvers.nonconvex._blocks import SELECTIONS, BlocksState, add_to_block, init_blocks
from dpjax.solvers.nonconvex._plan import gaussian_multiplier, plan_fields
from dpjax.solvers.nonconvex._smoothed_oracle import (
    DIRECTIONS,
    ORACLES,
    LossProblem,
    Part,
    make_oracle,
)
from dpjax.transforms import (
    ClippedDisplacementState,
    NoiseStrategy,
    RestartedSumsState,
    SplitNoise,
    clipped_displacement,
    is_every_step,
    per_example_norm,
    restarted_sums,
    rounding_allowance,
)

SCHEDULES = ("linear", "constant")
_MOVED_PLANS = {"bound": "by_bound", "practical": "OnlineToNonconvex.for_budget"}


class OnlineToNonconvexState(NamedTuple):
    """State of `OnlineToNonconvex`; trees in at least float32.

    All of it but `sums.noise` and `key` is covered by the guarantee.

    Attributes:
      point: z_t, where the next gradient is taken.
      previous: z_{t-1}.
      sums: The private sums of this period, and their noise (*secret*).
      descent: The step on whose way z_t lies.
      blocks: Averages over blocks of points and of gradients, and the block to return.
      count: Number of periods so far, `[]` int32.
      key: For noise, directions and points (*secret*).
    """

    point: PyTree
    previous: PyTree
    sums: RestartedSumsState
    descent: ClippedDisplacementState
    blocks: BlocksState
    count: jax.Array  # type: ignore[assignment]
    key: jax.Array


class OnlineToNonconvexInfo(NamedTuple):
    """Released values at the end of a period.

    Attributes:
      gradient_norm: l2 norm of the private gradient estimate, `[]`.
      block_norm: l2 norm `[]` of the mean of such estimates over the block so far: its noise apart,
        a bound on the Goldstein norm at the mean of the block's points.
      displacement: Length of the next step, `[]`.
    """

    gradient_norm: jax.Array
    block_norm: jax.Array
    displacement: jax.Array


@register_solver
@renamed_fields(common_directions="reuse_directions", increment_records="difference_batch_size")
@dataclasses.dataclass(frozen=True)
class OnlineToNonconvex:
    r"""Finds a Goldstein stationary point of any Lipschitz loss, from gradients or from values.

    $$ \Delta_{t+1} = \Pi_{D_t}(\beta \Delta_t - \eta_t\, \hat g_t), \qquad
       x_{t+1} = x_t + \Delta_{t+1}, \qquad z_{t+1} = x_t + s_{t+1} \Delta_{t+1}, \qquad
       s_t \sim U[0, 1] $$

    $\hat g_t$ is a private estimate of the gradient at $z_t$ of the mean loss smoothed over a ball
    of radius $\rho$: from gradients at random points of the ball (`oracle="first"`), or from values
    alone at pairs of opposite points of the sphere (`oracle="zeroth"`), for which the loss need be
    neither differentiable nor written in JAX. What is returned is the mean of a block of points,
    all of them within `goldstein_radius() - smoothing_radius` of it.

    A step of the solver is a *period* of `noise.num_steps` moves. Mostly that is 1: a fresh
    estimate for each. In longer ones the estimates after the first add private *changes* of
    gradients, clipped at $H \|z_t - z_{t-1}\|$; see `restarted_sums`.

    Guarantee: with G the clip norm, and m = `batch_size`, a record changes the first estimate of a
    period by at most G / m under add-or-remove-one, twice that under replace-one, and a later one
    by $\min(H \|z_t - z_{t-1}\|, 2 G)$ over its normaliser, for any loss whatever: enforced by
    clipping gradients, or the m coordinates of value differences, in l2. Noise is in proportion,
    so that a period is one Gaussian of `noise_multiplier`; the event of the run is
    `PoissonSampled` or `SelfComposed` of it as the sampler has it, or one alone where each record
    takes part in one period. Directions and points are drawn without looking at data; steps and
    averages are post-processing. With values from outside JAX, what they are computed from must be
    the record and the point alone.

    | input | effect |
    | --- | --- |
    | empty batch | a step along noise |
    | record whose value or gradient is NaN or inf | contributes nothing |
    | `clip_norm` 0 | nothing is released |

    Attributes:
      sampler: Which records enter each period (static).
      noise_multiplier: Noise in units of the sensitivity, scalar `>= 0` (data).
      clip_norm: G, scalar `>= 0`, bound on what one record gives (data).
      learning_rate: $\eta \ge 0$, scalar (data).
      max_displacement: D, scalar `>= 0`, the longest step (data).
      batch_size: Scalar, public normaliser of a batch's sum; never the realised size (data).
      smoothing_radius: $\rho$, scalar, `> 0` for values, `>= 0` for gradients (data).
      smoothness: H, scalar `>= 0`, bound on the change of a record's smoothed gradient for a unit
        of displacement; in periods longer than 1 (data).
      noise: Strategy of a period, of as many steps (static): `SplitNoise` where a record takes part
        in all of them, else `RestartNoise` or any other.
      oracle: `"first"` or `"zeroth"` (static).
      num_directions: Random points, or opposite pairs of them, for an estimate (static).
      directions: `"shared"`, the records of a batch share their directions, which costs one pass
        for each direction, and values are released as coordinates along them, with
        $\sqrt{1 + d / m}$ times less noise; `"record"`: each has its own (static).
      reuse_directions: Whether a change is taken along the same directions at both points
        (static); False, as first published, with `"record"` alone.
      difference_batch_size: Records of each change, those at the end of a batch, so that no record
        has part in two estimates; None: all records take part in all estimates of their period,
        which asks for `SplitNoise` (static).
      schedule: Of $\eta$ and D: `"linear"` to 0, or `"constant"` (static).
      block_size: Moves in a block (static).
      selection: Which block is returned: the `"last"`, a `"uniform"` one, for which the bounds
        are proved, or that of `"min_norm"`, of the smallest private mean gradient, which on a
        plateau may well be the first (static).
      microbatch_size: Records a microbatch; None for the default of `microbatched_sum` (static).
      relation: Neighbouring relation of the guarantee (static).
      decay: $\beta$ in [0, 1], scalar, what is kept of a step in the next one (data).

    Raises:
      ValueError: If a value is outside its bound, or sampler, noise and directions do not fit.
      TypeError: If `sampler` is no `Sampler`, `noise` no `NoiseStrategy`, or a number of directions
        or records no integer.

    Source: Kornowski, Liu and Talwar, "Private nonsmooth nonconvex optimization", 2025, algorithms
    2 to 5, with privacy by clipping; its plain oracle, in periods of 1, has the better bounds.
    Zhang and Cutkosky 2024 for the decay.
    """

    sampler: Sampler = dataclasses.field(metadata={"static": True})
    noise_multiplier: float | jax.Array
    clip_norm: float | jax.Array
    learning_rate: ArrayLike
    max_displacement: float | jax.Array
    batch_size: ArrayLike
    smoothing_radius: float | jax.Array
    smoothness: ArrayLike = 0.0
    noise: NoiseStrategy = static_field(default=SplitNoise(1, 1.0))
    oracle: str = static_field(default="first")
    num_directions: int = static_field(default=1)
    directions: str = static_field(default="shared")
    reuse_directions: bool = static_field(default=True)
    difference_batch_size: int | None = static_field(default=None)
    schedule: str = static_field(default="linear")
    block_size: int = static_field(default=1)
    selection: str = static_field(default="last")
    microbatch_size: int | None = static_field(default=None)
    relation: str = static_field(default="add_or_remove_one")
    decay: ArrayLike = dataclasses.field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        requests.check_sampler(self.sampler, self.relation)
        check_between("decay", self.decay, 0, 1)
        scales = ("noise_multiplier", "clip_norm", "learning_rate", "max_displacement")
        requests.check_values(
            self,
            positive=("batch_size",),
            nonnegative=(*scales, "smoothness"),
            counts=("num_directions", "microbatch_size", "difference_batch_size", "block_size"),
            oracle=ORACLES,
            directions=DIRECTIONS,
            schedule=SCHEDULES,
            selection=SELECTIONS,
        )
        check = check_positive if self.oracle == "zeroth" else check_nonnegative
        check("smoothing_radius", self.smoothing_radius)
        self._check_fit()

    def _check_fit(self) -> None:
        """Raises where the fields, each fine by itself, do not fit."""
        noise, sampler, size = self.noise, self.sampler, self.difference_batch_size
        if not isinstance(noise, NoiseStrategy):
            raise TypeError(f"noise must be a NoiseStrategy, got {noise!r}")
        gaussian_multiplier(noise, 1.0, self.relation)
        if self.num_moves % self.block_size:
            raise ValueError(
                f"block_size must divide the number of moves {self.num_moves}, "
                f"got {self.block_size}"
            )
        if not self.reuse_directions and self.directions != "record":
            raise ValueError("reuse_directions=False needs directions='record', got 'shared'")
        period = noise.num_steps
        if size is None:
            stated = participation_of(sampler)
            single = stated is not None and stated.most == 1 and stated.rate == 1
            if not is_every_step(noise) and (period > 1 or not single):
                raise ValueError(
                    "noise must be SplitNoise where all records of a batch take part in every "
                    f"move, got {noise!r}; set difference_batch_size with DisjointPartition for "
                    f"{noise!r}"
                )
            return
        if not isinstance(sampler, DisjointPartition):
            raise ValueError(
                "difference_batch_size needs DisjointPartition, whose records keep their places, "
                f"got {type(sampler).__name__}"
            )
        if sampler.batch_size <= (period - 1) * size:
            raise ValueError(
                "difference_batch_size must leave records for the first move: "
                f"{period - 1} changes of {size} are more than batch_size - 1 = "
                f"{sampler.batch_size - 1}"
            )

    @classmethod
    def for_budget(
        cls,
        problem: LossProblem,
        num_records: int,
        budget: Budget,
        *,
        radius: float = 0.1,
        oracle: str = "first",
        passes: str = "multi",
        **overrides: Any,
    ) -> Self:
        """A solver with defaults that train, its noise calibrated to `budget`.

        Args:
          problem: What will be solved; its public constants are used, never data: `lipschitz`
            where it states one.
          num_records: *Public* bound on the number of records; also the size to divide by.
          budget: epsilon, delta and relation to meet. Without a relation it is add-or-remove-one
            for several passes and replace-one for a single one.
          radius: Of the ball for which stationarity is sought, in units of the parameters
            (*public*). A hundredth of it goes to smoothing gradients, a tenth to smoothing values
            where the problem states `lipschitz`, and half of it where it may jump or in periods
            of more than one move; the rest goes to the block that is averaged. A loss that jumps
            wants it many times as long as a step.
          oracle: `"first"` or `"zeroth"`.
          passes: `"multi"`: Poisson batches; `"single"`: each record takes part once.
          **overrides: `steps` (moves), `period` (moves in a period, 1 by default),
            or any other field. Sizes as printed, and sizes that minimise a proved bound, are in
            `dpjax.papers.nonsmooth_nonconvex`.

        Returns:
          A solver whose `guarantee().epsilon(budget.delta) <= budget.epsilon`.

        Raises:
          ValueError: If a value is outside its bound, or the budget cannot be met.
          TypeError: If an override is no field.

        Example:
          >>> import dpjax, jax.numpy as jnp
          >>> problem = dpjax.problems.Risk(  # robust phase retrieval
          ...     loss=lambda w, rec: jnp.abs(jnp.abs(rec["x"] @ w) - rec["y"]),
          ...     init=jnp.ones(3), lipschitz=1.0)
          >>> solver = dpjax.solvers.OnlineToNonconvex.for_budget(
          ...     problem, num_records=1000, budget=dpjax.Budget(1.0, 1e-5), radius=0.1)
          >>> solver.guarantee().epsilon(1e-5) <= 1.0
          True
        """
        published, plan = overrides.pop("as_published", False), overrides.pop("plan", None)
        if published and passes != "single":
            raise ValueError(
                f"passes must be 'single' with as_published, got {passes!r}: its noise and period "
                "are not stated in print"
            )
        if published or plan is not None:
            check_choice("plan", plan or "bound", tuple(_MOVED_PLANS))
            name = "as_published" if published else _MOVED_PLANS[plan]
            spelling = "as_published=True" if published else f"plan={plan!r}"
            make = moved_setting("nonsmooth_nonconvex", name, spelling)
            asked = {"radius": radius, "oracle": oracle} | ({} if published else {"passes": passes})
            return make(problem, num_records, budget, **asked, **overrides)
        fields = plan_fields(cls, problem, num_records, budget, radius, oracle, passes, overrides)
        # periods are independent, and in a period the first estimate's noise stays
        gain = math.sqrt(fields["sampler"].steps)
        return requests.checked_gradients(cls(**fields), problem, num_records, gain)

    @property
    def ordered_batches(self) -> bool:
        """Whether the places of records in a batch matter, so that none may be added."""
        return self.directions == "record" or self.difference_batch_size is not None

    @property
    def num_moves(self) -> int:
        """Moves of the whole run: periods times the moves in each."""
        return self.sampler.steps * self.noise.num_steps

    def goldstein_radius(self) -> float:
        """Radius of a ball around the result that holds all points where gradients were taken.

        For a `"uniform"` or `"min_norm"` block of a linear schedule that of the first block.
        """
        moves, block = self.num_moves, self.block_size
        left = 1.0
        if self.schedule == "linear" and self.selection == "last":
            left = min(1.0, (block + 1) / moves)
        reach = (block + 1) / 2 * float(self.max_displacement) * left
        return float(self.smoothing_radius) + (reach if block > 1 else 0.0)

    expected_records = requests.records_in_full("batch_size")

    def init(self, problem: LossProblem, *, key: jax.Array) -> OnlineToNonconvexState:
        """The state before the first period; the key (*secret*) is for all that is drawn."""
        check_key("key", key)
        key, choice = jax.random.split(key)
        start = jax.tree.map(wide, problem.init)
        return OnlineToNonconvexState(
            point=start,
            previous=start,
            sums=self._sums.init(make_oracle(self, problem, start).zeros),
            descent=self._descent.init(start),
            blocks=init_blocks(start, self.num_moves // self.block_size, self.selection, choice),
            count=jnp.zeros((), jnp.int32),
            key=key,
        )

    def step(
        self, problem: LossProblem, batch: PyTree, mask: jax.Array, state: OnlineToNonconvexState
    ) -> tuple[OnlineToNonconvexState, OnlineToNonconvexInfo]:
        """A period on the records of `batch` (leaves `[B, ...]`) where `mask [B]` is True."""
        oracle = make_oracle(self, problem, state.point)
        first, later = self._parts(batch, mask)
        directions, walk, noise = self._keys(state)

        def move(
            state: OnlineToNonconvexState,
            total: PyTree,
            part: Part,
            bound: ArrayLike,
            size: jax.Array,
            position: ArrayLike,
        ) -> tuple[OnlineToNonconvexState, OnlineToNonconvexInfo]:
            mean = jax.tree.map(lambda leaf: leaf / size.astype(leaf.dtype), total)
            # what rounding of a sum of so many records, and of its mean, adds to the sensitivity
            rounded = 1 + 2 * rounding_allowance(part.mask.shape[0], jnp.float32)
            sensitivity = rounded * self._sensitivity(bound, size)
            estimate, sums = self._sums.update(mean, state.sums, key=noise, sensitivity=sensitivity)
            gradient = oracle.gradient(estimate, state.point, directions)
            blocks = add_to_block(
                state.blocks, state.point, gradient, self.block_size, self.selection
            )
            own = jax.random.fold_in(walk, position)
            moves, descent = self._descent.update(gradient, state.descent, key=own)
            point = problem.project(jax.tree.map(jnp.add, state.point, moves))
            norms = optax.tree.norm(gradient), blocks.norm, optax.tree.norm(descent.displacement)
            after = state._replace(
                point=point, previous=state.point, sums=sums, descent=descent, blocks=blocks
            )
            return after, OnlineToNonconvexInfo(*norms)

        total = oracle.total(state.point, first, self.clip_norm, directions)
        size = jnp.asarray(self.batch_size, jnp.result_type(float))
        state, info = move(state, total, first, self.clip_norm, size, 0)
        if self.noise.num_steps == 1:
            return state._replace(count=state.count + 1), info
        if self.difference_batch_size is not None:
            size = jnp.asarray(self.difference_batch_size, size.dtype)

        def body(
            state: OnlineToNonconvexState, at: tuple[jax.Array, Part | None]
        ) -> tuple[OnlineToNonconvexState, OnlineToNonconvexInfo]:
            position, part = at[0], at[1] or first
            bound = self._change_bound(state)
            total = oracle.change(state.previous, state.point, part, bound, directions)
            return move(state, total, part, bound, size, position)

        positions = jnp.arange(1, self.noise.num_steps)
        state, infos = jax.lax.scan(body, state, (positions, later))
        return state._replace(count=state.count + 1), jax.tree.map(lambda leaf: leaf[-1], infos)

    def finalize(self, problem: LossProblem, state: OnlineToNonconvexState) -> PyTree:
        """The mean of the points of a block."""
        return in_dtypes_of(state.blocks.result, problem.init)

    def redact(self, state: OnlineToNonconvexState) -> OnlineToNonconvexState:
        """The state without the noise's buffers, with which noise could be subtracted."""
        return state._replace(sums=state.sums._replace(noise=None))

    def diagnose(
        self, problem: LossProblem, batch: PyTree, mask: jax.Array, state: OnlineToNonconvexState
    ) -> dict[str, jax.Array]:
        """Raw values of a period, **not private**: batch size, clipped share at first."""
        oracle = make_oracle(self, problem, state.point)
        first, _ = self._parts(batch, mask)
        key = self._keys(state)[0]
        norms = per_example_norm(oracle.values(state.point, first.batch, first.places, key))
        clipped = jnp.sum(first.mask & (norms > self.clip_norm))
        return {
            "batch_size": jnp.sum(mask),
            "clipped_fraction": clipped / jnp.maximum(jnp.sum(first.mask), 1),
        }

    def guarantee(self) -> Guarantee:
        """The guarantee of the whole run (host); raises ValueError for stacked fields."""
        check_unstacked(self, "noise_multiplier")
        gaussian = gaussian_multiplier(self.noise, float(self.noise_multiplier), self.relation)
        event = self.sampler.event(joint_release(gaussian=gaussian))
        return Guarantee(event, self.relation, self.sampler.failure_probability())

    @property
    def _sums(self) -> Transform:
        return restarted_sums(self.noise, self.noise_multiplier)

    @property
    def _descent(self) -> Transform:
        moves = self.num_moves

        def scheduled(largest: ArrayLike) -> jax.Array | optax.Schedule:
            largest = jnp.asarray(largest, jnp.result_type(float))
            if self.schedule == "constant":
                return largest
            return optax.linear_schedule(largest, 0.0, moves)

        rate, largest = scheduled(self.learning_rate), scheduled(self.max_displacement)
        return clipped_displacement(rate, largest, decay=self.decay)

    def _keys(self, state: OnlineToNonconvexState) -> jax.Array:
        """Of a period: for directions, points on the way, noise."""
        return jax.random.split(jax.random.fold_in(state.key, state.count), 3)

    def _parts(self, batch: PyTree, mask: jax.Array) -> tuple[Part, Part | None]:
        """Records of the first estimate, and those of each change, `[period - 1, ...]`."""
        whole = Part(batch, mask, jnp.arange(mask.shape[0]))
        changes, size = self.noise.num_steps - 1, self.difference_batch_size
        if changes == 0 or size is None:
            return whole, None
        start = mask.shape[0] - changes * size
        later = jax.tree.map(lambda a: a[start:].reshape(changes, size, *a.shape[1:]), whole)
        return jax.tree.map(lambda a: a[:start], whole), later

    def _change_bound(self, state: OnlineToNonconvexState) -> jax.Array:
        """What a record may add to a change."""
        moved = optax.tree.norm(jax.tree.map(jnp.subtract, state.point, state.previous))
        return jnp.minimum(jnp.asarray(self.smoothness, moved.dtype) * moved, 2 * self.clip_norm)

    def _sensitivity(self, bound: ArrayLike, size: jax.Array) -> jax.Array:
        """Of an estimate, the mean of what records give."""
        return jnp.asarray(bound, size.dtype) / size

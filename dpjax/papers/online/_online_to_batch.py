"""Private online-to-batch conversion: any online learner, on private estimates of gradients."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import (
    Problem,
    PyTree,
    Sampler,
    check_choice,
    check_key,
    check_unstacked,
    static_field,
    wide,
)
from dpjax.core._moved import moved_setting, renamed_fields
from dpjax.core._pairs import in_dtypes_of
from dpjax.papers.online import _increment as increments
from dpjax.papers.online._learners import LEARNERS, Learner, make_learner
from dpjax.papers.online._plan import Weights, estimate_degree, plan_fields, weights_at
from dpjax.privacy import Budget, Guarantee
from dpjax.sampling import FullBatch
from dpjax.solvers import _request as requests
from dpjax.solvers._summary import register_solver
from dpjax.transforms import (
    NoiseStrategy,
    SplitNoise,
    correlated_noise,
    microbatched_sum,
    rounding_allowance,
)


class OnlineToBatchState(NamedTuple):
    """State of `OnlineToBatch`; trees in at least float32.

    All of it but `noise` and `key` is covered by the guarantee.

    Attributes:
      point: x_t, where the next gradients are taken; the result.
      previous: x_{t-1}.
      iterate: w_t, the learner's point.
      estimate: The private sum, over `weight` the private estimate of the gradient.
      learner: State of the learner.
      noise: State of the noise (*secret*).
      reach: Largest distance of an iterate from the point before it, `[]`.
      variance: Of the noise in a coordinate of the estimate, `[]`; 0 where it is not followed.
      count: Number of steps so far, `[]` int32.
      key: For the noise (*secret*).
    """

    point: PyTree
    previous: PyTree
    iterate: PyTree
    estimate: PyTree
    learner: PyTree
    noise: PyTree
    reach: jax.Array
    variance: jax.Array
    count: jax.Array  # type: ignore[assignment]
    key: jax.Array


class OnlineToBatchInfo(NamedTuple):
    """Released values of a step.

    Attributes:
      gradient_norm: l2 norm of the private estimate of the mean gradient at x_t, `[]`.
      displacement: Length `[]` of x_t - x_{t-1}, in l2 or, with `norm="linf"`, in l1.
      sensitivity: The most that one record could move the step's increment, `[]`.
    """

    gradient_norm: jax.Array
    displacement: jax.Array
    sensitivity: jax.Array


@register_solver
@renamed_fields(weights="weight_exponent", estimate_weights="estimate_exponent")
@dataclasses.dataclass(frozen=True)
class OnlineToBatch:
    r"""An online learner, fed with private gradients at the weighted averages of its points.

    $$ x_t = x_{t-1} + \frac{\beta_t}{\sum_{i \le t}\beta_i} (w_t - x_{t-1}), \qquad
       \delta_t = \theta_t \nabla\ell(x_t) - \theta_{t-1} \nabla\ell(x_{t-1}), $$

    $$ \hat g_t = \sum_{i \le t} \delta_i + \gamma_t, \qquad
       w_{t+1} = \mathrm{learner}(\beta_t \hat g_t / \theta_t), \qquad
       \beta_t = t^k,\ \theta_t = t^j $$

    Averages move slowly, so that changes of gradients are small, cost little privacy, and add up to
    estimates that all have about the noise of one release. Two ways to see the data:

    - `DisjointPartition` (or `IndependentPartition`): one pass, each record in one step; j = k,
      and noise that is correlated over the steps, from a `BufferedToeplitz` or a `BinaryTree`.
    - `FullBatch`: all records in every step; j = 0, and `SplitNoise`. Most of the budget goes to
      the first gradient, the rest to its changes.

    Guarantee: with $\rho_t = H\|x_t - x_{t-1}\|$, known when it is used, one record changes the sum
    of $\delta_t$ over a batch by at most $(\theta_t - \theta_{t-1}) G + \theta_t r_t$ under
    add-or-remove-one, twice that under replace-one; $r_t = \rho_t / 2$ with `"centred"`, $\rho_t$
    with `"plain"`. This is enforced by clipping, whatever the loss: G and H decide accuracy alone.
    The noise of the step is in proportion, and the event is `noise.event(noise_multiplier)`: one
    Gaussian of that multiplier. Learner and averages are post-processing.

    | input | effect |
    | --- | --- |
    | empty batch | the gradient changes as the centre says; noise as ever |
    | NaN or inf record | contributes nothing |
    | `clip_norm` 0 and `smoothness` 0 | nothing is released |
    | more steps than the noise is made for | NaN |

    Attributes:
      sampler: Which records enter each step (static).
      noise: The noise's strategy, of as many steps (static).
      noise_multiplier: Noise in units of the sensitivity, scalar `>= 0` (data).
      clip_norm: G, scalar `>= 0`, bound on the gradient of one record (data).
      smoothness: H, scalar `>= 0`, bound on the change of that gradient for a unit of displacement
        (data).
      learning_rate: Scalar, what the learner takes it for (data): the diameter D for
        `"optimistic"`, `"dual_averaging"` and `"adagrad_norm"`; the step size, up to about 4 / H,
        for `"gradient_descent"`, 1 / H for `"optimistic_descent"`; the initial scale, a small
        distance, for `"distance_adaptive"`, `"parameter_free"` and `"coin_betting"`; 1 / mu for
        `"strongly_convex"`; a factor for `"exponentiated"` and `"optimistic_exponentiated"`.
      batch_size: Scalar, public normaliser of a batch's sum; never the realised size (data).
      learner: A name, or `learner(solver, problem) -> transformation`, such as
        `lambda s, p: dpjax.transforms.projected(optax.adam(s.learning_rate), p.project)` (static;
        keep one object for a sweep).
      weight_exponent: k, `>= 0` with `FullBatch`, else `>= 1` (static).
      estimate_exponent: j; None for 0 with `FullBatch`, else k (static).
      clip: `"centred"`, for convex losses in l2: the change of a gradient is clipped around its
        middle, (H/2)(x_t - x_{t-1}); `"plain"`, around 0; `"whole"`: all of a record's
        $\delta_t$, at $G \theta_t / t$, about half of what G allows, which is a bias that does
        not fall with the number of records (static).
      norm: Of gradients: `"l2"`, or `"linf"` with displacements in l1, for simplices and l1 balls;
        Gaussian noise is then sqrt(d) times as large (static).
      microbatch_size: Records a microbatch; None for the default of `microbatched_sum` (static).
      relation: Neighbouring relation of the guarantee (static).
      shrinkage: Whether the learner is fed estimates that are shrunk by what of their squared norm
        is noise, $(1 - (d - 2) v_t / \|\hat g_t\|^2)_+$ with $v_t$ the variance of its noise in a
        coordinate, so that it does not follow noise, and stays where it is if all is noise; with
        `SplitNoise` alone (static).

    Raises:
      ValueError: If a value is outside its bound, or sampler, noise and norm do not fit.
      TypeError: If `sampler` is no `Sampler`, `noise` no strategy, or `microbatch_size` no integer.

    Source: Zhang, Tran and Cutkosky, "Differentially private online-to-batch for smooth losses",
    2022, algorithm 1; changes of gradients over the full batch: Murata and Suzuki, "DIFF2", 2023.
    """

    sampler: Sampler = dataclasses.field(metadata={"static": True})
    noise: NoiseStrategy = dataclasses.field(metadata={"static": True})
    noise_multiplier: float | jax.Array
    clip_norm: ArrayLike
    smoothness: ArrayLike
    learning_rate: ArrayLike
    batch_size: ArrayLike
    learner: str | Learner = static_field(default="gradient_descent")
    weight_exponent: float = static_field(default=2.0)
    estimate_exponent: float | None = static_field(default=None)
    clip: str = static_field(default="centred")
    norm: str = static_field(default="l2")
    microbatch_size: int | None = static_field(default=None)
    relation: str = static_field(default="replace_one")
    shrinkage: bool = static_field(default=True)

    def __post_init__(self) -> None:
        requests.check_sampler(self.sampler, self.relation)
        requests.check_values(
            self,
            positive=("learning_rate", "batch_size"),
            nonnegative=("noise_multiplier", "clip_norm", "smoothness"),
            counts=("microbatch_size",),
            clip=increments.CLIPS,
            norm=("l2", "linf"),
        )
        if not callable(self.learner):
            check_choice("learner", self.learner, LEARNERS)
        requests.check_one_or_every_step(self.sampler, self.noise)
        kind, least = type(self.sampler).__name__, 0 if isinstance(self.sampler, FullBatch) else 1
        for name, value in (
            ("weight_exponent", self.weight_exponent),
            ("estimate_exponent", estimate_degree(self)),
        ):
            if not (math.isfinite(value) and value >= least):
                raise ValueError(f"{name} must be finite and >= {least} with {kind}, got {value!r}")
        if self.norm == "linf" and self.clip == "centred":
            raise ValueError("clip must be 'plain' or 'whole' with norm='linf', got 'centred'")
        distribution = requests.distribution_of(self.noise)
        if distribution not in ("gaussian", "l2", self.norm):
            raise ValueError(
                f"norm must be {distribution!r} with {self.noise!r}, got {self.norm!r}"
            )

    @classmethod
    def for_budget(
        cls,
        problem: Problem,
        num_records: int,
        budget: Budget,
        *,
        learner: str | Learner = "auto",
        single_pass: bool = False,
        **overrides: Any,
    ) -> Self:
        """A solver with defaults that train, its noise calibrated to `budget`.

        Args:
          problem: What will be solved; its public constants are used, never data: `lipschitz`
            and `smoothness` where it states them.
          num_records: *Public* bound on the number of records; also the size to divide by.
          budget: epsilon, delta and relation to meet. Without a relation it is add-or-remove-one
            with the full batch and replace-one for a single pass.
          learner: As in the class; `"auto"` is `"gradient_descent"`, or
            `"optimistic_exponentiated"` on simplices and l1 balls.
          single_pass: Whether each record takes part in one step, at `1 / steps` of the cost and
            with two to three times the noise (*public*). Its `clip` follows from the noise: below
            0.01 G / sqrt(d) in the norm of an estimate, at (1, 1e-5) and replace-one from about
            1,500 d records on, and where HR > 10 G, it is `"centred"` (`"plain"` on simplices and
            l1 balls), which has no bias for the constants stated; else `"whole"`. Steps of
            descent after centred clipping are 1 / H, and up to 4 / H the less noise there is.
          **overrides: `steps` (default 32 to 128, the more the less noise there is; 256 for
            learners that start slowly), `noise` (a strategy, or `"buffered"`, `"tree"`,
            `"variance_reduced_tree"` or, for pure privacy, `"pure_tree"` in a single pass), or any
            other field. All as printed is `dpjax.papers.online_to_batch.as_published`.

        Returns:
          A solver whose `guarantee().epsilon(budget.delta) <= budget.epsilon`.

        Raises:
          ValueError: If a value is outside its bound, or the budget cannot be met.
          TypeError: If an override is no field.

        Example:
          >>> import dpjax, jax.numpy as jnp
          >>> problem = dpjax.problems.Risk(
          ...     loss=lambda w, rec: (rec["x"] @ w - rec["y"]) ** 2 / 2,
          ...     init=jnp.zeros(3), radius=1.0)
          >>> solver = dpjax.solvers.OnlineToBatch.for_budget(
          ...     problem, num_records=1000, budget=dpjax.Budget(1.0, 1e-5))
          >>> solver.guarantee().epsilon(1e-5) <= 1.0
          True
        """
        if overrides.pop("as_published", False):
            make = moved_setting("online_to_batch", "as_published", "as_published=True")
            return make(problem, num_records, budget, learner=learner, **overrides)
        fields = plan_fields(cls, problem, num_records, budget, learner, single_pass, overrides)
        return requests.checked_gradients(cls(**fields), problem, num_records)

    expected_records = requests.records_in_full("batch_size")

    def init(self, problem: Problem, *, key: jax.Array) -> OnlineToBatchState:
        """The state before the first step; the key (*secret*) is for the noise."""
        check_key("key", key)
        start = jax.tree.map(wide, problem.init)
        zeros = jax.tree.map(jnp.zeros_like, start)
        return OnlineToBatchState(
            point=start,
            previous=start,
            iterate=start,
            estimate=zeros,
            learner=make_learner(self, problem).init(start),
            noise=self.noise.init(zeros),
            reach=jnp.zeros((), jnp.result_type(float)),
            variance=jnp.zeros((), jnp.result_type(float)),
            count=jnp.zeros((), jnp.int32),
            key=key,
        )

    def step(
        self, problem: Problem, batch: PyTree, mask: jax.Array, state: OnlineToBatchState
    ) -> tuple[OnlineToBatchState, OnlineToBatchInfo]:
        """One step on the records of `batch` (leaves `[B, ...]`) where `mask [B]` is True."""
        weights = weights_at(self, state.count)
        bound, centre, displacement = self._bound(state, weights)
        aggregator = increments.clipped_increments(bound, self.clip, self.norm, centre)
        gradients = functools.partial(_gradients, problem, state)
        total = microbatched_sum(gradients, aggregator, batch, mask, size=self.microbatch_size)
        increment = jax.tree.map(
            lambda s, o: s.astype(o.dtype) / jnp.asarray(self.batch_size, o.dtype), total, centre
        )
        share = weights.gradient / weights.total
        reach = jnp.maximum(state.reach, displacement / share)
        # of two sums and what is made of them
        dtypes = {leaf.dtype for leaf in jax.tree.leaves(total)}
        rounding = 2 * max(rounding_allowance(mask.shape[0], dtype) for dtype in dtypes)
        exact = self._record_bound(bound, weights, reach, state.count)
        if self.norm == "linf" and requests.distribution_of(self.noise) != "linf":
            exact = exact * math.sqrt(sum(leaf.size for leaf in jax.tree.leaves(state.point)))
        sensitivity = (1 + rounding) * exact / self.batch_size
        noisy, noise = correlated_noise(self.noise, self.noise_multiplier).update(
            increment, state.noise, key=state.key, sensitivity=sensitivity
        )
        # after the noise: beside what all records have in common a sum may be lost to rounding
        noisy = jax.tree.map(lambda s, o: s + weights.estimate.astype(o.dtype) * o, noisy, centre)
        estimate = jax.tree.map(jnp.add, state.estimate, noisy)
        gradient = _times(estimate, 1 / weights.estimate)
        variance, kept = self._shrinkage(state, sensitivity, estimate)
        moves, learner = make_learner(self, problem).update(
            _times(gradient, weights.gradient * kept),
            state.learner,
            state.iterate,
            weight=weights.gradient,
            total_weight=weights.total,
            average=state.point,
        )
        iterate = jax.tree.map(lambda w, m: w + m.astype(w.dtype), state.iterate, moves)
        point = jax.tree.map(
            lambda x, w: x + weights.next_share.astype(x.dtype) * (w - x), state.point, iterate
        )
        after = OnlineToBatchState(
            point,
            state.point,
            iterate,
            estimate,
            learner,
            noise,
            reach,
            variance,
            state.count + 1,
            state.key,
        )
        return after, OnlineToBatchInfo(_length(gradient, "l2"), displacement, sensitivity)

    def finalize(self, problem: Problem, state: OnlineToBatchState) -> PyTree:
        """The last average, after one more point of the learner."""
        return in_dtypes_of(state.point, problem.init)

    def redact(self, state: OnlineToBatchState) -> OnlineToBatchState:
        """The state without the noise's buffers, with which noise could be subtracted."""
        return state._replace(noise=None)

    def diagnose(
        self, problem: Problem, batch: PyTree, mask: jax.Array, state: OnlineToBatchState
    ) -> dict[str, jax.Array]:
        """Raw values of a step, **not private**: batch size and shares of clipped records."""
        bound, centre, _ = self._bound(state, weights_at(self, state.count))
        gradients = _gradients(problem, state, batch)
        clipped = increments.clipped_share(bound, self.clip, self.norm, centre, gradients)
        size = jnp.sum(mask)
        shares = {
            f"{name}_fraction": jnp.sum(mask & flags) / jnp.maximum(size, 1)
            for name, flags in clipped.items()
        }
        return {"batch_size": size, **shares}

    def guarantee(self) -> Guarantee:
        """The guarantee of the whole run (host)."""
        check_unstacked(self, "noise_multiplier")
        event = self.noise.event(float(self.noise_multiplier), self.relation)
        return Guarantee(event, self.relation, self.sampler.failure_probability())

    def _bound(
        self, state: OnlineToBatchState, weights: Weights
    ) -> tuple[increments.IncrementBound, PyTree, jax.Array]:
        """What a record may add, the centre of that, and how far the point has moved."""
        moved = jax.tree.map(jnp.subtract, state.point, state.previous)
        displacement = _length(moved, self.norm)
        radius = jnp.asarray(self.smoothness) * displacement
        clip_norm = jnp.asarray(self.clip_norm, displacement.dtype)
        centre = jax.tree.map(jnp.zeros_like, moved)
        if self.clip == "centred":
            radius = radius / 2
            centre = _times(moved, jnp.asarray(self.smoothness) / 2)
        if self.clip == "whole":
            clip_norm = clip_norm * weights.estimate / (state.count + 1)
        bound = increments.IncrementBound(weights.old_estimate, weights.estimate, clip_norm, radius)
        return bound, centre, displacement

    def _shrinkage(
        self, state: OnlineToBatchState, sensitivity: jax.Array, estimate: PyTree
    ) -> tuple[jax.Array, jax.Array]:
        """Variance of the noise in a coordinate of the estimate, and how much of that to keep."""
        if not (self.shrinkage and isinstance(self.noise, SplitNoise)):
            return state.variance, jnp.ones_like(state.variance)
        scale = self.noise_multiplier * sensitivity
        variance = state.variance + self.noise.variance(scale, state.count)
        dim = sum(leaf.size for leaf in jax.tree.leaves(estimate))
        size = jnp.square(_length(estimate, "l2"))
        tiny = jnp.finfo(size.dtype).tiny
        excess = max(dim - 2, 0) * variance / jnp.maximum(size, tiny)
        # NaN, where the noise is used up, must stay
        return variance, jnp.where(excess > 1, 0, 1 - excess)

    def _record_bound(
        self, bound: increments.IncrementBound, weights: Weights, reach: jax.Array, count: jax.Array
    ) -> jax.Array:
        """The most that one record adds to the sum over a batch, in `norm`."""
        return bound.sensitivity(self.clip)


def _gradients(problem: Problem, state: OnlineToBatchState, batch: PyTree) -> increments.Gradients:
    """Of each record at the point before and now."""

    def at(point: PyTree) -> PyTree:
        return problem.per_example_gradients(in_dtypes_of(point, problem.init), batch)

    return increments.Gradients(at(state.previous), at(state.point))


def _length(tree: PyTree, norm: str) -> jax.Array:
    """l2 norm of a tree, or l1, the dual of linf."""
    leaves = jax.tree.leaves(tree)
    if norm == "linf":
        return sum((jnp.sum(jnp.abs(leaf)) for leaf in leaves), jnp.zeros(()))
    return jnp.sqrt(sum((jnp.sum(jnp.square(leaf)) for leaf in leaves), jnp.zeros(())))


def _times(tree: PyTree, factor: jax.Array) -> PyTree:
    return jax.tree.map(lambda leaf: factor.astype(leaf.dtype) * leaf, tree)

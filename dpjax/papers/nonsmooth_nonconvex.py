"""Kornowski, Liu and Talwar, "Private nonsmooth nonconvex optimization", 2025: as printed, and by
its bounds. The map to code is in `docs/papers.md`."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from dp_accounting import dp_event as dpe
from jax.typing import ArrayLike

from dpjax.core import check_int, check_positive
from dpjax.papers._log_delta import log_inverse_delta
from dpjax.papers._stationarity_plan import (
    Plan,
    Setting,
    change_clip,
    direction_excess,
    first_clip,
    plan_full_batch,
    plan_single_pass,
)
from dpjax.privacy import Budget, Guarantee
from dpjax.sampling import DisjointPartition, FullBatch
from dpjax.solvers import OnlineToNonconvex, OnlineToNonconvexState
from dpjax.solvers._summary import register_solver
from dpjax.solvers.nonconvex._plan import (
    Asked,
    asked_for,
    first_share,
    plan_fields,
    smoothing_radius,
)
from dpjax.solvers.nonconvex._smoothed_oracle import LossProblem
from dpjax.transforms import BinaryTree, BufferedToeplitz, RestartNoise, SplitNoise

_PASSES = 1000  # over the data, unless more are asked for
_MOST_DIRECTIONS = 64
_MOST_PUBLISHED = 4  # directions in a dimension; up to 10^7 were published


@register_solver
@dataclass(frozen=True)
class PublishedOnlineToNonconvex(OnlineToNonconvex):
    r"""`OnlineToNonconvex` with the noise of a period as printed: the same on all nodes of a tree.

    Guarantee: a change of gradients is clipped at $\min(2 H D, 2 G)$, not at what the points have
    moved, and all nodes have the noise that the larger of two shares asks for: G over `batch_size`
    in all levels of the tree, and the change over `difference_batch_size` in one level less. A
    period is one Gaussian of `noise_multiplier`, as in `OnlineToNonconvex`.

    Attributes:
      noise: A plain `BinaryTree`.
      difference_batch_size: Required.

    Raises:
      ValueError: As `OnlineToNonconvex`, and if one of these two is something else.

    Source: Kornowski, Liu and Talwar, 2025, algorithms 2 to 5.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise != BinaryTree(self.noise.num_steps):
            raise ValueError(f"noise must be BinaryTree(period) as published, got {self.noise!r}")
        if self.difference_batch_size is None:
            raise ValueError("difference_batch_size is required as published")

    @classmethod
    def for_budget(
        cls, problem: LossProblem, num_records: int, budget: Budget, **overrides: Any
    ) -> Any:
        """The library's defaults, an `OnlineToNonconvex`; `as_published` has the printed ones."""
        return OnlineToNonconvex.for_budget(problem, num_records, budget, **overrides)

    def _change_bound(self, state: OnlineToNonconvexState) -> jax.Array:
        del state
        slope = jnp.asarray(self.smoothness, jnp.result_type(float))
        return jnp.minimum(slope * (2 * self.max_displacement), 2 * self.clip_norm)

    def _sensitivity(self, bound: ArrayLike, size: jax.Array) -> jax.Array:
        """The same on all nodes, whatever the bound of an estimate."""
        del bound
        assert isinstance(self.noise, BinaryTree)
        assert self.difference_batch_size is not None
        levels = self.noise.levels
        change = jnp.minimum(2 * self.smoothness * self.max_displacement, 2 * self.clip_norm)
        shares = jnp.stack(
            [
                self.clip_norm / jnp.asarray(self.batch_size, size.dtype),
                change / self.difference_batch_size * ((levels - 1) / levels) ** 0.5,
            ]
        )
        # a traced bound may be none
        return jnp.where(jnp.min(shares) >= 0, jnp.max(shares), jnp.nan)


def as_published(
    problem: LossProblem,
    num_records: int,
    budget: Budget,
    *,
    radius: float = 0.1,
    oracle: str = "first",
    initial_gap: float = 1.0,
    **overrides: Any,
) -> PublishedOnlineToNonconvex:
    r"""The single pass as printed, with the constants that were not printed set to 1.

    Directions are independent, and records of a batch have their own; one tree has all the noise of
    a period, by the printed conversion to epsilon, which is checked. Several passes are
    `multi_pass`.

    Guarantee: that of `PublishedOnlineToNonconvex`; its true epsilon, `guarantee().epsilon(delta)`,
    is below half of the budget's in the printed range of small epsilons.

    Args:
      problem: As in `OnlineToNonconvex.for_budget`.
      num_records: n (*public*), at least 3.
      budget: epsilon, delta > 0 and relation.
      radius: Of the ball for which stationarity is sought.
      oracle: `"first"` (theorem 6.1) or `"zeroth"` (theorem 3.1).
      initial_gap: $\Phi$, how far the loss may fall.
      **overrides: Other fields.

    Returns:
      The solver.

    Raises:
      ValueError: If a value is outside its bound, or the printed noise does not meet the budget.

    Source: Kornowski, Liu and Talwar, 2025, theorems 3.1 and 6.1.
    """
    asked = asked_for(problem, num_records, budget, radius, oracle, "single")
    fields = _published_fields(asked, initial_gap) | overrides
    kind = PublishedOnlineToNonconvex
    return kind(**plan_fields(kind, problem, num_records, budget, radius, oracle, "single", fields))


def by_bound(
    problem: LossProblem,
    num_records: int,
    budget: Budget,
    *,
    radius: float = 0.1,
    oracle: str = "first",
    passes: str = "multi",
    period: int = 1,
    steps: int | None = None,
    initial_gap: float = 1.0,
    **overrides: Any,
) -> OnlineToNonconvex:
    """A solver of the sizes of `stationarity_plan`, for which its bound is stated.

    It loses to `OnlineToNonconvex.for_budget` on every problem of the benchmarks.

    Guarantee: that of `OnlineToNonconvex`, calibrated to the budget.

    Args:
      problem: As in `stationarity_plan`, as all that follow.
      num_records: n (*public*).
      budget: epsilon, delta and relation.
      radius: Of the ball.
      oracle: `"first"` or `"zeroth"`.
      passes: `"single"` or `"multi"`.
      period: Moves in a period.
      steps: Most moves over the full batch.
      initial_gap: How far the loss may fall.
      **overrides: Other fields.

    Returns:
      A solver with a constant schedule that returns the mean of a block drawn uniformly.

    Raises:
      ValueError: If a value is outside its bound.
    """
    asked = asked_for(problem, num_records, budget, radius, oracle, passes)
    setting, plan = _bound_plan(asked, passes, period, steps, initial_gap)
    fields = _bound_fields(setting, plan, passes == "single") | overrides
    return OnlineToNonconvex.for_budget(
        problem, num_records, budget, radius=radius, oracle=oracle, passes=passes, **fields
    )


def stationarity_plan(
    problem: LossProblem,
    num_records: int,
    budget: Budget,
    *,
    radius: float = 0.1,
    oracle: str = "first",
    passes: str = "multi",
    period: int = 1,
    steps: int | None = None,
    initial_gap: float = 1.0,
) -> Plan:
    """Sizes of `OnlineToNonconvex` that minimise a bound, and that bound.

    What `by_bound` takes: a constant schedule, and a block
    drawn uniformly. The mean distance of 0 from the gradients within `radius` of the result is at
    most `bound`, of the population for a single pass and of the data for several, as far as
    clipping is inactive: surely for gradients of norm at most `problem.lipschitz`. It is proved for
    periods of 1; in longer ones errors are taken as unbiased given the past. It says nothing
    where it is no smaller than that, and runs are often far better: it is for choosing sizes.

    Args:
      problem: Its `num_params` and `lipschitz` are used (*public*).
      num_records: n (*public*).
      budget: epsilon, delta and relation.
      radius: As in `for_budget`.
      oracle: `"first"` or `"zeroth"`.
      passes: `"single"`, or `"multi"`: of the full batch.
      period: Moves in a period.
      steps: Most moves over the full batch, 1000 by default.
      initial_gap: How far the loss may fall from its start.

    Returns:
      `bound`, `period`, `moves`, `block`, `displacement`, `first_records`, `change_records`,
      `learning_rate`.

    Raises:
      ValueError: If a value is outside its bound.
      TypeError: If `period` is not an integer.

    Example:
      >>> import dpjax, jax.numpy as jnp
      >>> from dpjax.papers.nonsmooth_nonconvex import stationarity_plan
      >>> problem = dpjax.problems.Risk(
      ...     loss=lambda w, rec: jnp.abs(rec["x"] @ w - rec["y"]), init=jnp.zeros(20),
      ...     lipschitz=1.0)
      >>> budget = dpjax.Budget(1.0, 1e-8, "replace_one")
      >>> plan = stationarity_plan(problem, 10**7, budget, passes="single")
      >>> plan.bound < 0.2
      True

    Source: as `OnlineToNonconvex`, with constants.

    Theory: docs/theory/accuracy.md, A9.
    """
    asked = asked_for(problem, num_records, budget, radius, oracle, passes)
    return _bound_plan(asked, passes, period, steps, initial_gap)[1]


def _bound_plan(
    asked: Asked, passes: str, period: int, steps: int | None, gap: float
) -> tuple[Setting, Plan]:
    """The setting of a budget, and the sizes that minimise the bound."""
    check_int("period", period, minimum=1)
    check_positive("initial_gap", gap)
    if passes == "single" and steps is not None:
        raise ValueError(f"steps must be left out with passes='single', got {steps!r}")
    z = asked.request.noise_multiplier(dpe.GaussianDpEvent)
    smoothing = smoothing_radius(asked, period)
    setting = Setting(
        num_records=asked.request.num_records,
        dim=asked.dim,
        lipschitz=float(asked.lipschitz),
        gap=float(gap),
        smoothing=smoothing,
        reach=asked.radius - smoothing,
        multiplier=z,
        directions=None if asked.oracle == "first" else min(asked.dim, _MOST_DIRECTIONS),
    )
    if passes == "single":
        return setting, plan_single_pass(setting, (period,))
    most = _PASSES if steps is None else steps
    check_int("steps", most, minimum=1)
    return setting, plan_full_batch(setting, (period,), most)


def _bound_fields(setting: Setting, plan: Plan, single: bool) -> dict[str, Any]:
    clip, change = first_clip(setting), change_clip(setting, plan.displacement)
    periods = plan.moves // plan.period
    fields: dict[str, Any] = {
        "batch_size": float(plan.first_records),
        "sampler": FullBatch(periods),
        "noise": SplitNoise(1, 1.0),
    }
    if single:
        size = plan.first_records + (plan.period - 1) * plan.change_records
        fields["sampler"] = DisjointPartition(periods, size)
    if plan.period > 1:
        fields["smoothness"] = change / (2 * plan.displacement)
        fields["noise"] = SplitNoise(plan.period, first_share(plan.period, clip, change), 0.0)
        if single:
            fields["difference_batch_size"] = plan.change_records
            fields["noise"] = RestartNoise(BufferedToeplitz(plan.period - 1))
    return fields | _averaged(setting, clip, plan)


def _published_fields(asked: Asked, gap: float) -> dict[str, Any]:
    check_int("num_records with as_published", asked.request.num_records, minimum=3)
    check_positive("initial_gap", gap)
    n, dim, slope = asked.request.num_records, asked.dim, float(asked.lipschitz)
    alpha, epsilon, delta = (
        asked.radius / 2,
        asked.request.budget.epsilon,
        asked.request.budget.delta,
    )
    moves = max(2, n // 2)
    travel = slope * moves
    far = min(
        (gap**2 * alpha / travel**2) ** (1 / 3),
        (gap * alpha * epsilon / (dim * travel)) ** (1 / 2),
        (gap**3 * alpha**2 * epsilon / (dim**1.5 * travel**3)) ** (1 / 5),
        (gap**2 * alpha / (travel**2 * dim**0.5)) ** (1 / 3),
        alpha,
    )
    period = round((alpha / (epsilon * far)) ** (2 / 3) + alpha / (far * dim**0.5))
    period = min(max(2, period), max(2, n // 4))
    block = max(1, round(alpha / (4 * far)))
    periods = max(1, n // (2 * period - 1))
    block = _common(periods * period, block)
    directions = None if asked.oracle == "first" else _MOST_PUBLISHED * dim
    setting = Setting(n, dim, slope, gap, alpha, alpha, 1.0, directions)
    clip, change = first_clip(setting), change_clip(setting, far)
    noise = BinaryTree(period)
    levels = noise.levels
    # of means over `period` records and over one, for another record in one's place
    shares = clip / period, change
    sensitivity = 2 * max(shares)
    logs = math.log(period) * log_inverse_delta(asked.request.budget)
    node = 4 * sensitivity * math.sqrt(logs) / epsilon
    unit = max(shares[0], shares[1] * ((levels - 1) / levels) ** 0.5)
    multiplier = node / (math.sqrt(levels) * unit)
    guarantee = Guarantee(noise.event(multiplier), asked.request.relation)
    if guarantee.epsilon(delta) > epsilon:
        raise ValueError(
            f"epsilon must be smaller as published, got {epsilon!r} at delta = {delta!r}: the "
            f"published noise has a true epsilon of {guarantee.epsilon(delta):.4g}"
        )
    spread = 0.0 if directions is None else direction_excess(dim) / directions
    error = slope**2 * (1 + spread) / period + dim * node**2 * levels / 2
    rate = far / math.sqrt((slope**2 + error) * block)
    plan = Plan(math.inf, period, periods * period, block, far, period, 1, rate)
    return _averaged(setting, clip, plan) | {
        "sampler": DisjointPartition(periods, 2 * period - 1),
        "batch_size": float(period),
        "difference_batch_size": 1,
        "noise": noise,
        "noise_multiplier": multiplier,
        "smoothness": change / (2 * far),
        "reuse_directions": False,
    }


def _averaged(setting: Setting, clip: float, plan: Plan) -> dict[str, Any]:
    return {
        "clip_norm": clip,
        "smoothing_radius": setting.smoothing,
        "max_displacement": plan.displacement,
        "learning_rate": plan.learning_rate,
        "block_size": plan.block,
        "num_directions": setting.directions or 1,
        "directions": "record",
        "schedule": "constant",
        "selection": "uniform",
    }


def _common(moves: int, block: int) -> int:
    """The largest divisor of the moves that is no larger."""
    return next(size for size in range(min(block, moves), 0, -1) if moves % size == 0)


@register_solver
@dataclass(frozen=True)
class PublishedMultiPass(OnlineToNonconvex):
    r"""`OnlineToNonconvex` over the full batch, where all changes have one printed deviation.

    Guarantee: as `OnlineToNonconvex`, with changes of gradients clipped at $\min(2 H D, 2 G)$,
    whatever the points have moved.

    Source: Kornowski, Liu and Talwar, 2025, algorithm 4.
    """

    _change_bound = PublishedOnlineToNonconvex._change_bound


def multi_pass(
    problem: LossProblem,
    num_records: int,
    budget: Budget,
    *,
    radius: float = 0.1,
    initial_gap: float = 1.0,
) -> PublishedMultiPass:
    r"""Theorem 4.1: several passes from values alone, with the constants not printed set to 1.

    With $\alpha$ half the radius, $\Phi$ the gap, $L = \log(1/\delta)$ and G the Lipschitz
    constant,

    $$ \beta = \Bigl(\frac{\sqrt\Phi\, G d^{3/4}}{n \epsilon\sqrt\alpha}\Bigr)^{2/3}, \qquad
       D = \frac{\alpha\beta^2}{G^2}, \qquad T = \frac{\Phi G^2}{\alpha\beta^3}, \qquad
       \Sigma = \frac{\alpha}{D\sqrt d}, \qquad M = \frac{\alpha}{4D}, $$

    $$ \sigma_1 = \frac{G\sqrt{(T/\Sigma) L}}{n\epsilon}, \qquad
       \sigma_2 = \frac{G D\sqrt{T d L}}{\alpha n\epsilon}, \qquad
       m = \frac{G^2 d\Sigma}{n\sigma_1^2} + \frac{G^2 d}{n\sigma_2^2} $$

    Printed D and T have an $\alpha$ too many, which is taken out. Directions m are at most 4 d, of
    each record's own: with the printed number and no clipping the printed noise has no guarantee.

    Guarantee: that of `PublishedMultiPass`, with its true epsilon, which may be *above* the
    budget's, for gradients clipped where few are longer.

    Args:
      problem: As in `as_published`.
      num_records: n (*public*).
      budget: epsilon, delta > 0; replace-one.
      radius: Of the ball.
      initial_gap: $\Phi$.

    Returns:
      The solver; ask for `guarantee().epsilon(delta)`.

    Raises:
      ValueError: If a value is outside its bound.

    Source: Kornowski, Liu and Talwar, 2025, algorithm 4 and theorem 4.1; $\sigma_1$ and $\Sigma$
    from its proof.
    """
    check_positive("initial_gap", initial_gap)
    asked = asked_for(problem, num_records, budget, radius, "zeroth", "multi")
    n, dim, slope = num_records, asked.dim, float(asked.lipschitz)
    alpha, spent, logs = radius / 2, num_records * budget.epsilon, log_inverse_delta(budget)
    beta = (math.sqrt(initial_gap / alpha) * slope * dim**0.75 / spent) ** (2 / 3)
    far = min(alpha, alpha * beta**2 / slope**2)
    period = max(2, int(alpha / (far * math.sqrt(dim))))
    periods = max(1, int(initial_gap * slope**2 / (alpha * beta**3) / period))
    moves = periods * period
    block = _common(moves, max(1, int(alpha / (4 * far))))
    first_noise = slope * math.sqrt(periods * logs) / spent
    change_noise = slope * far * math.sqrt(moves * dim * logs) / (alpha * spent)
    wanted = slope**2 * dim / n * (period / first_noise**2 + 1 / change_noise**2)
    count = max(1, min(_MOST_PUBLISHED * dim, math.ceil(wanted)))
    setting = Setting(n, dim, slope, initial_gap, alpha, alpha, 1.0, count)
    clip, change = first_clip(setting), change_clip(setting, far)
    # squared inverse noise multipliers of the first release of a period, and of the others
    costs = (clip / n / first_noise) ** 2, (period - 1) * (change / n / change_noise) ** 2
    error = slope**2 * dim**2 * period / (count * n)
    error += dim * (first_noise**2 + period * change_noise**2)
    rate = far / math.sqrt((slope**2 + error) * block)
    plan = Plan(math.inf, period, moves, block, far, n, n, rate)
    return PublishedMultiPass(
        **_averaged(setting, clip, plan),
        sampler=FullBatch(periods),
        noise=SplitNoise(period, costs[0] / sum(costs), 0.0),
        noise_multiplier=1 / math.sqrt(sum(costs)),
        batch_size=float(n),
        smoothness=change / (2 * far),
        oracle="zeroth",
        reuse_directions=False,
        relation=budget.relation_or("replace_one").name.lower(),
    )

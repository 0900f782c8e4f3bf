"""Estimates of prediction rates from noisy tables, multipliers, and what noise does to both."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from dpjax.core import PyTree, Sampler, Transform, is_traced, wide
from dpjax.privacy import split_noise_multiplier
from dpjax.privacy._warnings import MultiplierWarning, ResolutionWarning, warn
from dpjax.problems import RateConstrained, RateConstraints
from dpjax.problems._rate_constrained import LinearLogits
from dpjax.solvers._request import Request
from dpjax.solvers.descent._dpsgd import DPSGD
from dpjax.solvers.descent._dpsgd_defaults import MOST_WIDTH
from dpjax.transforms import add_gaussian, add_laplace
from dpjax.transforms.noise import _noisy_counts as counting
from dpjax.transforms.noise._independent import noise_on_leaves

_LARGEST_STEP = 0.15
_LARGEST_GAIN = 1.0
_MULTIPLIER_NOISE = 0.5  # standard deviation that a multiplier may gather over a run
_GAIN_NOISE = 0.7  # of that, what the noise of one table may add in its step
_DRIFT = 0.005  # of a rate in a step; the gain of a Kalman filter follows
_LEAST_SHARE = 0.02  # of a batch, for a mean size
_SWING_ERRORS = 4.0  # standard errors that a swing must stand out by
_LEAST_SWINGS = 30  # steps before one is looked for
HISTOGRAMS = ("gaussian", "laplace", "none")
MULTIPLIER_SETS = ("box", "orthant", "l1")


class RateMemory(NamedTuple):
    """What is remembered of released tables.

    Attributes:
      sizes: Mean records of each subset in a batch, `[S]`.
      rates: Reference rates, `[S, K]`.
    """

    sizes: jax.Array
    rates: jax.Array


class RateReading(NamedTuple):
    """What one table says.

    Attributes:
      sizes: Records of each subset in a batch, `[S] > 0`.
      rates: Rates in [0, 1], `[S, K]`, which people look at.
      values: Estimate of Gamma, `[J]`, which drives the multipliers.
      deviation: Its standard deviation, `[J]`.
      memory: For the next step.
    """

    sizes: jax.Array
    rates: jax.Array
    values: jax.Array
    deviation: jax.Array
    memory: RateMemory


class Swings(NamedTuple):
    """Variance of constraint values between steps, and the factor of the learning rate it sets.

    Where one direction lowers the loss and breaks a constraint, a long step flips many predictions:
    rates swing around the slack, and the averaged parameters miss it, since their predictions are
    not the average of predictions. The bound of 0.03 was chosen over 0.05 and 0.08 on 15 generated
    data sets. On fresh ones with one feature that determines group and label, slack 0.1, gaps fell
    from 0.34 to 0.10 and from 0.35 to 0.11 (30,000 rows, epsilon 1 and 8), and from 0.21 to 0.10
    (3,000 rows, epsilon 8), but only from 0.27 to 0.25 with 3,000 rows at epsilon 1.

    Attributes:
      looked: Steps looked at since the last start, `[]` float.
      total: Sum of their estimates, `[J]`.
      squares: Sum of the squares of those, `[J]`.
      noise: Sum of their variances, `[J]`.
      scale: Factor of the learning rate, `[]`.
      halved: Step at which it was last halved, `[]` float; 0 for never.
    """

    looked: jax.Array
    total: jax.Array
    squares: jax.Array
    noise: jax.Array
    scale: jax.Array
    halved: jax.Array

    @classmethod
    def start(cls, num_constraints: int) -> "Swings":
        """Nothing seen, factor 1."""
        zero, none = jnp.zeros(()), jnp.zeros(num_constraints)
        return cls(zero, none, none, none, jnp.ones(()), zero)

    def after(
        self,
        reading: RateReading,
        active: jax.Array,
        bound: ArrayLike,
        step: jax.Array,
        steps: int,
    ) -> "Swings":
        """With one more reading: half the factor, and a new start, if more than noise swings.

        Args:
          reading: Of one table.
          active: Which constraints count, bool `[J]`.
          bound: Most standard deviation of values between steps.
          step: Which step, `[]`; the first quarter of a run, in which rates move, is not looked at.
          steps: Of the run.
        """
        seen = self._replace(
            looked=self.looked + 1,
            total=self.total + reading.values,
            squares=self.squares + reading.values**2,
            noise=self.noise + reading.deviation**2,
        )
        more = seen.stands_out(bound, _SWING_ERRORS)
        swings = (seen.looked >= _LEAST_SWINGS) & jnp.any(more & active)
        anew = self.start(more.size)._replace(
            scale=self.scale / 2, halved=jnp.asarray(step, self.halved.dtype)
        )
        after = jax.tree.map(lambda a, b: jnp.where(swings, a, b), anew, seen)
        return jax.tree.map(lambda a, b: jnp.where(step >= steps / 4, a, b), after, self)

    def stands_out(self, bound: ArrayLike, errors: float) -> jax.Array:
        """Whether values vary by more than the bound and this many errors of noise, `[J]`."""
        count = jnp.maximum(self.looked, 1)
        variance = self.squares / count - (self.total / count) ** 2
        known = self.noise / count
        return variance > bound**2 + known * (1 + errors * jnp.sqrt(2 / count))

    def check(self, bound: ArrayLike | None, active: jax.Array, steps: int) -> None:
        """Warns of rates that swung until the end of a run; they are released values.

        Warns:
          MultiplierWarning: If the factor was halved in the last quarter, or rates of an `active`
            constraint still swing; not of traced values.
        """
        if bound is None or is_traced(self.scale, bound):
            return
        still = (self.looked >= _LEAST_SWINGS) & jnp.any(self.stands_out(bound, 3.0) & active)
        if float(self.halved) > 0.75 * steps or bool(still):
            warn(
                "prediction rates swung to the end of the run, by more between steps than "
                f"swing_bound = {float(np.asarray(bound)):.2g} (the learning rate ended at "
                f"{float(self.scale):.2g} times its value): steps meet the constraints on average, "
                "but the averaged parameters may miss them. Use more steps or a smaller "
                "learning_rate, or other features than those that tell the groups apart",
                MultiplierWarning,
            )


@dataclass(frozen=True)
class ControlVariate:
    r"""Rates linear in the table, around a reference from earlier tables.

    $$ \hat R_{sk} = \bar p_{sk} + (n_{sk} - \bar p_{sk} n_s) / \bar d_s, \qquad
       E\,\hat\Gamma_j - \Gamma_j = \sum_{sk} A_{jsk}
       (r|D_s| / \bar d_s - 1)(P_{sk} - \bar p_{sk}) $$

    The bias is a product of two errors: 0 for any reference $\bar p$ if the sizes are right, and
    for any sizes $\bar d$ if the reference is. A ratio of noisy counts, or one held to [0, 1], is
    biased by what a dual step then sums up. Sizes are the posterior mean of a public prior, with
    `fixed` those given. Both are functions of earlier tables, and so are `RateReading.sizes`.

    Attributes:
      deviation: Standard deviation of the noise of a cell.
      batch_size: Expected records in a batch.
      steps: Number of steps (static).
      fixed: Whether sizes are those of the first memory (static).
      floor: Of mean sizes; None for a fiftieth of the batch, and at least 1.
    """

    deviation: ArrayLike
    batch_size: ArrayLike
    steps: int
    fixed: bool
    floor: ArrayLike | None = None

    def init(self, constraints: RateConstraints) -> RateMemory:
        """Equal parts and equal rates."""
        classes = constraints.num_classes
        sizes = _num_parts(constraints) * (self.batch_size / constraints.membership.shape[1])
        return RateMemory(sizes, jnp.full((*sizes.shape, classes), 1 / classes, sizes.dtype))

    def read(
        self, constraints: RateConstraints, cells: jax.Array, memory: RateMemory, count: jax.Array
    ) -> RateReading:
        """What the `count`-th table `[Q, K]` says, given what is remembered of those before."""
        floor = jnp.maximum(1.0, _LEAST_SHARE * self.batch_size)
        sizes = jnp.maximum(memory.sizes, floor if self.floor is None else self.floor)
        rates = jax.vmap(optax.projections.projection_simplex)(memory.rates)
        sums = jnp.matmul(constraints.membership, cells, precision="highest")
        total = sums.sum(axis=1, keepdims=True)
        estimate = rates + (sums - rates * total) / sizes[:, None]

        parts = _num_parts(constraints)
        after = memory.sizes
        if not self.fixed:
            prior = self.batch_size * parts / constraints.membership.shape[1]
            known = self.deviation**2 * constraints.num_classes * parts + prior
            weight = known / (prior / 2) ** 2
            after = after + (total[:, 0] - after) / (weight + count)
        noise = jnp.asarray(self.deviation * jnp.sqrt(parts))
        gain = _DRIFT * sizes / jnp.where(noise > 0, noise, 1e-9)
        gain = jnp.minimum(jnp.maximum(gain, 5 / self.steps), 0.3)
        moved = (sums - memory.rates * total) * (gain / sizes)[:, None]
        return RateReading(
            sizes,
            rates,
            constraints.weighted(estimate),
            value_deviation(constraints, sizes, rates, self.deviation),
            RateMemory(after, memory.rates + moved),
        )


def default_size_floor(deviation: ArrayLike, constraints: RateConstraints) -> jax.Array:
    """Two standard deviations of each subset's noisy size, and at least 1, `[S]`."""
    parts = constraints.membership.sum(axis=1)
    return jnp.maximum(1.0, 2 * deviation * jnp.sqrt(constraints.num_classes * parts))


def value_deviation(
    constraints: RateConstraints, sizes: jax.Array, rates: jax.Array, deviation: ArrayLike
) -> jax.Array:
    r"""Standard deviation of the estimate of each constraint from one table, `[J]`.

    $$ \sigma_j^2 = \sum_{qk} (z_h^2 + h_{qk}) \Big( \sum_{s \ni q}
       (A_{jsk} - \sum_l A_{jsl} p_{sl}) / d_s \Big)^2 $$

    with Poisson cells of means h, those of the smallest subset that holds the part.
    """
    weights, membership = constraints.weights, constraints.membership
    centred = weights - jnp.sum(weights * rates[None], axis=2, keepdims=True)
    slope = jnp.einsum(
        "sq,jsk->jqk", membership, centred / sizes[None, :, None], precision="highest"
    )
    parts = _num_parts(constraints)
    smallest = jnp.argmin(jnp.where(membership > 0, parts[:, None], jnp.inf), axis=0)
    cells = (sizes / parts)[:, None] * rates
    return jnp.sqrt(jnp.sum((deviation**2 + cells[smallest][None]) * slope**2, axis=(1, 2)))


def dual_step(constraints: RateConstraints, deviation: jax.Array, steps: int) -> jax.Array:
    """Step size of each multiplier, `[J]`: its noise over the run stays at a stated amount.

    A multiplier sums the noise of all steps, `step * deviation * sqrt(steps)` at most.
    """
    walk = deviation * steps**0.5
    allowed = _allowed_noise(constraints)
    return jnp.minimum(_LARGEST_STEP, allowed / jnp.where(walk > 0, walk, 1e-9))


def proportional_gain(constraints: RateConstraints, deviation: jax.Array) -> jax.Array:
    """What a step's weights add of the violation just seen, `[J]`, as far as noise allows.

    Multipliers alone, sums of violations, overshoot: where a constraint costs much, rates swung by
    0.5, and their average missed a slack of 0.05 by 0.13. On such instances, fresh ones (n = 3,000
    and 30,000, 2 and 4 groups), a gain of 1 left 0.03 to 0.05, and no difference where it costs
    little.
    """
    allowed = _GAIN_NOISE * _allowed_noise(constraints)
    return jnp.minimum(_LARGEST_GAIN, allowed / jnp.where(deviation > 0, deviation, 1e-9))


def _allowed_noise(constraints: RateConstraints) -> jax.Array:
    """Deviation that each multiplier may have, `[J]`.

    Of rows that bound one direction each adds to the same force, and of several directions all add
    up.
    """
    rows = constraints.weights - constraints.weights[:, :, -1:]  # rates of a subset sum to 1
    subsets = constraints.membership
    common = jnp.matmul(subsets, subsets.T, precision="highest")
    sizes = jnp.diagonal(common)
    equal = ((common == sizes[None]) & (common == sizes[:, None])).astype(rows.dtype)
    rows = jnp.einsum("st,jtk->jsk", equal, rows, precision="highest").reshape(len(rows), -1)
    norms = jnp.linalg.norm(rows, axis=1, keepdims=True)
    rows = rows / jnp.where(norms > 0, norms, 1)
    cosines = jnp.matmul(rows, rows.T, precision="highest") + jnp.eye(len(rows))
    same, opposite = cosines > 1 - 1e-5, cosines < 1e-5 - 1
    copies = jnp.sum(same, axis=1)
    directions = jnp.sum(1 / jnp.sum(same | opposite, axis=1))
    return _MULTIPLIER_NOISE / (copies * jnp.sqrt(directions))


def _num_parts(constraints: RateConstraints) -> jax.Array:
    return jnp.maximum(constraints.membership.sum(axis=1), 1.0)


def check_resolution(seen: np.ndarray, constraints: RateConstraints, descent: DPSGD) -> None:
    """Warns of constraints that the noise hides.

    Warns:
      ResolutionWarning: If a slack is below four times its resolution, or a subset of equal parts
        has fewer than 10 records in a batch.
    """
    slack = np.asarray(constraints.slack)
    hidden = seen > np.where(slack == 0, 0.01, np.abs(slack) / 4)
    if np.any(hidden):
        worst = int(np.argmax(np.where(hidden, seen, 0)))
        warn(
            f"this budget cannot see constraint {worst} of slack {slack[worst]:.2g}: its "
            f"resolution is {seen[worst]:.2g} for parts of equal size, so expect it to be met on "
            f"training data up to about {2 * seen[worst]:.2g} ({int(hidden.sum())} of {len(seen)} "
            "constraints are below four times theirs): raise epsilon, use more records, merge "
            "groups or relax the slack",
            ResolutionWarning,
        )
    least = float(descent.batch_size * np.min(equal_shares(constraints)))
    if least < 10:
        warn(
            f"a batch has about {least:.2g} records of the smallest subset: its rates are mostly "
            "noise of sampling; raise batch_size or merge groups",
            ResolutionWarning,
        )


def equal_shares(constraints: RateConstraints) -> np.ndarray:
    """Each subset's share of the parts, `[S]` (host)."""
    membership = np.asarray(constraints.membership)
    return np.maximum(membership.sum(axis=1), 1) / membership.shape[1]


def project_multipliers(kind: str, multipliers: jax.Array, bound: ArrayLike) -> jax.Array:
    r"""Projects onto $[0, b]^J$, $[0, \infty)^J$ or $\{\lambda \ge 0, \sum\lambda \le b\}$."""
    positive = jnp.maximum(multipliers, 0)
    if kind == "orthant":
        return positive
    if kind == "box":
        return jnp.minimum(positive, bound)
    return optax.projections.projection_l1_ball(positive, bound)


def table_noise(histogram: str, noise: ArrayLike, tables: counting.CountTables | None) -> Transform:
    """The noise of a table: of counts rounded to integers, where there are tables of its law."""
    if tables is None:
        return add_laplace(noise) if histogram == "laplace" else add_gaussian(noise)
    return noise_on_leaves(
        lambda table, key: counting.noisy_counts(key, table.astype(jnp.int32), noise, tables)
    )


def check_multipliers(kind: str, multipliers: jax.Array, bound: ArrayLike) -> None:
    """Warns of multipliers at their bound after a run, `[J]`; they are released values.

    Warns:
      MultiplierWarning: If one is, or their sum for `"l1"`; not of traced values.
    """
    if kind == "orthant" or is_traced(multipliers, bound):
        return
    ended, most = np.asarray(jax.device_get(multipliers)), float(np.max(bound))
    at_bound = np.full(ended.shape, ended.sum() > 0.99 * most) & (ended > 0)
    if kind == "box":
        at_bound = ended > 0.99 * most
    if np.any(at_bound):
        warn(
            f"multipliers of constraints {np.flatnonzero(at_bound).tolist()} ended at their bound, "
            f"multiplier_bound = {most:g}: these constraints were not enforced. Relax their slack, "
            "drop one that contradicts another, raise multiplier_bound or clip_norm, or ask for a "
            "larger epsilon",
            MultiplierWarning,
        )


def cell_deviation(histogram: str, noise: ArrayLike) -> Any:
    """Standard deviation of a cell of the noisy table."""
    return noise * 2**0.5 if histogram == "laplace" else noise


def split_noise(noise: float, share: float, histogram: str) -> tuple[float, float]:
    """Noise of table and gradient whose precisions stand as `share` to `1 - share`."""
    if histogram == "none":
        return 0.0, noise
    deviation, gradient = split_noise_multiplier(noise, share)
    return deviation / cell_deviation(histogram, 1.0), gradient


def default_share(steps: int) -> float:
    """Share of the precision for the table, of a run of so many steps."""
    return 0.1 if steps >= 1000 else 0.2


def default_steps(request: Request, sampler: Sampler, problem: RateConstrained) -> int:
    """Those of the sampler, or a half or a quarter where the noise of a step is large.

    Networks, whose gradients point in fewer directions, bear more: with 1000 steps the error was
    0.90 to 1.0 times that with 500 or 250 in nine cells of three data sets, of noise up to 0.72,
    and 1.05 times in one of 0.95.
    """
    n, steps = request.num_records, sampler.steps
    width = min(problem.num_params, MOST_WIDTH) ** 0.5
    most = 0.14 if isinstance(problem.logits, LinearLogits) else 0.8
    z = request.noise_of_run(sampler)
    batch = n * sampler.participation_rate(n)
    while steps > 250 and z * (steps / sampler.steps) ** 0.5 * width > most * batch:
        steps //= 2
    return steps


def table_of(
    problem: RateConstrained,
    params: PyTree,
    batch: PyTree,
    mask: jax.Array,
    rates: str,
    temperature: ArrayLike,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Logits, the mask of valid records, and the noiseless table `[Q, K]`."""
    logits = problem.class_logits(params, batch["x"])
    valid = mask & problem.valid(logits, batch)
    each = problem.rates(wide(logits), temperature=temperature, hard=rates == "hard")
    each = jnp.where(valid[:, None], each.astype(jnp.promote_types(each.dtype, float)), 0)
    if rates == "soft":
        # multiples of a unit, of which a batch's sums are exact; a row's stays within 1, as the
        # unit is more than what rounding adds to it
        least = max(4, (each.shape[0] - 1).bit_length())
        unit = 2.0 ** (least - jnp.finfo(each.dtype).nmant - 1)
        each = jnp.floor(each / unit) * unit
    constraints = problem.constraints
    return logits, valid, constraints.tabulate(each, constraints.part(batch))

"""Defaults of clipped, noisy descent from public numbers: batches, clip norm, rate and noise."""

import functools
import math
from typing import Any, NamedTuple, TypeGuard

import jax
import numpy as np
from dp_accounting import dp_event as dpe
from jax.typing import ArrayLike

from dpjax.core import Problem, Sampler, check_fields, check_int, is_traced, optional
from dpjax.problems import RateConstrained
from dpjax.problems._link_slopes import steepest_slope
from dpjax.sampling import CyclicPoisson, IndependentPartition, PoissonSampler, RepeatedPartition
from dpjax.solvers._request import Request, stated, with_room
from dpjax.solvers._vertex_problem import VertexProblem, over_vertices
from dpjax.transforms import Banded, BufferedToeplitz, NoiseStrategy
from dpjax.transforms.noise.correlated._buffered_toeplitz import root_mean_square

_LARGEST_CLIP = 4.0
_DERIVATIVES = 2**20  # of all records of a step
MOST_WIDTH = 256  # parameters over which noise counts
_FEW_WEIGHTS = 1000  # of a network of three matrices or more
_STEEPEST = 3.0  # rate of descent on gradients of length 1
_TIGHT, _FEW_CLIPPED = 0.7, 0.1  # clip norms over the typical length
_MOST_MARGIN = 0.4  # by which noise alone moves them in a step
_FEWEST_STEPS = 20  # of which one is a look
_MOST_WIDE, _MOST_NARROW = 0.03, 0.05  # looks, as shares of the steps
_WIDE, _NARROW = 16.0, 29.0  # roots of looks a unit of noise, that leave 0.8 and 0.12 in log(s)
_TOLD = 0.0115  # noise of one wide look, that leaves 0.15
_MOST_MOVED = 6.0  # a step of correlated noise, over the part that later noise cancels
_MOST_BANDS = 128  # a vector of the parameters' size each
_MOST_FIT = 2**13  # steps for which coefficients of a fixed order are looked for
# smaller differences of the score were not seen in accuracy
_CLEARLY_LESS = 0.95


def fall_by_default(overrides: dict[str, Any]) -> None:
    """Sets the schedule of independent noise, unless an optimizer or an average is given."""
    if not {"optimizer", "average"} & set(overrides):
        overrides.setdefault("schedule", "linear")


def with_defaults(
    kind: type, overrides: dict[str, Any], sampler: Sampler, num_records: int, problem: Problem
) -> dict[str, Any]:
    """Defaults computed from public sizes.

    With a rate that falls linearly, the average is of the last fifth of the run or so: that had
    less error than a constant rate and an average of the last tenth in all cells of `regret`, up to
    three times.
    """
    linear = overrides.get("schedule") == "linear"
    defaults: dict[str, Any] = {
        "batch_size": num_records * sampler.participation_rate(num_records),
        "decay": max(0.0, 1 - (5 if linear else 10) / sampler.steps),
    }
    check_fields(kind, overrides)
    fields = defaults | overrides
    if _may_look(problem, fields, sampler):
        lipschitz, smoothness = optional(problem, "lipschitz"), optional(problem, "smoothness")
        if lipschitz is None and smoothness is None:
            return fields | _in_lengths(problem, fields, sampler.steps) | overrides
        slope = steepest_slope(problem) if smoothness is None else None
        if slope is not None:
            bound = stated(problem, "lipschitz", math.inf)
            return _below_a_bound(problem, fields, sampler.steps, slope, bound) | fields
    if "clip_norm" not in fields:
        fields["clip_norm"] = stated(problem, "lipschitz", _clip_norm(problem, fields))
    if "learning_rate" not in fields:
        # problems over vertices state theirs in other coordinates
        smoothness = None if over_vertices(problem) else optional(problem, "smoothness")
        largest = 1.0 if smoothness is None else 1 / float(smoothness)
        if two_players(problem):
            largest = min(1.0, _steepest(problem) * _reach(problem) / fields["clip_norm"])
        unit = fields["clip_norm"] * problem.num_params**0.5 / fields["batch_size"]
        noise = fields["noise_multiplier"] * unit  # its norm in a mean gradient
        strategy = fields.get("noise")
        moved = _moved(problem, sampler.steps, linear, is_correlated(strategy))
        if is_correlated(strategy) and noise > 0:
            # correlated noise has less in the sums, along which descent moves, than in a step
            largest = min(largest, _MOST_MOVED / (noise * float(strategy.prefix_stddev()[0])))
            noise = equivalent_noise(strategy, noise, sampler.steps)
        fields["learning_rate"] = min(largest, moved / noise) if noise > 0 else largest
    return fields


def most_records(problem: Problem) -> int:
    """Largest expected batch by default: 1024, or as many as hold 2^20 derivatives.

    Where records are many and parameters few, batches of 1024 are the larger part of the error:
    on fresh logistic and squared losses, n = 100,000 and 400,000, a sixteenth has between 0.1 and
    1.03 times it; on those of `regret`, n = 30,000 and a million, 0.03 to 1.1. The cost is seconds.
    Rules for rates, and those over vertices, were chosen at 1024.
    """
    if over_vertices(problem) or isinstance(problem, RateConstrained):
        return 1024
    return largest_batch(problem.num_params)


def largest_batch(num_params: int) -> int:
    """1024, or as many records as hold 2^20 derivatives."""
    return max(1024, _DERIVATIVES // max(1, num_params))


def _clip_norm(problem: Problem, fields: dict[str, Any]) -> ArrayLike:
    r"""Default where the problem states no Lipschitz constant: $0.4 / \nu$, between 1 and 4.

    $\nu$ is the norm of the noise in a mean gradient at clip norm 1, over at most 256 parameters: a
    network's noise is spread over directions that hardly matter. On mixtures, regressions and
    subsamples of Adult that the rule was not chosen on (n = 1,500 to 50,000, epsilon 0.25 to 4),
    error was between 0.27 less and 0.007 more than at a constant 4, and loss 0.35 to 1.15 times
    that. On the softmax regressions and networks of `regret` the error is lower in all cells, but
    the excess loss, which clipping biases, up to 15 times as large.
    """
    noise = fields["noise_multiplier"]
    if over_vertices(problem) or is_correlated(fields.get("noise")) or is_traced(noise):
        return _LARGEST_CLIP
    relative = noise * min(problem.num_params, MOST_WIDTH) ** 0.5 / fields["batch_size"]
    return np.clip(0.4 / np.maximum(relative, 1e-9), 1.0, _LARGEST_CLIP)[()]


def _may_look(problem: Problem, fields: dict[str, Any], sampler: Sampler) -> bool:
    """Whether it can be worth some steps to see how long gradients are."""
    given = bool({"clip_norm", "learning_rate", "looks"} & set(fields))
    if given or is_correlated(fields.get("noise")) or sampler.steps < _FEWEST_STEPS:
        return False
    constants = (optional(problem, name) for name in ("lipschitz", "radius"))
    public = (fields["noise_multiplier"], fields["batch_size"], problem.init, *constants)
    told = over_vertices(problem) or isinstance(problem, RateConstrained)
    return not told and not is_traced(*public)


def _in_lengths(problem: Problem, fields: dict[str, Any], steps: int) -> dict[str, Any]:
    r"""Clip norm and rate in units of the length that the first steps measure.

    With $\nu$ as in `_clip_norm`, whose value is the floor of networks. The first step moves by
    noise alone as far as $0.5 \sqrt{d / T}$, with three matrices of weights or more $\min(1, (1000
    / d)^{1/4})$ times that, since noise in what a layer gives grows with the root of its width; or
    where all parameters start at 0 $\max(1.25, 0.5 / \nu) \sqrt{d / T}$ over the length. Rates
    there are over the square of the length, so that it is measured until its logarithm has noise of
    0.12, in up to 0.08 of the steps, and the average is shorter the larger the noise. Elsewhere a
    hundredth of the steps measures.

    Clip norms, and rates elsewhere, were chosen on wine, digits, tumours, a part of Adult, mixtures
    and regressions with features of length 1 to 12 (n = 142 to 15,000, epsilon 0.3 to 4); the
    softmax regressions and networks of `regret` were looked at too. Without a floor, loss was 0.71
    to 1 times as large on 31 fresh softmax regressions, features of length 0.3 to 3; on 12 squared
    losses 0.86 to 1.19 times, larger in 3. Numbers of looks, the 1.25 and the average were chosen
    on wine, digits, tumours, diabetes and some 40 synthetic instances. On 24 others (17 of tables;
    n = 485 to 12,000, epsilon 0.25 to 4) the excess was 0.41 to 1.22 times that with a hundredth of
    looks and 1 for the 1.25, 0.83 in the geometric mean, and above 1.03 in 3, of which 2 are Huber
    losses. Narrow looks were added, on 4 further instances, after 23 of these had been seen with
    wide ones (0.88). On 12 of `regret`, where the earlier rule had looked, 0.84 to 1.6 times.

    The 1000 was chosen on the digits of `networks` and three other networks; that two matrices do
    not count, on six of two matrices and five of three, where the loss was 0.67 to 1.03 times as
    large. On three fresh ones of 3 to 5 matrices (d = 1,204 to 10,629, n = 3,000 to 5,000, epsilon
    1 and 4) it was 0.40 to 1 times as large.
    """
    noise, width = float(fields["noise_multiplier"]) / fields["batch_size"], problem.num_params
    relative = max(1e-9, noise * min(width, MOST_WIDTH) ** 0.5)
    starts_at_zero = not any(np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(problem.init))
    clip_norm = min(1.5, max(0.5, 0.5 / relative))
    far, decay = 0.5, fields["decay"]
    if starts_at_zero:
        far = max(1.25, 0.5 / relative)
        if fields.get("schedule") == "linear":
            decay = max(0.0, 1 - 5 * min(10, max(1, 2 * relative)) / steps)
    elif sum(np.ndim(leaf) > 1 for leaf in jax.tree.leaves(problem.init)) > 2:
        far *= min(1.0, (_FEW_WEIGHTS / width) ** 0.25)
    unit = max(1e-9, noise * clip_norm * width**0.5)
    return {
        **(_looks(noise, steps) if starts_at_zero else {"looks": math.ceil(steps / 100)}),
        "decay": decay,
        "clip_norm": clip_norm,
        "clip_floor": 0.0 if starts_at_zero else _clip_norm(problem, fields),
        "rate_power": 2 if starts_at_zero else 1,
        "learning_rate": min(_STEEPEST, far * (width / steps) ** 0.5 / unit),
    }


def _looks(noise: float, steps: int) -> dict[str, int]:
    """One look in 100 steps, or up to 8, most of them narrow, if that left log(s) too noisy.

    `noise` is the standard deviation of one number in the mean of one step.
    """
    wide, narrow = steps / 100, 0
    if (noise / _TOLD) ** 2 > wide:
        wide = min(_MOST_WIDE * steps, max(wide, (_WIDE * noise) ** 2))
        narrow = math.ceil(min(_MOST_NARROW * steps, (_NARROW * noise) ** 2))
    return {"looks": math.ceil(wide) + narrow, "narrow_looks": narrow}


def _below_a_bound(
    problem: Problem, fields: dict[str, Any], steps: int, steepest: float, bound: float
) -> dict[str, Any]:
    r"""Clip norm and rate of a convex loss of one inner product whose slope may jump, as a hinge.

    A stated L bounds gradients, but features may be much shorter than their bound. In units of the
    measured length s, the clip norm is $\max(0.7, 0.1 / \nu)$, up to L, with $\nu$ as in
    `_clip_norm`, and noise alone moves margins by $\sqrt{d / T}$ in the first step, or by the
    largest margin in the ball over $\sqrt T$; by at most 0.4. Chosen on 57 instances of hinge,
    absolute and quantile losses, features up to their bound or 3 to 50 times as short. On 54 fresh
    ones (d = 5 to 200, n = 1,000 to 200,000, epsilon 0.25 to 4) the excess was 0.002 to 1.28 times
    that of clip norm L without looks, and below half that of `OnlineToNonconvex` on 38 of them.
    More looks, and narrow ones, came later, with the constants of `_looks` as they were. On 21 of
    22 instances that have them (n = 500 to 8,000; 10 decided that they are used) the excess was
    0.007 to 1.11 times that with a hundredth, 0.84 in the median. On the other, 500 records for 40
    features at epsilon 0.25, it was 1.95 times the start's, where it had been 1.15.
    """
    radius = optional(problem, "radius")
    each = float(fields["noise_multiplier"]) / fields["batch_size"]
    noise = each * problem.num_params**0.5
    clip_norm = max(_TIGHT, _FEW_CLIPPED / max(noise, 1e-9))
    far = problem.num_params**0.5
    if radius is not None:
        far = min(far, float(radius) * bound / steepest)
    unit = max(1e-9, noise * clip_norm)
    return {
        **_looks(each, steps),
        "clip_norm": clip_norm,
        "rate_power": 2,
        "learning_rate": steepest * min(_STEEPEST, min(_MOST_MARGIN, far / steps**0.5) / unit),
        "length_bound": bound,
    }


def _moved(problem: Problem, steps: int, falls: bool, correlated: bool) -> float:
    r"""Largest distance that noise alone may move the first step.

    $D / \sqrt T$ with D a guess of the distance to the optimum: the radius of a linear model, at
    most 5 L / H (a margin of 20 for the logistic loss); in other models 0.5 per coordinate where
    the rate falls, 0.3 where noise is correlated. This replaces a rate that lost to four times
    itself in the study `networks`. The constants were chosen on softmax and Huber regression, other
    networks, logistic and squared loss (d = 8 to 1,638, n = 1,000 to 60,000, epsilon 0.25 to 8), on
    instances that no study reports.
    """
    radius, smoothness = optional(problem, "radius"), optional(problem, "smoothness")
    if two_players(problem):
        return _reach(problem) / steps**0.5
    if over_vertices(problem):
        return 0.45 if falls else 0.3
    if not optional(problem, "factored") and (falls or correlated):
        return (0.5 if falls else 0.3) * (problem.num_params / steps) ** 0.5
    if radius is None or not optional(problem, "factored"):
        return 0.3
    if smoothness is not None:
        radius = min(radius, 5 * stated(problem, "lipschitz", math.inf) / smoothness)
    return float(radius) / steps**0.5


def two_players(problem: Problem) -> TypeGuard[VertexProblem]:
    return over_vertices(problem) and len(problem.domains) > 1


def _reach(problem: VertexProblem) -> float:
    """A guess of how far both players' solutions are from where they start."""
    far = (min(float(domain.diameter) / 2, domain.dim**0.5) for domain in problem.domains)
    return math.hypot(*far)


def _steepest(problem: VertexProblem) -> float:
    """Largest rate of descent on both players, over `_reach` and times the clip norm.

    Without noise the rate of uniformly averaged descent is the distance over sqrt(T) and the
    gradient; where losses curve, they hold the players at larger rates. Chosen, as the distance is,
    on 47 fresh instances: matrix games, groups' least squares and maxima of quadratics (8 to 80
    strategies, n = 500 to 100,000, epsilon 0.5 and 2). A rate that ignored all this had up to 33
    times the error of the best one, in the geometric mean 4.9 times in games and 2 in others; this
    one 1.04 and 1.4. Of wide balls the largest rate is what it was, 1.
    """
    return 0.14 if problem.smoothness == (0, 0) else 1.1


class Plan(NamedTuple):
    """Sampler and noise for a budget; all *public*.

    Attributes:
      name: Of the candidate, `"banded, 4"` or `"buffered"`.
      sampler: Which records enter each step.
      noise: The strategy.
      noise_multiplier: z, that meets the budget.
      score: z times the root mean square deviation of the prefixes, over the batch size.
    """

    name: str
    sampler: Sampler
    noise: NoiseStrategy
    noise_multiplier: float
    score: float


def equivalent_noise(noise: NoiseStrategy, noise_multiplier: float, steps: int) -> float:
    r"""Multiplier of independent noise with the same mean square noise of the prefixes.

    $z_{eq} = z\, E / \sqrt{(T + 1) / 2}$, E the root mean square deviation of the prefixes at noise
    multiplier 1; z itself where noise is independent.
    """
    error = root_mean_square(noise.prefix_stddev()[:steps])
    return float(noise_multiplier) * error / math.sqrt((steps + 1) / 2)


def is_correlated(noise: object) -> TypeGuard[NoiseStrategy]:
    """Whether this is a strategy other than independent noise, by `None` or as one band."""
    # of a subclass, noise and event may be others
    return noise is not None and not (type(noise) is Banded and noise.bands == 1)


def banded(request: Request, batch_size: float, steps: int, bands: int) -> tuple[Sampler, Banded]:
    """Groups that take turns, as many as bands; of one group Poisson batches."""
    n = request.num_records
    check_int("bands", bands, minimum=1)
    if batch_size * bands > n * (1 + 1e-9):
        raise ValueError(
            f"batch_size * groups must be <= num_records = {n}, got {batch_size:g} * {bands}"
        )
    rate = min(1.0, batch_size * bands / n)
    if bands == 1:
        return with_room(PoissonSampler(rate, steps, n), request.budget), Banded(steps, 1)
    sampler = with_room(CyclicPoisson(rate, bands, steps, n), request.budget)
    return sampler, Banded(steps, min(bands, steps))


def in_fixed_order(
    request: Request, batch_size: float, epochs: int
) -> tuple[Sampler, BufferedToeplitz]:
    """The same batches in every epoch, and noise for that, without amplification."""
    n = request.num_records
    check_int("epochs", epochs, minimum=1)
    once = max(1, int(n // batch_size))
    if epochs == 1:
        return request.one_pass(once), BufferedToeplitz(once)
    noise = BufferedToeplitz(once * epochs, participations=epochs, separation=once)
    if request.relation != "add_or_remove_one":
        return RepeatedPartition(epochs, once, n // once), noise
    batches = IndependentPartition(once * epochs, n, epochs=epochs)
    return with_room(batches, request.budget), noise


@functools.lru_cache(maxsize=64)
def chosen(request: Request, batch_size: float, steps: int) -> tuple[Plan, tuple[Plan, ...]]:
    """The candidate of least predicted noise, and all that were considered.

    Independent noise unless another has a score below 0.95 of its own. Bands go upward in powers of
    two until the score has risen twice; then as many as an epoch has batches, and a fixed order,
    which pays where there is little to be gained by sampling.
    """
    n = request.num_records
    most = min(int(n // batch_size), steps, _MOST_BANDS)
    plans: list[Plan] = []
    rises, bands = 0, 1
    while bands <= max(most, 1) and rises < 2:
        plans.append(_banded_plan(request, batch_size, steps, bands))
        rises += len(plans) > 1 and plans[-1].score > plans[-2].score
        bands *= 2
    once = int(n // batch_size)
    if rises < 2 and 2 < once == most and most != bands // 2:
        plans.append(_banded_plan(request, n / once, steps, once))
    best = min(plans, key=lambda plan: plan.score)
    epochs = max(1, round(steps * batch_size / n))
    if steps <= _MOST_FIT and once > 1:
        # no coefficients have less than those of one pass, with columns that do not overlap
        least = root_mean_square(BufferedToeplitz(steps).prefix_stddev()) * math.sqrt(epochs)
        z = request.noise_multiplier(dpe.GaussianDpEvent)
        if 0.95 * z * least / batch_size < best.score:
            sampler, noise = in_fixed_order(request, batch_size, epochs)
            z = request.noise_multiplier(noise.event, sampler.failure_probability())
            score = z * root_mean_square(noise.prefix_stddev()) * once / n
            plans.append(Plan("buffered", sampler, noise, z, score))
            best = min(best, plans[-1], key=lambda plan: plan.score)
    if best.score >= _CLEARLY_LESS * plans[0].score:
        best = plans[0]
    return best, tuple(plans)


def _banded_plan(request: Request, batch_size: float, steps: int, bands: int) -> Plan:
    sampler, noise = banded(request, batch_size, steps, bands)
    z = request.noise_of_run(sampler, noise)
    score = z * root_mean_square(noise.prefix_stddev()) / batch_size
    return Plan(f"banded, {bands}", sampler, noise, z, score)

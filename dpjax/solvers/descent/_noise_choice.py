"""Choice of noise for several epochs, from public numbers: how many bands, or a fixed order."""

import functools
import math
from typing import NamedTuple, TypeGuard

from dp_accounting import dp_event as dpe

from dpjax.core import Sampler, check_int
from dpjax.sampling import (
    CyclicPoisson,
    IndependentPartition,
    PoissonSampler,
    RepeatedPartition,
)
from dpjax.solvers._check_sampler import event_of_run
from dpjax.solvers._request import Request
from dpjax.transforms import Banded, BufferedToeplitz, NoiseStrategy
from dpjax.transforms.noise.correlated._toeplitz import root_mean_square

_MOST_BANDS = 128  # a vector of the parameters' size each
_MOST_FIT = 2**13  # steps for which coefficients of a fixed order are looked for
# smaller differences of the score were not seen in accuracy
_CLEARLY_LESS = 0.95


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
        return PoissonSampler(rate, steps, n), Banded(steps, 1)
    return CyclicPoisson(rate, bands, steps, n), Banded(steps, min(bands, steps))


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
    return IndependentPartition(once * epochs, n, epochs=epochs), noise


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

    def event(z: float) -> dpe.DpEvent:
        return event_of_run(sampler, noise, z, request.relation)

    z = request.noise_multiplier(event, sampler.failure_probability())
    score = z * root_mean_square(noise.prefix_stddev()) / batch_size
    return Plan(f"banded, {bands}", sampler, noise, z, score)

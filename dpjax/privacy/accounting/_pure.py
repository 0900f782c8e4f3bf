"""Pure differential privacy: the epsilon of an event at delta = 0."""

import math

import attr
from dp_accounting import NeighboringRelation
from dp_accounting import dp_event as dpe

from dpjax.privacy._relations import relation_factor
from dpjax.privacy.accounting._structure import Parts, flatten
from dpjax.privacy.accounting._support import UnsupportedEventError


@attr.s(frozen=True, slots=True, auto_attribs=True)
class PureZCDpEvent(dpe.ZCDpEvent):
    r"""A mechanism that is both zero-concentrated and $\epsilon$-DP, such as a draw.

    $D_\alpha \le \xi + \rho\alpha$ for all $\alpha > 1$, and $D_\infty \le \epsilon$

    A draw of bounded range eta is `PureZCDpEvent(bounded_range_rho(eta), epsilon=eta)`. As a
    `ZCDpEvent` alone it would have no epsilon at delta = 0.

    Guarantee: both bounds are the caller's, for the relation at hand.

    Attributes:
        rho: As in `ZCDpEvent`. *Public*.
        xi: As in `ZCDpEvent`. *Public*.
        epsilon: The pure epsilon, >= 0; infinity where none is known. *Public*.

    Example:
        >>> from dpjax.privacy import Guarantee
        >>> Guarantee(dpe.SelfComposedDpEvent(PureZCDpEvent(0.005, epsilon=0.2), 3)).epsilon(0.0)
        0.6000000000000001
    """

    rho: float
    xi: float = 0.0
    epsilon: float = math.inf


def pure_epsilon(parts: Parts, relation: NeighboringRelation) -> float:
    """The epsilon at delta = 0 of parts (from `flatten`); infinite where one is not private at all.

    Raises:
        UnsupportedEventError: If a part has no pure epsilon, such as Gaussian noise.
    """
    return math.fsum(count * _of_part(part, relation) for part, count in parts)


def _of_part(part: dpe.DpEvent, relation: NeighboringRelation) -> float:
    factor = relation_factor(relation)
    match part:
        case dpe.NonPrivateDpEvent():
            return math.inf
        case dpe.LaplaceDpEvent(noise_multiplier=noise):
            return factor / noise
        case dpe.DiscreteLaplaceDpEvent(noise_parameter=noise, sensitivity=sensitivity):
            return factor * noise * sensitivity
        case dpe.RandomizedResponseDpEvent(noise_parameter=noise, num_buckets=buckets):
            return math.log1p(buckets * (1 - noise) / noise)
        case PureZCDpEvent(epsilon=epsilon) if epsilon < math.inf:
            return float(epsilon)
        case dpe.PoissonSampledDpEvent(sampling_probability=rate, event=inner):
            # Balle, Barthe and Gaboardi (2018): log(1 + rate (e^epsilon - 1)), without overflow
            epsilon = pure_epsilon(flatten(inner), relation)
            if epsilon > 30:
                return epsilon + math.log(rate + (1 - rate) * math.exp(-epsilon))
            return math.log1p(rate * math.expm1(epsilon))
    raise UnsupportedEventError(
        f"{part} has no pure epsilon (delta = 0): ask for delta > 0, or use what has one, such as "
        "Laplace or K-norm noise, OnlineToBatch with noise='pure_tree', or draws of vertices "
        "(FrankWolfe, FrankWolfeRelease, SaddleRelease)"
    )

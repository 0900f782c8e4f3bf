"""Group privacy: what a guarantee for one record says about k of them."""

import dataclasses
import math

import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting import dp_event as dpe
from scipy import stats

from dpjax.core import GuaranteeLike, PyTree, check_delta, check_int, check_nonnegative
from dpjax.privacy._guarantee import SHOWN_DELTA, Guarantee, epsilon_line, least_epsilon
from dpjax.privacy.accounting import _structure as structure
from dpjax.privacy.accounting._accountant import compose
from dpjax.privacy.accounting._structure import PureZCDpEvent, UnsupportedEventError

_CELLS = 48  # of the grid on which the shares of epsilon are chosen
_LARGEST = 700.0
_LARGEST_MIXTURE = 64  # records in a group whose number in a batch is followed exactly


@dataclasses.dataclass(frozen=True)
class GroupGuarantee:
    r"""The guarantee for groups of k records that a guarantee for one record implies.

    Gaussian noise z: z / k; Laplace of scale b: b / k; zCDP: $k^2 \rho$; a Poisson batch with
    Gaussian noise: a mixture of Gaussians over the number of the group's records in the batch.
    Else along a chain of k neighbours, for the best shares $\epsilon_1 + ... + \epsilon_k =
    \epsilon$:

    $\delta_k(\epsilon) \le \sum_i e^{\epsilon_1 + ... + \epsilon_{i-1}} \delta(\epsilon_i)$

    Guarantee: for data sets that differ in one group of at most `size` records, which joins or
    leaves as a whole (or is replaced, under the replace relations). Upper bounds throughout. The
    failure probability holds under any data and is charged once.

    Args:
        guarantee: For one record: a `Guarantee`, or one with a curve of its own. *Public*.
        size: Number k >= 1 of records in a group. *Public*.

    Raises:
        ValueError: If size is below 1.
        TypeError: If size is not an integer.

    Example:
        >>> one = Guarantee(dpe.GaussianDpEvent(8.0))
        >>> two = Guarantee(dpe.GaussianDpEvent(2.0))
        >>> GroupGuarantee(one, 4).epsilon(1e-5) == two.epsilon(1e-5)
        True

    Source: Bun and Steinke (2016), proposition 27; Dong, Roth and Su (2022), "Gaussian differential
    privacy", theorem 2.14; Ganesh (2024), "Tight group-level DP guarantees for DP-SGD".
    """

    guarantee: PyTree
    size: int
    _direct: Guarantee | None = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_int("size", self.size, minimum=1)
        object.__setattr__(self, "_direct", _direct(self.guarantee, int(self.size)))

    def __repr__(self) -> str:
        """Size, epsilon of the group at the deltas that the guarantee shows, and that guarantee."""
        known = vars(self.guarantee).get(SHOWN_DELTA)
        line = epsilon_line(self, *([] if known is None else [known]))
        return f"GroupGuarantee(size={self.size})\n  {line}\n  for one record: {self.guarantee!r}"

    @property
    def relation(self) -> NeighboringRelation:
        """How often it is applied: `size` times the relation of one record."""
        relation: NeighboringRelation = self.guarantee.relation
        return relation

    def epsilon(self, delta: float) -> float:
        """An upper bound on epsilon for the group; infinity where none is known.

        Args:
            delta: In [0, 1). *Public*.

        Returns:
            Epsilon >= 0.

        Raises:
            ValueError: If delta is outside [0, 1), or is 0 where one record has no pure epsilon.
        """
        check_delta("delta", delta)
        if delta == 0:
            return self.size * self.guarantee.epsilon(delta)
        if self._direct is not None:
            return self._direct.epsilon(delta)
        return least_epsilon(self.delta, delta)

    def delta(self, epsilon: float) -> float:
        """An upper bound on delta for the group, at most 1.

        Args:
            epsilon: Finite and >= 0. *Public*.

        Returns:
            Delta in [0, 1].

        Raises:
            ValueError: If epsilon is negative or not finite.
        """
        check_nonnegative("epsilon", epsilon)
        if self._direct is not None:
            return self._direct.delta(epsilon)
        # the best split along a chain whose shares are multiples of epsilon / cells; an event is
        # without its failures, which are charged once, and a curve of its own has them in it
        one_record, failure, curve = self.guarantee, 0.0, self.guarantee.delta
        if isinstance(one_record, Guarantee):
            failure = _failure(one_record, self.size)
            curve = compose(one_record._id).delta
        epsilon = min(epsilon, _LARGEST)  # delta falls, and e^epsilon stays finite
        cells = max(self.size, _CELLS // self.size * self.size)  # equal shares among them
        share = epsilon / cells
        one = np.array([min(1.0, float(curve(share * i))) for i in range(cells + 1)])
        growth = np.exp(share * np.arange(cells + 1))
        total = one
        for _ in range(int(self.size) - 1):
            first = [one[: i + 1] + growth[: i + 1] * total[i::-1] for i in range(cells + 1)]
            total = np.array([options.min() for options in first])
        return min(1.0, float(total[-1]) + failure * (1 + math.exp(epsilon)))


def group_guarantee(guarantee: GuaranteeLike, size: int) -> GroupGuarantee:
    """The guarantee for groups of `size` records; see `GroupGuarantee`.

    Args:
        guarantee: For one record. *Public*.
        size: Number of records in a group, >= 1. *Public*.

    Returns:
        A `GroupGuarantee`, with `epsilon(delta)` and `delta(epsilon)`.

    Raises:
        ValueError: If size is below 1.

    Example:
        >>> group_guarantee(Guarantee(dpe.ZCDpEvent(0.01)), 3).epsilon(1e-6) == Guarantee(
        ...     dpe.ZCDpEvent(0.09)
        ... ).epsilon(1e-6)
        True
    """
    return GroupGuarantee(guarantee, size)


def _direct(guarantee: GuaranteeLike, size: int) -> Guarantee | None:
    """The same guarantee with each part's sensitivity that of the group, if every part has one."""
    if not isinstance(guarantee, Guarantee):
        return None
    parts = []
    for part, count in structure.flatten(guarantee.event):
        scaled = _scaled(part, size, guarantee.relation)
        if scaled is None:
            return None
        parts.append((scaled, count))
    try:
        return Guarantee(structure.unflatten(parts), guarantee.relation, _failure(guarantee, size))
    except UnsupportedEventError:
        return None


def _failure(guarantee: Guarantee, size: int) -> float:
    """Failures are counted for what one record moves, such as noisy counts: more move here."""
    return min(1.0 - 1e-9, size * float(guarantee.failure_probability))


def _scaled(part: dpe.DpEvent, size: int, relation: NeighboringRelation) -> dpe.DpEvent | None:
    match part:
        case dpe.NonPrivateDpEvent():
            return part
        case dpe.GaussianDpEvent() | dpe.LaplaceDpEvent():
            return type(part)(part.noise_multiplier / size)
        case dpe.DiscreteLaplaceDpEvent(noise_parameter=noise, sensitivity=sensitivity):
            return dpe.DiscreteLaplaceDpEvent(noise, sensitivity * size)
        case dpe.ZCDpEvent(rho=rho, xi=xi):
            # proposition 27: xi grows by k (1 + 1/2 + ... + 1/k)
            harmonic = math.fsum(1 / i for i in range(1, size + 1))
            epsilon = part.epsilon if isinstance(part, PureZCDpEvent) else math.inf
            return PureZCDpEvent(rho * size**2, xi * size * harmonic, size * epsilon)
    releases = structure.batch_releases(part)
    plain = relation != NeighboringRelation.REPLACE_ONE and size <= _LARGEST_MIXTURE
    if releases is None or releases[0] or not plain:
        return None
    present = np.arange(size + 1.0)
    probabilities = stats.binom.pmf(present, size, part.sampling_probability)
    return dpe.MixtureOfGaussiansDpEvent(releases[1], present.tolist(), probabilities.tolist())

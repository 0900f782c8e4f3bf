"""The privacy curve of draws of bounded range mixed with Gaussian noise, from above."""

import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import numpy as np
from dp_accounting import dp_event as dpe

from dpjax.core._checks import check_delta, check_int, check_nonnegative
from dpjax.privacy._budget import RelationLike, resolve_relation
from dpjax.privacy._guarantee import Guarantee
from dpjax.privacy.accounting._joint import normal_mass
from dpjax.privacy.bounded_range._curve import _another_draw, _crossing, bounded_range_rho

_CELLS = 12  # that the smallest range is cut into
_LEFT_OUT = 1e-18  # probability of a loss beyond the grid
_DEVIATIONS = 9.0  # of Gaussian noise, beyond which delta counts as 1
_MOST_POINTS, _MOST_CELLS = 20_000, 400
_FARTHEST = 690.0  # end of the grid, far enough from where e^x overflows
_SPARE = 1e-8  # relative, for rounding in the weights of Gaussian losses


class MixturePhase(NamedTuple):
    """Gaussian noise and draws that are interleaved in any order.

    Attributes:
      mu: Root of the sum of squares of shift over deviation of the Gaussian releases.
      draws: Pairs of a bounded range and how many draws have it, those of one range after the
        other.
    """

    mu: float
    draws: tuple[tuple[float, int], ...] = ()

    @property
    def rho(self) -> float:
        """Of zero-concentrated DP."""
        return self.mu**2 / 2 + sum(n * bounded_range_rho(eta) for eta, n in self.draws)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class MixtureGuarantee:
    r"""The guarantee of adaptive draws and Gaussian releases, and of a branch among several.

    $\delta(\epsilon) = G_\mu B_{\eta_1} \cdots B_{\eta_N} \max_b V_b$ at $\epsilon$, with
    $V_b$ the same of a branch, from $(1 - e^x)_+$; $(G_s D)(x) = E D(x - L)$,
    $L \sim N(s^2/2, s^2)$, and $B_\eta$ the recursion of `bounded_range_delta`.

    Guarantee: an upper bound, and never above that of the event, which is zCDP. B and G are
    monotone and keep $D(\log \gamma)$ convex, and $B G_s D \le G_s B D$: of all orders Gaussian
    noise before the draws is the worst. What comes next may depend on what was released, within
    each phase: sizes of Gaussian releases, order, and at the end the branch, of which the largest
    curve counts at every point. Chords between grid points lie above D and are integrated exactly;
    ranges are rounded up to the grid. Only the event composes with other releases.

    Equal and hashable by value, and a static pytree node without leaves.

    Args:
      first: What happens on every branch. *Public*.
      branches: What may follow, one of them; may be empty. *Public*.
      relation: Under which the numbers hold; nothing is doubled elsewhere.
      failure_probability: As in `Guarantee`.

    Raises:
      ValueError: If a value is outside its bound.
      TypeError: If one is no number, or a number of draws no integer.

    Example:
      >>> guarantee = MixtureGuarantee(MixturePhase(0.2, ((0.05, 18),)))
      >>> guarantee.epsilon(1e-6) < 0.96 * Guarantee(guarantee.event, "replace_one").epsilon(1e-6)
      True

    Source: own; the recursion of draws is that of Dong, Durfee and Rogers (2020).

    Theory: docs/theory/privacy.md, P5.
    """

    first: MixturePhase
    branches: tuple[MixturePhase, ...] = ()
    relation: RelationLike = "replace_one"
    failure_probability: float = 0.0

    def __post_init__(self) -> None:
        check_delta("failure_probability", self.failure_probability)
        for phase in (self.first, *self.branches):
            check_nonnegative("mu", phase.mu)
            for eta, count in phase.draws:
                check_nonnegative("eta", eta)
                check_int("draws", count, minimum=1)
        object.__setattr__(self, "relation", resolve_relation(self.relation))

    @property
    def event(self) -> dpe.DpEvent:
        """The run as zCDP: what a ledger or an accountant composes."""
        return dpe.ZCDpEvent(self.first.rho + max((b.rho for b in self.branches), default=0.0))

    def epsilon(self, delta: float) -> float:
        """The least epsilon at delta, from above; see `Guarantee.epsilon`."""
        epsilon = Guarantee(self.event, self.relation, self.failure_probability).epsilon(delta)
        curve = _curve(self.first, self.branches)
        if curve is None or self.failure_probability or not curve[1][-1] <= delta:
            return epsilon  # the grid may end before the curve is down to delta
        return min(epsilon, max(0.0, _crossing(*curve, delta)))

    def delta(self, epsilon: float) -> float:
        """delta(epsilon), from above, at most 1; see `Guarantee.delta`."""
        delta = Guarantee(self.event, self.relation, self.failure_probability).delta(epsilon)
        curve = _curve(self.first, self.branches)
        if curve is None or self.failure_probability or epsilon > curve[0][-1]:
            return delta
        points, values = curve
        # straight in e^x, as chords are
        return min(delta, float(np.interp(math.exp(epsilon), np.exp(points), values)))


@functools.lru_cache(maxsize=256)
def _curve(
    first: MixturePhase, branches: tuple[MixturePhase, ...]
) -> tuple[np.ndarray, np.ndarray] | None:
    """Points and delta there, or None where the grid would be too large or too coarse."""
    ranges = [eta for phase in (first, *branches) for eta, _ in phase.draws if eta > 0]
    rho = first.rho + max((branch.rho for branch in branches), default=0.0)
    if not ranges or not 0 < rho < math.inf:
        return None
    width = min(ranges) / _CELLS
    reach = rho + 2 * math.sqrt(-rho * math.log(_LEFT_OUT))
    below, most = math.ceil(reach / width), math.ceil(max(ranges) / width)
    if below > _MOST_POINTS or most > _MOST_CELLS or width < 1e-7:
        return None
    if reach + max(ranges) > _FARTHEST:
        return None
    points = width * np.arange(-below, below + 1)
    start = np.maximum(0.0, -np.expm1(points - 1e-12))

    def after(phase: MixturePhase, curve: np.ndarray) -> np.ndarray:
        for eta, count in reversed(phase.draws):
            cells = math.ceil(eta / width * (1 - 1e-12))
            for _ in range(count if cells else 0):
                curve = _another_draw(curve, width, cells)
        return _gaussian(curve, width, phase.mu)

    follows = [after(branch, start) for branch in branches] or [start]
    return points, after(first, np.max(follows, axis=0))


def _gaussian(curve: np.ndarray, width: float, mu: float) -> np.ndarray:
    """G_mu of a curve on the grid, whose chords are straight in e^x."""
    if mu == 0:
        return curve
    extent = math.ceil((mu**2 / 2 + _DEVIATIONS * mu) / width) + 1
    starts = width * np.arange(-extent, extent + 1)  # of cells of the loss
    mass, tilted = (
        normal_mass((starts - mean) / mu, (starts + width - mean) / mu)
        for mean in (mu**2 / 2, -(mu**2) / 2)
    )
    # a node has the part of the cell after its offset where the chord rises to it, and of the cell
    # before it where the chord falls from it
    rises = (np.exp(starts + width) * tilted - mass) / math.expm1(width)
    falls = (math.exp(width) * mass - np.exp(starts + width) * tilted) / math.expm1(width)
    weights = np.maximum(rises, 0)
    weights[1:] += np.maximum(falls[:-1], 0)
    weights = weights * (1 + _SPARE)
    padded = np.concatenate([np.ones(extent), curve, np.full(extent, curve[-1])])
    missing = max(0.0, 1 - float(np.sum(weights)))
    return np.minimum(np.convolve(padded, weights, "valid") + missing + 1e-17, 1.0)

r"""The privacy loss of the best of a random number of runs, from one run's dominating pair.

(P, Q) dominates one run in one direction, at every real epsilon; L = dP/dQ. With f the generating
function of the number of runs, r(q) the quantile function of L under P, q'(q) the least Q-mass of a
set of P-mass q, and $R(q) = \max_{s \le q} f'(s) / f'(q'(s))$, the selection has, in that
direction,

$$\delta(\epsilon) \le \int_0^1 f'(q) [1 - e^\epsilon / (R(q) r(q))]_+ dq ,$$

the hockey-stick curve of a loss $\log R(q) + \log r(q)$ of density f'(q). [0, 1] is cut into cells
at the break points of r and of q', and finer. On a cell the loss is taken at its upper end, and
the mass, an integral of the convex f', by its chord: both upper bounds.

Everything is a function of t = 1 - q and of u = 1 - q', which are small where losses are large, so
that tails keep their relative precision.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from dp_accounting.pld.pld_pmf import PLDPmf
from scipy import optimize, special

from dpjax.core._checks import check_int, check_scalar
from dpjax.privacy.accounting._joint import Atoms

_GAUSSIAN_CELLS = 2**17
_FINER_CELLS = 2**13
_REACH = 8.5, 11.0  # deviations below and above; P beyond: 1e-17, put at ends
_LOWEST = math.log(1e-12)  # of gamma


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class RunsLaw:
    r"""Truncated negative binomial number K of runs, of a given mean.

    $P(K = k) \propto (1 - \gamma)^k\, \Gamma(k + \eta) / k!$ for $k \ge 1$

    With `max_runs` the law is restricted to `{1, ..., max_runs}` and gamma solved again for the
    mean: the law to use where all `max_runs` runs are executed so that time does not reveal K.

    Guarantee: none by itself; K must stay secret and independent of the data.

    Args:
        mean: Expected number of runs, > 1, or 1 with `max_runs`. *Public*.
        shape: eta > -1; smaller is cheaper, but more often makes a single run. *Public*.
        max_runs: Largest number of runs; None for no bound. *Public*.

    Raises:
        TypeError: If mean or shape is no number, or `max_runs` no integer.
        ValueError: If a value is outside its bound, or no law within `max_runs` has this mean.

    Example:
        >>> round(RunsLaw(16.0, 0.0).gamma, 7)
        0.0145627
        >>> round(RunsLaw(16.0, 1.0, max_runs=64).gamma, 4)
        0.0571

    Source: Papernot and Steinke (2022), "Hyperparameter tuning with Rényi differential privacy".
    """

    mean: float
    shape: float = 0.0
    max_runs: int | None = None

    def __post_init__(self) -> None:
        check_scalar("mean", self.mean)
        check_scalar("shape", self.shape)
        if not -1 < self.shape < math.inf:
            raise ValueError(f"shape must be finite and > -1, got {self.shape!r}")
        if not 1 <= self.mean < math.inf or (self.mean == 1 and self.max_runs is None):
            raise ValueError(
                f"mean must be finite and > 1, or >= 1 with max_runs, got {self.mean!r}"
            )
        if self.max_runs is not None:
            check_int("max_runs", self.max_runs, minimum=1)
        vars(self).update(mean=float(self.mean), shape=float(self.shape))
        _gamma(self)

    @property
    def gamma(self) -> float:
        """The parameter in (0, 1] that gives the mean; 1 where there is a single run."""
        return _gamma(self)

    def pmf(self, k: np.ndarray) -> np.ndarray:
        """P(K = k) for integers k >= 1, an array of the same shape."""
        k = np.asarray(k, float)
        if self.max_runs is None:
            gamma, eta = self.gamma, self.shape
            log_scale = math.log(math.log(1 / gamma)) if eta == 0 else _log_normaliser(gamma, eta)
            return np.exp(_log_weights(k, math.log1p(-gamma), eta) - log_scale)
        table = _table(self)
        inside = (k >= 1) & (k <= self.max_runs)
        return np.where(inside, table[np.where(inside, k, 1).astype(int) - 1], 0.0)

    def derivative(self, tail: np.ndarray, order: int = 1) -> np.ndarray:
        """The derivative of this `order`, 1 or 2, of E q^K at q = 1 - tail, for tails in [0, 1]."""
        if self.max_runs is None:
            gamma, eta = self.gamma, self.shape
            a = 1 - gamma
            log_inverse = -math.log(gamma)
            first = a / (log_inverse if eta == 0 else math.expm1(eta * log_inverse) / eta)
            base = gamma + a * tail
            power = first * base ** -(eta + 1)
            return power if order == 1 else power * (eta + 1) * a / base
        runs = np.arange(1, self.max_runs + 1)
        coefficients = _table(self) * runs
        if order == 2:
            coefficients = (coefficients * (runs - 1))[1:]
        q, total = 1 - tail, np.zeros_like(tail)
        for coefficient in coefficients[::-1]:
            total *= q
            total += coefficient
        return total

    def draw(self, uniform: float) -> int:
        """The number of runs at a uniform number in [0, 1) (*secret*); needs `max_runs`."""
        if self.max_runs is None:
            raise ValueError("max_runs must be given to draw the number of runs, got None")
        return 1 + int(np.searchsorted(np.cumsum(_table(self))[:-1], uniform, side="right"))


def _log_weights(k: np.ndarray, log_a: float, eta: float) -> np.ndarray:
    return k * log_a + special.gammaln(k + eta) - special.gammaln(k + 1)


def _log_normaliser(gamma: float, eta: float) -> float:
    """Of Gamma(k + eta) / k! a^k over k >= 1; positive for eta of both signs."""
    return float(special.gammaln(eta + 1)) + math.log(math.expm1(-eta * math.log(gamma)) / eta)


@functools.lru_cache(maxsize=256)
def _gamma(law: RunsLaw) -> float:
    if law.mean == 1 or law.max_runs == 1:
        if law.mean != 1:
            raise ValueError(f"mean must be 1 with max_runs = 1, got {law.mean!r}")
        return 1.0

    def excess(log_gamma: float) -> float:
        return math.log(_mean(law, math.exp(log_gamma)) / law.mean)

    highest = math.log1p(-min(1e-3, (law.mean - 1) / (4 + 4 * law.shape)))
    if excess(_LOWEST) < 0:
        raise ValueError(
            f"max_runs must be larger for a mean of {law.mean:g} runs at shape {law.shape:g}, got "
            f"{law.max_runs}: raise max_runs or shape"
        )
    return math.exp(optimize.brentq(excess, _LOWEST, highest, xtol=1e-14, rtol=1e-14))


def _mean(law: RunsLaw, gamma: float) -> float:
    eta = law.shape
    if law.max_runs is not None:
        k = np.arange(1, law.max_runs + 1)
        return float(k @ special.softmax(_log_weights(k, math.log1p(-gamma), eta)))
    if eta == 0:
        return (1 / gamma - 1) / math.log(1 / gamma)
    return eta * (1 - gamma) / (gamma * -math.expm1(eta * math.log(gamma)))


@functools.lru_cache(maxsize=64)
def _table(law: RunsLaw) -> np.ndarray:
    """The pmf at 1, ..., max_runs."""
    runs = np.arange(1, int(law.max_runs or 1) + 1)
    if law.gamma == 1:
        return np.where(runs == 1, 1.0, 0.0)
    return special.softmax(_log_weights(runs, math.log1p(-law.gamma), law.shape))


class Cells(NamedTuple):
    """A pair on cells of [0, 1], from the highest loss down; `[n + 1]` edges, `[n]` cells.

    Attributes:
        tail: t at the edges, from 0 to 1.
        other: u = 1 - q' at the edges.
        log_ratio: An upper bound on log r in each cell; infinity where Q has no mass.
        slopes: Bounds (low, high) on dq'/dq in each cell.
    """

    tail: np.ndarray
    other: np.ndarray
    log_ratio: np.ndarray
    slopes: tuple[np.ndarray, np.ndarray]


def gaussian_cells(shift: float) -> Cells:
    """The pair N(shift, 1), N(0, 1), the same in both directions."""
    y = np.linspace(_REACH[1], -_REACH[0], _GAUSSIAN_CELLS - 1)
    tail = np.concatenate([[0.0], special.ndtr(-y), [1.0]])
    other = np.concatenate([[0.0], special.ndtr(shift - y), [1.0]])  # 1 - Phi(y - shift)
    log_ratio = np.concatenate([[math.inf], shift * y + shift**2 / 2])
    # q' takes losses from the highest down: at q it has come to the loss of -y
    slope = np.exp(np.minimum(shift * y - shift**2 / 2, 700.0))
    high = np.concatenate([[math.inf], slope])
    low = np.concatenate([slope, [0.0]])
    return Cells(tail, other, log_ratio, (low, high))


def atoms_of(pmf: PLDPmf) -> Atoms:
    """Losses, masses and mass at infinity of one direction of a pessimistic PLD."""
    dense = pmf.to_dense_pmf()
    mass = np.maximum(np.asarray(dense._probs, float), 0.0)
    loss = (dense._lower_loss + np.arange(mass.size)) * dense._discretization
    # what the library cut off
    infinite = max(float(dense._infinity_mass), 1.0 - math.fsum(mass), 0.0)
    kept = mass > 0
    return Atoms(loss[kept], mass[kept], infinite)


def worst(parts: Sequence[Atoms], interval: float) -> Atoms:
    """A loss whose privacy curve is at no epsilon below any of these, on a grid of this interval.

    The largest curve, convex as each of them is, joined by chords in e^epsilon: a true pair.
    """
    ends = [end for atoms in parts for end in (atoms.loss.min(), atoms.loss.max())]
    grid = np.arange(math.floor(min(ends) / interval), math.ceil(max(ends) / interval) + 1)
    epsilons = grid * interval
    deltas = np.minimum(np.max([_curve(atoms, epsilons) for atoms in parts], axis=0), 1.0)
    deltas = np.minimum.accumulate(deltas)
    change = np.diff(deltas)
    from_left = np.concatenate([[1 - deltas[0]], change / np.expm1(-interval)])
    from_right = np.concatenate([change / np.expm1(interval), [0.0]])
    mass = np.maximum(from_left + from_right, 0.0)
    kept = mass > 0
    return Atoms(epsilons[kept], mass[kept], max(float(deltas[-1]), 1.0 - math.fsum(mass)))


def _curve(atoms: Atoms, epsilons: np.ndarray) -> np.ndarray:
    """delta at each epsilon, `[m]`, in one pass."""
    order = np.argsort(atoms.loss)
    loss, mass = atoms.loss[order], atoms.mass[order]
    p, q = (np.append(np.cumsum(w[::-1])[::-1], 0.0) for w in (mass, mass * np.exp(-loss)))
    above = np.searchsorted(loss, epsilons, side="right")
    return atoms.infinite + np.maximum(p[above] - np.exp(epsilons) * q[above], 0.0)


def cells_of(atoms: Atoms, finer: int = _FINER_CELLS) -> Cells:
    """The pair of these atoms: Q has mass e^-loss of P's, and the rest where P has none."""
    order = np.argsort(atoms.loss)
    loss, mass = atoms.loss[order], atoms.mass[order]
    q_mass = np.exp(np.log(mass) - loss)
    below = np.concatenate([[0.0], np.cumsum(mass)])  # u bends here
    u = max(0.0, 1.0 - math.fsum(q_mass)) + np.concatenate([[0.0], np.cumsum(q_mass)])
    above = np.cumsum(np.concatenate([[atoms.infinite], mass[::-1]]))  # r steps here
    fine = special.ndtr(np.linspace(-_REACH[1], _REACH[0], finer))
    tail = np.unique(np.clip(np.concatenate([[0.0, 1.0], below, above, fine]), 0.0, 1.0))
    middle = (tail[1:] + tail[:-1]) / 2
    other = np.minimum(np.where(tail <= below[-1], np.interp(tail, below, u), 1.0), 1.0)
    rank = np.searchsorted(above, middle, side="right")  # 0: where Q has no mass
    log_ratio = np.concatenate([[math.inf], loss[::-1]])[np.minimum(rank, loss.size)]
    place = np.searchsorted(below, middle, side="right") - 1
    slope = np.exp(-np.concatenate([loss, [math.inf]]))[np.minimum(place, loss.size)]
    return Cells(tail, other, log_ratio, (slope, slope))


def selected(cells: Cells, law: RunsLaw) -> Atoms:
    """The loss of the selection, as atoms from the highest loss down."""
    hi, lo = slice(None, -1), slice(1, None)  # of a cell, in q: its edges in t fall
    first, second = (law.derivative(cells.tail, order) for order in (1, 2))
    g_first, g_second = (law.derivative(cells.other, order) for order in (1, 2))
    width = np.diff(cells.tail)
    mass = width * (first[hi] + first[lo]) / 2
    ratio = np.log(first) - np.log(g_first)
    # bounds on the slope of log(f'/g) inside a cell, since f' and f'' increase
    slope_low, slope_high = cells.slopes
    rise = second[hi] / first[lo] - slope_low * g_second[lo] / g_first[hi]
    with np.errstate(over="ignore", invalid="ignore"):  # at the end of no mass
        fall = slope_high * g_second[hi] / g_first[lo] - second[lo] / first[hi]
    inside = np.minimum(
        ratio[lo] + width * np.maximum(rise, 0.0), ratio[hi] + width * np.maximum(fall, 0.0)
    )
    inside = np.minimum(inside, np.log(first[hi]) - np.log(g_first[lo]))
    largest = np.maximum(np.maximum(ratio[lo], ratio[hi]), inside)
    loss = cells.log_ratio + np.maximum.accumulate(largest[::-1])[::-1]
    finite = np.isfinite(loss)
    return Atoms(loss[finite], mass[finite], float(mass[~finite].sum()))


def hockey_stick(atoms: Atoms, epsilon: float) -> float:
    """delta(epsilon), for any real epsilon."""
    above = atoms.loss > epsilon
    shares = -np.expm1(epsilon - atoms.loss[above])
    return min(1.0, atoms.infinite + float(atoms.mass[above] @ shares))

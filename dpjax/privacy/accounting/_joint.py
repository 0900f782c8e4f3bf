r"""Several releases from one Poisson batch, as one privacy loss distribution.

The batch is drawn once, so amplification applies to the pair of all releases together:
compose on the batch, then sample, then compose over the steps.

1.  Laplace noise of scale s on a vector of l1 sensitivity 1 is dominated by the scalar pair
    (Lap(1, s), Lap(0, s)); Gaussian noise z on l2 sensitivity 1 by (N(1, z^2), N(0, z^2)). The
    product (P, Q) of the pairs dominates all releases, adaptive ones too, and (Q, P) has the same
    loss distribution.
2.  Sampling at rate r turns it into ((1-r)Q + rP, Q) where a record is removed and
    (Q, (1-r)Q + rP) where one is added.
3.  A mass w at loss L between the grid points a and a + h moves to both, keeping w and w e^-L
    ("connect the dots"): hockey-stick divergences can only grow, so epsilon is an upper bound.

Masses are probabilities of cells, never differences of a divergence curve, whose rounding error
would grow with the number of steps.
"""

import functools
import math
from typing import NamedTuple

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld_lib
from dp_accounting.pld.pld_pmf import DensePLDPmf  # internal: the version is pinned for it
from scipy import special

_TAIL = 10.0  # standard deviations of the Gaussian loss kept; P(beyond) < 1e-23, put at infinity
_CELLS_PER_SCALE = 200
_MAX_CELLS = 24_000
_MASS_TOLERANCE = 1e-9


class Pair(NamedTuple):
    """Masses under P at the losses step * (lower + i), and the mass at loss infinity."""

    lower: int
    mass: np.ndarray
    infinite: float
    step: float

    @property
    def loss(self) -> np.ndarray:
        """The losses log(P / Q) of the atoms."""
        return self.step * (self.lower + np.arange(self.mass.size))


class Atoms(NamedTuple):
    """Masses at finite losses, in any order, and the mass at loss infinity."""

    loss: np.ndarray
    mass: np.ndarray
    infinite: float

    @property
    def spread(self) -> float:
        """Standard deviation of the finite loss."""
        mean = np.average(self.loss, weights=self.mass)
        return math.sqrt(float(np.average((self.loss - mean) ** 2, weights=self.mass)))


class SampledStep(NamedTuple):
    """One step's loss in both directions: a record removed, a record added."""

    remove: Atoms
    add: Atoms

    @property
    def spread(self) -> float:
        """Standard deviation of one step's loss."""
        return max(self.remove.spread, self.add.spread)

    @property
    def width(self) -> float:
        """Length of the range of one step's loss."""
        return max(float(np.ptp(self.remove.loss)), float(np.ptp(self.add.loss)))

    def distribution(self, interval: float) -> pld_lib.PrivacyLossDistribution:
        """The privacy loss distribution on the grid of this interval, rounded pessimistically."""
        return pld_lib.PrivacyLossDistribution(*(_to_grid(atoms, interval) for atoms in self))


def sampled_step(rate: float, scales: tuple[float, ...], multiplier: float) -> SampledStep:
    """All releases of one Poisson batch: Laplace of these scales and a Gaussian (inf: none)."""
    return amplify(product_pair(scales, multiplier), rate)


def product_pair(scales: tuple[float, ...], multiplier: float) -> Pair:
    """The unsampled pair of Laplace releases of these scales and one Gaussian (inf: none)."""
    widths = [1 / scale for scale in scales] + [1 / multiplier]
    half_range = sum(widths[:-1]) + _TAIL * widths[-1] + widths[-1] ** 2 / 2
    finest = min(width for width in widths if width > 0)
    step = max(min(finest, 1.0) / _CELLS_PER_SCALE, 2 * half_range / _MAX_CELLS)
    pairs = [_laplace(width, step) for width in widths[:-1]]
    if widths[-1] > 0:
        pairs.append(_gaussian(widths[-1], step))
    return functools.reduce(_product, pairs)


def amplify(pair: Pair, rate: float) -> SampledStep:
    """The pair on a Poisson batch of this rate (at 1: the pair itself, in both directions)."""
    loss, mass = pair.loss, pair.mass
    if rate == 1:
        return SampledStep(*(Atoms(loss, mass, pair.infinite),) * 2)
    with np.errstate(divide="ignore"):
        q_mass = np.exp(np.log(mass) - loss)
    q_rest = max(0.0, 1.0 - float(q_mass.sum()))  # Q where P has no mass: loss -infinity
    edge = math.log1p(-rate)
    mixture = np.append((1 - rate) * q_mass + rate * mass, (1 - rate) * q_rest)
    remove = Atoms(np.append(_mixed(loss, rate), edge), mixture, rate * pair.infinite)
    add = Atoms(np.append(-_mixed(-loss, rate), -edge), np.append(mass, pair.infinite), 0.0)
    return SampledStep(remove, add)


def _mixed(loss: np.ndarray, rate: float) -> np.ndarray:
    """log(1 - r + r e^loss), without overflow or cancellation."""
    small = np.log1p(rate * np.expm1(np.minimum(loss, 30.0)))
    large = np.maximum(loss, 30.0)
    far = large + np.log(rate) + np.log1p((1 / rate - 1) * np.exp(-large))
    return np.where(loss > 30.0, far, small)


def _connect(lower: int, p_cell: np.ndarray, q_cell: np.ndarray, step: float) -> np.ndarray:
    """Masses at the grid points, from the masses of P and Q in the cells between them."""
    left = step * (lower + np.arange(p_cell.size))
    with np.errstate(divide="ignore"):
        q_scaled = np.exp(np.log(q_cell) + left)
    upper = np.clip((p_cell - q_scaled) / -math.expm1(-step), 0.0, p_cell)
    return np.append(p_cell - upper, 0.0) + np.append(0.0, upper)


def _gaussian(width: float, step: float) -> Pair:
    """(N(width, 1), N(0, 1)): the loss is N(+-width^2 / 2, width^2) under P and Q."""
    cells = math.ceil((_TAIL * width + width**2 / 2) / step)
    grid = step * np.arange(-cells, cells + 1)

    def probabilities(mean: float) -> np.ndarray:
        score = (grid - mean) / width
        return normal_mass(score[:-1], score[1:])

    mean = width**2 / 2
    mass = _connect(-cells, probabilities(mean), probabilities(-mean), step)
    mass[0] += special.ndtr((grid[0] - mean) / width)
    return Pair(-cells, mass, float(special.ndtr((mean - grid[-1]) / width)), step)


def normal_mass(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Of cells under the standard normal law, to full relative precision in both tails."""
    upper = special.ndtr(-left) - special.ndtr(-right)
    return np.where(left > 0, upper, special.ndtr(right) - special.ndtr(left))


def _laplace(width: float, step: float) -> Pair:
    """(Lap(width, 1), Lap(0, 1)): atoms at +-width, density e^((u - width)/2) / 4 between them."""
    cells = math.ceil(width / step)
    grid = np.clip(step * np.arange(-cells, cells + 1), -width, width)
    below = 0.5 * np.exp((grid - width) / 2)  # P(loss <= grid) but for the atom at +width
    p_cell = below[:-1] * np.expm1(np.diff(grid) / 2)
    q_cell = p_cell[::-1].copy()  # the loss under Q is minus the loss under P
    p_cell[0] += 0.5 * math.exp(-width)
    p_cell[-1] += 0.5
    q_cell[0] += 0.5
    q_cell[-1] += 0.5 * math.exp(-width)
    return Pair(-cells, _connect(-cells, p_cell, q_cell, step), 0.0, step)


def _product(first: Pair, second: Pair) -> Pair:
    # a direct sum of positive terms: an FFT's round-off in the lower tail would be
    # multiplied by e^-loss when Q is read off
    infinite = first.infinite + second.infinite - first.infinite * second.infinite
    mass = np.convolve(first.mass, second.mass)
    return Pair(first.lower + second.lower, mass, infinite, first.step)


def _to_grid(atoms: Atoms, interval: float) -> DensePLDPmf:
    cell = np.floor(atoms.loss / interval)
    upper = np.clip(np.expm1(cell * interval - atoms.loss) / math.expm1(-interval), 0.0, 1.0)
    lower = int(cell.min())
    index = (cell - lower).astype(np.int64)
    size = int(index.max()) + 2
    mass = np.bincount(index, weights=atoms.mass * (1 - upper), minlength=size)
    mass += np.bincount(index + 1, weights=atoms.mass * upper, minlength=size)
    total = float(mass.sum()) + atoms.infinite
    if not abs(total - 1) < _MASS_TOLERANCE:
        raise ArithmeticError(f"the mass of a privacy loss must be 1 +- 1e-9, got {total!r}")
    mass *= (1 - atoms.infinite) / mass.sum()
    return DensePLDPmf(interval, lower, mass, atoms.infinite, True)

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

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from dp_accounting.pld.pld_pmf import PLDPmf
from scipy import special

from dpjax.privacy.accounting._joint import Atoms
from dpjax.privacy.selection._law import RunsLaw

_GAUSSIAN_CELLS = 2**17
_FINER_CELLS = 2**13
_REACH = 8.5, 11.0  # deviations below and above; P beyond: 1e-17, put at ends


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

"""Exact selections on a few atoms, and the theorem's integral with one thing wrong."""

import itertools
import math

import numpy as np

from dpjax.privacy.accounting._joint import Atoms


def generating(law, q):
    """E q^K, from the pmf of a cut law and in closed form for an uncut one."""
    q = np.asarray(q, float)
    if law.max_runs:
        pmf = law.pmf(np.arange(1, law.max_runs + 1))
        return np.polyval(np.append(pmf[::-1], 0.0), q)
    gamma, eta = law.gamma, law.shape
    if eta == 0:
        return np.log1p(-(1 - gamma) * q) / math.log(gamma)
    return np.expm1(-eta * np.log1p(-(1 - gamma) * q)) / math.expm1(-eta * math.log(gamma))


def all_orders(size):
    return np.array(list(itertools.permutations(range(size))))


def exact_delta(p, q, law, epsilons):
    """The largest delta of a selection over all orders of the outputs by score, `[epsilons]`."""
    orders = all_orders(p.size)

    def masses(w):
        below = np.pad(np.cumsum(w[orders], axis=1), ((0, 0), (1, 0)))
        return np.diff(generating(law, np.minimum(below, 1.0)), axis=1)

    excess = masses(p) - np.exp(epsilons)[:, None, None] * masses(q)
    return np.maximum(excess, 0.0).sum(axis=2).max(axis=1)


def atoms_of_pair(p, q):
    both = (p > 0) & (q > 0)
    return Atoms(np.log(p[both] / q[both]), p[both], float(p[q == 0].sum()))


def mutated_delta(p, q, law, epsilon, mutant):
    """The theorem's integral, as the mutant has it; None for the theorem itself."""
    with np.errstate(divide="ignore"):
        ratio = p / q
    order = np.argsort(ratio)
    ratio, p, q = ratio[order], p[order], q[order]
    up = np.minimum(np.cumsum(p), 1.0)
    down, q_down = (np.minimum(np.pad(np.cumsum(w[::-1]), (1, 0)), 1.0) for w in (p, q))
    atom_ends = np.pad(up, (1, 0))
    fine = np.unique(np.concatenate([atom_ends, down, np.linspace(0, 1, 2000)]))

    def derivative(x):
        return law.derivative(1 - x)

    known = atom_ends if mutant == "ends of atoms" else fine
    other = np.ones_like(known) if mutant == "f'(1)" else np.interp(known, down, q_down)
    largest = np.maximum.accumulate(derivative(known) / derivative(other))
    edges = atom_ends if mutant == "part outside" else fine
    lo, hi = edges[:-1], edges[1:]
    steps = np.searchsorted(known, lo, side="right") - 1
    level = math.exp(epsilon) * derivative(lo) / largest[steps]
    level = level / ratio[np.minimum(np.searchsorted(up, (lo + hi) / 2), p.size - 1)]
    gained = np.diff(generating(law, edges))
    if mutant == "part outside":
        return float(np.maximum(gained - level * (hi - lo), 0.0).sum())
    low, high = derivative(lo) - level, derivative(hi) - level
    share = np.where(low >= 0, 1.0, np.where(high > 0, high / np.maximum(high - low, 1e-300), 0.0))
    return float((np.maximum(high, 0.0) + np.maximum(low, 0.0)) @ (share * (hi - lo)) / 2)


def enumerated_delta(p, q, law, epsilon):
    """The same by listing every K and every sequence of K outputs; tiny cases alone."""

    def winner(w, rank):
        won = np.zeros(w.size)
        for k in range(1, law.max_runs + 1):
            for runs in itertools.product(range(w.size), repeat=k):
                best = max(runs, key=lambda output: rank[output])
                won[best] += law.pmf(np.array(k)) * math.prod(w[list(runs)])
        return won

    return max(
        float(np.maximum(winner(p, rank) - math.exp(epsilon) * winner(q, rank), 0.0).sum())
        for rank in itertools.permutations(range(p.size))
    )

"""Nodes of the binary tree over steps 1, 2, ..., on the host."""

import numpy as np


def largest_cost(num_steps: int, power: float, both_children: bool = False) -> float:
    r"""$\max_q \sum_{i \ni q} (q / i)^{power}$ over the nodes of the tree.

    With `both_children` right children are nodes too, as variance reduction needs them. Beyond
    $2^{24}$ steps it is the number of levels, which bounds it.
    """
    if not power or num_steps > 2**24:
        return float(int(num_steps).bit_length())
    q = np.arange(1, num_steps + 1, dtype=np.int64)
    cost = np.zeros(num_steps)
    for level in range(int(num_steps).bit_length()):
        width = 1 << level
        end = -(-q // width) * width
        used = end <= num_steps
        if not both_children:
            used &= (end // width) % 2 == 1
        cost += np.where(used, (q / end) ** power, 0.0)
    return float(cost.max())


def own_weights(levels: int) -> np.ndarray:
    """Weight of a node's own noise in its estimate from itself and its children, by level."""
    weights = np.ones(levels)
    for level in range(1, levels):
        weights[level] = 2 * weights[level - 1] / (1 + 2 * weights[level - 1])
    return weights


def prefix_stddev(scales: np.ndarray, exponent: float, variance_reduced: bool) -> np.ndarray:
    """Deviation of each prefix's noise, `[T]`, where a node's is the largest scale under it."""
    num_steps = len(scales)
    levels = num_steps.bit_length()
    steps = np.arange(1, (1 << levels) + 1, dtype=np.float64)
    relative = np.zeros(1 << levels)
    relative[:num_steps] = scales / steps[:num_steps] ** exponent
    weights, estimates, by_level = own_weights(levels), np.zeros(0), []
    for level in range(levels):
        ends = steps[(1 << level) - 1 :: 1 << level]
        own = (ends**exponent * relative.reshape(-1, 1 << level).max(axis=1)) ** 2
        if variance_reduced and level:
            children = estimates.reshape(-1, 2).sum(axis=1)
            estimates = weights[level] ** 2 * own + (1 - weights[level]) ** 2 * children
        else:
            estimates = own
        by_level.append(estimates[::2])  # left children: they alone end a prefix
    variance = np.zeros((1 << levels) + 1)
    for level in reversed(range(levels)):
        prefixes = np.arange(1 << level, (1 << levels) + 1, 2 << level)
        variance[prefixes] = variance[prefixes - (1 << level)] + by_level[level]
    return np.sqrt(variance[1 : num_steps + 1])

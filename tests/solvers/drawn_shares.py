"""The law of a share that solvers of linear models draw, and foils of it."""

import jax
import numpy as np
from scipy import special, stats

EDGES = 2.0 ** ((np.arange(256) - 255) / 8)
TILT = 3 / 64
DRAWS = 20_000


def check_law(draw, sizes, beyond, eta, octaves=32):
    """Of 20,000 draws of a share by `draw(key)` from these sizes, over their bound."""
    edges = EDGES[-8 * octaves :]
    shares = np.asarray(jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(5), DRAWS)))
    seen = np.array([np.sum(np.abs(shares / edge - 1) < 1e-5) for edge in edges])
    assert seen.sum() == DRAWS
    least = 0.0 if octaves == 32 else 2.0**-octaves
    sizes = np.minimum(sizes[sizes > least], 1)  # neither 0 nor NaN
    below = np.array([np.sum(sizes <= edge * (1 + 1e-6)) for edge in edges])
    wanted = len(sizes) - len(sizes) // beyond
    off = np.maximum(np.maximum(wanted - below, np.append(0, below[:-1]) - wanted), 0)

    def pvalue(sharpness):
        tilt = TILT * np.maximum(np.arange(len(edges)), len(edges) - 80)
        expected = DRAWS * special.softmax(-sharpness * eta / 2 * off - tilt)
        cell = np.where(expected > 20, np.arange(len(edges)), np.argmin(expected))
        pooled = [np.bincount(cell, weights=x) for x in (seen, expected)]
        return stats.chisquare(*(x[pooled[1] > 0] for x in pooled)).pvalue

    assert pvalue(1) > 1e-6
    for foil in (1 / 2, 2 / 3, 3 / 2, 2):
        assert pvalue(foil) < 1e-6

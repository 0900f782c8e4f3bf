"""The error of a fit to noisy answers, predicted from public quantities."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from scipy import optimize, special

from dpjax.queries import Tree, Workload

MOST_PREDICTED = 1024  # cells
_SPREAD = 2.0  # variance of log p under the prior


def gram(workload: Workload, weights: ArrayLike = 1.0) -> np.ndarray:
    r"""$M^\top \mathrm{diag}(w) M$, `[k, k]`, of queries M and weights `[m]` or a scalar (host)."""

    def row(unit: jax.Array) -> jax.Array:
        return workload.adjoint(jnp.asarray(weights, float) * workload.answers(unit))

    return np.asarray(jax.lax.map(row, jnp.eye(workload.universe_size), batch_size=64), np.float64)


def predicted_error(asked: np.ndarray, precision: np.ndarray, num_queries: int) -> float:
    r"""Root mean square error of queries M after the fit, by Bayes and to first order.

    $$ \frac1m \mathrm{tr}\, (I + \Sigma B)^{-1} \Sigma M^\top M, \qquad
       \Sigma = \frac{\tau^2}{k^2} P M^\top M P $$

    with B the precision of what is measured, P that takes off the mean, and log probabilities of
    variance 2 around the uniform distribution.

    Args:
      asked: $M^\top M$, `[k, k]`.
      precision: $B = A^\top \mathrm{diag}(\sigma^{-2}) A$, `[k, k]`.
      num_queries: m.
    """
    size = len(asked)
    centred = asked - asked.mean(axis=0) - asked.mean(axis=1)[:, None] + asked.mean()
    prior = centred * _SPREAD / (size * max(np.trace(centred), 1e-300))
    posterior = np.linalg.solve(np.eye(size) + prior @ precision, prior)
    return float(np.sqrt(max(np.sum(posterior * asked.T), 0.0) / num_queries))


def level_precisions(tree: Tree, asked: np.ndarray) -> np.ndarray:
    """Relative precisions of the levels of a tree, for the least mean squared error: `[L]`.

    As if all blocks of a level held as many codes: what distinguishes blocks of one level within a
    block of the level above is then known from that level and those below alone.
    """
    shares = np.diff([asked.sum() / len(asked), *(_within(tree, asked))])
    blocks = np.array(tree.universe_size // np.array(tree.sizes), float)

    def error(logs: np.ndarray) -> float:
        # all levels from this one on tell of it
        known = np.cumsum((special.softmax(logs) * blocks)[::-1])[::-1]
        return float(np.sum(np.maximum(shares, 0) / known))

    found = optimize.minimize(error, np.zeros(len(blocks)), method="L-BFGS-B").x
    return np.asarray(np.maximum(special.softmax(found), 1e-3))


def _within(tree: Tree, asked: np.ndarray) -> list[float]:
    """Of each level, the trace of the queries' square on vectors constant within its blocks."""
    each = np.asarray(jax.vmap(tree.answers)(jnp.eye(tree.universe_size)), np.float64).T
    levels = np.split(each, tree.offsets[1:])
    return [float(np.sum(((m @ asked) * m).sum(axis=1) / m.sum(axis=1))) for m in levels]

"""Strategies for payoffs that are known up to Gaussian noise of known size."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax.core import PyTree

_STEPS = 1000
_UNIFORM = 0.02  # of the start, so that no strategy is ruled out
_PASSES = 2
_MOVED = 3.0  # deviations of noise by which a payoff is believed to be off, at most
_CLEAR = 3.0  # standard errors from which on rows, or columns, differ
_NEARER = 0.5  # of the variances: 3 to 100 normals have a mean largest of .7 of Chernoff's bound


class Belief(NamedTuple):
    """Independent normal payoffs, `[rows, columns]` each, of 0 where a strategy is absent."""

    mean: jax.Array
    variance: jax.Array


def belief(payoffs: jax.Array, precision: jax.Array, here: jax.Array, there: jax.Array) -> Belief:
    r"""Payoffs given noisy ones, by empirical Bayes.

    $$ A_{ij} = \mu + a_i + b_j + r_{ij}, \qquad H_{ij} = A_{ij} + \mathcal N(0, 1 / P_{ij}) $$

    with centred normal effects of rows and of columns, and a centred normal rest, whose variances
    are estimated from H by moments; effects that are not clearly there are 0. A game of few
    strategies that matter is not normal: where noise is small beside payoffs on average, the means
    are H, and no mean is further from H than 3 deviations of its noise.

    Privacy: post-processing; no cost.

    Args:
      payoffs: H, noisy payoffs `[rows, columns]`; released.
      precision: P, one over the variance of their noise, 0 where there is none, `[rows, columns]`.
      here: Which rows there are, bool `[rows]`.
      there: Which columns there are, bool `[columns]`.

    Source: limited translation: Efron and Morris, "Limiting the risk of Bayes and empirical Bayes
    estimators", 1972.
    """
    precision = precision.astype(payoffs.dtype)
    known = here[:, None] & there[None, :] & (precision > 0)
    noise = jnp.where(known, 1 / jnp.where(known, precision, 1), 0)
    relative = jnp.where(known, precision / jnp.maximum(jnp.max(precision), 1e-30), 0) ** 2
    tiny = jnp.finfo(payoffs.dtype).tiny

    def spread(rest: jax.Array) -> jax.Array:
        total = jnp.maximum(jnp.sum(relative), tiny)
        moment = jnp.sum(relative * (rest**2 - noise)) / total
        # that payoffs are alike is believed no further than can be told
        error = jnp.sqrt(2 * jnp.sum((relative * noise) ** 2)) / total
        return jnp.maximum(jnp.maximum(moment, error), tiny)

    def effects(rest: jax.Array, weight: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
        total = jnp.sum(weight, axis)
        variance = jnp.where(total > 0, 1 / jnp.where(total > 0, total, 1), 0)
        estimate = jnp.sum(weight * rest, axis) * variance
        number = jnp.maximum(jnp.sum(total > 0), 1).astype(total.dtype)
        excess = jnp.sum(estimate**2 - variance) / number
        error = jnp.sum(variance) / number * jnp.sqrt(2 / number)
        prior = jnp.where(excess > _CLEAR * error, excess, 0)
        share = prior / (prior + jnp.maximum(variance, tiny))
        return share * estimate, share * variance

    mean = jnp.sum(relative * payoffs) / jnp.maximum(jnp.sum(relative), tiny)
    rows, columns = (jnp.zeros(size, payoffs.dtype) for size in payoffs.shape)
    prior = spread(payoffs - mean)
    for _ in range(_PASSES):
        weight = jnp.where(known, 1 / (prior + noise), 0)
        rest = payoffs - rows[:, None] - columns[None, :]
        mean = jnp.sum(weight * rest) / jnp.maximum(jnp.sum(weight), tiny)
        rows, of_rows = effects(payoffs - mean - columns[None, :], weight, 1)
        columns, of_columns = effects(payoffs - mean - rows[:, None], weight, 0)
        prior = spread(payoffs - mean - rows[:, None] - columns[None, :])
    fitted = mean + rows[:, None] + columns[None, :]
    share = prior / (prior + noise)
    unsure = (1 - share) ** 2 * (of_rows[:, None] + of_columns[None, :])
    variance = jnp.where(known, share * noise + unsure, 0)
    most = _MOVED * jnp.sqrt(noise)
    moved = jnp.clip((1 - share) * (fitted - payoffs), -most, most)
    variance = jnp.where(jnp.abs(moved) == most, noise, variance)
    posterior = payoffs + moved
    trust = jnp.sum(variance * precision) / jnp.maximum(jnp.sum(known), 1).astype(payoffs.dtype)
    trust = jnp.minimum(trust, 1)
    return Belief(jnp.where(known, posterior + trust * (payoffs - posterior), 0), variance)


def robust_strategies(
    payoffs: jax.Array,
    precision: jax.Array,
    here: jax.Array,
    there: jax.Array,
    start: tuple[jax.Array, jax.Array],
) -> tuple[jax.Array, jax.Array]:
    r"""Strategies whose *expected* loss to a best response is least, given noisy payoffs.

    The equilibrium of noisy payoffs plays where noise looks good. Here A is random, with the mean
    m and the variances v of `belief`, and x minimises Chernoff's bound on its expected loss,

    $$ \mathbb E \max_j (x^\top A)_j \le \min_\tau\ \tau \log \sum_j
       \exp\Bigl(\frac{x^\top m_j}{\tau} + \frac{\sum_i x_i^2 v_{ij}}{2\tau^2}\Bigr) $$

    with half of the variances, which is nearer to what is expected where a few j are about as good.
    The method is optimistic mirror descent in x against the weights of j; likewise y. Without noise
    these are equilibria; with much of it, they play what is clearly good, down to uniform play. Of
    the average, the last iterate and the start, the one of the least bound is taken.

    Privacy: post-processing of released payoffs; no cost.

    Args:
      payoffs: As of `belief`, what the row player pays; released.
      precision: As of `belief`.
      here: As of `belief`.
      there: As of `belief`.
      start: Strategies to start from, an equilibrium of the noisy payoffs, `[rows]`, `[columns]`.

    Returns:
      x `[rows]` and y `[columns]`; 0 for what is absent.
    """
    x, y = (weights.astype(payoffs.dtype) for weights in start)
    mean, variance = belief(payoffs, precision, here, there)
    both = here[:, None] & there[None, :]
    low = jnp.min(jnp.where(both, mean, jnp.inf))
    high = jnp.max(jnp.where(both, mean, -jnp.inf))
    least = jnp.maximum(jnp.sqrt(jnp.max(variance)), jnp.finfo(mean.dtype).tiny ** 0.25)
    half = jnp.maximum((high - low) / 2, least)
    unit = Belief(
        jnp.where(both, (mean - (low + high) / 2) / half, 0), _NEARER * variance / half**2
    )
    turned = Belief(-unit.mean.T, unit.variance.T)
    return _robust(unit, here, there, x, y), _robust(turned, there, here, y, x)


def _robust(
    given: Belief, here: jax.Array, there: jax.Array, x: jax.Array, y: jax.Array
) -> jax.Array:
    """x `[rows]` for payoffs in about [-1, 1], from a pair of strategies."""
    mean, variance = given

    def logits(weights: jax.Array, present: jax.Array) -> jax.Array:
        uniform = present.astype(mean.dtype) / jnp.sum(present).astype(mean.dtype)
        mixed = (1 - _UNIFORM) * weights + _UNIFORM * uniform
        return jnp.where(present, jnp.log(jnp.where(present, mixed, 1)), -jnp.inf)

    def slopes(log_x: jax.Array, log_y: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        x, y = jnp.exp(log_x), jnp.exp(log_y)
        entropy = -jnp.sum(jnp.where(there, y * jnp.where(there, log_y, 0), 0))
        of_columns, of_rows = _times(x**2, variance), _times(variance, y)
        # the best temperature for these weights
        scale = jnp.sqrt(
            jnp.dot(of_columns, y, precision="highest") / jnp.maximum(2 * entropy, 2e-3)
        )
        scale = jnp.maximum(scale, jnp.finfo(x.dtype).tiny ** 0.5)
        slope_x = _times(mean, y) + x * (of_rows / scale)
        return slope_x, _times(x, mean) + of_columns / (2 * scale), scale

    def step(t: jax.Array, carry: PyTree) -> PyTree:
        log_x, log_y, (old_x, old_y), total = carry
        new_x, new_y, scale = slopes(log_x, log_y)
        log_x = jax.nn.log_softmax(log_x - (2 * new_x - old_x))
        log_y = jax.nn.log_softmax((log_y + 2 * new_y - old_y) / (1 + scale))
        weight = (t + 1).astype(total.dtype)
        return log_x, log_y, (new_x, new_y), total + weight * jnp.exp(log_x)

    log_x, log_y = logits(x, here), logits(y, there)
    first = log_x, log_y, slopes(log_x, log_y)[:2], jnp.zeros_like(x)
    log_x, _, _, total = jax.lax.fori_loop(0, _STEPS, step, first)
    tried = jnp.stack([total / jnp.sum(total), jnp.exp(log_x), x])
    bounds = jax.lax.map(lambda one: expected_loss(given, there, one), tried)
    return tried[jnp.argmin(bounds)]


def expected_loss(given: Belief, there: jax.Array, x: jax.Array) -> jax.Array:
    """The bound of `robust_strategies` on the expected loss of x `[rows]`, `[]`."""
    mean, variance = _times(x, given.mean), _times(x**2, given.variance)
    middle = jnp.sqrt(jnp.max(variance) / (2 * jnp.log(1 + jnp.sum(there).astype(x.dtype))))
    middle = jnp.maximum(middle, jnp.finfo(x.dtype).tiny ** 0.5)

    def bound(scale: jax.Array) -> jax.Array:
        return scale * jax.nn.logsumexp(mean / scale + variance / (2 * scale**2), where=there)

    return jnp.min(jax.vmap(bound)(middle * 2.0 ** jnp.linspace(-2, 3, 21, dtype=x.dtype)))


def _times(left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.matmul(left, right, precision="highest")

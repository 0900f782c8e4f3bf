"""Sums of products of inputs, their noise, and the metric that noisy second moments give."""

from typing import TypeVar

import jax
import jax.numpy as jnp

from dpjax.core import PyTree
from dpjax.problems import LinearModel
from dpjax.transforms import rounding_allowance
from dpjax.transforms.clipping._microbatch import in_equal_parts
from dpjax.transforms.noise._independent import plus_noise

MOST_ROWS = 2**26  # that noise allows for: it must not tell the number of records
_ROWS = 2**12  # of a block, whose products are added up before those of others
_Number = TypeVar("_Number", float, jax.Array)


def scaled_inputs(
    problem: LinearModel, records: PyTree, mask: jax.Array, length: jax.Array, factors: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Inputs with features of at most a share of their bound, times factors, in float64.

    Args:
      problem: Its bounds are *public*.
      records: `{"x": [n, p], "y": [n]}` (*secret*).
      mask: Which count, `[n]` (*secret*); the inputs of others are 0.
      length: The share, a scalar (*public*, or released).
      factors: `[d]` (*public*, or released).

    Returns:
      Inputs `[n, d]`, and labels `[n]`.
    """
    if mask.shape[0] > MOST_ROWS:
        raise ValueError(f"data must have at most {MOST_ROWS} records, got {mask.shape[0]}")
    x, y = problem.prepare(jax.tree.map(lambda leaf: leaf.astype(jnp.float64), records), length)
    return jnp.where(mask[:, None], x, 0) * factors[None, :], y


def _unit_factors(problem: LinearModel, length: jax.Array) -> jax.Array:
    """Factors `[d]` by which inputs have norm at most 1, an intercept's as much as features."""
    features = jnp.full(problem.num_features, 1 / (length * problem.feature_bound))
    if problem.intercept is None:
        return features
    return jnp.append(features, 1 / problem.intercept) * 0.5**0.5


def sums_of_products(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sums of $x x^\\top$ and x y, block by block."""
    columns = jnp.concatenate([x, y[:, None]], axis=1)
    blocks = -(-columns.shape[0] // _ROWS)
    padded = jnp.pad(columns, ((0, blocks * _ROWS - columns.shape[0]), (0, 0)))

    def add(total: jax.Array, block: jax.Array) -> tuple[jax.Array, None]:
        return total + block[:, :-1].T @ block, None

    shape = (x.shape[1], columns.shape[1])
    total = jax.lax.scan(add, jnp.zeros(shape, x.dtype), padded.reshape(blocks, _ROWS, -1))[0]
    return total[:, :-1], total[:, -1]


def with_rounding(stddev: jax.Array) -> jax.Array:
    """Noise for `sums_of_products`, larger by what rounding may add to their change."""
    # a block's products and then the blocks are added: so many roundings of up to the sum
    epsilon, roundings = float(jnp.finfo(jnp.float64).eps), _ROWS + MOST_ROWS / _ROWS
    return stddev * (
        1 + rounding_allowance(MOST_ROWS, jnp.float64) + epsilon * MOST_ROWS * roundings
    )


def noisy_symmetric(sums: jax.Array, stddev: jax.Array, draws: jax.Array) -> jax.Array:
    """A symmetric matrix with noise that is isotropic in the Frobenius norm.

    Args:
      sums: `[d, d]` (*secret*).
      stddev: Deviation of a diagonal entry's noise; off the diagonal variances are half as large.
      draws: Standard normal, `[d, d]` (*secret*).

    Returns:
      `[d, d]`, released.
    """
    share = jnp.where(jnp.eye(len(sums), dtype=bool), 1.0, 0.5**0.5)
    upper = jnp.triu(plus_noise(sums, stddev * share, draws))
    return upper + jnp.triu(upper, 1).T


def statistics_change(gram: _Number, moment: _Number, relation: str) -> _Number:
    r"""The largest change of $(a \sum x x^\top, b \sum x y)$ for |x| <= 1 and |y| <= 1.

    In the l2 norm of all entries. Under replace-one the squared change is
    $a^2(|x|^4 + |x'|^4 - 2u^2) + b^2|xy - x'y'|^2$ with $u = |\langle x, x'\rangle|$; it grows in
    both norms, and at norms 1 and opposite labels is a quadratic in u.

    Args:
      gram: a > 0.
      moment: b >= 0; 0 for the first sum alone.
      relation: "replace_one" or "add_or_remove_one".

    Returns:
      The change, which some pair attains.
    """
    if relation != "replace_one":
        return (gram**2 + moment**2) ** 0.5
    vertex = moment**2 / (2 * gram**2)
    outer = vertex > 1
    return outer * (2 * moment) + (1 - outer) * (2**0.5 * gram * (1 + vertex))


def swamped(stddev: _Number, dim: int) -> _Number:
    r"""$\sigma \sqrt{2 d}$, about the largest eigenvalue of noise alone."""
    return stddev * (2 * dim) ** 0.5


def metric_and_lengths(
    problem: LinearModel,
    records: PyTree,
    mask: jax.Array,
    draws: jax.Array,
    length: jax.Array,
    stddev: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    r"""$\sqrt\eta\,(G_+ + \eta I)^{-1/2}$ of noisy second moments G, and lengths in that metric.

    $\eta$ is what noise alone may be, so that directions that it hides stay as long as they are.
    The eigenvalues are in (0, 1]: no input gets longer.

    Args:
      problem: Its bounds are *public*.
      records: `{"x": [n, p], "y": [n]}` (*secret*).
      mask: Which count, `[n]` (*secret*).
      draws: Standard normal, `[d, d]` (*secret*).
      length: Share of the features' bound, a scalar (*public*, or released).
      stddev: Of the noise of a diagonal entry of G, a number.

    Returns:
      The metric `[d, d]` (released), and lengths, `[n]` (*secret*), of the type of `draws`.
    """
    dtype = draws.dtype
    draws, length, stddev = (a.astype(jnp.float64) for a in (draws, length, stddev))
    x, y = scaled_inputs(problem, records, mask, length, _unit_factors(problem, length))
    stddev, gram = with_rounding(stddev), sums_of_products(x, y)[0]
    values, basis = jnp.linalg.eigh(noisy_symmetric(gram, stddev, draws))
    least = swamped(stddev, len(gram))
    metric = (basis * jnp.sqrt(least / (jnp.maximum(values, 0) + least))[None, :]) @ basis.T

    def lengths_of(part: PyTree, here: jax.Array) -> jax.Array:
        inputs = scaled_inputs(problem, part, here, length, _unit_factors(problem, length))[0]
        return jnp.minimum(jnp.linalg.norm(inputs @ metric, axis=1), 1)

    lengths = in_equal_parts(lengths_of, records, mask)
    return metric.astype(dtype), lengths.astype(dtype)


def inputs_in_metric(
    problem: LinearModel,
    records: PyTree,
    mask: jax.Array,
    length: jax.Array,
    metric: jax.Array,
    longest: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Inputs of norm at most `input_bound` in a metric, from what `metric_and_lengths` returns.

    Returns:
      Inputs `[n, d]`, labels `[n]`, and the matrix `[d, d]` that maps their parameters to those of
      the problem.
    """
    factors = _unit_factors(problem, length)
    x, y = scaled_inputs(problem, records, mask, length, factors)
    x = x @ metric
    x *= problem.input_bound / jnp.maximum(jnp.linalg.norm(x, axis=1, keepdims=True), longest)
    return x, y, factors[:, None] * metric * (problem.input_bound / longest)

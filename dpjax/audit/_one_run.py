"""A lower bound on epsilon from a single run with many canaries."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.core import PyTree, Solution, Solver, check_int, check_key, check_probability
from dpjax.runtime import solve


def one_run_lower_bound(
    solver: Solver,
    problem: PyTree,
    data: PyTree,
    canaries: PyTree,
    *,
    delta: float,
    key: jax.Array,
    confidence: float = 0.95,
    score: Callable[[Solution, PyTree], jax.Array] | None = None,
) -> float:
    """A lower bound on a solver's epsilon, from one run at full size with many canaries.

    A coin decides for each canary whether it takes part; one that does not is filled with NaN,
    which every solver counts as absent. After the run, canaries of high score are guessed to have
    taken part. Where `lower_bound` needs thousands of runs this needs one, and shows less.

    Guarantee: none, the run is raw and must not be released. What is returned is above the true
    epsilon with probability at most `1 - confidence`, for add-or-remove-one and for replace-one
    (a record against an absent one).

    Args:
      solver: Any solver; canaries count as records of its sampler.
      problem: What it solves.
      data: Tree of leaves `[n, ...]`.
      canaries: Tree of leaves `[m, ...]`, `m >= 2`; at least one leaf of floats. The more they
        stand out, in directions of their own, the better.
      delta: In (0, 1).
      key: Typed key, for the coins and the run.
      confidence: In (0, 1).
      score: `score(solution, canaries) -> [m]`, high where a canary seems to have taken part;
        default: minus its loss at the parameters.

    Returns:
      The lower bound, a float `>= 0`.

    Raises:
      ImportError: Without `jax-privacy` (the extra `audit`), whose estimator it is.
      TypeError: If the key is missing or not typed, or no leaf of the canaries is of floats.
      ValueError: If a value is outside its bound.

    Example:
      >>> import dpjax, jax, jax.numpy as jnp
      >>> problem = dpjax.problems.Risk(lambda w, record: -w @ record, jnp.zeros(200))
      >>> solver = dpjax.solvers.DPSGD(
      ...     dpjax.sampling.FullBatch(1), 0.5, 1.0, 1.0, 200.0, average="last")
      >>> shown = dpjax.audit.one_run_lower_bound(
      ...     solver, problem, jnp.zeros((1, 200)), jnp.eye(200), delta=1e-5,
      ...     key=jax.random.key(0))
      >>> 1.0 < shown < solver.guarantee().epsilon(1e-5)
      True

    Source: Steinke, Nasr and Jagielski 2023, "Privacy auditing with one (1) training run".
    """
    check_key("key", key)
    check_probability("delta", delta)
    check_probability("confidence", confidence)
    try:
        from jax_privacy.auditing import CanaryScoreAuditor
    except ImportError as error:
        raise ImportError(
            "one_run_lower_bound needs jax-privacy: pip install 'dpjax[audit]'"
        ) from error
    data, canaries = (jax.tree.map(jnp.asarray, part) for part in (data, canaries))
    size = jax.tree.leaves(canaries)[0].shape[0]
    check_int("the number of canaries", size, minimum=2)
    if not any(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(canaries)):
        raise TypeError("canaries must have a leaf of floats, by which one can be made absent")
    if score is None and not hasattr(problem, "per_example_losses"):
        raise TypeError(f"{type(problem).__name__} has no per_example_losses: give a score")

    coin_key, run_key = jax.random.split(key)
    taking_part = jax.random.bernoulli(coin_key, 0.5, (size,))
    present = jax.tree.map(lambda leaf: _or_nan(leaf, taking_part), canaries)
    joined = jax.tree.map(lambda a, b: jnp.concatenate([a, b.astype(a.dtype)]), data, present)
    solution = solve(solver, problem, joined, key=run_key)
    if score is None:
        scores = -problem.per_example_losses(solution.params, canaries)
    else:
        scores = score(solution, canaries)
    values, inside = np.asarray(scores, np.float64), np.asarray(taking_part)
    if inside.all() or not inside.any():
        return 0.0
    auditor = CanaryScoreAuditor(values[inside], values[~inside])
    return max(0.0, float(auditor.epsilon_one_run(1 - confidence, delta)))


def _or_nan(leaf: jax.Array, kept: jax.Array) -> jax.Array:
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return leaf
    return jnp.where(kept.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf, jnp.nan)

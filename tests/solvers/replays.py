"""Runs whose noise is given, and the noise that makes a neighbour's run the same."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import linalg

from dpjax.solvers import OnlineToBatch
from dpjax.testing._trees import QUICK
from dpjax.transforms import (
    Banded,
    BinaryTree,
    BufferedToeplitz,
    SplitNoise,
    clip_by_norm,
    rounding_allowance,
)


class GivenState(NamedTuple):
    """The strategy's own state, the draws `[T, *p]`, and what the last step got and gave."""

    count: jax.Array
    inner: Any
    draws: Any
    scale: jax.Array
    step: Any


class _Given:
    """Put before a strategy: its draws come from the state."""

    def init(self, params):
        draws = jax.tree.map(lambda p: jnp.zeros((self.num_steps, *p.shape), p.dtype), params)
        inner = super().init(params)
        zeros = jax.tree.map(jnp.zeros_like, params)
        return GivenState(inner.count, inner, draws, jnp.zeros(()), zeros)

    def next(self, draw, scale, state):
        here = jax.tree.map(lambda d: d[state.count], state.draws)
        step, inner = super().next(lambda level: here, scale, state.inner)
        return step, GivenState(inner.count, inner, state.draws, jnp.asarray(scale), step)


def _given_kind(kind):
    made = type(f"Given{kind.__name__}", (_Given, kind), {})
    return jax.tree_util.register_static(dataclasses.dataclass(frozen=True)(made))


_GIVEN = {kind: _given_kind(kind) for kind in (Banded, BinaryTree, BufferedToeplitz, SplitNoise)}


def given(strategy):
    """The strategy, but that it uses the draws in its state."""
    fields = {f.name: getattr(strategy, f.name) for f in dataclasses.fields(strategy)}
    return _GIVEN[type(strategy)](**fields)


class Run(NamedTuple):
    """All but noise and key of the states after each step, and what went into the noise."""

    states: Any
    increments: jax.Array
    scales: jax.Array


@functools.partial(jax.jit, compiler_options=QUICK)
def run(solver, problem, data, draws):
    """A run of a solver whose strategy is `given`."""
    n = jax.tree.leaves(data)[0].shape[0]
    keys = jax.random.split(jax.random.key(7))
    xs = solver.sampler.plan(keys[0], n)

    def body(state, x):
        rows, mask = solver.sampler.batch(x, n)
        batch = data if rows is None else jax.tree.map(lambda a: a[rows], data)
        after, info = solver.step(problem, batch, mask, state)
        larger = 1.0
        if isinstance(solver, OnlineToBatch):
            increment = after.estimate - state.estimate - after.noise.step
        else:
            gradients = problem.per_example_gradients(state.params, batch)
            increment = clip_by_norm(solver.clip_norm).update(gradients, None, mask=mask)[0]
            # the noise is larger by what rounding may add to the sum
            larger = 1 + rounding_allowance(mask.shape[0], increment.dtype)
        hidden = {"noise": None, "key": None}
        return after, ((after._replace(**hidden), info), increment, larger * after.noise.scale)

    state = solver.init(problem, key=keys[1])
    state = state._replace(noise=state.noise._replace(draws=draws))
    return Run(*jax.lax.scan(body, state, xs)[1])


def steps_of(solver, n):
    """For each record the steps in which it takes part."""
    rows, masks = _batches(solver.sampler, n)
    found = [[] for _ in range(n)]
    for t, (row, mask) in enumerate(zip(np.asarray(rows), np.asarray(masks), strict=True)):
        for i in row[mask]:
            found[i].append(t)
    return found


@functools.partial(jax.jit, static_argnums=(0, 1), compiler_options=QUICK)
def _batches(sampler, n):
    def batch(x):
        rows, mask = sampler.batch(x, n)
        return jnp.arange(n) if rows is None else rows, mask

    return jax.vmap(batch)(sampler.plan(jax.random.split(jax.random.key(7))[0], n))


def noise_matrix(strategy, scales):
    """[T, T]: what the draw of each step does to every prefix, from the definitions alone."""
    steps = np.arange(1, len(scales) + 1)
    lower = np.tril(np.ones((len(steps), len(steps))))
    if isinstance(strategy, SplitNoise):
        rest = steps[1:] ** -float(strategy.decay)
        shares = np.append(strategy.first_share, (1 - strategy.first_share) * rest / rest.sum())
        return lower * scales / np.sqrt(shares if len(steps) > 1 else 1.0)
    if isinstance(strategy, BufferedToeplitz):
        c = np.ones(strategy.num_steps)
        for i in range(1, len(c)):
            c[i] = sum(
                w * d ** (i - 1) for w, d in zip(strategy.omega, strategy.decay, strict=True)
            )
        matrix = linalg.toeplitz(c, np.zeros(len(c)))
        apart = strategy.separation or -(-len(c) // strategy.participations)
        # the steps j, j + b, ... of a record have a sum of columns of norm 1
        sums = [np.linalg.norm(matrix[:, j::apart].sum(axis=1)) for j in range(min(apart, len(c)))]
        norms = np.array([sums[t % apart] for t in range(len(steps))])
        return (lower * scales * norms) @ linalg.inv(matrix)[: len(steps), : len(steps)]
    if isinstance(strategy, Banded):
        c = np.pad(strategy.coefficients, (0, strategy.num_steps))[: strategy.num_steps]
        matrix = linalg.toeplitz(c, np.zeros(len(c)))
        inverse = linalg.inv(matrix)[: len(steps), : len(steps)]
        return (lower * scales * np.linalg.norm(matrix, axis=0)[: len(steps)]) @ inverse
    power = float(strategy.exponent) * (1 if strategy.distribution != "gaussian" else 2)
    covers = {i: range(i - (i & -i) + 1, i + 1) for i in range(1, strategy.num_steps + 1)}
    costs = [sum((q / i) ** power for i, covered in covers.items() if q in covered) for q in covers]
    factor = max(costs) if strategy.distribution != "gaussian" else max(costs) ** 0.5
    matrix = np.zeros((len(steps), len(steps)))
    for t in steps:
        i = int(t)
        while i:
            largest = max(scales[j - 1] / j**strategy.exponent for j in covers[i])
            matrix[t - 1, i - 1] = factor * i**strategy.exponent * largest
            i &= i - 1
    return matrix


def replay(solver, problem, data, other, draws, record):
    """Runs on `other`, which differs in one record, with the noise that hides it.

    Returns:
      The two runs, the second's draws, and by how much they differ `[T, *p]`.
    """
    first = run(solver, problem, data, draws)
    strategy = solver.noise
    matrix = noise_matrix(strategy, np.asarray(first.scales))
    moved = np.zeros(draws.shape)
    for t in steps_of(solver, jax.tree.leaves(data)[0].shape[0])[record]:
        second = run(solver, problem, other, draws + moved)
        wanted = np.zeros(draws.shape)
        wanted[t:] = np.asarray(second.increments[t] - first.increments[t])
        flat = wanted.reshape(len(wanted), -1)
        moved -= linalg.solve_triangular(matrix, flat, lower=True).reshape(draws.shape)
    return first, run(solver, problem, other, draws + moved), draws + moved, moved


def assert_same(first, second, tolerance=1e-8):
    """Every state and every released value of two runs agrees."""
    pairs = zip(jax.tree.leaves(first.states), jax.tree.leaves(second.states), strict=True)
    for a, b in pairs:
        size = max(1e-3, float(np.max(np.abs(a), initial=0)))
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * size)

"""What the study of hot paths times: for each path a floor, and what is measured against it."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dpjax
from benchmarks import step_time
from benchmarks._runner import Task
from dpjax import solvers
from dpjax.geometry import L1Ball, maurey, sample_vertices
from dpjax.solvers.queries._selection import select_query
from dpjax.transforms import (
    BinaryTree,
    BufferedToeplitz,
    add_gaussian,
    add_laplace,
    clip_by_norm,
    correlated_noise,
    tree_aggregation,
)

BUDGET = dpjax.Budget(1.0, 1e-5)


def descent(records: Any, steps: int) -> dict[str, Task]:
    """Whole runs of DP-SGD and SGD on a linear model, at batch 512."""
    return {
        "SGD": step_time._sgd(records, steps),
        "SGD, our product": step_time._sgd(records, steps, factored=True),
        "DP-SGD": step_time._solver(records, steps, parity=False),
    }


def wide_records(num_records: int, num_features: int) -> dict[str, jax.Array]:
    """Records of normal features with random labels."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((num_records, num_features), np.float32)
    return {"x": jnp.asarray(x), "y": jnp.asarray(rng.integers(0, 2, num_records), jnp.int32)}


def noise(dim: int, steps: int) -> dict[str, Task]:
    """Steps on a vector so long that its noise is all their cost, and the noise alone."""
    sgd, clip = optax.sgd(0.1), clip_by_norm(1.0)
    one_draw = dpjax.chain(clip, add_gaussian(1.0), sgd)
    chains = {
        "clip, Gaussian, SGD": one_draw,
        "Toeplitz, SGD": dpjax.chain(correlated_noise(BufferedToeplitz(16)), sgd),
        "tree, SGD": dpjax.chain(correlated_noise(BinaryTree(15)), sgd),
        "tree aggregation": tree_aggregation(1.0, 15),
        "Laplace, SGD": dpjax.chain(add_laplace(1.0), sgd),
    }
    threefry = jax.random.key(0)
    tasks = {
        "jax.random.normal": Task(_normals(dim, steps), (threefry,), steps),
        **{name: _chained(chain, threefry, dim, steps) for name, chain in chains.items()},
    }
    for name, key in other_generators().items():
        tasks[f"jax.random.normal, {name}"] = Task(_normals(dim, steps), (key,), steps)
        tasks[f"clip, Gaussian, SGD, {name}"] = _chained(one_draw, key, dim, steps)
    return tasks


def other_generators() -> dict[str, jax.Array]:
    """Keys of generators that are not JAX's default, where this JAX has them."""
    keys = {}
    for name in ("rbg", "threefry4x32"):
        try:
            keys[name] = jax.random.key(0, impl=name)
        except ValueError:  # before jax 0.10
            continue
    return keys


def _normals(dim: int, steps: int) -> Callable[[jax.Array], jax.Array]:
    def run(key: jax.Array) -> jax.Array:
        def body(i: jax.Array, x: jax.Array) -> jax.Array:
            del x
            return jax.random.normal(jax.random.fold_in(key, i), (dim,))

        return jax.lax.fori_loop(0, steps, body, jnp.zeros(dim))

    return run


def _chained(transform: Any, key: jax.Array, dim: int, steps: int) -> Task:
    aggregates = isinstance(transform, dpjax.core.Aggregator)

    def run(key: jax.Array, params: Any, state: Any, updates: Any) -> Any:
        def body(_: jax.Array, carry: Any) -> Any:
            params, state = carry
            mask = {"mask": jnp.ones(1, bool)} if aggregates else {}
            given = updates[None] if aggregates else updates
            step, state = transform.update(given, state, params, key=key, **mask)
            return optax.apply_updates(params, step), state

        return jax.lax.fori_loop(0, steps, body, (params, state))[0]

    params = jnp.zeros(dim)
    updates = jnp.full(dim, 1e-4)
    return Task(run, (key, params, transform.init(params), updates), steps)


def draws(dim: int, counts: tuple[int, ...]) -> dict[str, Task]:
    """Draws of vertices, and passes over what they are drawn by.

    A pass finds the largest of the logits and the sum of exponentials of what they exceed it by.
    """
    key, logits = jax.random.key(0), 3 * jax.random.normal(jax.random.key(1), (dim,))
    ball = L1Ball(dim, 2.0)
    tasks = {
        "pass": Task(_pass, (logits,)),
        "pass over both signs": Task(_pass, (jnp.concatenate([logits, -logits]),)),
        "pass and zeros": Task(lambda u: (_pass(u), jnp.zeros(dim)), (logits,)),
    }
    for count in counts:
        tasks[f"{count} draws"] = Task(
            lambda key, u, k=count: sample_vertices(key, u, k), (key, logits)
        )
    tasks["Maurey point of 16"] = Task(
        lambda key, u: maurey(sample_vertices(key, u, 16), dim), (key, logits)
    )
    tasks["Frank-Wolfe, l1 ball"] = Task(lambda key, v: ball.sample(key, v, 1), (key, logits))
    tasks["signed query"] = Task(lambda key, gaps: select_query(key, gaps, 2.0), (key, logits))
    return tasks


def _pass(logits: jax.Array) -> jax.Array:
    top = jnp.max(logits)
    return top + jnp.log(jnp.sum(jnp.exp(logits - top)))


def num_seeds() -> int:
    """Runs at once: as many as a device of this kind is made for."""
    return 64 if jax.default_backend() == "cpu" else 4096


def seeds(steps: int) -> dict[str, Callable[[], tuple[Task, Task]]]:
    """What makes one run of a small problem, and as many as there are seeds under `vmap`."""
    rng, n, p = np.random.default_rng(0), 200, 5
    x = rng.standard_normal((n, p), np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    records = {"x": x, "y": y, "group": (x[:, 1] > 0).astype(np.int32)}
    scores = {"x": np.clip(x, -1, 1), "y": y.astype(np.float32)}
    payoffs = {"A": rng.uniform(-1, 1, (n, 5, 5)).astype(np.float32)}

    def logistic(w: jax.Array, record: Any) -> jax.Array:
        return jax.nn.softplus((1 - 2 * record["y"]) * (record["x"] @ w))

    plain = dpjax.problems.RateConstrained.linear(p, 2, None)
    parity = dpjax.problems.demographic_parity(2, 2, slack=0.05)
    fair = dpjax.problems.RateConstrained.linear(p, 2, parity)
    ball = dpjax.problems.Risk(logistic, jnp.zeros(p), radius=1.0)
    simplex = dpjax.problems.SimplexRisk.linear(
        lambda margin, y: 0.5 * (margin - y) ** 2,
        L1Ball(p, 1.0),
        grad_range=4.0,
        smoothness=1.0,
        third_order=0.0,
    )
    game = dpjax.problems.Saddle.matrix_game((5, 5))
    domain = dpjax.queries.Domain({"a": 3, "b": 3, "c": 2})
    workload = dpjax.queries.Marginals.all_kway(domain, 2)
    release = dpjax.problems.QueryRelease(workload)
    codes = domain.codes(rng.integers(0, domain.universe_size, n).astype(np.int32))
    batches = {"batch_size": 16, "steps": steps}
    cases: dict[str, tuple[Any, Any, Any]] = {
        "DPSGD": (functools.partial(solvers.DPSGD.for_budget, **batches), plain, records),
        "RateConstrainedSGDA": (
            functools.partial(solvers.RateConstrainedSGDA.for_budget, **batches),
            fair,
            records,
        ),
        "DPFTRL": (
            functools.partial(solvers.DPFTRL.for_budget, noise="buffered", **batches),
            plain,
            records,
        ),
        "OnlineToBatch": (solvers.OnlineToBatch.for_budget, ball, scores),
        "OnlineToNonconvex": (solvers.OnlineToNonconvex.for_budget, ball, scores),
        "SaddleMirrorDescent": (solvers.SaddleMirrorDescent.for_budget, game, payoffs),
        "AnytimeMirrorDescent": (solvers.AnytimeMirrorDescent.for_budget, simplex, scores),
        "FrankWolfe": (solvers.FrankWolfe.for_budget, simplex, scores),
        "FrankWolfeRelease": (solvers.FrankWolfeRelease.for_budget, release, codes),
        "GaussianFit": (solvers.GaussianFit.for_budget, release, codes),
    }
    return {name: functools.partial(_one_and_many, *case) for name, case in cases.items()}


def _one_and_many(build: Callable[..., Any], problem: Any, data: Any) -> tuple[Task, Task]:
    data = jax.tree.map(jnp.asarray, data)
    num = jax.tree.leaves(data)[0].shape[0]
    solver = build(problem, num, BUDGET)

    def run(words: jax.Array, data: Any) -> Any:
        key = jax.random.wrap_key_data(words)
        return dpjax.solve(solver, problem, data, key=key).params

    words = jax.random.key_data(jax.random.split(jax.random.key(0), num_seeds()))
    steps = solver.sampler.steps
    one = Task(run, (words[0], data), steps)
    return one, Task(jax.vmap(run, in_axes=(0, None)), (words, data), steps)

"""Steps of DP-SGD and whole private fits by other libraries, for the study of step times.

Each function gives tasks by name, none where its library is not installed. Steps clip at norm 4,
add noise of deviation 8 to the sum, divide by the batch and move by 0.5, on a linear model of two
classes.
"""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib

from benchmarks._runner import Task

CLIP, NOISE, RATE = 4.0, 2.0, 0.5


def jax_privacy(problem: Any, sampler: Any, records: Any, batch: int) -> dict[str, Task]:
    """`clipped_grad` on Poisson batches in a compiled loop."""
    try:
        from jax_privacy import clipping
    except ImportError:
        return {}

    def loss(params: Any, batch: Any) -> jax.Array:
        return problem.mean_loss(params, batch)

    gradient = clipping.clipped_grad(loss, l2_clip_norm=CLIP, batch_argnums=1)

    def step(params: Any, rows: Any, mask: jax.Array, key: jax.Array) -> Any:
        total = gradient(params, rows, is_padding_example=~mask)
        leaves, tree = jax.tree.flatten(total)
        keys = jax.random.split(key, len(leaves))
        noisy = [
            g + CLIP * NOISE * jax.random.normal(k, g.shape)
            for g, k in zip(leaves, keys, strict=True)
        ]
        return jax.tree.map(
            lambda p, g: p - RATE * g / batch, params, jax.tree.unflatten(tree, noisy)
        )

    return {"DP-SGD (jax_privacy)": _scan(step, problem, sampler, records)}


def optax_contrib(problem: Any, sampler: Any, records: Any) -> dict[str, Task]:
    """`differentially_private_aggregate` of gradients by `vmap`, on Poisson batches.

    Padding has gradients of zero, and the mean is over all slots, as it has no masks.
    """
    if "key" not in inspect.signature(optax.contrib.differentially_private_aggregate).parameters:
        return {}  # an older one, of a seed that cannot be traced

    def step(params: Any, rows: Any, mask: jax.Array, key: jax.Array) -> Any:
        aggregate = optax.contrib.differentially_private_aggregate(CLIP, NOISE, key)

        def gradient(row: Any, kept: jax.Array) -> Any:
            one = jax.tree.map(lambda a: a[None], row)
            return jax.tree.map(lambda g: g * kept, jax.grad(problem.mean_loss)(params, one))

        each = jax.vmap(gradient)(rows, mask.astype(jnp.float32))
        updates, _ = aggregate.update(each, aggregate.init(params))
        return jax.tree.map(lambda p, g: p - RATE * g, params, updates)

    return {"DP-SGD (optax.contrib)": _scan(step, problem, sampler, records)}


def _scan(step: Callable[..., Any], problem: Any, sampler: Any, records: Any) -> Task:
    def scan(key: jax.Array, records: Any) -> Any:
        num = records["y"].shape[0]
        plan_key, noise_key = jax.random.split(key)

        def body(carry: Any, x: Any) -> tuple[Any, None]:
            params, count = carry
            rows, mask = sampler.batch(x, num)
            taken = jax.tree.map(lambda a: a[rows], records)
            params = step(params, taken, mask, jax.random.fold_in(noise_key, count))
            return (params, count + 1), None

        start = (problem.init, jnp.zeros((), jnp.int32))
        return jax.lax.scan(body, start, sampler.plan(plan_key, num))[0]

    return Task(scan, (jax.random.key(0), records), sampler.steps)


def opacus(records: Any, steps: int, batch: int) -> dict[str, Task]:
    """`make_private`, in a Python loop on batches drawn by NumPy."""
    try:
        import opacus
        import torch
    except ImportError:
        return {}
    torch.manual_seed(0)
    x = torch.tensor(np.asarray(records["x"]))
    y = torch.tensor(np.asarray(records["y"]), dtype=torch.long)
    model = torch.nn.Linear(x.shape[1], 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the generator is not secure, and other advice
        model, optimizer, loader = opacus.PrivacyEngine().make_private(
            module=model,
            optimizer=optimizer,
            data_loader=loader,
            noise_multiplier=NOISE,
            max_grad_norm=CLIP,
        )
    loss = torch.nn.CrossEntropyLoss()
    rows = np.random.default_rng(0)

    def call() -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about hooks on inputs without gradients
            for _ in range(steps):
                # batches by index: the loader's own collation of single records costs far more
                chosen = torch.tensor(np.flatnonzero(rows.random(len(y)) < batch / len(y)))
                optimizer.zero_grad()
                loss(model(x[chosen]), y[chosen]).backward()
                optimizer.step()
        return 0.0

    return {"DP-SGD (opacus)": Task(call, (), steps, host=True)}


def diffprivlib(
    train: dict[str, np.ndarray], epsilon: float
) -> tuple[Callable[[int], Any], Callable[[Any, np.ndarray], np.ndarray]] | None:
    """A logistic regression by objective perturbation: fit of a seed, and its predictions.

    Rows are scaled to norm 1, the bound that it asks for.
    """
    try:
        from diffprivlib.models import LogisticRegression
    except ImportError:
        return None

    def scaled(x: np.ndarray) -> np.ndarray:
        x = np.asarray(x, np.float64)
        return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)

    x, y = scaled(train["x"]), np.asarray(train["y"])

    def fit(seed: int) -> Any:
        model = LogisticRegression(
            epsilon=epsilon, data_norm=1.0001, fit_intercept=False, random_state=seed
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of scipy, about options that diffprivlib passes on
            return model.fit(x, y)

    return fit, lambda model, rows: model.predict(scaled(rows))

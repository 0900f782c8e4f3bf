"""The network of digits by jax_privacy's plan of banded noise; one band is its DP-SGD."""

import dataclasses
import functools
from typing import Any

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np


@functools.cache
def _plan(bands: int, steps: int, size: int, records: int, epsilon: float, delta: float) -> Any:
    """Configuration with the noise multiplier found, at clip norm 1."""
    from jax_privacy import batch_selection
    from jax_privacy.experimental import execution_plan

    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    config = execution_plan.BandMFExecutionPlanConfig.default(
        num_bands=bands,
        iterations=steps,
        epsilon=epsilon,
        delta=delta,
        sampling_prob=min(1.0, size * bands / records),
        rescale_to_unit_norm=False,
        normalize_by=float(size),
        partition_type=batch_selection.PartitionType.INDEPENDENT,
        accountant=dp_accounting.pld.PLDAccountant(relation),
    )
    event = config.plan.dp_event
    while not isinstance(event, dp_accounting.GaussianDpEvent):
        event = event.event
    return dataclasses.replace(
        config, epsilon=None, delta=None, noise_multiplier=event.noise_multiplier
    )


def params(
    loss: Any,
    start: Any,
    train: dict[str, jax.Array],
    bands: int,
    made: Any,
    rate: float,
    budget: tuple[float, float],
    seed: int,
) -> Any:
    """Parameters by `bands` bands, with steps, batches, schedule and average of a dpjax solver."""
    records, steps = train["y"].size, made.sampler.steps
    size = round(float(made.batch_size))
    config = dataclasses.replace(_plan(bands, steps, size, records, *budget), noise_seed=seed)
    plan = config.plan
    gradient = plan.clipped_grad(_mean(loss), batch_argnums=1)
    decay = float(made.decay)

    @jax.jit
    def step(state: Any, rows: Any, padding: jax.Array, rate: jax.Array) -> Any:
        params, average, kept = state
        summed = gradient(params, rows, is_padding_example=padding)
        noisy, kept = plan.noise_addition_transform.update(summed, kept)
        params = jax.tree.map(lambda p, g: p - rate * g, params, noisy)
        average = jax.tree.map(lambda a, p: decay * a + (1 - decay) * p, average, params)
        return params, average, kept

    state = start, jax.tree.map(jnp.zeros_like, start), plan.noise_addition_transform.init(start)
    slots = int(size + 6 * size**0.5)
    for t, chosen in enumerate(plan.batch_selection_strategy.batch_iterator(records, rng=seed)):
        falls = 1 - t / steps if made.schedule == "linear" else 1.0
        full = -(-max(len(chosen), 1) // slots) * slots  # a batch beyond the slots compiles again
        index = np.zeros(full, int)
        index[: len(chosen)] = chosen
        rows = {name: value[index] for name, value in train.items()}
        state = step(state, rows, jnp.arange(full) >= len(chosen), jnp.float32(rate * falls))
    if made.average != "ema":
        raise ValueError(f"average must be 'ema', got {made.average!r}")
    return jax.tree.map(lambda a: a / (1 - decay**steps), state[1])


def _mean(loss: Any) -> Any:
    return lambda params, batch: jax.vmap(loss, in_axes=(None, 0))(params, batch).mean()

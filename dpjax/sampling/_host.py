"""Poisson batches drawn beforehand on the host, with NumPy."""

import jax
import numpy as np

from dpjax.core._checks import is_traced


def draw_on_host(
    key: jax.Array, rate: float, num_records: int, steps: int, capacity: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draws all batches: a binomial count each, then that many records without replacement.

    A Poisson batch given its size is a uniform subset of that size, so a size cut to
    `capacity` is the batch with its surplus dropped uniformly at random.

    Args:
      key: PRNG key, concrete; its data seed NumPy.
      rate: probability with which each record takes part.
      num_records: number of records.
      steps: number of batches.
      capacity: slots of each.

    Returns:
      Indices `[steps, capacity]` int32, ascending, 0 in the padding; mask `[steps, capacity]`.

    Raises:
      TypeError: the key is traced.
    """
    if is_traced(key):
        raise TypeError(
            "method='host' draws with NumPy and needs a concrete key, got a traced one "
            "(under jit, vmap or scan): use method='gaps'"
        )
    seed = np.asarray(jax.random.key_data(key)).ravel().tolist()
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    counts = np.minimum(rng.binomial(num_records, rate, size=steps), capacity)
    indices = np.zeros((steps, capacity), dtype=np.int32)
    for row, count in zip(indices, counts, strict=True):
        row[:count] = np.sort(rng.choice(num_records, size=count, replace=False, shuffle=False))
    return indices, np.arange(capacity) < counts[:, None]

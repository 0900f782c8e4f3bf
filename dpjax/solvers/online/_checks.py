"""Which samplers, noises and norms of an online-to-batch conversion fit together."""

import math
from typing import Any

from dpjax.sampling import DisjointPartition, FullBatch, IndependentPartition
from dpjax.solvers.online._weights import estimate_degree
from dpjax.transforms import NoiseStrategy, is_every_step


def check_fit(solver: Any) -> None:
    """Raises ValueError where the guarantee would not hold, or the method not make sense."""
    sampler, noise = solver.sampler, solver.noise
    kind = type(sampler).__name__
    full = isinstance(sampler, FullBatch)
    check_participation(sampler, noise)
    least = 0 if full else 1
    for name, value in (("weights", solver.weights), ("estimate_weights", estimate_degree(solver))):
        if not (math.isfinite(value) and value >= least):
            raise ValueError(f"{name} must be finite and >= {least} with {kind}, got {value!r}")
    if solver.norm == "linf" and solver.clip == "centred":
        raise ValueError("clip must be 'plain' or 'whole' with norm='linf', got 'centred'")
    distribution = getattr(noise, "distribution", "gaussian")
    if distribution not in ("gaussian", "l2", solver.norm):
        raise ValueError(f"norm must be {distribution!r} with {noise!r}, got {solver.norm!r}")


def check_participation(sampler: Any, noise: Any) -> None:
    """Raises an error unless the noise is made for what the sampler runs."""
    kind = type(sampler).__name__
    full = isinstance(sampler, FullBatch)
    equal = isinstance(sampler, DisjointPartition) or (
        isinstance(sampler, IndependentPartition) and not sampler.tapered
    )
    if not (full or equal):
        raise ValueError(
            "sampler must be FullBatch, DisjointPartition or an IndependentPartition of equal "
            f"shares, got {sampler!r}"
        )
    if not isinstance(noise, NoiseStrategy):
        raise TypeError(f"the noise must be a strategy such as BufferedToeplitz, got {noise!r}")
    if full and not is_every_step(noise):
        raise ValueError(
            f"noise must be SplitNoise with {kind}, where records are in every step, got {noise!r}"
        )
    if noise.num_steps < sampler.steps:
        raise ValueError(
            f"noise.num_steps must be >= sampler.steps = {sampler.steps}, got {noise.num_steps}"
        )

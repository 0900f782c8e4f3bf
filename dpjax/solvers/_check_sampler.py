"""Checks that a sampler, a noise strategy and a relation fit together."""

from dpjax.core import Sampler
from dpjax.core import check_sampler as check_is_sampler
from dpjax.privacy import RelationLike, resolve_relation
from dpjax.sampling import DisjointPartition, FullBatch, IndependentPartition
from dpjax.transforms import NoiseStrategy, is_every_step


def check_sampler(sampler: Sampler, relation: RelationLike) -> None:
    """Raises unless this is a sampler whose event holds under the relation.

    Raises:
      TypeError: If it lacks something of a `Sampler`.
      ValueError: If its event does not hold under the relation.
    """
    check_is_sampler(sampler)
    sampler.check_relation(resolve_relation(relation))


def check_participation(sampler: Sampler, noise: NoiseStrategy) -> None:
    """Raises an error unless the noise is made for what the sampler runs."""
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
            "noise must be SplitNoise with FullBatch, where records are in every step, "
            f"got {noise!r}"
        )
    if noise.num_steps < sampler.steps:
        raise ValueError(
            f"noise.num_steps must be >= sampler.steps = {sampler.steps}, got {noise.num_steps}"
        )


def distribution_of(noise: NoiseStrategy) -> str:
    """Of a strategy's draws: `"gaussian"`, or the norm in whose exponential they are drawn."""
    return getattr(noise, "distribution", "gaussian")

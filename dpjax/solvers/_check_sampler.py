"""Checks that a sampler, a noise strategy and a relation fit together."""

import dataclasses

import numpy as np
from dp_accounting import DpEvent

from dpjax.core import Sampler
from dpjax.core import check_sampler as check_is_sampler
from dpjax.privacy import RelationLike, resolve_relation
from dpjax.sampling import FullBatch, Participation
from dpjax.sampling._participation import every_step, one_step, participation_of
from dpjax.transforms import Banded, NoiseStrategy, is_every_step


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
    stated, name = participation_of(sampler), type(sampler).__name__
    sizes = np.asarray(getattr(sampler, "sizes", 1.0))
    if stated is None or np.ptp(sizes) > 1e-6 * np.max(sizes):
        raise ValueError(
            "sampler must have batches of one size and state its participation, as FullBatch, "
            f"RepeatedPartition and CyclicPoisson do, with correlated noise, got {sampler!r}"
        )
    if not isinstance(noise, NoiseStrategy):
        raise TypeError(f"the noise must be a strategy such as BufferedToeplitz, got {noise!r}")
    if noise.num_steps < sampler.steps:
        raise ValueError(
            f"noise.num_steps must be >= sampler.steps = {sampler.steps}, got {noise.num_steps}"
        )
    own = made_for(noise)
    if isinstance(noise, Banded):
        if stated.kind == "cyclic" and stated.most > 1 and own.separation > stated.separation:
            raise ValueError(
                f"bands must be <= groups = {stated.separation} with {name}, got {own.separation}"
            )
        own = dataclasses.replace(own, most=max(own.most, stated.most))
    elif stated.rate < 1:
        raise ValueError(
            f"no amplification is known for {type(noise).__name__}: use RepeatedPartition or a "
            f"Banded strategy with CyclicPoisson, got {name}"
        )
    if not stated.within(own):
        raise ValueError(
            f"noise is for at most {own.most} participations {own.separation} steps apart, but "
            f"{name} lets a record take part {stated.most} times {stated.separation} apart"
        )


def check_one_or_every_step(sampler: Sampler, noise: NoiseStrategy) -> None:
    """`check_participation`, and raises but for one pass, or full batches and noise for them."""
    full, stated = isinstance(sampler, FullBatch), participation_of(sampler)
    if not full and stated is not None and stated.most > 1:
        raise ValueError(
            "sampler must be FullBatch, or a partition in which each record is in one step, "
            f"got {sampler!r}"
        )
    if full and isinstance(noise, NoiseStrategy) and not is_every_step(noise):
        raise ValueError(
            "noise must be SplitNoise with FullBatch, where records are in every step, "
            f"got {noise!r}"
        )
    check_participation(sampler, noise)


def event_of_run(
    sampler: Sampler, noise: NoiseStrategy, noise_multiplier: float, relation: str
) -> DpEvent:
    """The event of noise that was found to be made for what the sampler runs."""
    if isinstance(noise, Banded):
        return noise.event(noise_multiplier, relation, participation_of(sampler))
    return noise.event(noise_multiplier, relation)


def made_for(noise: NoiseStrategy) -> Participation:
    """The steps of one record for which a strategy's event holds: one, unless it says."""
    if is_every_step(noise):
        return every_step(noise.num_steps)
    return getattr(noise, "participation", None) or one_step(noise.num_steps)


def distribution_of(noise: NoiseStrategy) -> str:
    """Of a strategy's draws: `"gaussian"`, or the norm in whose exponential they are drawn."""
    return getattr(noise, "distribution", "gaussian")

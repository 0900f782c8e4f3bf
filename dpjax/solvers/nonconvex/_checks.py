"""Which samplers, noise and directions of `OnlineToNonconvex` fit together."""

from typing import TYPE_CHECKING

from dp_accounting import dp_event as dpe

from dpjax.core import check_int
from dpjax.sampling import DisjointPartition
from dpjax.sampling._participation import participation_of
from dpjax.transforms import BinaryTree, NoiseStrategy, is_every_step

if TYPE_CHECKING:
    from dpjax.solvers.nonconvex._online_to_nonconvex import OnlineToNonconvex


def check_fit(solver: "OnlineToNonconvex") -> None:
    """Raises where the fields, each fine by itself, do not fit."""
    noise, sampler, size = solver.noise, solver.sampler, solver.difference_batch_size
    if not isinstance(noise, NoiseStrategy):
        raise TypeError(f"noise must be a NoiseStrategy, got {noise!r}")
    gaussian_multiplier(noise, 1.0, solver.relation)
    check_int("block_size", solver.block_size, minimum=1)
    if solver.num_moves % solver.block_size:
        raise ValueError(
            f"block_size must divide the number of moves {solver.num_moves}, "
            f"got {solver.block_size}"
        )
    if not solver.reuse_directions and solver.directions != "record":
        raise ValueError("reuse_directions=False needs directions='record', got 'shared'")
    period = noise.num_steps
    if size is None:
        stated = participation_of(sampler)
        single = stated is not None and stated.most == 1 and stated.rate == 1
        if not is_every_step(noise) and (period > 1 or not single):
            raise ValueError(
                "noise must be SplitNoise where all records of a batch take part in every move, "
                f"got {noise!r}; set difference_batch_size with DisjointPartition for {noise!r}"
            )
        return
    check_int("difference_batch_size", size, minimum=1)
    if not isinstance(sampler, DisjointPartition):
        raise ValueError(
            "difference_batch_size needs DisjointPartition, whose records keep their places, "
            f"got {type(sampler).__name__}"
        )
    if sampler.batch_size <= (period - 1) * size:
        raise ValueError(
            f"difference_batch_size must leave records for the first move: {period - 1} changes of "
            f"{size} are more than batch_size - 1 = {sampler.batch_size - 1}"
        )


def plain_tree(noise: BinaryTree) -> bool:
    """Whether a tree's nodes have one deviation for equal scales, and prefixes add nodes up."""
    return noise.exponent == 0 and not noise.variance_reduced and noise.distribution == "gaussian"


def gaussian_multiplier(noise: NoiseStrategy, noise_multiplier: float, relation: str) -> float:
    """Noise multiplier of the Gaussian that a period is; raises ValueError if it is none."""
    event = noise.event(noise_multiplier, relation)
    if not isinstance(event, dpe.GaussianDpEvent):
        raise ValueError(f"noise must be Gaussian, got {noise!r} with {type(event).__name__}")
    return event.noise_multiplier

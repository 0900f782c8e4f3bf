"""Gradient transformations: clipping, noise, sampling, descent; one concept a file."""

from dpjax.core._moved import moved as _moved
from dpjax.transforms.clipping._by_norm import clip_by_norm as clip_by_norm
from dpjax.transforms.clipping._by_norm import clip_by_range as clip_by_range
from dpjax.transforms.clipping._by_norm import clip_scale as clip_scale
from dpjax.transforms.clipping._by_norm import per_example_norm as per_example_norm
from dpjax.transforms.clipping._leaves import OuterProduct as OuterProduct
from dpjax.transforms.clipping._leaves import PackedSigns as PackedSigns
from dpjax.transforms.clipping._microbatch import microbatched_sum as microbatched_sum
from dpjax.transforms.clipping._weighted_sum import rounding_allowance as rounding_allowance
from dpjax.transforms.clipping._weighted_sum import weighted_sum as weighted_sum
from dpjax.transforms.descent._descent import ClippedDisplacementState as ClippedDisplacementState
from dpjax.transforms.descent._descent import clipped_displacement as clipped_displacement
from dpjax.transforms.estimators._smooth_first_order import smooth_first_order as smooth_first_order
from dpjax.transforms.estimators._zeroth_order import ZerothOrder as ZerothOrder
from dpjax.transforms.estimators._zeroth_order import smooth_zeroth_order as smooth_zeroth_order
from dpjax.transforms.learners._learner import LeaderState as LeaderState
from dpjax.transforms.learners._learner import exponentiated_gradient as exponentiated_gradient
from dpjax.transforms.learners._learner import projected as projected
from dpjax.transforms.noise._independent import AddNoiseState as AddNoiseState
from dpjax.transforms.noise._independent import add_discrete_gaussian as add_discrete_gaussian
from dpjax.transforms.noise._independent import add_gaussian as add_gaussian
from dpjax.transforms.noise._independent import add_laplace as add_laplace
from dpjax.transforms.noise._independent import add_rounded_gaussian as add_rounded_gaussian
from dpjax.transforms.noise._independent import (
    discrete_gaussian_shortfall as discrete_gaussian_shortfall,
)
from dpjax.transforms.noise._independent import (
    rounded_gaussian_shortfall as rounded_gaussian_shortfall,
)
from dpjax.transforms.noise.correlated._banded import Banded as Banded
from dpjax.transforms.noise.correlated._banded import BandedState as BandedState
from dpjax.transforms.noise.correlated._binary_tree import BinaryTree as BinaryTree
from dpjax.transforms.noise.correlated._binary_tree import BinaryTreeState as BinaryTreeState
from dpjax.transforms.noise.correlated._binary_tree import (
    TreeAggregationState as TreeAggregationState,
)
from dpjax.transforms.noise.correlated._binary_tree import tree_aggregation as tree_aggregation
from dpjax.transforms.noise.correlated._buffered_toeplitz import (
    BufferedToeplitz as BufferedToeplitz,
)
from dpjax.transforms.noise.correlated._buffered_toeplitz import (
    BufferedToeplitzState as BufferedToeplitzState,
)
from dpjax.transforms.noise.correlated._buffered_toeplitz import (
    fit_buffered_toeplitz as fit_buffered_toeplitz,
)
from dpjax.transforms.noise.correlated._jax_privacy import from_jax_privacy as from_jax_privacy
from dpjax.transforms.noise.correlated._split_noise import RestartNoise as RestartNoise
from dpjax.transforms.noise.correlated._split_noise import RestartNoiseState as RestartNoiseState
from dpjax.transforms.noise.correlated._split_noise import SplitNoise as SplitNoise
from dpjax.transforms.noise.correlated._split_noise import SplitNoiseState as SplitNoiseState
from dpjax.transforms.noise.correlated._split_noise import is_every_step as is_every_step
from dpjax.transforms.noise.correlated._strategy import NoiseStrategy as NoiseStrategy
from dpjax.transforms.noise.correlated._strategy import RestartedSumsState as RestartedSumsState
from dpjax.transforms.noise.correlated._strategy import correlated_noise as correlated_noise
from dpjax.transforms.noise.correlated._strategy import restarted_sums as restarted_sums

_LEARNERS = (
    "AdagradNormState DistanceAdaptiveState MirroredState OptimisticDescentState ReductionState "
    "StronglyConvexState adagrad_norm coin_betting distance_adaptive dual_averaging mirrored "
    "optimistic_descent parameter_free strongly_convex_descent"
)
_ESTIMATORS = (
    "MaureySampleState Multilevel draw_levels maurey_sample multilevel polar_estimate "
    "polar_interval"
)
_MIRROR = "AnytimeState MirrorStepState anytime_average mirror_step"
__getattr__ = _moved(
    __name__,
    {name: f"dpjax.papers.learners.{name}" for name in _LEARNERS.split()},
    kept={"dpjax.papers.estimators": _ESTIMATORS.split(), "dpjax.papers.mirror": _MIRROR.split()},
)

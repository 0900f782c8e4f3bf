"""Gradient transformations: clipping, noise, sampling, descent; one concept a file."""

from dpjax.transforms._anytime import AnytimeState as AnytimeState
from dpjax.transforms._anytime import anytime_average as anytime_average
from dpjax.transforms._clip import clip_by_norm as clip_by_norm
from dpjax.transforms._clip import clip_scale as clip_scale
from dpjax.transforms._clip import per_example_norm as per_example_norm
from dpjax.transforms._maurey import MaureySampleState as MaureySampleState
from dpjax.transforms._maurey import maurey_sample as maurey_sample
from dpjax.transforms._microbatch import microbatched_sum as microbatched_sum
from dpjax.transforms._mirror import MirrorStepState as MirrorStepState
from dpjax.transforms._mirror import mirror_step as mirror_step
from dpjax.transforms._multilevel import Multilevel as Multilevel
from dpjax.transforms._multilevel import draw_levels as draw_levels
from dpjax.transforms._multilevel import multilevel as multilevel
from dpjax.transforms._noise import AddNoiseState as AddNoiseState
from dpjax.transforms._noise import add_gaussian as add_gaussian
from dpjax.transforms._noise import add_laplace as add_laplace
from dpjax.transforms._outer import OuterProduct as OuterProduct
from dpjax.transforms._range import clip_by_range as clip_by_range
from dpjax.transforms._signs import PackedSigns as PackedSigns
from dpjax.transforms._weighted_sum import weighted_sum as weighted_sum

"""Gradient transformations: clipping, noise, aggregation; one concept a file."""

from dpjax.transforms._clip import clip_by_norm as clip_by_norm
from dpjax.transforms._clip import clip_scale as clip_scale
from dpjax.transforms._clip import per_example_norm as per_example_norm
from dpjax.transforms._microbatch import microbatched_sum as microbatched_sum
from dpjax.transforms._noise import AddNoiseState as AddNoiseState
from dpjax.transforms._noise import add_gaussian as add_gaussian
from dpjax.transforms._noise import add_laplace as add_laplace
from dpjax.transforms._outer import OuterProduct as OuterProduct

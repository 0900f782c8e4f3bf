"""Noise of a first step apart from that of the steps after it."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import dp_event as dpe
from jax.typing import ArrayLike

from dpjax.core import PyTree
from dpjax.privacy import RelationLike
from dpjax.transforms.noise.correlated import _strategy as strategies


class RestartNoiseState(NamedTuple):
    """State of `RestartNoise`.

    Attributes:
      count: Steps so far, `[]` int32 (*public*).
      later: State of the noise after the first step (*secret*).
    """

    count: jax.Array  # type: ignore[assignment]
    later: PyTree


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class RestartNoise(strategies.GaussianStrategy):
    r"""Noise of its own for the first step, and that of another strategy for all after it.

    $$ \gamma_1 = \text{scale}_1\, z, \qquad \gamma_t = \gamma_1 + \gamma'_{t-1} $$

    For sums whose first update is large and whose later ones are small, as of a gradient and its
    changes: in one tree or Toeplitz matrix the later steps would pay for the first. With the best
    strategy for the later steps, within a factor of two (in variance) of every linear mechanism.

    Guarantee: of `correlated_noise(strategy, z)`: one Gaussian of noise multiplier z, whatever the
    scales, for records that take part in one step: that is the first, which the later noise does
    not touch, or a later one, for which the later strategy answers.

    Args:
      later: The strategy of the steps after the first (*public*), of Gaussian noise.

    Raises:
      TypeError: If `later` is no strategy.
      ValueError: If its event is no Gaussian.

    Example:
      >>> import dpjax
      >>> noise = RestartNoise(dpjax.transforms.BinaryTree(7))
      >>> noise.num_steps
      8
      >>> [round(float(v), 2) for v in noise.prefix_stddev([9, 1, 1, 1, 1, 1, 1, 1])]
      [9.0, 9.17, 9.17, 9.33, 9.17, 9.33, 9.33, 9.49]
    """

    later: strategies.NoiseStrategy

    def __post_init__(self) -> None:
        if not isinstance(self.later, strategies.NoiseStrategy):
            raise TypeError(f"later must be a NoiseStrategy, got {self.later!r}")
        if not isinstance(self.later.event(1.0), dpe.GaussianDpEvent):
            raise ValueError(f"later must have Gaussian noise, got {self.later!r}")

    @property
    def num_steps(self) -> int:
        """One more than the later strategy has."""
        return self.later.num_steps + 1

    def init(self, params: PyTree) -> RestartNoiseState:
        """The state before the first step."""
        return RestartNoiseState(jnp.zeros((), jnp.int32), self.later.init(params))

    def next(
        self, draw: strategies.Draw, scale: ArrayLike, state: RestartNoiseState
    ) -> tuple[PyTree, RestartNoiseState]:
        """The increment of the sum's noise, and the state."""
        first = state.count == 0
        scale = strategies.valid_scale(scale, state.count, self.num_steps)
        drawn = draw(0)

        def shared(level: int | jax.Array) -> PyTree:
            return drawn if isinstance(level, int) and level == 0 else draw(level)

        # an inner step is made in the first one too, and thrown away, so that vmap needs no branch
        noise, later = self.later.next(shared, scale, state.later)
        own = strategies.times(scale, drawn)
        noise = jax.tree.map(lambda a, b: jnp.where(first, a, b), own, noise)
        later = jax.tree.map(lambda a, b: jnp.where(first, a, b), state.later, later)
        return noise, RestartNoiseState(state.count + 1, later)

    def event(
        self, noise_multiplier: float, relation: RelationLike = "add_or_remove_one"
    ) -> dpe.DpEvent:
        """The event of a whole run: the larger of two disjoint parts, which are alike."""
        later = self.later.event(noise_multiplier, relation)
        assert isinstance(later, dpe.GaussianDpEvent)
        return strategies.gaussian_event(min(float(noise_multiplier), later.noise_multiplier))

    def prefix_stddev(self, scales: ArrayLike | None = None) -> np.ndarray:
        """Deviation of a coordinate of each sum's noise at noise multiplier 1, `[T]` float64."""
        scales = strategies.host_scales(scales, self.num_steps)
        later = self.later.prefix_stddev(scales[1:])
        return np.sqrt(scales[0] ** 2 + np.append(0.0, later) ** 2)

"""Noise of sums that every record enters in each step, and of sums that start anew."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import dp_event as dpe
from jax.typing import ArrayLike

from dpjax.core import PyTree, check_int, check_nonnegative_scalar, check_rate
from dpjax.privacy import RelationLike
from dpjax.transforms.noise.correlated import _strategy as strategies


class SplitNoiseState(NamedTuple):
    """State of `SplitNoise`.

    Attributes:
      count: Number of steps so far, `[]` int32 (*public*).
    """

    count: jax.Array  # type: ignore[assignment]


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class SplitNoise(strategies.GaussianStrategy):
    r"""Independent noise, of which every step has its share, for records that are in every step.

    $$ \gamma_t - \gamma_{t-1} = \frac{\text{scale}_t}{\sqrt{p_t}}\, z_t, \qquad
       p_1 = p, \qquad p_t \propto t^{-a}, \qquad \sum_t p_t = 1 $$

    Guarantee: of `correlated_noise(strategy, z)`: one Gaussian of noise multiplier z, whatever the
    scales, where a record may change the update of **every** step t by at most $s_t$: each step is
    a Gaussian of noise multiplier $z / \sqrt{p_t}$, and these squares add up. Other strategies are
    for records that take part in one step.

    The noise of a sum is smallest where $p_t$ is proportional to the scales: few updates that
    matter, as with a first gradient and its later changes, cost little more than one.

    Args:
      num_steps: Number of steps, `>= 1` (*public*).
      first_share: p in (0, 1], the share of the first step (*public*); 1 for a single step alone.
      decay: $a \ge 0$, how fast the shares of later steps fall (*public*).

    Raises:
      TypeError: If `num_steps` is no integer.
      ValueError: If a value is outside its bound.

    Example:
      >>> noise = SplitNoise(3, first_share=0.5, decay=1.0)
      >>> [round(float(p), 2) for p in noise.shares]
      [0.5, 0.3, 0.2]
    """

    num_steps: int
    first_share: float = 0.7
    decay: float = 1.0

    every_step = True  # a record may take part in every step, not in one alone

    def __post_init__(self) -> None:
        check_int("num_steps", self.num_steps, minimum=1)
        check_rate("first_share", self.first_share)
        check_nonnegative_scalar("decay", self.decay)
        if self.num_steps > 1 and self.first_share == 1:
            raise ValueError(
                f"first_share must be < 1 with num_steps = {self.num_steps} > 1, got 1.0"
            )

    @functools.cached_property
    def shares(self) -> np.ndarray:
        """The shares $p_t$, `[num_steps]` float64."""
        if self.num_steps == 1:
            return np.ones(1)
        rest = (np.arange(2.0, self.num_steps + 1) / 2) ** -float(self.decay)
        return np.append(self.first_share, (1 - self.first_share) * rest / rest.sum())

    def init(self, params: PyTree) -> SplitNoiseState:
        """The state before the first step."""
        return SplitNoiseState(jnp.zeros((), jnp.int32))

    def next(
        self, draw: strategies.Draw, scale: ArrayLike, state: SplitNoiseState
    ) -> tuple[PyTree, SplitNoiseState]:
        """The increment of the sum's noise, and the state."""
        scale = strategies.valid_scale(scale, state.count, self.num_steps)
        stddev = scale / jnp.asarray(np.sqrt(self.shares), scale.dtype)[state.count]
        return strategies.times(stddev, draw(0)), SplitNoiseState(state.count + 1)

    def variance(self, scale: ArrayLike, count: ArrayLike) -> jax.Array:
        """Of a coordinate of the increment after `count` steps, for `scale` `[]`; may be traced."""
        dtype = jnp.result_type(float)
        return jnp.square(jnp.asarray(scale, dtype)) / jnp.asarray(self.shares, dtype)[count]

    def prefix_stddev(self, scales: ArrayLike | None = None) -> np.ndarray:
        """Deviation of a coordinate of each sum's noise at noise multiplier 1, `[T]` float64."""
        scales = strategies.host_scales(scales, self.num_steps)
        return np.sqrt(np.cumsum(scales**2 / self.shares))


def is_every_step(strategy: object) -> bool:
    """Whether a strategy's guarantee holds for records that take part in every step.

    Args:
      strategy: A `NoiseStrategy`, or what may stand in its place.

    Returns:
      True if it says so of itself, by `every_step`.
    """
    return getattr(strategy, "every_step", False) is True


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
        return np.sqrt(scales[0] ** 2 + np.append(0.0, self.later.prefix_stddev(scales[1:])) ** 2)

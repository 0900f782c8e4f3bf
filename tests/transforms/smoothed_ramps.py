"""The loss |u.x - b| of a unit vector u, what smoothing makes of its slope, and a test of means."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from scipy import integrate, special

from dpjax.testing import count_false_alarm
from dpjax.testing._trees import QUICK

FALSE_ALARM_DEVIATIONS = 6.0  # 2e-9, two-sided
DIM, RADIUS, DISTANCE = 8, 0.5, 0.05


def ball_slope(distance, radius, dim):
    """Slope along u at u.x - b = distance of the loss smoothed over a ball: the right one."""
    ratio = min(1.0, (distance / radius) ** 2)
    return np.sign(distance) * special.betainc(0.5, (dim + 1) / 2, ratio)


def sphere_slope(distance, radius, dim):
    """The same over a sphere: what gradients at points of a sphere would estimate."""
    ratio = min(1.0, (distance / radius) ** 2)
    return np.sign(distance) * special.betainc(0.5, (dim - 1) / 2, ratio)


def misdrawn_slopes(distance, radius, dim):
    """What differences of losses estimate along steps from a ball: the unit one, and radius times.

    A step of size s times the right one has the slope of its own smoothing, times s^2.
    """

    def mean(scale):
        def integrand(size):
            step = scale * size
            return dim * size ** (dim - 1) * step**2 * ball_slope(distance, radius * step, dim)

        return integrate.quad(integrand, 0, 1, epsabs=1e-9)[0]

    return [mean(1.0), mean(radius)]


def split(vectors):
    """Vectors `[..., 8]` as trees of two leaves."""
    return {"a": vectors[..., :6].reshape(*vectors.shape[:-1], 2, 3), "b": vectors[..., 6:]}


def join(tree):
    """The vectors `[..., 8]` again, float64."""
    a, b = np.asarray(tree["a"], np.float64), np.asarray(tree["b"], np.float64)
    return np.concatenate([a.reshape(*a.shape[:-2], -1), b], axis=-1)


def ramp(direction, offset=0.0):
    """Losses and per-example gradients of |u.x - offset - y_b| at split trees x."""
    u = split(np.asarray(direction, np.float32))

    def margins(params, batch):
        products = jax.tree.map(lambda p, v: jnp.sum(p * v.astype(p.dtype)), params, u)
        return products["a"] + products["b"] - offset - batch["y"]

    def losses(params, batch):
        return jnp.abs(margins(params, batch))

    def gradients(params, batch):
        signs = jnp.sign(margins(params, batch))
        return jax.tree.map(lambda v: jnp.expand_dims(signs, range(1, 1 + v.ndim)) * v[None], u)

    return losses, gradients


@functools.cache
def compiled(oracle):
    """The oracle, compiled once and quickly."""
    return jax.jit(oracle, compiler_options=QUICK)


def call(oracle, params, batch, key):
    """Its estimates."""
    return compiled(oracle)(params, batch, key=key)


def unit_vector(rng, dim=DIM):
    """A direction without a favoured coordinate."""
    vector = rng.normal(size=dim)
    return vector / np.linalg.norm(vector)


def check_mean(samples, mean, wrong=()):
    """Raises unless independent samples have this mean, and tell it from each wrong one."""
    count_false_alarm(2e-9)
    samples = np.asarray(samples, np.float64)
    band = FALSE_ALARM_DEVIATIONS * samples.std() / np.sqrt(samples.size)
    got = samples.mean()
    assert abs(got - mean) <= band, f"mean {got:.5f}, want {mean:.5f} +- {band:.5f}"
    for other in wrong:
        assert abs(got - other) > band, f"{samples.size} cannot tell {mean:.5f} from {other:.5f}"

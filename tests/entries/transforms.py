"""The public transformations, aggregators and samplers of dpjax."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting import dp_event as dpe
from scipy import stats

from dpjax.core import PyTree, Transform, chain, seeded
from dpjax.geometry import (
    entropic,
    euclidean_ball,
    log_normalize,
    product,
)
from dpjax.papers.estimators import maurey_sample, multilevel
from dpjax.testing import TransformCase, register
from dpjax.transforms import (
    add_discrete_gaussian,
    add_gaussian,
    add_laplace,
    add_rounded_gaussian,
    anytime_average,
    mirror_step,
)
from tests.entries.rows import Count, Number, nonnegative, row


def _updates() -> PyTree:
    rng = np.random.default_rng(0)
    return {"w": _floats(rng, 3, 2), "v": [_floats(rng, 6), _floats(rng, 6)]}


def _floats(rng: np.random.Generator, *shape: int) -> Any:
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


def _integers(noise: Callable[..., Any]) -> TransformCase:
    counts = {"a": jnp.arange(6, dtype=jnp.int32).reshape(2, 3), "b": jnp.ones(4, jnp.int32)}
    numbers = np.arange(-60, 61)
    if noise is add_rounded_gaussian:
        weights = stats.norm.cdf(numbers + 0.5, scale=3.0) - stats.norm.cdf(
            numbers - 0.5, scale=3.0
        )
        event: Any = dpe.GaussianDpEvent(3.0)
    else:
        weights, event = np.exp(-(numbers**2) / 18), dpe.ZCDpEvent(1 / 18)
    # the deviation sets a table, so it is not swept; integers may agree by chance
    return TransformCase(
        lambda value: noise(3.0),
        counts,
        adds_noise=False,
        law=lambda value: stats.rv_discrete(values=(numbers, weights / weights.sum())),
        event=lambda value: event,
    )


def _normal(value: float) -> Any:
    return stats.norm(scale=value)


def _both_noises(value: float) -> Callable[..., Any]:
    """The distribution function of a Gaussian plus a Laplace number of one scale."""
    laplace = stats.laplace(scale=value).ppf((np.arange(100) + 0.5) / 100)
    return lambda x: stats.norm(scale=value).cdf(np.asarray(x)[..., None] - laplace).mean(-1)


def _sample_case() -> TransformCase:
    rng = np.random.default_rng(4)
    logits = {"x": _floats(rng, 50), "y": _floats(rng, 60)}
    return TransformCase(
        lambda v: chain(optax.scale(v), maurey_sample(16)),
        logits,
        adds_noise=False,  # it draws vertices
        output=lambda u: jax.tree.map(lambda leaf: jnp.zeros(16, jnp.int32), u),
    )


def _multilevel_case(antithetic: bool) -> TransformCase:
    estimator = multilevel(2, antithetic)
    rng = np.random.default_rng(5)
    gradients = {"x": _floats(rng, estimator.num_points, 4), "y": _floats(rng, 3 + antithetic, 2)}
    return TransformCase(
        lambda v: Transform(estimator.init, functools.partial(estimator.update, level=v)),
        gradients,
        values=(0, 2),
        random=False,
        output=lambda u: jax.tree.map(lambda leaf: leaf[0], u),
    )


def _descent_case(build: Callable[..., Any], params: PyTree, random: bool = False) -> TransformCase:
    rng = np.random.default_rng(6)
    gradients = jax.tree.map(lambda a: _floats(rng, *a.shape), params)
    noise: dict[str, Any] = {}
    if random:  # half of the first update reaches the average, and so half of its noise
        noise = {
            "law": lambda v: stats.norm(scale=v / 2),
            "event": lambda v: dpe.GaussianDpEvent(v / 2),
        }
    return TransformCase(build, gradients, params=params, random=random, **noise)


for integer in (add_discrete_gaussian, add_rounded_gaussian):
    register(
        integer.__name__,
        "transform",
        functools.partial(_integers, integer),
        arguments=row(integer, stddev=(1.0, Number(0.0, 1e7, open_low=True))),
    )
register(
    "add_gaussian",
    "transform",
    lambda: TransformCase(add_gaussian, _updates(), law=_normal, event=dpe.GaussianDpEvent),
    arguments=row(add_gaussian, stddev=(1.0, nonnegative())),
)
register(
    "add_laplace",
    "transform",
    lambda: TransformCase(
        add_laplace,
        _updates(),
        law=lambda v: stats.laplace(scale=v),
        event=dpe.LaplaceDpEvent,
    ),
    arguments=row(add_laplace, scale=(1.0, nonnegative())),
)
register(
    "chain(add_gaussian, add_laplace)",
    "transform",
    lambda: TransformCase(
        lambda v: chain(add_gaussian(v), add_laplace(v)),
        _updates(),
        law=_both_noises,
        event=dpe.GaussianDpEvent,  # Laplace noise after it is post-processing
    ),
    slow=True,
)
register(
    "seeded(add_gaussian)",
    "transform",
    lambda: TransformCase(
        lambda v, key: seeded(add_gaussian(v), key),
        _updates(),
        key_in_state=True,
        law=_normal,
        event=dpe.GaussianDpEvent,
    ),
    slow=True,
)
register(
    "maurey_sample",
    "transform",
    _sample_case,
    arguments=row(maurey_sample, num_draws=(2, Count())),
)
for antithetic in (False, True):
    register(
        "multilevel(antithetic)" if antithetic else "multilevel",
        "transform",
        functools.partial(_multilevel_case, antithetic),
        arguments=row(multilevel, max_level=(2, Count(0))),
    )
logits = jnp.arange(4.0)
two = (log_normalize(logits), jnp.full(3, 0.1))
maps = product(entropic(), euclidean_ball(1.0))
cases: dict[str, tuple[Callable[..., Any], PyTree, bool]] = {
    "mirror_step(entropic)": (lambda v: mirror_step(entropic(), v), two[0], False),
    "mirror_step(product)": (lambda v: mirror_step(maps, v), two, False),
    "anytime_average(sgd)": (lambda v: anytime_average(optax.sgd(v)), {"w": logits}, False),
    "anytime_average(mirror_step)": (
        lambda v: anytime_average(mirror_step(entropic(), v), entropic()),
        jax.nn.softmax(logits),
        False,
    ),
    "anytime_average(chain(add_gaussian, sgd))": (
        lambda v: anytime_average(chain(add_gaussian(v), optax.sgd(1.0))),
        {"w": logits, "b": logits},
        True,
    ),
}
rows = {
    "mirror_step(entropic)": row(
        mirror_step, {"mirror_map": entropic()}, step_size=(1.0, nonnegative(leaf=True))
    )
}
for name, case in cases.items():
    make = functools.partial(_descent_case, *case)
    register(name, "transform", make, arguments=rows.get(name))

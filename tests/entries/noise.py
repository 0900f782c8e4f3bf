"""Correlated noise and tree aggregation."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting import dp_event as dpe
from scipy import stats

from dpjax.core import PyTree, chain
from dpjax.testing import TransformCase, register
from dpjax.transforms import (
    Banded,
    BinaryTree,
    BufferedToeplitz,
    RestartNoise,
    SplitNoise,
    correlated_noise,
    restarted_sums,
    tree_aggregation,
)
from tests.entries.rows import RATE, Choice, Count, nonnegative, row

_STEPS = 13


def _updates() -> PyTree:
    rng = np.random.default_rng(9)
    return {
        "w": jnp.asarray(rng.normal(size=(3, 2)), jnp.float32),
        "v": [jnp.asarray(rng.normal(size=6), jnp.float32)],
    }


_SENSITIVITY = 0.7


def _case(build: Callable[..., Any], law: Any, event: Any) -> TransformCase:
    extra = {"sensitivity": _SENSITIVITY}
    return TransformCase(build, _updates(), extra=extra, law=law, event=event)


def _normal(strategy: Any, value: float) -> Any:
    return stats.norm(scale=_SENSITIVITY * value * strategy.prefix_stddev()[0])


def _knorm(strategy: BinaryTree, value: float) -> Callable[..., Any]:
    """A coordinate of noise of density proportional to exp(-norm / scale), by its radius."""
    size = sum(leaf.size for leaf in jax.tree.leaves(_updates()))
    scale = _SENSITIVITY * value * strategy.levels
    if strategy.distribution == "linf":  # a uniform number times a radius, exactly

        def exact(x: Any) -> Any:
            y = np.abs(np.asarray(x)) / scale
            inside = stats.gamma(size + 1).cdf(y) + y / size * stats.gamma(size).sf(y)
            return 0.5 + np.sign(x) * inside / 2

        return exact
    radii = stats.gamma(size + 1).ppf((np.arange(64) + 0.5) / 64)  # of a point uniform in a ball
    shape = (size + 1) / 2
    inside = stats.beta(shape, shape, loc=-1, scale=2)
    return lambda x: inside.cdf(np.asarray(x)[..., None] / (scale * radii)).mean(-1)


_CASES: dict[str, tuple[Callable[..., Any], Any]] = {
    "correlated_noise(BufferedToeplitz)": (correlated_noise, BufferedToeplitz(_STEPS)),
    "correlated_noise(BufferedToeplitz, epochs)": (
        correlated_noise,
        BufferedToeplitz(_STEPS, (0.3, 0.2), (0.5, 0.9), 3),
    ),
    "correlated_noise(Banded)": (correlated_noise, Banded(_STEPS, coefficients=(1.0, 0.6, 0.3))),
    "correlated_noise(BinaryTree, exponent)": (correlated_noise, BinaryTree(_STEPS, exponent=1.5)),
    "correlated_noise(BinaryTree, l2)": (correlated_noise, BinaryTree(_STEPS, distribution="l2")),
    "correlated_noise(BinaryTree, linf)": (
        correlated_noise,
        BinaryTree(_STEPS, distribution="linf"),
    ),
    "correlated_noise(RestartNoise)": (correlated_noise, RestartNoise(BufferedToeplitz(_STEPS))),
    "restarted_sums(SplitNoise)": (restarted_sums, SplitNoise(3)),
    "restarted_sums(RestartNoise)": (restarted_sums, RestartNoise(BinaryTree(2))),
    "chain(correlated_noise, trace)": (
        lambda strategy, v: chain(correlated_noise(strategy, v), optax.trace(decay=1.0)),
        BufferedToeplitz(_STEPS),
    ),
}

_STDDEV, _FOUR = (1.0, nonnegative()), (4, Count())
_ARGUMENTS = {
    "correlated_noise(BufferedToeplitz, epochs)": row(
        BufferedToeplitz,
        {"omega": (0.3, 0.2), "decay": (0.5, 0.9), "columns": "constant"},
        num_steps=_FOUR,
        participations=(2, Count()),
        separation=(3, Count(optional=True)),
    ),
    "correlated_noise(Banded)": row(
        Banded, {"coefficients": (1.0,)}, num_steps=_FOUR, bands=(2, Count(optional=True))
    ),
    "correlated_noise(BinaryTree, exponent)": row(
        BinaryTree,
        num_steps=_FOUR,
        exponent=(0.0, nonnegative()),
        distribution=("l2", Choice()),
    ),
    "correlated_noise(RestartNoise)": row(
        correlated_noise, {"strategy": BinaryTree(4)}, stddev=_STDDEV
    ),
    "restarted_sums(SplitNoise)": row(
        SplitNoise, num_steps=_FOUR, first_share=(0.7, RATE), decay=(1.0, nonnegative())
    ),
    "restarted_sums(RestartNoise)": row(
        restarted_sums, {"strategy": SplitNoise(3)}, stddev=_STDDEV
    ),
}
for _name, (_build, _strategy) in _CASES.items():
    _law = _knorm if getattr(_strategy, "distribution", "gaussian") != "gaussian" else _normal
    register(
        _name,
        "transform",
        functools.partial(
            _case,
            functools.partial(_build, _strategy),
            functools.partial(_law, _strategy),
            _strategy.event,
        ),
        slow=_build is restarted_sums or _law is _knorm,
        arguments=_ARGUMENTS.get(_name),
    )


def _tree(variance_reduced: bool) -> TransformCase:
    def event(value: float) -> dpe.DpEvent:
        return dpe.SelfComposedDpEvent(dpe.GaussianDpEvent(value), _STEPS.bit_length())

    return _case(
        lambda v: tree_aggregation(v, _STEPS, variance_reduced),
        lambda v: stats.norm(scale=_SENSITIVITY * v),
        event,
    )


register(
    "tree_aggregation",
    "transform",
    lambda: _tree(False),
    arguments=row(tree_aggregation, stddev=_STDDEV, num_steps=_FOUR),
)
register("tree_aggregation(variance_reduced)", "transform", lambda: _tree(True))

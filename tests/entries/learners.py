"""The online learners of dpjax."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax.core import PyTree
from dpjax.geometry import L1Ball, Simplex, entropic, euclidean_ball, product
from dpjax.papers.learners import (
    adagrad_norm,
    coin_betting,
    distance_adaptive,
    dual_averaging,
    mirrored,
    optimistic_descent,
    parameter_free,
    strongly_convex_descent,
)
from dpjax.testing import TransformCase, register
from dpjax.transforms import exponentiated_gradient, projected
from tests.entries.rows import Choice, nonnegative, positive, real, row

_ball = optax.projections.projection_l2_ball
_TREE = {"w": jnp.full((2, 3), 0.1), "b": jnp.zeros(4)}
_EVEN = jnp.full(4, 0.25)
_PAIR = (_EVEN, jnp.full(3, 0.1))
_MAPS = product(entropic(), euclidean_ball(1.0))


def _case(build: Callable[..., Any], params: PyTree) -> TransformCase:
    rng = np.random.default_rng(8)
    gradients = jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape), a.dtype), params)
    extra = {"weight": 2.0, "total_weight": 5.0, "average": params}
    return TransformCase(build, gradients, params=params, random=False, extra=extra)


_CASES: dict[str, tuple[Callable[..., Any], PyTree]] = {
    "projected(adam)": (lambda v: projected(optax.adam(v), _ball), _TREE),
    "mirrored(sgd, entropic)": (lambda v: mirrored(optax.sgd(v), entropic()), _EVEN),
    "mirrored(sgd, product)": (lambda v: mirrored(optax.sgd(v), _MAPS), _PAIR),
    "adagrad_norm": (lambda v: adagrad_norm(v, _ball), _TREE),
    "dual_averaging": (lambda v: dual_averaging(v, _ball), _TREE),
    "dual_averaging(optimistic)": (
        lambda v: dual_averaging(v, _ball, optimistic=True, hint_scale=v),
        _TREE,
    ),
    "exponentiated_gradient(Simplex)": (
        lambda v: exponentiated_gradient(Simplex(4), v, optimistic=True),
        _EVEN,
    ),
    "exponentiated_gradient(L1Ball)": (
        lambda v: exponentiated_gradient(L1Ball(4, 3 * v), v),
        {"w": _EVEN},
    ),
    "distance_adaptive": (lambda v: distance_adaptive(v, _ball), _TREE),
    "optimistic_descent": (lambda v: optimistic_descent(v, _ball), _TREE),
    "strongly_convex_descent": (lambda v: strongly_convex_descent(v, _ball), _TREE),
    "strongly_convex_descent(ftrl)": (
        lambda v: strongly_convex_descent(v, _ball, form="ftrl"),
        _TREE,
    ),
    "parameter_free": (lambda v: parameter_free(v, v, _ball, regularizer=v), _TREE),
    "coin_betting": (lambda v: coin_betting(v, v, _ball), _TREE),
}
_POSITIVE = (1.0, positive())
_ARGUMENTS = {
    "adagrad_norm": row(adagrad_norm, diameter=_POSITIVE),
    "dual_averaging": row(
        dual_averaging, {"optimistic": True}, diameter=_POSITIVE, hint_scale=(1.0, real())
    ),
    "exponentiated_gradient(Simplex)": row(
        exponentiated_gradient, {"domain": Simplex(3)}, scale=_POSITIVE
    ),
    "distance_adaptive": row(distance_adaptive, initial_scale=_POSITIVE),
    "optimistic_descent": row(optimistic_descent, learning_rate=_POSITIVE),
    "strongly_convex_descent": row(
        strongly_convex_descent, strong_convexity=_POSITIVE, form=("ftrl", Choice())
    ),
    "parameter_free": row(
        parameter_free,
        initial_scale=_POSITIVE,
        gradient_norm=_POSITIVE,
        regularizer=(0.1, nonnegative()),
    ),
    "coin_betting": row(coin_betting, initial_scale=_POSITIVE, gradient_norm=_POSITIVE),
}
for _name, _pair in _CASES.items():
    make = functools.partial(_case, *_pair)
    register(_name, "transform", make, arguments=_ARGUMENTS.get(_name))

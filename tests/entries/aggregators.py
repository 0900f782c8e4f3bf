"""Clipping, and chains that begin with it."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from dpjax.core import PyTree, chain
from dpjax.geometry import L1Ball, Polytope, Simplex
from dpjax.testing import AggregatorCase, register
from dpjax.transforms import OuterProduct, add_gaussian, clip_by_norm, clip_by_range
from tests.entries.rows import Choice, nonnegative, row


def _per_example() -> PyTree:
    rng = np.random.default_rng(1)
    return {"w": _floats(rng, 6, 3, 2), "b": _floats(rng, 6, 2)}


def _factored() -> PyTree:
    rng = np.random.default_rng(2)
    return {"w": OuterProduct(_floats(rng, 6, 3), _floats(rng, 6, 2)), "b": _floats(rng, 6, 2)}


def _floats(rng: np.random.Generator, *shape: int) -> Any:
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


def _rows(outer: bool) -> PyTree:
    rng = np.random.default_rng(3)
    rows = _floats(rng, 6, 4)
    return OuterProduct(rows, _floats(rng, 6, 1)) if outer else rows


def _clip_case(clip: Callable[..., Any], values: Callable[[], PyTree], norm: str) -> AggregatorCase:
    return AggregatorCase(clip, values(), norm=norm)


def _range_case(domain: Any, outer: bool) -> AggregatorCase:
    norm = "linf" if isinstance(domain, L1Ball) else None  # the range, on the ball of radius 1/2
    return AggregatorCase(lambda v: clip_by_range(v, domain), _rows(outer), norm=norm, shape=(4,))


for norm in ("l1", "l2", "linf"):
    clip = functools.partial(clip_by_norm, norm=norm)
    for kind, values in (("", _per_example), (", OuterProduct", _factored)):
        register(
            f"clip_by_norm({norm}{kind})",
            "aggregator",
            functools.partial(_clip_case, clip, values, norm),
            slow=norm != "l2",
            arguments=row(clip_by_norm, max_norm=(1.0, nonnegative()), norm=("l1", Choice())),
        )
corners = np.random.default_rng(7).normal(size=(5, 4)).astype(np.float32)
domains = (Simplex(4), L1Ball(4, 0.5), Polytope(corners))
for domain, outer in itertools.product(domains, (False, True)):
    register(
        f"clip_by_range({type(domain).__name__}{', OuterProduct' if outer else ''})",
        "aggregator",
        functools.partial(_range_case, domain, outer),
        arguments=row(clip_by_range, {"domain": Simplex(3)}, bound=(1.0, nonnegative())),
    )
register(
    "chain(clip_by_norm, add_gaussian)",
    "aggregator",
    lambda: AggregatorCase(
        # so little noise that the grid of its sums is below their tolerance
        lambda v: chain(clip_by_norm(v), add_gaussian(1e-5)),
        _per_example(),
        random=True,
    ),
)

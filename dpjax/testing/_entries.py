"""The public transformations, aggregators and samplers of dpjax, as registry entries."""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from dpjax.core import PyTree, chain, seeded
from dpjax.sampling import DisjointPartition, FullBatch, PoissonSampler
from dpjax.testing import _solver_entries as _solver_entries
from dpjax.testing._cases import AggregatorCase, SamplerCase, TransformCase
from dpjax.testing._registry import register
from dpjax.transforms import OuterProduct, add_gaussian, add_laplace, clip_by_norm


def _updates() -> PyTree:
    rng = np.random.default_rng(0)
    return {"w": _floats(rng, 3, 2), "v": [_floats(rng, 6), _floats(rng, 6)]}


def _per_example() -> PyTree:
    rng = np.random.default_rng(1)
    return {"w": _floats(rng, 6, 3, 2), "b": _floats(rng, 6, 2)}


def _factored() -> PyTree:
    rng = np.random.default_rng(2)
    return {"w": OuterProduct(_floats(rng, 6, 3), _floats(rng, 6, 2)), "b": _floats(rng, 6, 2)}


def _floats(rng: np.random.Generator, *shape: int) -> Any:
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


def _noise_case(noise: Callable[..., Any]) -> TransformCase:
    return TransformCase(noise, _updates())


def _clip_case(clip: Callable[..., Any], values: Callable[[], PyTree], norm: str) -> AggregatorCase:
    return AggregatorCase(clip, values(), norm=norm)


def _register_transforms() -> None:
    for noise in (add_gaussian, add_laplace):
        register(noise.__name__, "transform", functools.partial(_noise_case, noise))
    register(
        "chain(add_gaussian, add_laplace)",
        "transform",
        lambda: TransformCase(lambda v: chain(add_gaussian(v), add_laplace(v)), _updates()),
    )
    register(
        "seeded(add_gaussian)",
        "transform",
        lambda: TransformCase(
            lambda v, key: seeded(add_gaussian(v), key), _updates(), key_in_state=True
        ),
    )


def _register_aggregators() -> None:
    for norm in ("l1", "l2", "linf"):
        clip = functools.partial(clip_by_norm, norm=norm)
        for kind, values in (("", _per_example), (", OuterProduct", _factored)):
            register(
                f"clip_by_norm({norm}{kind})",
                "aggregator",
                functools.partial(_clip_case, clip, values, norm),
            )
    register(
        "chain(clip_by_norm, add_gaussian)",
        "aggregator",
        lambda: AggregatorCase(
            lambda v: chain(clip_by_norm(v), add_gaussian(1.0)), _per_example(), random=True
        ),
    )


def _register_samplers() -> None:
    def poisson(name: str, **options: Any) -> None:
        concrete = options.get("method") == "host"
        records = 24 if options.get("overflow") == "truncate" else 20
        register(
            f"PoissonSampler({name})",
            "sampler",
            lambda: SamplerCase(
                PoissonSampler(0.3, 5, 24, **options), records, concrete_key=concrete
            ),
        )

    poisson("gaps")
    poisson("host", method="host")
    poisson("gaps, truncate", capacity=5, overflow="truncate")
    poisson("host, truncate", capacity=5, overflow="truncate", method="host")
    register("FullBatch", "sampler", lambda: SamplerCase(FullBatch(3), 5, random=False))
    register("DisjointPartition", "sampler", lambda: SamplerCase(DisjointPartition(3, 4), 14))
    register(
        "DisjointPartition(given)",
        "sampler",
        lambda: SamplerCase(DisjointPartition(3, 4, order="given"), 14, random=False),
    )


_register_transforms()
_register_aggregators()
_register_samplers()

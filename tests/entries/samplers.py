"""Samplers."""

import functools
from typing import Any

from dpjax.sampling import (
    CyclicPoisson,
    DisjointPartition,
    FullBatch,
    IndependentPartition,
    PoissonSampler,
    RepeatedPartition,
    TaperedPartition,
)
from dpjax.testing import SamplerCase, register
from tests.entries.rows import RATE, Choice, Count, row

_STEPS, _RECORDS = (4, Count()), (24, Count())
_ORDER, _TAIL = ("given", Choice()), (0, Count(0))


def sampler(name: str, made: Any, records: int, arguments: Any = None, **options: Any) -> None:
    make = functools.partial(SamplerCase, made, records, **options)
    register(name, "sampler", make, arguments=arguments)


def poisson(name: str, records: int = 20, arguments: Any = None, **options: Any) -> None:
    made = PoissonSampler(0.3, 5, 24, **options)
    concrete = options.get("method") == "host"
    sampler(f"PoissonSampler({name})", made, records, arguments, concrete_key=concrete)


poisson(
    "gaps",
    arguments=row(
        PoissonSampler,
        rate=(0.3, RATE),
        steps=_STEPS,
        num_records=_RECORDS,
        capacity=(20, Count(optional=True)),
        method=("gaps", Choice()),
        overflow=("declare", Choice()),
        shards=(1, Count()),
    ),
)
poisson("shards", shards=4)
poisson("host", method="host")
poisson("gaps, truncate", 24, capacity=5, overflow="truncate")
poisson("host, truncate", 24, capacity=5, overflow="truncate", method="host")
sampler("FullBatch", FullBatch(3), 5, row(FullBatch, steps=_STEPS), random=False)
sampler(
    "DisjointPartition",
    DisjointPartition(3, 4),
    14,
    row(DisjointPartition, steps=_STEPS, batch_size=(4, Count()), order=_ORDER),
)
sampler("DisjointPartition(given)", DisjointPartition(3, 4, order="given"), 14, random=False)
sampler(
    "TaperedPartition",
    TaperedPartition(4, 13),
    14,
    row(TaperedPartition, steps=_STEPS, num_records=_RECORDS, order=_ORDER, tail=_TAIL),
)
sampler("TaperedPartition(given)", TaperedPartition(4, 13, order="given"), 14, random=False)
sampler(
    "IndependentPartition(equal)",
    IndependentPartition(4, 24, tapered=False),
    20,
    row(
        IndependentPartition,
        steps=_STEPS,
        num_records=_RECORDS,
        capacity=(24, Count(optional=True)),
        tail=_TAIL,
        epochs=(1, Count()),
    ),
)
sampler("IndependentPartition(tapered)", IndependentPartition(4, 24, tapered=True), 20)
sampler("IndependentPartition(epochs)", IndependentPartition(6, 24, epochs=3), 20)
sampler(
    "RepeatedPartition",
    RepeatedPartition(2, 3, 4),
    14,
    row(
        RepeatedPartition,
        epochs=(2, Count()),
        steps_per_epoch=_STEPS,
        batch_size=(4, Count()),
        order=_ORDER,
    ),
)
sampler("RepeatedPartition(given)", RepeatedPartition(2, 3, 4, order="given"), 14, random=False)
sampler(
    "CyclicPoisson(independent)",
    CyclicPoisson(0.5, 3, 7, 24, assignment="independent"),
    20,
    row(
        CyclicPoisson,
        rate=(0.3, RATE),
        groups=(2, Count()),
        steps=_STEPS,
        num_records=_RECORDS,
        capacity=(20, Count(optional=True)),
        assignment=("equal", Choice()),
    ),
)
sampler("CyclicPoisson(equal)", CyclicPoisson(0.5, 3, 7, 24, assignment="equal"), 20)

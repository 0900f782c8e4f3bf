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


def poisson(name: str, **options: Any) -> None:
    concrete = options.get("method") == "host"
    records = 24 if options.get("overflow") == "truncate" else 20
    register(
        f"PoissonSampler({name})",
        "sampler",
        lambda: SamplerCase(PoissonSampler(0.3, 5, 24, **options), records, concrete_key=concrete),
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


poisson("gaps")
poisson("shards", shards=4)
poisson("host", method="host")
poisson("gaps, truncate", capacity=5, overflow="truncate")
poisson("host, truncate", capacity=5, overflow="truncate", method="host")
register(
    "FullBatch",
    "sampler",
    lambda: SamplerCase(FullBatch(3), 5, random=False),
    arguments=row(FullBatch, steps=_STEPS),
)
register(
    "DisjointPartition",
    "sampler",
    lambda: SamplerCase(DisjointPartition(3, 4), 14),
    arguments=row(
        DisjointPartition, steps=_STEPS, batch_size=(4, Count()), order=("given", Choice())
    ),
)
register(
    "DisjointPartition(given)",
    "sampler",
    lambda: SamplerCase(DisjointPartition(3, 4, order="given"), 14, random=False),
)
register(
    "TaperedPartition",
    "sampler",
    lambda: SamplerCase(TaperedPartition(4, 13), 14),
    arguments=row(
        TaperedPartition,
        steps=_STEPS,
        num_records=_RECORDS,
        order=("given", Choice()),
        tail=(0, Count(0)),
    ),
)
register(
    "TaperedPartition(given)",
    "sampler",
    lambda: SamplerCase(TaperedPartition(4, 13, order="given"), 14, random=False),
)
for shares in ("equal", "tapered"):
    sampler = IndependentPartition(4, 24, tapered=shares == "tapered")
    make = functools.partial(SamplerCase, sampler, 20)
    register(f"IndependentPartition({shares})", "sampler", make)
register(
    "IndependentPartition(epochs)",
    "sampler",
    lambda: SamplerCase(IndependentPartition(6, 24, epochs=3), 20),
    arguments=row(
        IndependentPartition,
        steps=_STEPS,
        num_records=_RECORDS,
        capacity=(24, Count(optional=True)),
        tail=(0, Count(0)),
        epochs=(1, Count()),
    ),
)
register(
    "RepeatedPartition",
    "sampler",
    lambda: SamplerCase(RepeatedPartition(2, 3, 4), 14),
    arguments=row(
        RepeatedPartition,
        epochs=(2, Count()),
        steps_per_epoch=_STEPS,
        batch_size=(4, Count()),
        order=("given", Choice()),
    ),
)
register(
    "RepeatedPartition(given)",
    "sampler",
    lambda: SamplerCase(RepeatedPartition(2, 3, 4, order="given"), 14, random=False),
)
for assignment in ("independent", "equal"):
    turns = CyclicPoisson(0.5, 3, 7, 24, assignment=assignment)
    register(
        f"CyclicPoisson({assignment})",
        "sampler",
        functools.partial(SamplerCase, turns, 20),
        arguments=row(
            CyclicPoisson,
            rate=(0.3, RATE),
            groups=(2, Count()),
            steps=_STEPS,
            num_records=_RECORDS,
            capacity=(20, Count(optional=True)),
            assignment=("equal", Choice()),
        ),
    )

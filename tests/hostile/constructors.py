"""Every public constructor with good arguments, and what its arguments may be.

Those of the registry are in their entries.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import dp_event as dpe

from dpjax import audit as A
from dpjax import core as C
from dpjax import geometry as G
from dpjax import privacy as R
from dpjax import problems as P
from dpjax import queries as Q
from dpjax import release
from dpjax import sampling as S
from dpjax import transforms as T
from dpjax.papers import estimators
from dpjax.papers.nonsmooth_nonconvex import stationarity_plan
from dpjax.testing import registry
from tests.entries.rows import (
    DELTA,
    PAIR,
    PROBABILITY,
    RATE,
    SWEPT,
    SWEPT_POSITIVE,
    Choice,
    Count,
    Number,
    nonnegative,
    positive,
    real,
    row,
)

N = 24


def link(margin: Any, y: Any) -> Any:
    return (margin - y) ** 2 / 2


def _normals(**given: Any) -> Any:
    return G.sample_vertices(jax.random.key(0), jnp.zeros(3), **given)


def _goldstein(**given: Any) -> Any:
    return A.goldstein_norm(jnp.sum, jnp.ones(2), 0.1, key=jax.random.key(0), **given)


def _steps(steps: int) -> Any:
    return dpe.SelfComposedDpEvent(dpe.GaussianDpEvent(5.0), steps)


def _dense(matrix: Any) -> Any:
    return Q.Dense([[matrix]])


def _halfspace(points: Any, directions: Any) -> Any:
    return Q.Halfspace([[points], [0.0], [1.0]], [[directions], [1.0]])


def _sparse(**given: Any) -> Any:
    return Q.Sparse([0], [1], **{"values": [1.0], "num_queries": 2, "universe_size": 3} | given)


def _release(**given: Any) -> Any:
    return release(_TABLES, np.zeros((4, 2), np.int32), _BUDGET, key=jax.random.key(0), **given)


_BUDGET = R.Budget(1.0, 1e-5)
_STEPS = (4, Count())
_GAUSSIAN = R.Guarantee(dpe.GaussianDpEvent(1.0))
_LINEAR = P.Risk.linear(link, 3, lipschitz=1.0)

TRANSFORMS = {
    **{
        kind.__name__: row(kind, stddev=(1.0, Number(0.0, 1e7, open_low=True)))
        for kind in (T.discrete_gaussian_shortfall, T.rounded_gaussian_shortfall)
    },
    "fit_buffered_toeplitz": row(
        T.fit_buffered_toeplitz,
        {"num_steps": 4},
        num_buffers=(1, Count()),
        exponent=(0.0, nonnegative()),
        participations=(1, Count()),
        separation=(4, Count(optional=True)),
        objective=("mean", Choice()),
    ),
    "draw_levels": row(
        estimators.draw_levels, {"seed": 0}, max_level=(2, Count(0)), size=(3, Count(0))
    ),
    "smooth_first_order": row(
        T.smooth_first_order,
        {"gradients": link},
        radius=(1.0, nonnegative()),
        num_directions=(2, Count()),
        directions=("record", Choice()),
    ),
    "smooth_zeroth_order": row(
        T.smooth_zeroth_order,
        {"losses": link},
        radius=SWEPT_POSITIVE,
        num_directions=(2, Count()),
        directions=("record", Choice()),
        chunk_size=(1, Count(optional=True)),
    ),
    "microbatched_sum": row(
        T.microbatched_sum,
        {
            "per_example": lambda batch: batch,
            "aggregator": T.clip_by_norm(1.0),
            "batch": np.ones((3, 2)),
            "mask": np.ones(3, bool),
        },
        size=(3, Count(optional=True)),
    ),
}
SAMPLING = {
    "default_capacity": row(S.default_capacity, {"num_records": 99, "steps": 4}, rate=(0.1, RATE)),
    "overflow_probability": row(
        S.overflow_probability, num_records=(99, Count()), rate=(0.1, RATE), capacity=(20, Count())
    ),
    "poisson_capacity": row(
        S.poisson_capacity,
        num_records=(99, Count()),
        rate=(0.1, RATE),
        steps=_STEPS,
        delta=(1e-5, PROBABILITY),
        epsilon=(1.0, positive()),
    ),
    "Participation": row(
        S.Participation,
        kind=("cyclic", Choice()),
        most=(3, Count()),
        separation=(4, Count()),
        rate=(0.3, RATE),
    ),
    "tapered_sizes": row(
        S.tapered_sizes, steps=_STEPS, num_records=(N, Count()), tail=(0, Count(0))
    ),
}
GEOMETRY = {
    "L1Ball": row(G.L1Ball, dim=(3, Count()), radius=SWEPT_POSITIVE),
    "Simplex": row(G.Simplex, dim=(3, Count())),
    "Polytope": row(G.Polytope, vertices=(np.eye(3), real(leaf=True))),
    "maurey": row(G.maurey, {"indices": np.array([0, 1])}, dim=(3, Count())),
    "euclidean_ball": row(G.euclidean_ball, radius=(1.0, positive())),
    "p_norm": row(G.p_norm, p=(1.5, Number(1.0, 2.0, open_low=True))),
    "sample_vertices": row(_normals, k=(2, Count())),
}
PROBLEMS = {
    "Risk": row(
        P.Risk,
        {"loss": link, "init": np.ones(3)},
        radius=SWEPT_POSITIVE,
        lipschitz=SWEPT_POSITIVE,
        smoothness=SWEPT_POSITIVE,
    ),
    "SimplexRisk": row(
        P.SimplexRisk,
        {"loss": link},
        dim=(3, Count()),
        grad_range=SWEPT_POSITIVE,
        smoothness=SWEPT,
        third_order=SWEPT,
    ),
    "Saddle": row(
        P.Saddle,
        {"loss": link},
        dims=((2, 3), Count()),
        grad_range=PAIR,
        coupling=SWEPT,
        third_order=SWEPT,
    ),
    "demographic_parity": row(
        P.demographic_parity, {"slack": 0.1}, num_groups=(2, Count(2)), num_classes=(2, Count(2))
    ),
    "equality_of_odds": row(
        P.equality_of_odds, {"slack": 0.1}, num_groups=(2, Count(2)), num_classes=(2, Count(2))
    ),
    "false_negative_rate": row(P.false_negative_rate, {"slack": 0.1}, num_classes=(2, Count(2))),
    "cross_rate": row(P.cross_rate, {"slack": 0.1}, num_classes=(2, Count(2))),
    "ByField": row(P.ByField, {"field": "y"}, num_parts=(2, Count())),
    "ByFields": row(P.ByFields, {"fields": (("y", 2),)}, table=((0, 1), Count())),
    "ByLabelAndGroup": row(P.ByLabelAndGroup, num_classes=(2, Count()), num_groups=(2, Count())),
    "ByTable": row(P.ByTable, {"field": "y"}, table=((0, 1), Count())),
    "LinearLogits": row(P.LinearLogits, num_features=(2, Count()), num_classes=(2, Count(2))),
    "best_response": row(
        P.best_response, {"objective": jnp.sum, "domain": G.Simplex(2)}, steps=(2, Count())
    ),
}
_DOMAIN = Q.Domain({"a": 2, "b": 3})
_TABLES = Q.Marginals.all_kway(_DOMAIN, 1)
QUERIES = {
    "Marginals": row(functools.partial(Q.Marginals.all_kway, _DOMAIN), k=(1, Count())),
    "Prefix": row(Q.Prefix, universe=(4, Count(2))),
    "Dense": row(_dense, matrix=(1.0, real(leaf=True))),
    "Halfspace": row(_halfspace, points=(2.0, real(leaf=True)), directions=(1.0, real(leaf=True))),
    "Sparse": row(_sparse, num_queries=(2, Count()), universe_size=(3, Count())),
    "query_sensitivity": row(
        Q.query_sensitivity,
        {"universe_size": 3},
        relation=("replace_one", Choice()),
        **{
            name: (1.0, nonnegative())
            for name in ("value_range", "largest", "l2_replaced", "l2_record")
        },
    ),
    "QueryRelease": row(
        P.QueryRelease, {"workload": _TABLES}, max_bytes=(10**6, Count(optional=True))
    ),
}
ENTRIES = {
    arguments.make.__name__: arguments
    for entry in registry().values()
    if (arguments := entry.facts.get("arguments"))
}
FRONT_DOORS = {
    "stationarity_plan": row(
        stationarity_plan,
        {"problem": _LINEAR, "budget": _BUDGET, "steps": 4},
        num_records=(999, Count()),
    ),
    "release": row(
        _release,
        method=("histogram", Choice()),
        num_records=(4, Count(optional=True)),
        target=("a", Choice()),
    ),
}
HOST = {
    "Budget": row(R.Budget, epsilon=(1.0, positive(infinite=True)), delta=(1e-5, DELTA)),
    "Guarantee": row(
        R.Guarantee, {"event": dpe.GaussianDpEvent(1.0)}, relation=("replace_one", Choice())
    ),
    "Guarantee.epsilon": row(_GAUSSIAN.epsilon, delta=(1e-5, PROBABILITY)),
    "calibrate_gaussian": row(
        R.calibrate_gaussian, {"budget": _BUDGET, "steps": 1}, rate=(1.0, RATE)
    ),
    "SlopeBounds": row(
        R.SlopeBounds, {"two_sided": True}, curvature=(1.0, positive()), slope=(1.0, positive())
    ),
    "squared_slopes": row(
        R.squared_slopes,
        label_bound=(1.0, positive()),
        radius=(1.0, positive()),
        input_bound=(1.0, positive()),
    ),
    "huber_slopes": row(R.huber_slopes, threshold=(1.0, positive()), input_bound=(1.0, positive())),
    "bounded_range_rho": row(R.bounded_range_rho, eta=SWEPT),
    "bounded_range_eta": row(R.bounded_range_eta, rho=SWEPT),
    "bounded_range_delta": row(
        R.bounded_range_delta, eta=(0.1, nonnegative()), draws=_STEPS, epsilon=(1.0, nonnegative())
    ),
    "bounded_range_epsilon": row(
        R.bounded_range_epsilon, eta=(0.1, nonnegative()), draws=_STEPS, delta=(1e-5, PROBABILITY)
    ),
    "BoundedRangeGuarantee": row(
        R.BoundedRangeGuarantee,
        eta=(0.1, nonnegative()),
        draws=_STEPS,
        relation=("replace_one", Choice()),
    ),
    "calibrate_bounded_range": row(R.calibrate_bounded_range, {"budget": _BUDGET}, draws=_STEPS),
    "joint_poisson_event": row(
        R.joint_poisson_event, {"gaussian": 1.0}, rate=(0.1, RATE), steps=_STEPS
    ),
    "joint_release": row(
        R.joint_release,
        gaussian=(1.0, nonnegative()),
    ),
    "resolve_relation": row(R.resolve_relation, relation=("replace_one", Choice())),
    "goldstein_norm": row(_goldstein, num_samples=(2, Count()), num_enriched=(2, Count(0))),
}
CORE = {
    "Records": row(C.Records, {"arrays": np.zeros(N)}, num_records=(N, Count())),
    "shard_records": row(
        C.shard_records,
        {"data": np.zeros(N), "mesh": jax.sharding.Mesh(np.array(jax.devices()[:1]), ("records",))},
        rows=(N, Count(N, optional=True)),
    ),
}
ROWS = CORE | TRANSFORMS | SAMPLING | GEOMETRY | PROBLEMS | QUERIES | ENTRIES | FRONT_DOORS | HOST

"""What every registered subject and front door gives for a fixed key, in a few numbers each.

`python -m tests.harness.digests` writes `digests.json` anew: do so only for a change of outputs
that CHANGELOG names.
"""

import functools
import json
import pathlib
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
import dpjax.testing as dpt
import tests.entries  # noqa: F401
from dpjax.privacy import Guarantee, NoiseWarning

FILE = pathlib.Path(__file__).with_name("digests.json")
DELTA = 1e-5


def numbers(tree):
    """Two weighted sums of a tree's leaves, and its size."""
    leaves = [jax.random.key_data(a) if _is_key(a) else a for a in jax.tree.leaves(tree)]
    flat = [np.asarray(a, np.float64).ravel() for a in leaves]
    every = np.concatenate(flat) if flat else np.zeros(0)
    every = np.nan_to_num(every, nan=12345.0, posinf=1e30, neginf=-1e30)
    ramp = np.cos(np.arange(every.size))
    return [float(every @ ramp), float(np.abs(every).sum()), every.size]


def digest(entry):
    """Numbers of one registered entry."""
    return {
        "transform": _transform,
        "aggregator": _aggregator,
        "sampler": _sampler,
        "solver": _solver,
    }[entry.kind](entry.make())


def _is_key(a):
    return jax.dtypes.issubdtype(jnp.asarray(a).dtype, jax.dtypes.prng_key)


def _transform(case):
    key, value = jax.random.key(7), case.values[0]
    if case.key_in_state:
        made = case.build(value, key)
        out, _ = made.update(case.updates, made.init(case.updates), **case.extra)
        return {"outputs": numbers(out)}
    made = case.build(value)
    like = case.updates if case.params is None else case.params
    given = {"key": key} if case.random else {}
    out, state = made.update(case.updates, made.init(like), case.params, **given, **case.extra)
    told = {"outputs": numbers(out), "state": numbers(state)}
    if case.event is not None:
        told["epsilon"] = Guarantee(case.event(value), "add_or_remove_one").epsilon(DELTA)
    return told


def _aggregator(case):
    made = case.build(case.values[0])
    rows = jax.tree.leaves(case.per_example)[0].shape[0]
    mask = jnp.arange(rows) != 1
    given = {"key": jax.random.key(7)} if case.random else {}
    out, _ = made.update(case.per_example, made.init(None), mask=mask, **given)
    return {"outputs": numbers(out)}


def _sampler(case):
    sampler, n = case.sampler, case.num_records
    key = jax.random.key(7)
    xs = sampler.plan(key, n)
    steps = [sampler.batch(jax.tree.map(lambda a, t=t: a[t], xs), n) for t in range(sampler.steps)]
    return {
        "outputs": numbers([steps]),
        "failure": sampler.failure_probability(),
    }


def _solver(case):
    solver = case.build(case.values[0])
    solution = dpjax.solve(solver, case.problem, case.data, key=jax.random.key(7))
    guarantee = solver.guarantee()
    return {
        "outputs": numbers(solution.params),
        "info": numbers(solution.info),
        "epsilon": guarantee.epsilon(DELTA),
        "failure": guarantee.failure_probability,
        "relation": guarantee.relation.name,
    }


def _release(method):
    domain = dpjax.queries.Domain({"a": 3, "b": 4, "c": 2})
    rng = np.random.default_rng(0)
    table = np.stack([rng.integers(0, size, 300) for size in (3, 4, 2)], 1)
    made = dpjax.queries.Marginals.all_kway(domain, 2)
    budget = dpjax.Budget(1.0, DELTA)
    out = dpjax.release(made, table, budget, key=jax.random.key(7), method=method, progress=False)
    return {"outputs": numbers(out.answers), "epsilon": out.guarantee.epsilon(DELTA)}


def _defaults(entry):
    """The fields that `for_budget` sets."""
    case = entry.make()
    kind = type(case.build(case.values[0]))
    n = jax.tree.leaves(case.data)[0].shape[0]
    try:
        made = kind.for_budget(case.problem, n, dpjax.Budget(1.0, DELTA))
    except (TypeError, ValueError) as error:
        return {"refused": str(error)}
    # tables that follow from the fields are of integers
    leaves = map(jnp.asarray, jax.tree.leaves(made))
    fields = [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, np.floating)]
    return {
        "fields": numbers(fields),
        "epsilon": made.guarantee().epsilon(DELTA),
        "repr": repr(made),
    }


METHODS = ("auto", "gaussian_fit", "frank_wolfe", "mirror_descent", "saddle", "mwem", "histogram")
DOORS = {f"release({name})": functools.partial(_release, name) for name in METHODS}
NAMES = [*dpt.registry(), *DOORS, *(f"for_budget {e.name}" for e in dpt.entries("solver"))]


def missing():
    """Names of what has no digest yet."""
    return sorted({*NAMES} - {*json.loads(FILE.read_text())})


def of(name):
    """The digest of this name, now."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoiseWarning)
        if name in DOORS:
            return DOORS[name]()
        if name.startswith("for_budget "):
            return _defaults(dpt.registry()[name.removeprefix("for_budget ")])
        return digest(dpt.registry()[name])


if __name__ == "__main__":  # of all, or of those whose names hold one of the arguments
    words = sys.argv[1:]
    told = json.loads(FILE.read_text()) if words else {}
    for name in NAMES:
        if not words or any(word in name for word in words):
            print(name, flush=True)
            told[name] = of(name)
    FILE.write_text(json.dumps(told, indent=1, sort_keys=True) + "\n")

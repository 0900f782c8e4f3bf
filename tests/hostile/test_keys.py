"""A key that is missing, legacy, batched, used up or none at all is refused where it is needed."""

import jax
import numpy as np
import pytest

import dpjax
import dpjax.testing as dpt
from dpjax import geometry as G
from dpjax import problems as P
from dpjax import sampling as S
from dpjax import transforms as T

_KEYS = {
    "missing": lambda: None,
    "legacy": lambda: jax.random.PRNGKey(0),
    "batched": lambda: jax.random.split(jax.random.key(0), 2),
    "of no key": lambda: jax.random.split(jax.random.key(0), 1)[:0],
    "number": lambda: 0,
    "text": lambda: "0",
    "bits": lambda: np.zeros(2, np.uint32),
}
_PROBLEM = P.Risk.linear(lambda margin, y: (margin - y) ** 2, 2)
_SOLVER = dpjax.solvers.DPSGD(S.FullBatch(2), 1.0, 1.0, 0.1, 4.0)
_DATA = {"x": np.ones((4, 2), np.float32), "y": np.ones(4, np.float32)}


def _update(transform):
    updates = np.ones(3, np.float32)
    return lambda key: transform.update(updates, transform.init(updates), None, key=key)


_TAKERS = {
    "solve": lambda key: dpjax.solve(_SOLVER, _PROBLEM, _DATA, key=key),
    "seeded": lambda key: dpjax.seeded(T.add_gaussian(1.0), key),
    "chain": _update(dpjax.chain(T.add_gaussian(1.0))),
    "sample_vertices": lambda key: G.sample_vertices(key, np.zeros(3, np.float32), 2),
    "L1Ball.sample": lambda key: G.L1Ball(3).sample(key, np.zeros(3, np.float32), 2),
    "goldstein_norm": lambda key: dpjax.audit.goldstein_norm(
        lambda w: (w**2).sum(), np.ones(2, np.float32), 0.1, key=key
    ),
}


@pytest.mark.parametrize("kind", _KEYS)
@pytest.mark.parametrize("taker", _TAKERS)
def test_bad_keys_are_refused(taker, kind):
    with pytest.raises((TypeError, ValueError), match="key"):
        _TAKERS[taker](_KEYS[kind]())


@pytest.mark.parametrize("kind", _KEYS)
def test_random_transforms_and_samplers_refuse_bad_keys(kind):
    for entry in dpt.entries("transform"):
        case = entry.make()
        if not case.random or case.key_in_state:
            continue
        transform = case.build(case.values[0])
        state = transform.init(case.updates if case.params is None else case.params)
        with pytest.raises((TypeError, ValueError), match="key"):
            transform.update(case.updates, state, case.params, key=_KEYS[kind](), **case.extra)
    for entry in dpt.entries("sampler"):
        case = entry.make()
        if case.random:
            with pytest.raises((TypeError, ValueError), match="key"):
                case.sampler.plan(_KEYS[kind](), case.num_records)


def test_a_key_serves_one_run():
    key = jax.random.key(0)
    dpjax.solve(_SOLVER, _PROBLEM, _DATA, key=key)
    with pytest.raises(jax.errors.KeyReuseError):
        dpjax.solve(_SOLVER, _PROBLEM, _DATA, key=key)

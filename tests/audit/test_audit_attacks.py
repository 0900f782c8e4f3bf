"""Audits of scores, values and samplers that were made to mislead them."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.audit import lower_bound_of_scores, mechanism_lower_bound
from dpjax.audit._lower_bound import collect
from dpjax.audit._scores import learn_score

ODD = np.array([0.0, 1.0, -np.inf, np.inf, np.nan, 1e308, -1e308, 5e-324])


def test_scores_that_are_no_numbers_are_an_event_of_their_own(rng):
    """A mechanism that fails on one data set, and with it the score, gives it away."""
    often, seldom = (np.where(rng.random(2000) < p, np.nan, 0.0) for p in (0.3, 0.001))
    for first, second in ((often, seldom), (seldom, often)):
        assert 2.0 < lower_bound_of_scores(first, second, delta=1e-2) < np.log(300)
    assert lower_bound_of_scores(often, often[::-1], delta=1e-2) < 0.5


def test_ties_and_values_past_all_bounds_raise_and_warn_nothing(rng):
    for _ in range(20):
        scores = rng.choice(ODD, size=(2, int(rng.integers(4, 40))))
        assert lower_bound_of_scores(*scores, delta=1e-2) >= 0
    for _ in range(5):
        runs = rng.choice(ODD, size=(2, int(rng.integers(10, 30)), 4))
        score = learn_score(*runs, 1e-2, 0.95, "clopper_pearson")
        assert np.all(np.isfinite(score(runs[0])))


def test_batches_drawn_on_the_host_are_not_of_the_runs_key():
    """Batches and noise of one key would be dependent, which no run of the solver is."""

    def plan(key, size):
        del size
        if isinstance(key, jax.core.Tracer):
            raise TypeError("on the host")
        return np.asarray(jax.random.key_data(key))

    def words(solver, data, key, plan):
        del solver, data
        return jnp.stack([jax.random.key_data(key), plan])

    solver = Still(types.SimpleNamespace(plan=plan))
    seen = collect(words, (solver,), jnp.zeros((2, 1)), jax.random.key(0), 40).reshape(40, 2, -1)
    assert len(np.unique(seen[:, 1], axis=0)) == 40
    assert len(np.unique(seen.reshape(80, -1), axis=0)) == 80


@jax.tree_util.register_static
class Still:
    """A solver of a sampler, and no more."""

    def __init__(self, sampler):
        self.sampler = sampler


def test_a_score_is_one_number():
    with pytest.raises(ValueError, match="score must return a scalar, got 2 numbers"):
        mechanism_lower_bound(
            lambda x, key: x + jax.random.normal(key),
            jnp.zeros(2),
            jnp.ones(2),
            runs=20,
            delta=1e-2,
            key=jax.random.key(0),
            score=lambda released: released,
        )

"""Audits of scores, values and samplers that were made to mislead them."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import dpjax.testing as dpt
from dpjax.audit import lower_bound_of_scores, mechanism_lower_bound
from dpjax.audit._events import Event, Level, bound_at, learn_score
from dpjax.audit._lower_bound import Mechanism, check_neighbours, learnt_scores, watch

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
        score = learn_score(*runs, Level(1e-2, 0.95))
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
    collected = Mechanism(words, None, (solver,)).collect(jnp.zeros((2, 1)), jax.random.key(0), 40)
    seen = collected.reshape(40, 2, -1)
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


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("confidence", [0.9, 0.999])
def test_both_probabilities_share_the_error(confidence, swapped):
    """Each end is that of a two-sided interval: two errors of half the level, not of all."""
    counts = [400, 20] if swapped else [20, 400]
    scores = [np.arange(1000) < count for count in counts]
    shown = bound_at(Event(0.5, True, swapped), *scores, Level(0.01, confidence))
    unlikely, likely = (
        stats.binomtest(count, 1000).proportion_ci(confidence, "exact") for count in (20, 400)
    )
    np.testing.assert_allclose(shown, np.log((likely.low - 0.01) / unlikely.high), rtol=1e-9)


def test_what_is_learnt_is_tried_on_other_runs():
    """The event is chosen on first halves and counted in second ones."""
    apart, same = np.repeat([0.0, 1.0], 500), np.zeros(1000)
    assert lower_bound_of_scores(same, apart[::-1], delta=1e-2) == 0.0
    assert lower_bound_of_scores(same + apart, apart[::-1] + apart, delta=1e-2) == 0.0


def test_a_score_is_learnt_from_first_halves_alone(monkeypatch, rng):
    """What it is tried on may be anything: the score stays what it was."""
    seen = []

    def noting(*args):
        seen.append(learn_score(*args)(probes))
        return learn_score(*args)

    monkeypatch.setattr("dpjax.audit._lower_bound.learn_score", noting)
    probes = rng.normal(size=(5, 3))
    first, second = rng.normal(size=(2, 60, 3))
    for scale in (1.0, 100.0):
        tried = np.concatenate([second[:30], scale * second[30:]])
        learnt_scores(first, tried, Level(1e-2, 0.9))
    np.testing.assert_array_equal(*seen)


def test_what_a_solver_redacts_is_not_watched():
    case = dpt.registry()["OnlineToBatch(buffered)"].make()
    solver, key = case.build(1.0), jax.random.key(0)
    shown = jax.eval_shape(lambda k: watch(solver, case.problem, case.data, k, None), key)
    state = jax.eval_shape(lambda k: solver.init(case.problem, key=k), key)
    assert state.noise is not None
    kept = jax.tree.leaves(solver.redact(state)._replace(key=None))
    assert [leaf.shape[1:] for leaf in shown.states] == [leaf.shape for leaf in kept]


def test_two_changed_records_are_no_neighbours():
    data = jnp.arange(12.0).reshape(4, 3)
    check_neighbours(data, data.at[1].set(0.0))
    with pytest.raises(ValueError, match="in 1 record, got 2"):
        check_neighbours(data, data.at[jnp.array([1, 2])].set(0.0))

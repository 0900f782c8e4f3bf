import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
import dpjax.testing as dpt
from dpjax.core import register_dataclass
from tests.entries import solvers as ours

KEY = 5


def search(statistic, batch, **options):
    return dpt.largest_change(statistic, batch, key=jax.random.key(KEY), **options)


def bounded(batch, mask):
    """Sum of tanh(x_0): every record moves it by less than 1, however large."""
    return jnp.sum(jnp.where(mask, jnp.tanh(batch["x"][:, 0]), 0))


@pytest.fixture
def batch():
    return {"x": jnp.full((3, 2), 0.1), "y": jnp.array([0, 1, 1])}


def test_finds_the_supremum_and_says_where(batch):
    added = search(lambda b, m: jnp.nan_to_num(bounded(b, m)), batch)
    assert 0.999 < added.change <= 1
    assert added.kind == "add"
    assert added.removed is None
    assert abs(added.record["x"][0]) > 3
    replaced = search(lambda b, m: jnp.nan_to_num(bounded(b, m)), batch, relation="replace_one")
    assert 1.09 < replaced.change <= 1.1  # from 0.1 to -1
    assert replaced.kind == "replace"
    removed = search(lambda b, m: jnp.sum(m * jnp.array([1.0, 5.0, 1.0, 0.0])), batch)
    assert (removed.kind, removed.removed, removed.record) == ("remove", 1, None)
    assert removed.change == 5


def test_climbs_where_no_start_is_good():
    def peak(x, mask):
        return jnp.sum(mask * jnp.exp(-0.5 * (x[:, 0] - 7.3) ** 2 / 4) / 1.0)

    worst = search(peak, jnp.zeros((2, 1)), steps=80)
    assert worst.change > 0.999


def test_enumerates_integers(batch):
    def only_two(b, m):
        return jnp.sum(jnp.where(m & (b["y"] == 2), 3.0, 0.0))

    assert search(only_two, batch).change == 0
    worst = search(only_two, batch, choices={"y": range(3)})
    assert worst.change == 3
    assert int(worst.record["y"]) == 2


def test_norms_and_trees():
    def statistic(x, mask):
        total = jnp.sum(jnp.where(mask[:, None], jnp.ones_like(x), 0), axis=0)
        return {"a": total, "b": total}

    x = jnp.zeros((2, 2))
    assert search(statistic, x, norm="l1").change == pytest.approx(4)
    assert search(statistic, x, norm="l2").change == pytest.approx(2)
    assert search(statistic, x, norm="linf").change == pytest.approx(1)


def test_a_poisoned_statistic_is_infinitely_sensitive():
    worst = search(lambda x, m: jnp.sum(m * jnp.tanh(x)), jnp.zeros(3))
    assert worst.change == np.inf
    assert not np.isfinite(worst.record)


def test_masked_records_are_no_neighbours(batch):
    mask = jnp.array([True, False, True])
    worst = search(lambda b, m: jnp.sum(m * jnp.array([1.0, 9, 1, 0])), batch, mask=mask)
    assert worst.change == 1
    nobody = search(lambda b, m: jnp.sum(m * 2.0), batch, mask=jnp.zeros(3, bool))
    assert (nobody.change, nobody.kind) == (2, "add")


def test_errors(batch):
    for options, name in (({"norm": "l3"}, "l3"), ({"relation": "x"}, "x"), ({"steps": -1}, "-1")):
        with pytest.raises(ValueError, match=name):
            search(bounded, batch, **options)


@pytest.mark.parametrize("rates", ["hard", pytest.param("soft", marks=pytest.mark.slow)])
def test_histogram_moves_by_exactly_one_in_l1_and_at_most_one_in_l2(rates):
    case = ours._sgda(attack=True, rates=rates)
    _, table = case.statistics
    data = jax.tree.map(lambda a: a[:4], case.data)
    # no more in l2 either, which is never above l1
    worst = search(table.of, data, norm="l1", choices=case.choices)
    assert worst.change == pytest.approx(1, rel=1e-5)
    replaced = search(table.of, data, norm="l1", relation="replace_one", choices=case.choices)
    assert replaced.change == pytest.approx(2, rel=1e-5)


def test_descent_reaches_the_clip_norm_and_not_more():
    case = ours._dpsgd(ours._linear, attack=True)
    (gradient,) = case.statistics
    data = jax.tree.map(lambda a: a[:4], case.data)
    worst = search(gradient.of, data, choices=case.choices)
    assert worst.change == pytest.approx(gradient.bound, rel=1e-2)
    assert worst.change <= gradient.bound * (1 + 1e-4)


def unclipped():
    @register_dataclass
    @dataclasses.dataclass(frozen=True)
    class Unclipped(dpjax.solvers.DPSGD):
        def step(self, problem, batch, mask, state):
            loose = dpjax.solvers.DPSGD(
                self.sampler, self.noise_multiplier, 1e3, self.learning_rate, self.batch_size
            )
            return loose.step(problem, batch, mask, state)

    def build(value):
        return Unclipped(**(ours._DESCENT | {"noise_multiplier": value}))

    problem = ours._linear()
    gradient = ours.gradient_sum(build, problem)
    return dpt.SolverCase(build, problem, ours._data(), statistics=[gradient])


def test_an_unclipped_solver_is_caught():
    case = unclipped()
    (gradient,) = case.statistics
    data = jax.tree.map(lambda a: a[:4], case.data)
    assert search(gradient.of, data, steps=5).change > 10 * gradient.bound


@pytest.mark.slow
def test_the_suite_fails_an_unclipped_solver():
    case = unclipped()
    with pytest.raises(AssertionError, match=r"gradient sum must change by at most 0\.7"):
        dpt.check_solver(dpt.Entry("unclipped", "solver", lambda: case))

"""Instances have the constants, optima and gradients, or none, that they claim."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import _convex_instances, _nonsmooth_runs, _nonsmooth_slopes, _results_nonsmooth
from benchmarks import _nonsmooth_instances as instances
from dpjax.problems import Risk
from dpjax.testing import count_false_alarm

MAKERS = {
    "phase": instances.phase_retrieval,
    "capped": instances.capped_regression,
    "quantile": instances.quantile_regression,
    "network": instances.network,
}
LINKS = {
    "phase": instances.phase_loss,
    "capped": instances.capped_loss,
    "quantile": instances.quantile_loss,
    "ramp": instances.ramp_loss,
}


def _planted(dim, seed):
    """What the generators of linear instances plant: drawn after the rows."""
    return instances._planted(dim, 500, seed)[2]


@pytest.mark.parametrize("name", MAKERS)
def test_instances_are_decided_by_their_seed(name):
    one, same, other = (MAKERS[name](6, 500, seed) for seed in (3, 3, 4))
    assert {k: (v.shape, v.dtype) for k, v in one.train.items()} == {
        k: (v.shape, v.dtype) for k, v in other.train.items()
    }
    assert one.train["x"].shape[0] == one.train["y"].shape[0] == 500
    for key, column in one.train.items():
        assert column.dtype == np.float32
        np.testing.assert_array_equal(column, same.train[key])
        assert not np.allclose(column, other.train[key])
    if name != "network":
        np.testing.assert_allclose(np.linalg.norm(one.train["x"], axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("name", LINKS)
def test_links_are_lipschitz_with_constant_one_and_no_less(name):
    rng = np.random.default_rng(0)
    margins, y = 4 * rng.normal(size=4000), rng.normal(size=4000)
    if name == "ramp":
        y = np.sign(y)
    if name == "phase":
        y = abs(y)
    arguments = jnp.asarray(margins, jnp.float32), jnp.asarray(y, jnp.float32)
    steepest = float(jnp.max(jnp.abs(jax.vmap(jax.grad(LINKS[name]))(*arguments))))
    largest = 1 - instances.QUANTILE if name == "quantile" else 1.0
    assert 0.95 * largest <= steepest <= largest * (1 + 1e-6) <= 1 + 1e-6


@pytest.mark.parametrize("name", LINKS)
def test_links_are_not_convex(name):
    y = 1.0 if name == "ramp" else 0.5
    margins = jnp.linspace(-4, 4, 401)
    values = np.asarray(jax.vmap(lambda m: LINKS[name](m, jnp.float32(y)))(margins))
    bend = (values[:-2] + values[2:]) / 2 - values[1:-1]
    assert np.max(bend) > 2e-5  # somewhere convex
    assert np.min(bend) < -2e-5  # somewhere concave


def test_planted_amplitudes_have_no_loss_at_either_sign():
    found = instances.phase_retrieval(8, 500, 1)
    truth = _planted(8, 1)
    assert np.linalg.norm(truth) == pytest.approx(3)
    assert np.linalg.norm(found.problem.init) == pytest.approx(1, abs=1e-5)
    for sign in (1, -1):
        loss = found.problem.mean_loss(jnp.asarray(sign * truth, jnp.float32), found.train)
        assert float(loss) < 1e-6
    assert float(found.problem.mean_loss(found.problem.init, found.train)) > 0.3


def test_a_fifth_of_answers_are_outliers():
    found = instances.capped_regression(8, 500, 2)
    gaps = np.abs(found.train["y"] - found.train["x"] @ _planted(8, 2))
    share = np.mean(gaps > 0.15)  # 7 deviations of the small noise
    deviation = np.sqrt(instances.OUTLIERS * (1 - instances.OUTLIERS) / 500)
    count_false_alarm(2e-7)
    assert abs(share - instances.OUTLIERS) < 5.5 * deviation
    losses = found.problem.per_example_losses(found.problem.init, found.train)
    assert float(jnp.max(losses)) == instances.CAP


def test_network_answers_come_from_a_network_of_the_same_shape():
    found = instances.network(5, 400, 3)
    assert found.problem.num_params == 11 * 5
    rng = np.random.default_rng(3)
    rng.normal(size=(400, 10))
    teacher = {
        "inner": (rng.normal(size=(10, 5)) / 10**0.5).astype(np.float32),
        "outer": (rng.normal(size=5) / 5**0.5).astype(np.float32),
    }
    teacher = jax.tree.map(jnp.asarray, teacher)
    assert float(found.problem.mean_loss(teacher, found.train)) < 1e-5
    assert float(found.problem.mean_loss(found.problem.init, found.train)) > 0.1


def test_real_data_have_bounded_rows_and_signs_for_labels(monkeypatch):
    monkeypatch.setattr(_convex_instances, "minimiser", lambda *_: None)  # slow, and not used
    found = instances.real("adult", None)
    for part in (found.train, found.test):
        assert np.max(np.linalg.norm(part["x"], axis=1)) <= 1 + 1e-5
        assert set(np.unique(part["y"])) == {-1.0, 1.0}
    assert float(found.problem.mean_loss(found.problem.init, found.train)) == 0.5


def test_errors_have_no_gradient_and_numpy_counts_the_same():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 4)).astype(np.float32)
    batch = {"x": jnp.asarray(x), "y": jnp.asarray(np.sign(rng.normal(size=50)), jnp.float32)}
    points = jnp.asarray(rng.normal(size=(7, 4)), jnp.float32)
    errors = Risk.linear(instances.error_loss, 4)
    counted = Risk(instances.counted_loss, jnp.zeros(4))
    mine, numpys = (
        jax.jit(jax.vmap(problem.per_example_losses, in_axes=(0, None)))(points, batch)
        for problem in (errors, counted)
    )
    assert mine.shape == (7, 50)
    np.testing.assert_array_equal(mine, numpys)
    right = jax.vmap(instances.accuracy, in_axes=(0, None))(points, batch)
    np.testing.assert_allclose(1 - mine.mean(axis=1), right, rtol=1e-6)
    gradient = errors.per_example_gradients(points[0], batch)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(gradient.right))


def test_slopes_are_those_of_powers():
    x = np.array([1.0, 3.0, 10.0])
    assert _nonsmooth_runs.slope(x, 2 * x**-0.7) == pytest.approx(-0.7)
    assert _nonsmooth_runs.slope(x, [1.0, 0.0, 0.1]) == pytest.approx(-1)
    assert _nonsmooth_runs.slope(x, 0 * x) is None
    assert _nonsmooth_runs.summarised("loss", [1.0, 3.0]) == {"loss": 2.0, "loss_error": 1.0}


def test_fitted_exponents_change_one_size_at_a_time():
    rows = []
    for name, (_, sizes, unit) in _nonsmooth_slopes.PROBLEMS.items():
        middle = unit * sizes[0]
        points = [(middle, n, 1.0) for n in _nonsmooth_slopes.SIZES]
        points += [(middle, _nonsmooth_slopes.MIDDLE, e) for e in _nonsmooth_slopes.EPSILONS]
        points += [(unit * size, _nonsmooth_slopes.MIDDLE, 1.0) for size in sizes]
        rows += [
            {"problem": name, "passes": passes, "dim": d, "n": n, "epsilon": e}
            | {"goldstein": d**0.5 * n**-1.0 * e**-0.25}
            for d, n, e in dict.fromkeys(points)
            for passes in _nonsmooth_slopes.RELATIONS
        ]
    for row in _nonsmooth_slopes.fitted(rows):
        assert row["slopes"] == pytest.approx({"n": -1, "epsilon": -0.25, "dim": 0.5})


def test_cells_show_each_epsilon_tuned_ones_in_brackets_and_refusals():
    base = {"task": "adult", "method": "ours"}
    rows = [
        base | {"epsilon": 3.0, "tuned": False, "loss": 0.05},
        base | {"epsilon": 1.0, "tuned": False, "loss": 0.25},
        base | {"epsilon": 1.0, "tuned": True, "loss": 0.125},
        base | {"epsilon": 3.0, "tuned": True, "error": "ValueError: no"},
    ]
    table = _results_nonsmooth.tasks(rows, "loss").splitlines()
    assert table[0] == "| method | Adult |"
    assert table[2] == "| `OnlineToNonconvex` | 0.250 / 0.0500 (0.125 / refused) |"

"""Batches of all records under add-or-remove-one: how many there are must show nowhere."""

import dataclasses
import importlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.geometry import L1Ball
from dpjax.privacy._warnings import PrivacyWarning
from dpjax.problems import RateConstrained, Risk, Saddle, SimplexRisk
from dpjax.sampling import FullBatch
from dpjax.solvers import (
    DPSGD,
    FrankWolfe,
    GroupThresholds,
    NestedGame,
    OnlineToBatch,
    OnlineToNonconvex,
    PolishedFrankWolfe,
    RateConstrainedSGDA,
    TrainedModel,
)

BUDGET = dpjax.Budget(1.0, 1e-6, "add_or_remove_one")
DIM = 20


def _kinked(margin, y):
    """Its slope jumps where the margin is y: the last bit of a margin decides."""
    return jnp.abs(margin - y)


def _squared(margin, y):
    return 0.5 * (margin - y) ** 2


def _cases():
    linear = Risk.linear(_kinked, DIM, radius=1.0, lipschitz=2.0)
    smooth = Risk.linear(_squared, DIM, radius=1.0, lipschitz=2.0, smoothness=1.0)
    ball = SimplexRisk.linear(_squared, L1Ball(DIM), grad_range=4.0, smoothness=1.0)
    parity = dpjax.problems.demographic_parity(2, 2, slack=0.05)
    rates = RateConstrained.linear(DIM, 2, parity)
    return {
        "DPSGD": (DPSGD, linear, {"sampler": FullBatch(2)}),
        "FrankWolfe": (FrankWolfe, ball, {"steps": 3}),
        "PolishedFrankWolfe": (PolishedFrankWolfe, ball, {}),
        "OnlineToBatch": (OnlineToBatch, smooth, {"steps": 3}),
        "OnlineToNonconvex": (OnlineToNonconvex, linear, {"sampler": FullBatch(2)}),
        "RateConstrainedSGDA": (RateConstrainedSGDA, rates, {"sampler": FullBatch(2)}),
        "NestedGame": (NestedGame, Saddle.matrix_game((3, 4)), {}),
    }


CASES = _cases()


def _records(name, n):
    rng = np.random.default_rng(5)
    if name == "NestedGame":
        return {"A": rng.uniform(-1, 1, (n, 3, 4)).astype(np.float32)}
    x = rng.normal(size=(n, DIM)).astype(np.float32) / DIM**0.5
    if name == "RateConstrainedSGDA":
        return {"x": x, "y": rng.integers(0, 2, n), "group": rng.integers(0, 2, n)}
    return {"x": x, "y": rng.uniform(-1, 1, n).astype(np.float32)}


def _without_noise(solver):
    """Nothing that is drawn, where noise is a field; what is left is sums."""
    names = {"noise_multiplier", "histogram_noise"} & {f.name for f in dataclasses.fields(solver)}
    return dataclasses.replace(solver, **dict.fromkeys(names, 0.0))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.once  # the claim
def test_rows_do_not_follow_the_records(name):
    """One more record that adds nothing changes no bit, whatever the shape of its batch would."""
    kind, problem, options = CASES[name]
    n = 16  # from here to 17 rows XLA adds products in another order
    solver = kind.for_budget(problem, n, BUDGET, **options)
    assert solver.expected_records == n
    data = _records(name, n + 1)
    data = {k: np.concatenate([v[:n], np.zeros_like(v[:1])]) for k, v in data.items()}
    fewer, more = (
        dpjax.solve(solver, problem, {k: v[:size] for k, v in data.items()}, key=jax.random.key(1))
        for size in (n, n + 1)
    )
    if name == "OnlineToBatch":  # which clips around a centre, that a record of zeros is not at
        assert more.info.sensitivity[0] == fewer.info.sensitivity[0]
    elif name == "RateConstrainedSGDA":  # which counts it, of whatever class and group
        rates = (np.asarray(found.state.memory.rates) for found in (more, fewer))
        np.testing.assert_allclose(*rates, atol=2 / n)
    else:
        jax.tree.map(np.testing.assert_array_equal, more.params, fewer.params)


def test_a_traced_number_of_records_is_no_size_of_a_batch():
    kind, problem, options = CASES["DPSGD"]
    solver, data = kind.for_budget(problem, 16, BUDGET, **options), _records("DPSGD", 17)

    @jax.jit
    def run(solver, data):
        return dpjax.solve(solver, problem, data, key=jax.random.key(1)).params

    with pytest.warns(PrivacyWarning, match=r"rows of data are as many as its records"):
        run(solver, data)
    rows = {
        k: np.concatenate([v, np.zeros((32 - 17, *v.shape[1:]), v.dtype)]) for k, v in data.items()
    }
    plain = dpjax.solve(solver, problem, data, key=jax.random.key(1)).params
    given = run(solver, dpjax.Records(rows, 17))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), given, plain)


def test_number_of_records_is_within_what_is_public():
    kind, problem, options = CASES["DPSGD"]
    solver = kind.for_budget(problem, 1_000, BUDGET, **options)
    with pytest.raises(ValueError, match=r"must have 1 to 1152 records .* about 1000") as raised:
        dpjax.solve(solver, problem, _records("DPSGD", 1_153), key=jax.random.key(0))
    assert "1153" not in str(raised.value)  # it is secret
    far = dataclasses.replace(solver, batch_size=1e8)
    with pytest.raises(ValueError, match="public number of records that is nearer"):
        dpjax.solve(far, problem, _records("DPSGD", 1_000), key=jax.random.key(0))
    free = dataclasses.replace(solver, relation="replace_one")
    assert free.expected_records is None
    dpjax.solve(free, problem, _records("DPSGD", 1_200), key=jax.random.key(0))


def test_scores_of_groups_do_not_follow_the_records():
    """A record more is a count more, also where scores lie on the edge of a bin."""
    rng = np.random.default_rng(0)
    parity = dpjax.problems.demographic_parity(2, 2, slack=0.05)
    problem = RateConstrained.linear(DIM, 2, parity)
    params = jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape), a.dtype), problem.init)
    params["b"] = jnp.zeros_like(params["b"])
    across = np.asarray(params["w"][:, 1] - params["w"][:, 0], np.float64)
    x = rng.normal(size=(1_500, DIM))
    x[:, 0] = -(x[:, 1:] @ across[1:]) / across[0]  # scores of one half
    data = {"x": x.astype(np.float32), "y": np.zeros(1_500, int), "group": np.zeros(1_500, int)}
    solver = GroupThresholds(FullBatch(1), histogram_noise=0.0, bins=8)
    model = TrainedModel(problem, params)

    def counts(first, size):
        part = {k: v[first : first + size] for k, v in data.items()}
        found = dpjax.solve(solver, model, part, key=jax.random.key(0), progress=False)
        return np.asarray(found.state.histogram)

    for first, size in [(0, 1_023), (0, 1_024), *((17 * i, 16) for i in range(16))]:
        assert np.abs(counts(first, size + 1) - counts(first, size)).sum() == 1


def test_a_centre_does_not_swallow_a_record(monkeypatch):
    """What noise is added to changes by no more than it is scaled to, beside any centre."""
    module = importlib.import_module("dpjax.papers.online._online_to_batch")
    seen = []

    def update(increment, state, *, key, sensitivity):
        seen.append((float(increment[0]), float(sensitivity)))
        return increment, state

    noiseless = types.SimpleNamespace(update=update)
    problem, m = Risk(lambda w, r: r["c"] * w[0], init=jnp.zeros(1)), 1e8
    noise = dpjax.transforms.SplitNoise(2, 0.5)
    solver = OnlineToBatch(
        FullBatch(2), noise, 1.0, 1.0, 1.0, learning_rate=m, batch_size=m, shrinkage=False
    )
    for zeros in range(3, 19):
        data = {"c": jnp.asarray([0.7312, *[0.0] * zeros])}
        with monkeypatch.context() as patched:
            patched.setattr(module, "correlated_noise", lambda *_: noiseless)
            state = solver.init(problem, key=jax.random.key(0))
            for _ in range(2):
                state, _ = solver.step(problem, data, jnp.ones(zeros + 1, bool), state)
    second = np.array(seen[1::2])
    assert (np.abs(np.diff(second[:, 0])) <= second[0, 1]).all()


def test_noise_below_the_smallest_float_is_for_no_sum():
    problem = Risk(lambda w, r: r["c"] * w[0], init=jnp.zeros(1))
    solver = DPSGD(FullBatch(1), 0.5, 2e-38, 1e38, 8.0, relation="replace_one")
    some, none = (
        dpjax.solve(solver, problem, {"c": c}, key=jax.random.key(0)).params
        for c in (np.ones(8, np.float32), np.zeros(8, np.float32))
    )
    np.testing.assert_array_equal(some, none)

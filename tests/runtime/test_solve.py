import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.runtime import UnknownGuarantee
from dpjax.runtime._loop import chunk_length

N, STEPS = 40, 7
PROBLEM = dpjax.problems.RateConstrained.linear(2, 2)
SOLVER = dpjax.solvers.DPSGD(
    dpjax.sampling.PoissonSampler(0.2, STEPS, N), 1.0, 1.0, 0.5, 8.0, decay=0.9
)


def make_data(n=N):
    x = np.random.default_rng(0).normal(size=(n, 2)).astype(np.float32)
    return {"x": x, "y": (x[:, 0] > 0).astype(np.int32)}


def raw(tree):
    leaves = jax.tree.leaves(tree)
    typed = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    return [
        np.asarray(jax.random.key_data(leaf) if t else leaf)
        for leaf, t in zip(leaves, typed, strict=True)
    ]


def test_progress_bar_changes_nothing(monkeypatch):
    monkeypatch.setattr("dpjax.runtime._loop.chunk_length", lambda steps: 3)
    with_bar, without = (
        dpjax.solve(
            SOLVER,
            PROBLEM,
            make_data(),
            key=jax.random.key(0),
            progress=progress,
            sensitive=True,
        )
        for progress in (True, False)
    )
    for a, b in zip(raw(with_bar[:-1]), raw(without[:-1]), strict=True):
        np.testing.assert_array_equal(a, b)
    assert with_bar.info.gradient_norm.shape == (STEPS,)
    for a, b in zip(raw(with_bar.sensitive), raw(without.sensitive), strict=True):
        assert a.shape[0] == STEPS
        np.testing.assert_array_equal(a, b)
    plain = dpjax.solve(SOLVER, PROBLEM, make_data(), key=jax.random.key(0), progress=False)
    assert plain.sensitive is None
    np.testing.assert_array_equal(plain.params["w"], without.params["w"])


def test_chunks_are_few():
    for steps in (1, 7, 50, 97, 1000, 3001):
        length = chunk_length(steps)
        assert 1 <= length <= steps
        assert -(-steps // length) <= 50


def test_same_key_same_run_other_key_other_run():
    def params(seed):
        return dpjax.solve(SOLVER, PROBLEM, make_data(), key=jax.random.key(seed)).params["w"]

    np.testing.assert_array_equal(params(0), params(0))
    assert not np.array_equal(params(0), params(1))


def test_guarantee_is_the_solvers_own():
    solution = dpjax.solve(SOLVER, PROBLEM, make_data(), key=jax.random.key(0))
    assert solution.guarantee == SOLVER.guarantee()
    assert 0 < solution.guarantee.epsilon(1e-5) < np.inf


@pytest.mark.parametrize("seed", [None, 0, np.zeros(2, np.uint32), jnp.zeros(2, jnp.uint32)])
def test_missing_and_untyped_keys(seed):
    with pytest.raises(TypeError, match=r"jax\.random\.key"):
        dpjax.solve(SOLVER, PROBLEM, make_data(), key=seed)


def test_several_keys_at_once():
    with pytest.raises(ValueError, match=r"got shape \[3\].*vmap"):
        dpjax.solve(SOLVER, PROBLEM, make_data(), key=jax.random.split(jax.random.key(0), 3))


def test_unequal_and_missing_axes():
    data = make_data()
    with pytest.raises(ValueError, match=r"leading axis.*\[40, 2\].*\[39\]"):
        dpjax.solve(SOLVER, PROBLEM, data | {"y": data["y"][:-1]}, key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"leading axis.*\[\]"):
        dpjax.solve(SOLVER, PROBLEM, data | {"z": 1.0}, key=jax.random.key(0))
    with pytest.raises(ValueError, match="no arrays"):
        dpjax.solve(SOLVER, PROBLEM, {}, key=jax.random.key(0))


def test_more_records_than_the_public_bound():
    with pytest.raises(ValueError, match=r"more records.*num_records = 40"):
        dpjax.solve(SOLVER, PROBLEM, make_data(41), key=jax.random.key(0))


def test_records_outside_the_public_domain():
    data = make_data()
    with pytest.raises(ValueError, match=r'data\["y"\] must lie in 0..1: '):
        dpjax.solve(SOLVER, PROBLEM, data | {"y": data["y"] + 1}, key=jax.random.key(0))


@pytest.mark.slow
def test_vmap_over_keys_equals_loop():
    data = make_data()

    @jax.jit
    def run(words):
        return dpjax.solve(SOLVER, PROBLEM, data, key=jax.random.wrap_key_data(words)).params

    words = jax.random.key_data(jax.random.split(jax.random.key(1), 3))
    many = jax.vmap(run)(words)
    for i in range(3):
        np.testing.assert_allclose(many["w"][i], run(words[i])["w"], rtol=1e-4, atol=1e-6)


def test_unknown_guarantee_says_what_to_do():
    def run(noise):
        solver = dataclasses.replace(SOLVER, noise_multiplier=noise)
        return dpjax.solve(solver, PROBLEM, make_data(), key=jax.random.key(0))

    solution = jax.jit(run)(2.0)
    assert solution.guarantee == UnknownGuarantee()
    assert hash(solution.guarantee) == hash(UnknownGuarantee())
    for ask in (lambda: solution.guarantee.epsilon(1e-5), lambda: solution.guarantee.delta(1.0)):
        with pytest.raises(RuntimeError, match=r"solver\.guarantee\(\).*outside"):
            ask()


def test_guarantee_is_known_when_only_keys_are_traced():
    words = jax.random.key_data(jax.random.key(0))
    run = jax.jit(
        lambda w: dpjax.solve(SOLVER, PROBLEM, make_data(), key=jax.random.wrap_key_data(w))
    )
    assert run(words).guarantee == SOLVER.guarantee()


def test_a_sweep_of_solvers_slacks_and_seeds_traces_once():
    traces = []

    def loss(logits, labels):
        traces.append(None)
        return dpjax.problems.RateConstrained.linear(2, 2).loss(logits, labels)

    def problem(slack):
        parity = dpjax.problems.demographic_parity(2, 2, slack=slack)
        return dpjax.problems.RateConstrained.linear(2, 2, parity, loss=loss)

    sampler = dpjax.sampling.PoissonSampler(0.2, 3, N)

    def solver(noise):
        descent = dpjax.solvers.DPSGD(sampler, noise, 1.0, 0.5, 8.0)
        return dpjax.solvers.RateConstrainedSGDA(descent, 0.1, noise)

    solvers = jax.tree.map(lambda *v: jnp.stack(v), *[solver(z) for z in (0.5, 1.0, 2.0)])
    problems = jax.tree.map(lambda *v: jnp.stack(v), *[problem(g) for g in (0.0, 0.1, 0.2, 1.0)])
    words = jax.random.key_data(jax.random.split(jax.random.key(0), 5))
    data = make_data()
    data["group"] = (data["x"][:, 1] > 0).astype(np.int32)

    def run(solver, problem, words):
        key = jax.random.wrap_key_data(words)
        return dpjax.solve(solver, problem, data, key=key).params

    sweep = jax.vmap(jax.vmap(jax.vmap(run, (None, None, 0)), (None, 0, None)), (0, None, None))
    sweep = jax.jit(sweep)
    params = sweep(solvers, problems, words)
    assert params["w"].shape == (3, 4, 5, 2, 2)
    first = len(traces)
    assert first == 1
    # tables are of integers, and stay
    halved = jax.tree.map(lambda a: 0.5 * a if a.dtype == np.float32 else a, solvers)
    sweep(halved, problems, words)
    assert len(traces) == first
    one = run(solver(1.0), problem(0.1), words[2])
    np.testing.assert_allclose(params["w"][1, 1, 2], one["w"], rtol=1e-3, atol=1e-5)


def test_data_of_every_number_type_and_of_none():
    data = make_data()
    want = dpjax.solve(SOLVER, PROBLEM, data, key=jax.random.key(0)).params["w"]
    swapped = data | {"x": data["x"].astype(">f4")}
    got = dpjax.solve(SOLVER, PROBLEM, swapped, key=jax.random.key(0)).params["w"]
    np.testing.assert_array_equal(got, want)
    for dtype in (str, object, complex):
        bad = data | {"x": data["x"].astype(dtype)}
        with pytest.raises(TypeError, match="data must hold real numbers, got an array of"):
            dpjax.solve(SOLVER, PROBLEM, bad, key=jax.random.key(0))

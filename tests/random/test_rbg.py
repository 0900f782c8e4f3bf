"""Keys of the generator `rbg` work everywhere; what `vmap` makes of them is as documented."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import dpjax
import dpjax.testing as dpt
from dpjax.papers.estimators import maurey_sample
from dpjax.transforms import (
    BinaryTree,
    BufferedToeplitz,
    add_gaussian,
    add_laplace,
    correlated_noise,
    tree_aggregation,
)
from tests.entries import one_of_each

N = 20_000
REPRESENTATIVE = "DPSGD(linear)"
DRAWN_OTHERWISE = ("DPSGD(host, truncate)", "DPSGD(shards)")
NOISE = {
    "gaussian": lambda: add_gaussian(1.0),
    "laplace": lambda: add_laplace(1.0),
    "tree": lambda: correlated_noise(BinaryTree(4)),
    "toeplitz": lambda: correlated_noise(BufferedToeplitz(4)),
    "sums": lambda: tree_aggregation(1.0, 4),
}


def rbg(seed, *, impl="rbg"):
    return jax.random.key(seed, impl=impl)


def two_steps(transform, key):
    """What two calls with one key add to nothing."""
    zeros = {"a": jnp.zeros(N), "b": jnp.zeros(N)}
    state = transform.init(zeros)
    first, state = transform.update(zeros, state, key=key)
    second, _ = transform.update(zeros, state, key=jax.random.clone(key))
    return first["a"], first["b"], second["a"]


@pytest.mark.parametrize("name", NOISE)
@pytest.mark.always  # the claim
def test_noise_of_leaves_steps_and_keys(name):
    run = jax.jit(lambda key: two_steps(NOISE[name](), key))
    drawn, other = run(rbg(0)), run(rbg(1))
    for again, here in zip(run(rbg(0)), drawn, strict=True):
        np.testing.assert_array_equal(again, here)
    dpt.check_uncorrelated(drawn[0], drawn[1], name="leaves")
    dpt.check_uncorrelated(drawn[0], other[0], name="keys")
    if name in ("gaussian", "laplace"):
        dpt.check_uncorrelated(drawn[0], drawn[2], name="steps")
        law = {"gaussian": stats.norm, "laplace": stats.laplace}[name]
        dpt.check_scale(drawn[0][:4000], lambda s: law(scale=s).cdf, 1.0)
    else:
        # on a grid of 1/1024 some few agree
        assert np.mean(np.asarray(drawn[0]) == np.asarray(drawn[2])) < 0.01


def test_stages_and_seeded():
    chain = dpjax.chain(add_gaussian(1.0), add_gaussian(1.0))
    zeros = jnp.zeros(N)
    both, _ = chain.update(zeros, chain.init(zeros), key=rbg(0))
    assert abs(np.var(both) - 2) < 0.2  # one draw twice would be 4
    seeded = dpjax.seeded(add_gaussian(1.0), rbg(2))
    first, state = seeded.update(zeros, seeded.init(zeros))
    second, _ = seeded.update(zeros, state)
    dpt.check_uncorrelated(first, second, name="calls")


def test_draws_of_vertices():
    draw = maurey_sample(40_000)
    logits = jnp.log(jnp.array([0.1, 0.2, 0.7]))
    indices, _ = draw.update(logits, draw.init(logits), key=rbg(0))
    counts = np.bincount(indices, minlength=3)
    dpt.count_false_alarm(1e-8)
    assert stats.chisquare(counts, 40_000 * np.array([0.1, 0.2, 0.7])).pvalue > 1e-8
    assert stats.chisquare(counts, 40_000 * np.array([0.15, 0.2, 0.65])).pvalue < 1e-8


def noise_of(key):
    zeros = jnp.zeros(N)
    return add_gaussian(1.0).update(zeros, add_gaussian(1.0).init(zeros), key=key)[0]


def test_vmapped_runs_are_independent_but_not_the_single_ones():
    words = jax.random.key_data(jax.random.split(rbg(0), 3))

    def run(words):
        return noise_of(jax.random.wrap_key_data(words, impl="rbg"))

    together, alone = jax.vmap(run)(words), jnp.stack([run(w) for w in words])
    np.testing.assert_array_equal(together[0], alone[0])
    for i in range(3):
        for j in range(i):
            dpt.check_uncorrelated(together[i], together[j], name="runs of one batch")
        for j in range(1, 3):
            dpt.check_uncorrelated(together[j], alone[i], name="batch and single runs")


@pytest.mark.slow
def test_the_first_key_of_a_batch_decides_for_all():
    """The caveat: two batches that begin with one key have all their noise in common."""

    def batch(impl, *seeds):
        keys = [jax.random.key_data(rbg(seed, impl=impl)) for seed in seeds]
        return jax.vmap(lambda w: noise_of(jax.random.wrap_key_data(w, impl=impl)))(jnp.stack(keys))

    here, there, fresh = batch("rbg", 0, 1), batch("rbg", 0, 2), batch("rbg", 3, 1)
    np.testing.assert_array_equal(here, there)
    dpt.check_uncorrelated(here[1], fresh[1], name="another first key, the same second one")
    threefry = [batch("threefry2x32", 0, other) for other in (1, 2)]
    dpt.check_uncorrelated(threefry[0][1], threefry[1][1], name="Threefry has no such tie")


@pytest.mark.slow
def test_poisson_batches():
    sampler = dpjax.sampling.PoissonSampler(0.25, 40, 400)
    plan = sampler.plan(rbg(0), 400)
    sizes = [
        int(sampler.batch(jax.tree.map(lambda a, t=t: a[t], plan), 400)[1].sum()) for t in range(3)
    ]
    assert all(60 < size < 140 for size in sizes)

    def members(words):
        plan = sampler.plan(jax.random.wrap_key_data(words, impl="rbg"), 400)
        indices, mask = sampler.batch(jax.tree.map(lambda a: a[0], plan), 400)
        return jnp.zeros(401, bool).at[jnp.where(mask, indices, 400)].set(True)[:400]

    words = jax.random.key_data(jax.random.split(rbg(5), 500))
    drawn = np.asarray(jax.jit(jax.vmap(members))(words))
    dpt.count_false_alarm(1e-8)
    assert abs(drawn.mean() - 0.25) < 6 * (0.25 * 0.75 / drawn.size) ** 0.5
    dpt.check_uncorrelated(drawn[::2].ravel(), drawn[1::2].ravel(), name="batches of two runs")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == REPRESENTATIVE else pytest.mark.slow)
        for name in dict.fromkeys([REPRESENTATIVE, *one_of_each(), *DRAWN_OTHERWISE])
    ],
)
def test_solvers(name):
    case = dpt.registry()[name].make()
    solver = case.build(case.values[0])

    def run(words):
        key = jax.random.wrap_key_data(words, impl="rbg")
        solution = dpjax.solve(solver, case.problem, case.data, key=key)
        return solution.params, solution.info  # some runs may return what they began with

    words = jax.random.key_data(jax.random.split(rbg(0), 2))
    if case.concrete_key:
        runs = [run(w) for w in words]
    else:
        both = jax.vmap(run)(words)
        runs = [jax.tree.map(lambda leaf, i=i: leaf[i], both) for i in range(2)]
    here, there = (np.concatenate([np.ravel(x) for x in jax.tree.leaves(r)]) for r in runs)
    assert np.all(np.isfinite(here))
    assert np.any(here != there)


@pytest.mark.slow
def test_checkpoints(tmp_path):
    pytest.importorskip("orbax.checkpoint")
    case = dpt.registry()["DPFTRL(tree)"].make()
    job = (case.build(case.values[0]), case.problem, case.data)
    plain = dpjax.solve(*job, key=rbg(0))
    for attempt in ("saved", "read"):
        again = dpjax.solve(*job, key=rbg(0), checkpoint=tmp_path, every=2)
        np.testing.assert_array_equal(again.params, plain.params, err_msg=attempt)
    with pytest.raises(ValueError, match="key"):
        dpjax.solve(*job, key=jax.random.key(0), checkpoint=tmp_path, every=2)


@pytest.mark.slow
def test_eight_devices():
    """Nothing is shared by two shards; Threefry's noise alone is drawn where its shard is."""
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    environment = os.environ | {"XLA_FLAGS": flags}
    script = Path(__file__).parents[1] / "transforms" / "sharded_noise.py"
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == 3
    for case in found.values():
        assert case["equals one device"]
        # of 16384; by chance about 140 agree, on a grid of 1/32 of the scale
        assert case["equal entries of two shards"] <= 300
        assert not case["collectives"]
    assert not found["threefry2x32"]["whole vector on each device"]
    assert not found["threefry2x32, Laplace"]["whole vector on each device"]
    assert found["rbg"]["whole vector on each device"]


@pytest.mark.slow
@pytest.mark.parametrize("entry", dpt.entries("transform"), ids=lambda entry: entry.name)
def test_transforms(entry):
    case = entry.make()
    key = {"key": rbg(0)} if case.random and not case.key_in_state else {}
    more = (rbg(1),) if case.key_in_state else ()
    transform = case.build(case.values[0], *more)
    state = transform.init(case.updates if case.params is None else case.params)
    out, _ = transform.update(case.updates, state, case.params, **key, **case.extra)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(out))


def test_threefry_of_four_words_has_no_such_caveats():
    """A faster generator that newer JAX has: runs are theirs alone, in a batch or not."""
    try:
        key = jax.random.key(0, impl="threefry4x32")
    except ValueError:
        pytest.skip("this JAX has no threefry4x32")
    words = jax.random.key_data(jax.random.split(key, 2))

    def run(words):
        return noise_of(jax.random.wrap_key_data(words, impl="threefry4x32"))

    together = jax.vmap(run)(words)
    np.testing.assert_array_equal(together, jnp.stack([run(w) for w in words]))
    dpt.check_uncorrelated(together[0], together[1], name="runs")


def test_unsafe_rbg_is_refused():
    key = rbg(0, impl="unsafe_rbg")
    with pytest.raises(ValueError, match="unsafe_rbg"):
        noise_of(key)
    with pytest.raises(ValueError, match="unsafe_rbg"):
        dpjax.sampling.PoissonSampler(0.1, 2, 100).plan(key, 100)

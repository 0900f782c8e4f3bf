"""A sweep whose runs lie on several devices: each runs by itself, and nothing is exchanged."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from placements import mesh_of

import dpjax
from dpjax.sampling import FullBatch, PoissonSampler

N, D, SEEDS = 64, 5, 16
COLLECTIVES = r"all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"


def records():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, D)).astype(np.float32)
    return {"x": x, "y": (x[:, 0] > 0).astype(np.int32)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampler", [FullBatch(3), PoissonSampler(0.25, 3, N)], ids=["full", "gaps"]
)
def test_seeds_over_devices(sampler):
    problem = dpjax.problems.RateConstrained.linear(D, 2)
    solver = dpjax.solvers.DPSGD(
        sampler, noise_multiplier=1.0, clip_norm=1.0, learning_rate=0.5, batch_size=16.0
    )

    def run(key, learning_rate, data):
        import dataclasses

        swept = dataclasses.replace(solver, learning_rate=learning_rate)
        return dpjax.solve(swept, problem, data, key=key).params

    mesh = mesh_of(8, names=("runs",))
    over, whole = NamedSharding(mesh, P("runs")), NamedSharding(mesh, P())
    data = jax.tree.map(jnp.asarray, records())
    keys = jax.random.split(jax.random.key(0), SEEDS)
    rates = jnp.linspace(0.1, 1.0, SEEDS)
    sweep = jax.jit(jax.vmap(run, in_axes=(0, 0, None)))
    want = sweep(keys, rates, data)
    # keys as words: typed ones cannot be put on a mesh in every version
    spread = jax.jit(
        lambda words, rates, data: jax.vmap(run, in_axes=(0, 0, None))(
            jax.random.wrap_key_data(words), rates, data
        ),
        in_shardings=(over, over, whole),
        out_shardings=over,
    )
    given = (jax.random.key_data(keys), rates, data)
    got = spread(*given)
    assert all(len(leaf.sharding.device_set) == 8 for leaf in jax.tree.leaves(got))
    for one, other in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        np.testing.assert_allclose(other, one, atol=1e-6)
        assert np.ptp(np.asarray(one), axis=0).min() > 1e-2
    program = spread.lower(*given).compile().as_text()
    assert "while" in program
    assert not re.findall(COLLECTIVES, program)

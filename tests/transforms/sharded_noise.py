"""Noise of a vector in eight shards, by generator; prints what test_rbg.py looks at."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import dpjax

SIZE = 8 * 2**14
GAUSSIAN, LAPLACE = dpjax.transforms.add_gaussian(1.0), dpjax.transforms.add_laplace(1.0)
CASES = {
    "threefry2x32": (GAUSSIAN, "threefry2x32"),
    "threefry2x32, Laplace": (LAPLACE, "threefry2x32"),
    "rbg": (GAUSSIAN, "rbg"),
}


def facts(noise, impl, sharding):
    words, zeros = jax.random.key_data(jax.random.key(0, impl=impl)), jnp.zeros(SIZE)

    def run(words, updates):
        key = jax.random.wrap_key_data(words, impl=impl)
        return noise.update(updates, noise.init(updates), key=key)[0]

    given = (words, jax.device_put(zeros, sharding))
    compiled = jax.jit(run, out_shardings=sharding).lower(*given).compile()
    text, sharded = compiled.as_text(), compiled(*given)
    shards = [np.asarray(shard.data) for shard in sharded.addressable_shards]
    pairs = itertools.combinations(shards, 2)
    return {
        "equals one device": np.allclose(sharded, jax.jit(run)(words, zeros), rtol=1e-6, atol=1e-7),
        "equal entries of two shards": max(int(np.sum(a == b)) for a, b in pairs),
        "collectives": [
            name
            for name in ("all-gather", "all-reduce", "all-to-all", "collective-permute")
            if name in text
        ],
        "whole vector on each device": f"{SIZE}]" in text,  # alone, or in two words
    }


if __name__ == "__main__":
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
    print(json.dumps({name: facts(*case, sharding) for name, case in CASES.items()}))

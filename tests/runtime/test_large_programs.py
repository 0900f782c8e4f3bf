"""Programs at the sizes of a large device: lowered and measured by their shapes, never run.

Data of each run fill much of a card of 80 GB. What a program adds, array by array and before
fusion, stays below what is stated beside it.
"""

import jax
import jax.numpy as jnp
import pytest

import dpjax
from benchmarks import _scaling_instances as made
from dpjax import problems, queries, sampling, solvers, transforms
from dpjax.geometry import L1Ball, sample_vertices
from tests.runtime.programs import check, slow_but

_KEY = jax.ShapeDtypeStruct((2,), jnp.uint32)
_WIDTH = 2 if jax.config.jax_enable_x64 else 1  # sizes are those of 32 bits
_CARD = 80e9
_MIB = 2**20
_MANY = {"n": 10**9, "m": 4096, "p": 8, "T": 1000}


def _floats(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


# sizes as of the cost model: records n, batch m, parameters p, classes c, steps T, draws q,
# constraints of Q groups, attributes a of 2^w codes
LARGE = {
    "dpsgd": (_MANY | {"c": 2}, 1 * _MIB),
    "dpsgd, wide": ({"n": 1000, "m": 64, "p": 5 * 10**6, "c": 2, "T": 100}, 3200 * _MIB),
    "sgda": (_MANY | {"c": 2, "Q": 500}, 16 * _MIB),
    # one permutation of all records
    "dpftrl": ({"n": 10**9, "p": 8, "c": 2, "T": 1000}, 4000 * _MIB),
    "online_to_batch": ({"n": 10**7, "p": 1000, "T": 16}, 256 * _MIB),
    "online_to_nonconvex": (_MANY | {"q": 1}, 1 * _MIB),
    "anytime": ({"n": 10**9, "p": 8, "T": 1000, "q": 3}, 6000 * _MIB),
    # as many records at once as make 16 vectors
    "frank_wolfe": ({"n": 1000, "p": 10**7, "T": 16}, 16 * 40 * 10**6),
    "saddle_mirror_descent": ({"n": 10**4, "p": 10**6, "T": 16, "q": 3}, 3600 * _MIB),
    # 2^24 cells, and vectors of them
    "frank_wolfe_release": ({"n": 10**4, "a": 12, "w": 2, "T": 16}, 64 * _MIB),
    "gaussian_fit": ({"n": 10**4, "a": 12, "w": 2, "E": 16}, 64 * _MIB),
}


def _abstract(monkeypatch, name, sizes):
    """A solver, its problem and the shapes of its data."""
    kind = name.split(",")[0]
    # labels call records: one of both is made of shapes
    records = "_labelled" if "c" in sizes else "_records"
    make = getattr(made, records)
    monkeypatch.setattr(made, records, lambda s: jax.eval_shape(lambda: make(s)))
    return getattr(made, kind)(**sizes)[:3]


def _run(solver, problem, data, words):
    return made.program(solver, problem, data, jax.random.wrap_key_data(words))


# the others take as long, one by one, as tests that run first may in all
_FIRST = ("dpsgd", "frank_wolfe")


@pytest.mark.parametrize("name", slow_but(_FIRST, LARGE))
def test_solvers(name, monkeypatch):
    # as it is read where programs are cut into parts
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    sizes, most = LARGE[name]
    instance = _abstract(monkeypatch, name, sizes)
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(instance[2]))
    assert held + 2 * most < 0.8 * _CARD * _WIDTH
    check(_run, *instance, _KEY, name=name, most=_WIDTH * most)


def _game():
    """Payoffs by attributes of a record: 10^6 strategies a side, no table of them."""

    def paid(record, i, j):
        return record["u"][i % 8] * record["v"][j % 8]

    problem = problems.Saddle.game(paid, (10**6, 10**6))
    solver = solvers.DoubleOracle(sampling.FullBatch(1), 1.0, 1e6, (-1.0, 1.0))
    return solver, problem, {"u": _floats(10**6, 8), "v": _floats(10**6, 8)}


def _rows():
    """All pairs of 50 attributes, of 10^30 cells."""
    workload = queries.Marginals.all_kway(queries.Domain({f"x{i}": 4 for i in range(50)}), 2)
    problem = problems.QueryRelease(workload, max_bytes=None)
    solver = solvers.RowsFit.for_budget(problem, 10**6, dpjax.Budget(1.0, 1e-9, "replace_one"))
    return solver, problem, jax.ShapeDtypeStruct((10**6, 50), jnp.int32)


@pytest.mark.parametrize(("make", "most"), [(_game, 300 * 10**6), (_rows, 512 * _MIB)])
def test_games_and_tables(make, most, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    solver, problem, data = make()
    double = isinstance(solver, solvers.DoubleOracle)

    def run(data, words):
        return _run(solver, problem, data, words)

    check(run, data, _KEY, name=make.__name__, most=_WIDTH * most, double=double)


SAMPLERS = {
    "Poisson": (sampling.PoissonSampler(1e-6, 1000, 2 * 10**9), 1 * _MIB),
    "disjoint": (sampling.DisjointPartition(1000, 10**6), 4 * 10**9),
    "tapered": (sampling.TaperedPartition(1000, 10**9), 6 * 10**9),
    "independent": (sampling.IndependentPartition(1000, 10**9), 6 * 10**9),
    "cyclic": (sampling.CyclicPoisson(1e-3, 1000, 10, 10**9), 4 * 10**9),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_of_a_billion_records(name):
    sampler, most = SAMPLERS[name]

    def run(words):
        xs = sampler.plan(jax.random.wrap_key_data(words), 10**9)
        return sampler.batch(jax.tree.map(lambda a: a[0], xs), 10**9)

    check(run, _KEY, name=name, most=_WIDTH * most)


def _noise(transform):
    def run(x, words):
        key = jax.random.wrap_key_data(words)
        return transform.update(x, transform.init(x), key=key)[0]

    return run


def _vertices(logits, words):
    return sample_vertices(jax.random.wrap_key_data(words), logits, 4096)


def _ball(logits, words):
    return L1Ball(10**8).sample(jax.random.wrap_key_data(words), logits, 4096)


DRAWS = {
    "normal": (_noise(transforms.add_gaussian(1.0)), 10**9),
    "Laplace": (_noise(transforms.add_laplace(1.0)), 10**9),
    "vertices": (_vertices, 10**8),
    "vertices of a ball": (_ball, 10**8),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_make_nothing_longer_than_their_argument(name):
    run, size = DRAWS[name]
    check(run, _floats(size), _KEY, name=name, most=8 * size if "ball" in name else 4 * size)


def planned(run, *args):
    """Temporaries over arguments, and bytes moved over those of arguments and results.

    As the compiler plans them for CPU; of a loop it counts one turn.
    """
    compiled = jax.jit(run).lower(*args).compile()
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost  # older jax: one a computation
    given = memory.argument_size_in_bytes
    moved = cost["bytes accessed"] / (given + memory.output_size_in_bytes)
    return memory.temp_size_in_bytes / given, moved


# most of both
PLANNED = {
    "normal": (2**20, 0.001, 1.1),
    "Laplace": (2**20, 0.001, 1.1),
    "vertices": (2**20, 0.6, 9.0),
    "dpsgd": ({"n": 2**18, "m": 256, "p": 16, "c": 2, "T": 10}, 0.01, 1.2),
    "dpftrl": ({"n": 64, "p": 2**16, "c": 2, "T": 16}, 0.55, 4.0),
    "frank_wolfe": ({"n": 64, "p": 2**16, "T": 10}, 0.4, 2.5),
}


@pytest.mark.parametrize("name", slow_but((*DRAWS, "frank_wolfe"), PLANNED))
def test_memory_and_traffic(name, monkeypatch):
    size, temporaries, moved = PLANNED[name]
    if name in DRAWS:
        found = planned(DRAWS[name][0], _floats(size), _KEY)
    else:
        found = planned(_run, *_abstract(monkeypatch, name, size), _KEY)
    assert found[0] < temporaries
    assert found[1] < moved


def test_more_memory_and_traffic_are_seen():
    def all_at_once(logits, words):
        key = jax.random.wrap_key_data(words)
        return jnp.sort(logits[None] + jax.random.gumbel(key, (4096, logits.size)), axis=1)[:, -1]

    _, temporaries, moved = PLANNED["vertices"]
    found = planned(all_at_once, _floats(2**10), _KEY)
    assert found[0] > temporaries
    assert found[1] > moved

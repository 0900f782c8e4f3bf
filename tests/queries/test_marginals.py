import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.datasets import adult_reduced
from dpjax.queries import Domain, Marginals
from dpjax.queries import _marginal_plan as plans

NAMES = "abcdefgh"


def over(shape, cliques):
    """Marginals over attributes a, b, ...; cliques as words, or how many attributes each has."""
    domain = Domain(dict(zip(NAMES, shape, strict=False)))
    if isinstance(cliques, int):
        return Marginals.all_kway(domain, cliques)
    return Marginals(domain, [tuple(word) for word in cliques.split()])


CASES = {
    "pairs": ((2, 3, 4), 2),
    "one attribute": ((5,), 1),
    "size one": ((1, 3, 1), "a b ab c cba"),
    "one cell": ((1, 1), "a ab"),
    "all, nested and permuted": ((2, 3, 4), "ca a ba cb bca"),
    "triples": ((3, 2, 2, 2, 3), 3),
    "few of many": ((2, 3, 2, 2, 2, 3), "adf be cdef f"),
}


@pytest.fixture(scope="module", params=list(CASES))
def case(request):
    workload = over(*CASES[request.param])
    return workload, dense(workload)


@pytest.fixture(scope="module")
def adult():
    codes, domain = adult_reduced()
    return codes, Marginals.all_kway(domain, 3)


def dense(workload):
    """The matrix [m, k], cell by cell."""
    domain = workload.domain
    rows = []
    for clique in workload.cliques:
        axes = [domain.attributes.index(name) for name in clique]
        for wanted in itertools.product(*(range(domain.shape[a]) for a in axes)):
            cells = itertools.product(*map(range, domain.shape))
            rows.append([[cell[a] for a in axes] == list(wanted) for cell in cells])
    return np.array(rows, float)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("masked", [False, True])
def test_tables_are_counted_elsewhere(case, masked, rng):
    workload = case[0]
    codes = rng.integers(0, workload.domain.shape, (3000, len(workload.domain.shape)))
    mask = rng.uniform(size=3000) < 0.5 if masked else np.ones(3000, bool)
    counts = jax.jit(workload.counts)(jnp.asarray(codes, jnp.int32), jnp.asarray(mask))
    flat = np.ravel_multi_index(codes[mask].T, workload.domain.shape)
    cells = np.bincount(flat, minlength=workload.universe_size)
    np.testing.assert_array_equal(counts, case[1] @ cells)
    assert counts.dtype == np.int32


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)


def test_implicit_is_dense(case, rng):
    workload, matrix = case
    m, k = matrix.shape
    assert (workload.num_queries, workload.universe_size) == (m, k)
    p = rng.dirichlet(np.ones(k)).astype(np.float32)
    v = rng.normal(size=m).astype(np.float32)

    @jax.jit
    def implicit(p, v, records):
        rows = jax.vmap(workload.row)(jnp.arange(m))
        of_records = jax.vmap(workload.answer_of_record)(records)
        return workload.answers(p), workload.adjoint(v), rows, of_records

    every = np.array(list(itertools.product(*map(range, workload.domain.shape))))
    answers, adjoint, rows, of_records = implicit(p, v, every)
    close(answers, matrix @ p)
    close(adjoint, matrix.T @ v)
    assert rows.dtype == jnp.zeros(0).dtype
    np.testing.assert_array_equal(rows, matrix)
    np.testing.assert_array_equal(of_records, matrix.T)
    np.testing.assert_array_equal(
        workload.centre + np.zeros(m), (matrix.max(axis=1) + matrix.min(axis=1)) / 2
    )


def test_blocks_of_the_answers(case):
    workload, matrix = case
    numbers = np.arange(len(matrix))
    parts = []
    names = [name for clique in workload.cliques for name in (clique, clique[::-1])]
    tables = jax.jit(lambda every: [workload.table(every, n) for n in names])(numbers)
    for i, clique in enumerate(workload.cliques):
        shape = workload.domain.project(clique).shape
        assert workload.sizes[i] == math.prod(shape)
        table, turned = (np.asarray(t) for t in tables[2 * i : 2 * i + 2])
        assert table.shape == shape
        np.testing.assert_array_equal(turned, table.T)
        assert table.ravel()[0] == workload.offsets[i]
        parts.append(table.ravel())
        assert set(workload.clique_of[parts[-1]]) == {i}
    np.testing.assert_array_equal(np.concatenate(parts), numbers)


def changes(matrix, relation):
    """All changes of the sum over records between neighbours."""
    columns = matrix.T
    if relation == "replace_one":
        columns = np.unique(columns, axis=0)
        return (columns[None] - columns[:, None]).reshape(-1, len(matrix))
    return np.concatenate([columns, -columns])


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove_one", "replace_special"])
def test_sensitivities_are_those_of_all_neighbours(case, relation):
    workload, matrix = case
    got = workload.sensitivity(relation)
    moves = changes(matrix, relation)
    centred = changes(matrix - np.reshape(workload.centre, (-1, 1)), relation)
    close(got.value_range, (matrix.max(axis=1) - matrix.min(axis=1)).max())
    close(got.score_range, 2 * abs(centred).max())  # scores of q and of -q
    close(got.l2_answers, np.linalg.norm(moves, axis=1).max())
    close(got.linf, abs(moves).max())
    close(
        got.l2_histogram,
        np.linalg.norm(changes(np.eye(matrix.shape[1]), relation), axis=1).max(),
    )
    assert all(isinstance(value, float) for value in got)


def test_every_grouping_of_the_attributes_gives_the_same(monkeypatch, rng):
    workload = over((2, 3, 2, 2), "abc ac bd bcd")
    matrix = dense(workload)
    p = rng.normal(size=matrix.shape[1]).astype(np.float32)
    v = rng.normal(size=matrix.shape[0]).astype(np.float32)
    monkeypatch.setattr(plans, "_FREE", 0)
    monkeypatch.setattr(plans, "_SURPLUS", 1)
    for ends in ((4,), (1, 4), (2, 4), (3, 4), (1, 2, 4), (1, 2, 3, 4)):
        groups = [tuple(range(a, b)) for a, b in itertools.pairwise((0, *ends))]
        monkeypatch.setattr(plans, "_groups", lambda shape, groups=groups: groups)
        answers, adjoint = plans.passes.__wrapped__(workload.domain.shape, workload._axes)
        close(answers(p), matrix @ p)
        close(adjoint(v), matrix.T @ v)


@pytest.mark.parametrize("shape", [(4, 4, 4, 4, 4), (2000, 3), (100, 90, 2, 2, 2), (2,) * 24])
def test_groups_are_few_and_small(shape):
    """A group of g cells is contracted by a matrix of g rows."""
    groups = plans._groups(shape)
    assert sum(groups, ()) == tuple(range(len(shape)))
    assert len(groups) <= 5
    assert max(plans.cells(shape, group) for group in groups) <= max(1024, *shape)


@pytest.mark.parametrize("shape", [(16, 7, 15, 5, 2, 2, 10), (2,) * 24])
def test_plans_share_their_sums(shape):
    """What makes a pass cheap, whatever the machine: cells read, operations, room for tables."""
    domain = Domain({f"a{i}": size for i, size in enumerate(shape)})
    answers, k = Marginals.all_kway(domain, 3).answers, domain.universe_size
    (outer,) = jax.make_jaxpr(answers)(jax.ShapeDtypeStruct((k,), jnp.float32)).eqns
    found = {"reduce_sum": [], "dot_general": [], "optimization_barrier": []}
    for equation in outer.params["jaxpr"].eqns:
        found.get(equation.primitive.name, []).append([a.aval.size for a in equation.invars])
    sums, products, tables = found.values()
    assert sum(map(sum, sums + products)) < 6 * k
    assert sum(map(sum, tables)) < 0.6 * k
    assert len(sums) + len(products) + len(tables) < 140


def test_dot_products_agree_on_adult(adult, rng):
    _, workload = adult
    p = rng.dirichlet(np.ones(336000)).astype(np.float32)
    v = rng.normal(1.0, size=14955).astype(np.float32)
    here = np.asarray(workload.answers(p), np.float64) @ v
    there = np.asarray(workload.adjoint(v), np.float64) @ p
    assert here == pytest.approx(there, rel=1e-4)
    assert abs(here) > 30


@pytest.mark.slow
def test_adult(adult):
    codes, workload = adult
    assert workload.num_queries == 14955
    assert len(workload.cliques) == 35
    assert (min(workload.sizes), max(workload.sizes)) == (20, 2400)
    counts = workload.histogram(codes)
    assert counts.dtype == jnp.int32
    filled = np.asarray(counts)[np.asarray(counts) > 0]
    assert len(filled) == 9309
    share = filled / len(codes)
    assert -(share * np.log(share)).sum() == pytest.approx(7.88224, abs=1e-5)
    exact = workload.answers(counts)
    assert exact.dtype == jnp.int32
    for clique in (("education", "occupation", "age"), ("race", "sex", "income>50K")):
        axes = workload.domain.axes(clique)
        shape = [workload.domain.shape[a] for a in axes]
        want = np.bincount(
            np.ravel_multi_index(codes[:, axes].T, shape), minlength=math.prod(shape)
        )
        np.testing.assert_array_equal(workload.table(exact, clique).ravel(), want)
    mean = workload.answers_of_records(codes)
    np.testing.assert_allclose(mean, np.asarray(exact) / len(codes), rtol=1e-6)
    uniform = np.concatenate([np.full(size, 1 / size) for size in workload.sizes])
    assert abs(mean - uniform).max() == pytest.approx(0.354188, abs=1e-6)


def test_answers_of_records_are_their_mean(rng):
    workload = over((2, 3, 4), 2)
    records = np.stack([rng.integers(n, size=11) for n in (2, 3, 4)], axis=1)
    want = np.mean([workload.answer_of_record(record) for record in records], axis=0)
    close(workload.answers_of_records(records), want)
    close(jax.jit(workload.answers_of_records)(records), want)
    assert workload.histogram(np.zeros((0, 3), int)).tolist() == [0] * 24


def test_traced_codes_out_of_range_stay_one_record():
    workload = over((2, 3, 4), 2)
    records = jnp.array([[0, 0, 0], [9, 1, -1], [1, 5, 3]])
    got = jax.jit(workload.histogram)(records)
    np.testing.assert_array_equal(got, workload.histogram([[0, 0, 0], [1, 1, 0], [1, 2, 3]]))
    record = jax.jit(workload.answer_of_record)(records[1])
    np.testing.assert_array_equal(record, workload.answer_of_record([1, 1, 0]))


def test_integers_are_exact_and_keep_their_type(rng):
    workload = over((3, 2, 4, 2, 5), 3)
    counts = rng.integers(0, 2**22, size=240).astype(np.int32)
    got = workload.answers(counts)
    assert got.dtype == jnp.int32
    np.testing.assert_array_equal(got, (dense(workload) @ counts).astype(np.int32))
    weights = rng.integers(-(2**20), 2**20, size=workload.num_queries).astype(np.int32)
    cells = workload.adjoint(weights)
    assert cells.dtype == jnp.int32
    np.testing.assert_array_equal(cells, (dense(workload).T @ weights).astype(np.int32))
    assert workload.answers(counts.astype(np.int8)).dtype == jnp.int32
    assert workload.answers(np.ones(240, jnp.bfloat16)).dtype == jnp.float32


def test_double_precision(x64, rng):
    workload = over((2, 3, 4), 2)
    matrix = dense(workload)
    p, v = rng.normal(size=24), rng.normal(size=len(matrix))
    answers, cells = workload.answers(p), workload.adjoint(v)
    assert answers.dtype == cells.dtype == jnp.float64
    np.testing.assert_allclose(answers, matrix @ p, rtol=0, atol=1e-13)
    np.testing.assert_allclose(cells, matrix.T @ v, rtol=0, atol=1e-13)


def test_vmap_is_a_loop(rng):
    workload = over((3, 2, 4, 2, 5), 3)
    p = rng.normal(size=(3, 240)).astype(np.float32)
    v = rng.normal(size=(3, workload.num_queries)).astype(np.float32)
    close(jax.vmap(workload.answers)(p), np.stack([workload.answers(row) for row in p]))
    close(jax.vmap(workload.adjoint)(v), np.stack([workload.adjoint(row) for row in v]))


def test_inside_a_compiled_loop_as_an_argument(rng):
    workload = over((2, 3, 4), 2)
    matrix = dense(workload)
    target = matrix @ rng.dirichlet(np.ones(24))

    @jax.jit
    def run(workload, logits):
        def step(_, logits):
            error = target - workload.answers(jax.nn.softmax(logits))
            j = jnp.argmax(jnp.abs(error))
            row = jnp.sign(error[j]) * workload.row(j)
            return logits + 0.3 * row + 0.1 * workload.adjoint(error)

        return jax.lax.fori_loop(0, 5, step, logits)

    want = np.zeros(24)
    for _ in range(5):
        error = target - matrix @ (np.exp(want) / np.exp(want).sum())
        j = np.argmax(abs(error))
        want = want + 0.3 * np.sign(error[j]) * matrix[j] + 0.1 * matrix.T @ error
    np.testing.assert_allclose(run(workload, jnp.zeros(24)), want, atol=1e-5)
    assert abs(want).max() > 0.3


ABC = Domain({"a": 2, "b": 3, "c": 4})
BAD = {
    "no cliques": ([], ValueError, "cliques must be >= 1 of them, got none"),
    "empty clique": ([("a",), ()], ValueError, "must have >= 1 attribute, got an empty one"),
    "same set": ([("a", "b"), ("b", "a")], ValueError, r"must be distinct, got \('a', 'b'\) twice"),
    "twice in one": ([("a", "a")], ValueError, "distinct, got 'a' twice"),
    "unknown": ([("a", "z")], ValueError, r"one of \['a', 'b', 'c'\], got 'z'"),
    "number": ([(0, 1)], ValueError, "got 0"),
    "text": (["ab"], TypeError, "several names, got 'ab'"),
    "one text": ("abc", TypeError, "cliques must be a sequence of cliques, got 'abc'"),
}


@pytest.mark.parametrize(("cliques", "error", "message"), BAD.values(), ids=list(BAD))
def test_bad_cliques(cliques, error, message):
    with pytest.raises(error, match=message):
        Marginals(ABC, cliques)


def test_bad_arguments():
    workload = Marginals.all_kway(ABC, 2)
    with pytest.raises(ValueError, match="k must be <= 3 attributes, got 4"):
        Marginals.all_kway(ABC, 4)
    with pytest.raises(ValueError, match="k must be >= 1, got 0"):
        Marginals.all_kway(ABC, 0)
    with pytest.raises(TypeError, match="domain must be a Domain, got dict"):
        Marginals({"a": 2}, [("a",)])
    wide = Domain({f"a{i}": 2 for i in range(40)})
    with pytest.raises(ValueError, match=r"got 1099511627776 \(2\*\*40.0\).*drop attributes"):
        Marginals.all_kway(wide, 1).adjoint(np.ones(80))
    several = Domain({"a": 2**15, "b": 2**15})
    with pytest.raises(ValueError, match=r"< 2\*\*31 queries, got"):
        Marginals(Domain({"a": 2**15, "b": 2**15, "c": 1}), [("a", "b"), ("a", "b", "c")])
    assert Marginals.all_kway(several, 1).num_queries == 2**16
    with pytest.raises(ValueError, match=r"p must have shape \[24\], got \[23\]"):
        workload.answers(np.ones(23))
    with pytest.raises(TypeError, match="p must be real numbers, got complex"):
        workload.answers(np.ones(24, complex))
    with pytest.raises(ValueError, match=r"v must have shape \[26\], got \[24\]"):
        workload.adjoint(np.ones(24))
    with pytest.raises(ValueError, match=r"j must lie in \[0, 26\): "):
        workload.row(26)
    with pytest.raises(TypeError, match="j must be of an integer type"):
        workload.row(0.5)
    with pytest.raises(ValueError, match=r"clique must be one of .*\('a', 'b'\).* got \('a',\)"):
        workload.table(np.ones(26), ("a",))
    with pytest.raises(ValueError, match="got 'z'"):
        workload.table(np.ones(26), ("a", "z"))
    with pytest.raises(ValueError, match=r"answers must have shape \[26\]"):
        workload.table(np.ones(24), ("a", "b"))
    with pytest.raises(ValueError, match="relation must be one of"):
        workload.sensitivity("swap")


def test_bad_records():
    workload = Marginals.all_kway(ABC, 2)
    with pytest.raises(ValueError, match=r"records must be n >= 1 of them, got shape \[0, 3\]"):
        workload.answers_of_records(np.zeros((0, 3), int))
    with pytest.raises(ValueError, match=r"codes of 'b' must lie in \[0, 3\): 1 of "):
        workload.answers_of_records([[0, 3, 0]])
    with pytest.raises(ValueError, match=r"codes of 'a' must lie in \[0, 2\): 1 of "):
        workload.answer_of_record([-1, 0, 0])
    with pytest.raises(ValueError, match=r"records must have shape \[\?, 3\]|one column for each"):
        workload.histogram([[0, 1]])
    with pytest.raises(ValueError, match=r"records must have shape \[\?, 3\], got \[3\]"):
        workload.histogram([0, 1, 1])
    with pytest.raises(TypeError, match="codes must be of an integer type, got float"):
        workload.histogram([[0.0, np.nan, 1.0]])

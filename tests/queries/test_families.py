"""Families of queries against their matrices, written out by their definitions."""

import dataclasses
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse

from dpjax import queries
from dpjax.privacy import resolve_relation
from dpjax.queries import Concat, Dense, Domain, Halfspace, Marginals, Prefix, Sparse, _matrix

DOMAIN = Domain({"a": 2, "b": 3, "c": 2})
CODES = np.array(list(np.ndindex(2, 3, 2)))
FINE = 2.0**18  # fractions that are held as they are
REAL = (np.round(np.random.default_rng(1).normal(size=(4, 12)) * FINE) / FINE).astype(np.float32)
WHOLE = np.array([[1, 0, -2, 0, 3, 1], [0, 0, 1, 1, 1, 0]])
POINTS = np.array([[0, 0], [1, 0], [0, 1], [1, 1], [1, 1], [2, 0.5], [0.3, 0.7]])
NORMALS = np.array([[1, 0], [1, 1], [0.2, -1.5]])
ROWS, COLUMNS, VALUES = [0, 2, 2, 0, 1, 2], [1, 5, 0, 1, 3, 2], [0.5, -1.0, 2.0, 0.75, 4.0, 0.0]


@dataclasses.dataclass
class Family:
    make: Callable[[], Any]
    matrix: Callable[[], np.ndarray]
    whole: bool = False  # counts stay whole
    exact: bool = True  # so is every sensitivity


def prefixes(codes, size):
    return np.array([[code <= j for code in codes] for j in range(size - 1)], float)


def halfspaces(points, normals):
    rows = []
    for normal in normals:
        along = np.array([math.fsum(x * w for x, w in zip(p, normal, strict=True)) for p in points])
        rows += [along <= threshold for threshold in np.unique(along)[:-1]]
    return np.array(rows, float)


def coordinates(m, k):
    matrix = np.zeros((m, k))
    for row, column, value in zip(ROWS, COLUMNS, VALUES, strict=True):
        matrix[row, column] += value
    return matrix


def marginals():
    pairs = [(0, 1), (1, 2)]
    rows = [
        (CODES[:, a] == i) & (CODES[:, b] == j)
        for a, b in pairs
        for i in range(DOMAIN.shape[a])
        for j in range(DOMAIN.shape[b])
    ]
    return np.array(rows, float)


def a_sparse():
    return Sparse(ROWS, COLUMNS, VALUES, num_queries=4, universe_size=6)


FAMILIES = {
    "line": Family(lambda: Prefix(5), lambda: prefixes(range(5), 5), whole=True),
    "attribute": Family(lambda: Prefix(DOMAIN, "b"), lambda: prefixes(CODES[:, 1], 3), whole=True),
    "halfspaces": Family(
        lambda: Halfspace(POINTS, NORMALS), lambda: halfspaces(POINTS, NORMALS), whole=True
    ),
    "dense": Family(lambda: Dense(REAL), lambda: REAL.astype(float)),
    "integers": Family(lambda: Dense(WHOLE), lambda: WHOLE.astype(float), whole=True),
    "sparse": Family(a_sparse, lambda: coordinates(4, 6)),
    "over a domain": Family(
        lambda: Concat(
            [Marginals(DOMAIN, [("a", "b"), ("b", "c")]), Dense(REAL), Prefix(DOMAIN, "b")]
        ),
        lambda: np.concatenate([marginals(), REAL, prefixes(CODES[:, 1], 3)]),
        exact=False,
    ),
    "over cells": Family(
        lambda: Concat([Prefix(6), Concat([Dense(WHOLE), a_sparse()])]),
        lambda: np.concatenate([prefixes(range(6), 6), WHOLE, coordinates(4, 6)]),
        exact=False,
    ),
}
MADE = {}


def family(name):
    """A family, its matrix, and its records in the order of the cells."""
    if name not in MADE:
        workload = FAMILIES[name].make()
        over_domain = workload.domain is not None
        records = CODES if over_domain else np.arange(workload.universe_size)
        MADE[name] = workload, FAMILIES[name].matrix(), records.astype(np.int32)
    return MADE[name]


@jax.jit
def everything(workload, p, v, drawn, records):
    """All methods; queries and records one by one under vmap."""
    return {
        "answers": jax.vmap(workload.answers)(p),
        "adjoint": jax.vmap(workload.adjoint)(v),
        "transposed": jax.linear_transpose(workload.answers, p[0])(v[0])[0],
        "rows": jax.vmap(workload.row)(jnp.arange(workload.num_queries)),
        "columns": jax.vmap(workload.answer_of_record)(records),
        "mean": workload.answers_of_records(drawn),
        "counts": workload.answers(workload.histogram(drawn)),
        "centre": workload.centre,
    }


@pytest.mark.parametrize("name", FAMILIES)
def test_methods_are_those_of_the_matrix(name, rng):
    workload, matrix, records = family(name)
    m, k = matrix.shape
    assert (workload.num_queries, workload.universe_size) == (m, k)
    p, v = rng.normal(size=(3, k)), rng.normal(size=(2, m))
    p, v = p.astype(jnp.zeros(()).dtype), v.astype(jnp.zeros(()).dtype)
    drawn = rng.integers(0, k, size=40)
    got = everything(workload, p, v, records[drawn], records)
    histogram = np.bincount(drawn, minlength=k)
    close = dict(rtol=2e-6, atol=2e-5)
    np.testing.assert_allclose(got["answers"], p @ matrix.T, **close)
    np.testing.assert_allclose(got["adjoint"], v @ matrix, **close)
    np.testing.assert_allclose(got["transposed"], v[0] @ matrix, **close)
    np.testing.assert_allclose(got["rows"], matrix, rtol=1e-6)
    np.testing.assert_allclose(got["columns"], matrix.T, rtol=1e-6)
    np.testing.assert_allclose(got["mean"], matrix @ histogram / 40, **close)
    np.testing.assert_allclose(got["counts"], matrix @ histogram, **close)
    assert jnp.issubdtype(got["counts"].dtype, jnp.integer) == FAMILIES[name].whole
    middle = (matrix.max(axis=1) + matrix.min(axis=1)) / 2
    np.testing.assert_allclose(np.broadcast_to(got["centre"], m), middle, rtol=1e-6, atol=1e-7)
    # one at a time, with known indices
    for j in (0, m - 1):
        np.testing.assert_allclose(workload.row(j), matrix[j], rtol=1e-6)
    np.testing.assert_array_equal(workload.answer_of_record(records[k - 1]), got["columns"][-1])


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove_one", "replace_special"])
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.always  # the claim
def test_sensitivities_over_all_neighbours(name, relation):
    workload, matrix, _ = family(name)
    claimed = workload.sensitivity(relation)
    assert claimed == workload.sensitivity(resolve_relation(relation))
    assert all(type(value) is float for value in claimed)
    k = matrix.shape[1]
    if relation == "replace_one":
        moved = (matrix[:, :, None] - matrix[:, None, :]).reshape(-1, k * k)
        counts = (np.eye(k)[:, :, None] - np.eye(k)[:, None, :]).reshape(-1, k * k)
        scored = moved
    else:
        moved, counts = matrix, np.eye(k)
        scored = matrix - np.broadcast_to(workload.centre, len(matrix))[:, None]
    symmetric = np.concatenate([scored, -scored])
    np.testing.assert_allclose(
        [claimed.value_range, claimed.score_range, claimed.l2_histogram, claimed.linf],
        [
            np.ptp(matrix, axis=1).max(),
            np.ptp(symmetric, axis=0).max(),
            np.linalg.norm(counts, axis=0).max(),
            np.abs(moved).max(),
        ],
        rtol=1e-6,
    )
    exact = np.linalg.norm(moved, axis=0).max()
    assert exact * (1 - 1e-15) <= claimed.l2_answers
    assert claimed.l2_answers < exact * (1 + 1e-9 if FAMILIES[name].exact else 1.5)


# Halfspaces.


@pytest.mark.slow
def test_equal_points_are_never_told_apart(rng):
    """Their projections are equal in every bit, wherever they stand among the points."""
    points = rng.normal(size=(30, 5))
    twice = np.concatenate([points, points[::-1], points[:7]])
    normals = rng.normal(size=(6, 5))
    halfspace = Halfspace(twice, normals)
    assert halfspace.num_queries == 6 * 29
    rows = np.asarray(jax.vmap(halfspace.row)(jnp.arange(halfspace.num_queries)))
    np.testing.assert_array_equal(rows[:, :30], rows[:, 30:60][:, ::-1])
    np.testing.assert_array_equal(rows[:, :7], rows[:, 60:])
    for own in rows.reshape(6, 29, -1):
        assert len(np.unique(own, axis=0)) == 29
    assert Halfspace(twice, np.concatenate([normals, 0 * normals])).num_queries == 6 * 29


@pytest.mark.parametrize("directions", [10, 11])
def test_many_directions_are_bounded(directions, rng):
    points, normals = rng.normal(size=(40, 3)), rng.normal(size=(directions, 3))
    matrix = halfspaces(points, normals)
    exact = max(np.linalg.norm(matrix - matrix[:, [z]], axis=0).max() for z in range(40))
    claimed = Halfspace(points, normals).sensitivity("replace_one").l2_answers
    assert exact * (1 - 1e-12) <= claimed <= exact * (1 + 1e-12 if directions == 10 else 1.3)


# Matrices.


@pytest.mark.parametrize("kind", ["dense", "sparse", "nonnegative"])
def test_many_cells_are_bounded_block_by_block(kind, rng, monkeypatch):
    matrix = rng.normal(size=(5, 50)) * (rng.random((5, 50)) < (1 if kind == "dense" else 0.2))
    matrix = np.abs(matrix) if kind == "nonnegative" else matrix
    matrix = np.round(matrix * FINE) / FINE
    make = Dense if kind == "dense" else Sparse.from_matrix
    whole = make(matrix).sensitivity("replace_one").l2_answers
    held = matrix.astype(jnp.zeros(()).dtype).astype(float)
    exact = max(np.linalg.norm(held - held[:, [z]], axis=0).max() for z in range(50))
    assert whole == pytest.approx(exact, rel=1e-12)
    assert whole >= exact
    monkeypatch.setattr(_matrix, "_BLOCK", 7)
    assert make(matrix).sensitivity("replace_one").l2_answers == pytest.approx(whole, rel=1e-12)
    monkeypatch.setattr(_matrix, "_EXACT_WORK", 0)
    bound = make(matrix).sensitivity("replace_one").l2_answers
    assert exact <= bound < 1.4 * exact


def test_equal_columns_are_no_distance_apart():
    once = np.array([[0.1], [1e6], [-3.0]])
    dense = Dense(np.repeat(once, 3, axis=1))
    assert dense.sensitivity("replace_one")[:3] == (0.0, 0.0, 0.0)
    assert dense.sensitivity("add_or_remove_one").linf == pytest.approx(1e6)


@pytest.mark.parametrize("number", [1_000, 3_999_999, 2**24 - 1])
@pytest.mark.parametrize("name", ["dense", "sparse", "over a domain", "over cells"])
def test_sums_of_fractions_are_not_rounded_by_what_a_record_adds(name, number, rng):
    """Against exact fractions; in floats one record more adds up to a whole record's error."""
    workload, matrix, _ = family(name)
    if number >= 2**24 - 1:
        scales = 10.0 ** np.arange(-12, 12, 24 / len(matrix))[:, None]
        matrix = rng.normal(size=matrix.shape) * scales
        workload = Dense(matrix) if name == "dense" else Sparse.from_matrix(matrix)
        rows = jax.vmap(workload.row)(jnp.arange(len(matrix)))
        matrix = np.asarray(rows, float)
    counts = rng.multinomial(number, rng.dirichlet(np.ones(workload.universe_size)))
    found = jax.jit(lambda counts: workload.sums(counts, number))(jnp.asarray(counts, jnp.int32))
    for high, low, row in zip(found.high, found.low, matrix, strict=True):
        exact = sum(Fraction(float(q)) * int(c) for q, c in zip(row, counts, strict=True))
        error = abs(Fraction(float(high)) + Fraction(float(low)) - exact)
        assert error <= 2.0**-20 * np.abs(row).max()


def test_large_integers_are_held_as_floats():
    for matrix in ([[128, 0]], np.array([[2**40, 0]]), np.array([[200, 1]], np.uint8)):
        assert jnp.issubdtype(Dense(matrix).matrix.dtype, jnp.floating)
    for matrix in ([[127, -127]], [[True, False]], np.array([[3, 1]], np.uint8)):
        assert Dense(matrix).matrix.dtype == jnp.int32
    assert Sparse([0, 0], [1, 1], [100, 100], 1, 2).values.dtype != jnp.int32


def test_workloads_are_batched_data(rng):
    """Matrices under vmap; a rebuilt one is not checked again."""
    stack = jnp.asarray(rng.normal(size=(3, 2, 4)))
    batched = jax.vmap(Dense)(stack)
    p = jnp.ones(4)
    got = jax.vmap(lambda workload: workload.answers(p))(batched)
    np.testing.assert_allclose(got, stack.sum(axis=2), rtol=1e-5, atol=1e-6)
    for name in FAMILIES:
        workload = family(name)[0]
        leaves, treedef = jax.tree.flatten(workload)
        again = treedef.unflatten([object() for _ in leaves])
        assert type(again) is type(workload)
        assert jax.tree.structure(treedef.unflatten(leaves)) == treedef
    with pytest.raises(ValueError, match="matrix must be known"):
        jax.jit(lambda matrix: Dense(matrix).sensitivity("replace_one").linf)(stack[0])


def test_the_base_of_all_families_has_its_old_name():
    with pytest.warns(DeprecationWarning, match="CellRecords is dpjax.queries.Workload"):
        assert queries.CellRecords is queries.Workload
    assert all(isinstance(family(name)[0], queries.Workload) for name in FAMILIES)
    with pytest.raises(AttributeError, match="has no attribute 'Cells'"):
        _ = queries.Cells


def test_codes_of_any_unsigned_type_are_exact():
    """Cells above 2^24, at which float32 skips whole numbers."""
    domain = Domain({"a": 2**13, "b": 2**12})
    cells = np.array([2**25 - 1, 2**24 + 1], np.uint64)
    assert domain.cells(domain.codes(cells)).tolist() == cells.tolist()
    with pytest.raises(ValueError, match="1 of 1 are outside"):
        domain.codes(np.array([2**64 - 1], np.uint64))


# Input that is no workload, or no record.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Prefix(1), "universe must be >= 2, got 1"),
        (lambda: Prefix(4, "b"), "attribute must be None"),
        (lambda: Prefix(DOMAIN), "attribute must be one of"),
        (lambda: Prefix(DOMAIN, "d"), "got 'd'"),
        (lambda: Prefix(Domain({"a": 1})), "size of 'a' must be >= 2, got 1"),
        (lambda: Dense([1.0]), r"matrix must have shape \[\?, \?\]"),
        (lambda: Dense(np.zeros((0, 3))), r"got shape \[0, 3\]"),
        (lambda: Dense([[1.0, np.nan]]), "matrix must be finite, got nan"),
        (lambda: Dense([[np.inf]]), "matrix must be finite, got inf"),
        (lambda: Sparse([0], [0, 1], [1.0], 2, 2), r"columns must have shape \[1\], got \[2\]"),
        (lambda: Sparse([2], [0], [1.0], 2, 2), r"rows must lie in \[0, 2\): 1 of "),
        (lambda: Sparse([0], [-1], [1.0], 2, 2), r"columns must lie in \[0, 2\): 1 of "),
        (lambda: Sparse([0], [0], [np.nan], 2, 2), "values must be finite, got nan"),
        (lambda: Sparse([], [], [], 0, 2), "num_queries must be >= 1, got 0"),
        (lambda: Halfspace([[0.0, 1.0]], [[1.0]]), r"directions must have shape \[\?, 2\]"),
        (lambda: Halfspace([[0.0], [np.nan]], [[1.0]]), "points must be finite, got nan"),
        (lambda: Halfspace([[0.0], [1.0]], [[np.inf]]), "directions must be finite"),
        (lambda: Halfspace([[1.0], [1.0]], [[1.0]]), "none of 2 points on 1 direction"),
        (lambda: Halfspace(np.zeros((0, 1)), [[1.0]]), "none of 0 points"),
        (lambda: Halfspace([[1e200], [0.0]], [[1e200]]), "projections must be finite"),
        (lambda: Concat([]), "workloads must be >= 1"),
        (lambda: Concat([Prefix(3), Prefix(4)]), r"one universe, got \[3, 4\] cells"),
        (
            lambda: Concat([Prefix(DOMAIN, "b"), Prefix(Domain({"b": 12}))]),
            "must be over one domain",
        ),
    ],
)
def test_bad_families_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Prefix(2.0),
        lambda: Prefix(True),
        lambda: Dense([["a"]]),
        lambda: Dense([[1j]]),
        lambda: Sparse([0.0], [0], [1.0], 1, 1),
        lambda: Sparse([0], [0], [1.0], 1.5, 1),
        lambda: Halfspace([["a"]], [[1.0]]),
        lambda: Concat([np.eye(2)]),
    ],
)
def test_bad_kinds_are_refused(make):
    with pytest.raises(TypeError):
        make()


@pytest.mark.parametrize("name", FAMILIES)
def test_bad_records_queries_and_vectors_are_refused(name):
    workload, matrix, records = family(name)
    m, k = matrix.shape
    outside = records + records.max(axis=0) + 1
    for call, error in (
        (lambda: workload.histogram(outside), ValueError),
        (lambda: workload.histogram(-1 - records), ValueError),
        (lambda: workload.histogram(records.astype(float)), TypeError),
        (lambda: workload.histogram(records[..., None]), ValueError),
        (lambda: workload.answers_of_records(records[:0]), ValueError),
        (lambda: workload.answer_of_record(records), ValueError),
        (lambda: workload.answer_of_record(outside[0]), ValueError),
        (lambda: workload.row(m), ValueError),
        (lambda: workload.row(-1), ValueError),
        (lambda: workload.row(0.0), TypeError),
        (lambda: workload.answers(np.ones(k + 1)), ValueError),
        (lambda: workload.answers(np.ones((k, 1))), ValueError),
        (lambda: workload.adjoint(np.ones(m - 1)), ValueError),
        (lambda: workload.sensitivity("neighbours"), ValueError),
    ):
        with pytest.raises(error):
            call()
    assert not np.asarray(workload.histogram(records[:0])).any()


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("offset", [0.0, 1e6, 1.6e9, -1e12])
@pytest.mark.parametrize("exact", [True, False])
def test_distances_of_columns_do_not_cancel(kind, offset, exact, monkeypatch, rng):
    """A row may be a large number and small differences, as times are."""
    if not exact:
        monkeypatch.setattr(_matrix, "_EXACT_WORK", 0)
    matrix = rng.integers(0, 5, (3, 7)) + np.array([[offset], [0.0], [offset]])
    held = sparse.csc_array(matrix) if kind == "sparse" else matrix
    found = _matrix.column_constants(held)
    apart = max(np.linalg.norm(a - b) for a in matrix.T for b in matrix.T)
    assert apart <= found["l2_replaced"] <= (1 + 1e-9) * apart * (1 if exact else 2)
    alone = _matrix.column_constants(np.array([[offset, offset + 0.5]]))
    assert alone["l2_replaced"] == pytest.approx(0.5, rel=1e-9)

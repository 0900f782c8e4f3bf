"""Fits of mixtures of products to noisy marginals."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.api._release import choose
from dpjax.privacy import Budget
from dpjax.problems import QueryRelease
from dpjax.queries import Domain, Marginals, RowModel
from dpjax.sampling import FullBatch
from dpjax.solvers import GaussianFit, RowsFit
from dpjax.solvers.queries._gaussian_fit import GaussianFitState

DOMAIN = Domain({"a": 3, "b": 4, "c": 2})
PAIRS = Marginals.all_kway(DOMAIN, 2)
PROBLEM = QueryRelease(PAIRS, max_bytes=None)
WIDE = Domain({f"a{i}": 16 for i in range(12)})


def _solver(**fields):
    sizes = {"stddev": 1e-4, "rows": 12, "fit_steps": 400, "fits": 1}
    return RowsFit(FullBatch(1), PAIRS, num_records=1e6, **(sizes | fields))


def _finalize(solver, values, problem=PROBLEM):
    return solver.finalize(problem, GaussianFitState(jnp.asarray(values, float), jax.random.key(0)))


def _mixture(rows):
    keys = jax.random.split(jax.random.key(4), 4)
    sizes = zip(keys, DOMAIN.shape, strict=False)
    log_rows = tuple(jax.nn.log_softmax(jax.random.normal(k, (rows, n)), axis=1) for k, n in sizes)
    return RowModel(DOMAIN, log_rows, jnp.full(rows, -np.log(rows)))


@pytest.mark.slow
def test_a_product_is_recovered_and_a_mixture_is_matched():
    product, mixture = _mixture(1), _mixture(3)
    one = _finalize(_solver(rows=1), product.answers(PAIRS))
    np.testing.assert_allclose(one.answers, product.answers(PAIRS), atol=1e-3)
    values = mixture.answers(PAIRS)
    found = _finalize(_solver(information=1e-3), values)
    np.testing.assert_allclose(found.answers, values, atol=1e-3)
    assert float(found.decrease) < 0.1
    # all information is too dear: the product of the tables of one attribute
    dear = _finalize(_solver(information=1e9), values)
    singles = Marginals.all_kway(DOMAIN, 1)
    np.testing.assert_allclose(dear.model.answers(singles), mixture.answers(singles), atol=8e-3)
    each = [np.asarray(jnp.exp(rows)) for rows in dear.model.log_rows]
    assert max(np.ptp(rows, axis=0).max() for rows in each) < 5e-3


@pytest.mark.slow
def test_tables_of_three_attributes_are_fitted_too():
    triple = Marginals.all_kway(DOMAIN, 3)
    values = _mixture(3).answers(triple)
    solver = RowsFit(FullBatch(1), triple, 1e-4, 1e6, 1e-3, rows=24, fit_steps=600, fits=1)
    found = _finalize(solver, values, QueryRelease(triple, max_bytes=None))
    np.testing.assert_allclose(found.answers, values, atol=2e-3)


@pytest.mark.slow
def test_the_event_is_that_of_the_fit_in_memory():
    budget = Budget(1.0, 1e-6)
    for relation in ("replace_one", "add_or_remove_one"):
        asked = Budget(1.0, 1e-6, relation)
        rows = RowsFit.for_budget(PROBLEM, 500, asked)
        dense = GaussianFit.for_budget(QueryRelease(PAIRS), 500, asked)
        np.testing.assert_array_equal(rows.stddev, dense.stddev)
        assert rows.guarantee().epsilon(1e-6) == dense.guarantee().epsilon(1e-6) <= 1.0
    # what is drawn is the same as well, whatever is fitted to it
    codes = np.asarray(DOMAIN.codes(np.arange(500) % 24))
    rows = RowsFit.for_budget(PROBLEM, 500, budget)
    mask = jnp.ones(500, bool)
    mine, _ = rows.step(PROBLEM, codes, mask, rows.init(PROBLEM, key=jax.random.key(0)))
    dense = GaussianFit.for_budget(QueryRelease(PAIRS), 500, budget)
    theirs, _ = dense.step(
        QueryRelease(PAIRS), codes, mask, dense.init(PROBLEM, key=jax.random.key(0))
    )
    np.testing.assert_array_equal(mine.measured, theirs.measured)
    counts = np.asarray(mine.measured, np.float64) * 500
    np.testing.assert_allclose(counts, np.round(counts), atol=1e-3)


@pytest.mark.slow
def test_fission_chooses_about_the_best_information():
    truth = np.asarray(_mixture(3).answers(PAIRS))
    noise = np.asarray(jax.random.normal(jax.random.key(1), truth.shape))

    def error(information, stddev):
        solver = _solver(information=information, stddev=stddev, fit_steps=200)
        found = _finalize(solver, truth + stddev * noise)
        return float(np.linalg.norm(found.answers - truth)), float(found.information)

    for stddev in (0.003, 0.01):
        each = {one: error(one, stddev)[0] for one in (30.0, 100.0, 300.0, 1000.0)}
        chosen = error(None, stddev)[1]
        assert each[chosen] <= 1.25 * min(each.values())
        assert max(each.values()) > 1.25 * min(each.values())


@pytest.mark.slow
def test_a_wide_table_is_released_by_rows():
    rng = np.random.default_rng(0)
    codes = (rng.integers(0, 16, (2000, 1)) + rng.integers(0, 4, (2000, 12))) % 16
    workload = Marginals.all_kway(WIDE, 2)
    options = {"rows": 20, "fit_steps": 60, "fits": 1, "information": 300.0}
    budget = Budget(3.0, 1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so few steps do not converge
        made = dpjax.release(
            workload, codes, budget, key=jax.random.key(0), method="rows", **options
        )
    assert made.log_probs is None
    assert made.guarantee.epsilon(1e-6) <= 3.0
    np.testing.assert_allclose(made.answers_to(workload), made.answers, atol=1e-6)
    truth = workload.answers_of_records(codes)
    uniform = np.abs(np.asarray(truth) - 1 / 256).mean()
    assert np.abs(np.asarray(made.answers - truth)).mean() < 0.7 * uniform
    assert made.sample(jax.random.key(0), 50, systematic=True).shape == (50, 12)
    table = made.table("a0", "a1", "a2")
    assert table["share"].sum() == pytest.approx(1, abs=1e-4)
    assert np.isnan(table["stddev"]).all()
    assert not np.isnan(made.table("a3")["stddev"]).any()
    with pytest.raises(ValueError, match="max_bytes"):
        dpjax.release(workload, codes, budget, key=jax.random.key(0), method="gaussian_fit")


PAIRS_OF_WIDE = Marginals.all_kway(WIDE, 2).cliques


def test_what_is_measured_is_a_rule_of_public_sizes():
    def chosen(order, n, epsilon, target=None):
        problem = QueryRelease(Marginals.all_kway(WIDE, order), max_bytes=None)
        return choose(problem, n, Budget(epsilon, 1e-9), target)

    method, options, reason = chosen(2, 50_000, 1.0)
    assert (method, len(options["measured"].cliques)) == ("rows", 66)
    assert "2**48.0 cells" in reason
    # triples have 901,120 cells
    _, options, reason = chosen(3, 50_000, 1.0)
    assert {len(c) for c in options["measured"].cliques} == {2}
    assert "two attributes at most" in reason
    _, options, reason = chosen(2, 200, 0.1)
    assert {len(c) for c in options["measured"].cliques} == {1}
    assert "noise" in reason
    assert "rows drawn tell nothing" in reason
    # pairs with what is to be predicted stay
    _, options, reason = chosen(2, 200, 0.1, "a3")
    assert set(options["measured"].cliques) == {c for c in PAIRS_OF_WIDE if "a3" in c}
    assert "one attribute, and pairs with 'a3', are measured" in reason

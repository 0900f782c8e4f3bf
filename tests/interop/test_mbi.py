"""Marginals to and from mbi: answers, attribute order, fitted models, records."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent

import dpjax
from dpjax.queries import Domain, Marginals

with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # it asks for 64-bit types
    mbi = pytest.importorskip("mbi", reason="needs mbi", exc_type=ImportError)

DOMAIN = Domain({"sex": ["F", "M"], "age": 5, "income": ["low", "mid", "high"]})
CLIQUES = [("income", "sex"), ("age", "income"), ("age",)]


@pytest.fixture
def codes(rng):
    sex, age = rng.integers(0, 2, 4000), rng.integers(0, 5, 4000)
    income = np.clip(sex + age // 2 - rng.integers(0, 2, 4000), 0, 2)
    return np.stack([sex, age, income], axis=1)


@pytest.fixture
def workload():
    return Marginals(DOMAIN, CLIQUES)


def dataset(codes, attributes):
    """Their table, its attributes in this order."""
    shape = [DOMAIN.shape[DOMAIN.attributes.index(name)] for name in attributes]
    columns = {name: codes[:, DOMAIN.attributes.index(name)] for name in attributes}
    return mbi.Dataset(columns, mbi.Domain(attributes, shape))


def measured(workload, counts, sigma):
    return [
        mbi.LinearMeasurement(jnp.ravel(workload.table(counts, clique)), clique, sigma)
        for clique in workload.cliques
    ]


@pytest.mark.parametrize("order", [DOMAIN.attributes, ("income", "age", "sex")])
def test_tables_agree_whatever_the_order_of_their_domain(codes, workload, order):
    theirs = dataset(codes, order)
    counts = workload.answers(workload.histogram(codes))
    for clique in workload.cliques:
        table = theirs.project(clique).datavector(flatten=False)
        np.testing.assert_array_equal(workload.table(counts, clique), table)
    # in the order in which a clique was written, which is not the one it is kept in
    assert CLIQUES[0] not in workload.cliques
    written = theirs.project(CLIQUES[0]).datavector(flatten=False)
    np.testing.assert_array_equal(written, workload.table(counts, CLIQUES[0]))
    (kept,) = [c for c in workload.cliques if set(c) == set(CLIQUES[0])]
    np.testing.assert_array_equal(written.T, workload.table(counts, kept))


@pytest.mark.parametrize("order", [DOMAIN.attributes, ("age", "income", "sex")])
def test_a_model_fitted_to_our_noisy_tables_answers_alike_on_both_sides(
    codes, workload, order, key
):
    sigma = 3.0 * workload.sensitivity("add_or_remove_one").l2_answers
    counts = workload.answers(workload.histogram(codes)).astype(float)
    noise = dpjax.transforms.add_gaussian(sigma)
    noisy, _ = noise.update(counts, noise.init(counts), key=key)
    shape = [DOMAIN.shape[DOMAIN.attributes.index(name)] for name in order]
    model = mbi.estimation.MirrorDescent().estimate(
        mbi.Domain(order, shape), measured(workload, noisy, sigma), known_total=4000.0, iters=200
    )
    cells = model.project(DOMAIN.attributes).datavector()
    answers = workload.answers(cells)
    theirs = [jnp.ravel(model.project(clique).values) for clique in workload.cliques]
    np.testing.assert_allclose(answers, np.concatenate(theirs), rtol=1e-3, atol=0.5)
    np.testing.assert_allclose(answers, counts, atol=6 * sigma)
    # closer to the noisy tables than to those of any shifted order
    assert np.abs(answers - counts).mean() < 2 * sigma


def test_their_model_becomes_our_release(codes, workload, key):
    counts = workload.answers(workload.histogram(codes)).astype(float)
    model = mbi.estimation.MirrorDescent().estimate(
        mbi.Domain(DOMAIN.attributes, DOMAIN.shape), measured(workload, counts, 1.0), iters=200
    )
    cells = model.project(DOMAIN.attributes).datavector()
    shares = cells / cells.sum()
    guarantee = dpjax.Guarantee(GaussianDpEvent(3.0))
    released = dpjax.Release(
        workload.answers(shares), jnp.log(shares), None, workload, guarantee, "mbi", "fitted"
    )
    sample = released.sample(key, 4000, systematic=True)
    true = workload.answers_of_records(codes)
    np.testing.assert_allclose(workload.answers_of_records(sample), true, atol=0.01)
    assert set(released.decode(sample)["income"].tolist()) == {"low", "mid", "high"}
    assert released.guarantee is guarantee


def test_our_release_measures_their_model(codes, workload, key):
    """Released answers, with their error bars, are measurements like any other."""
    released = dpjax.release(
        workload, codes, dpjax.Budget(1.0, 1e-6), key=key, method="gaussian_fit"
    )
    measurements = [
        mbi.LinearMeasurement(
            4000 * jnp.ravel(workload.table(released.answers, clique)),
            clique,
            4000 * float(workload.table(released.stddev, clique).max()),
        )
        for clique in workload.cliques
    ]
    model = mbi.estimation.MirrorDescent().estimate(
        mbi.Domain(DOMAIN.attributes, DOMAIN.shape), measurements, known_total=4000.0, iters=200
    )
    answers = workload.answers(model.project(DOMAIN.attributes).datavector()) / 4000
    np.testing.assert_allclose(answers, released.answers, atol=2e-3)
    assert jax.numpy.abs(answers - workload.answers_of_records(codes)).max() < 0.02

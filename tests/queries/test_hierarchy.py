"""Tables below measured tables, and their best estimates against least squares by NumPy."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.queries import Domain, Hierarchy, Marginals

DOMAIN = Domain({"a": 2, "b": 3, "c": 4, "d": 2})


def block(marginals, values, clique):
    """A table, on the host."""
    which = marginals.cliques.index(clique)
    start, shape = marginals.offsets[which], [dict(DOMAIN.spec)[name] for name in clique]
    return np.asarray(values, np.float64)[start : start + np.prod(shape)].reshape(shape)


NESTED = {
    "nested": (("b",), ("a", "b"), ("a", "b", "c")),
    "overlapping": (("a", "b"), ("b", "c"), ("a", "c", "d")),
    "one": (("c",),),
    "whole": (("a", "b", "c", "d"), ("d",)),
}


@pytest.mark.parametrize("name", NESTED)
def test_closure_holds_every_subset_once_by_size_and_place(name):
    hierarchy = Hierarchy(Marginals(DOMAIN, NESTED[name]))
    found = hierarchy.closure.cliques
    every = itertools.chain.from_iterable(
        itertools.combinations(DOMAIN.attributes, size) for size in range(1, 5)
    )
    want = [c for c in every if any(set(c) <= set(m) for m in NESTED[name])]
    assert list(found) == want
    orders = [len(found[i]) for i in hierarchy.closure.clique_of]
    np.testing.assert_array_equal(hierarchy.order, orders)


@pytest.mark.parametrize("name", NESTED)
def test_combine_is_weighted_least_squares_of_each_table(name, rng):
    measured = Marginals(DOMAIN, NESTED[name])
    hierarchy = Hierarchy(measured)
    noise = rng.uniform(0.5, 2, len(measured.cliques))
    values = rng.normal(size=measured.num_queries)
    got, spread = hierarchy.combine(
        jnp.asarray(values, float), jnp.asarray(noise[measured.clique_of], float)
    )
    closure = hierarchy.closure
    for clique in closure.cliques:
        # rows: each measured table that holds the clique, summed over the rest; of one unknown
        sums, variances = [], []
        for source, sigma in zip(measured.cliques, noise, strict=True):
            if set(clique) <= set(source):
                axes = tuple(i for i, name in enumerate(source) if name not in clique)
                table = block(measured, values, source)
                sums.append(table.sum(axis=axes).ravel())
                variances.append(sigma**2 * table.size / sums[-1].size)
        root = 1 / np.sqrt(np.array(variances))
        best, *_ = np.linalg.lstsq(root[:, None], root[:, None] * np.array(sums), rcond=None)
        np.testing.assert_allclose(block(closure, got, clique).ravel(), best[0], atol=2e-5)
        deviation = 1 / np.sqrt(np.sum(root**2))
        np.testing.assert_allclose(block(closure, spread, clique).ravel(), deviation, rtol=1e-5)


def test_exact_tables_combine_to_exact_margins(rng):
    measured = Marginals(DOMAIN, NESTED["overlapping"])
    hierarchy = Hierarchy(measured)
    shares = jnp.asarray(rng.dirichlet(np.ones(48)), float)
    got, _ = hierarchy.combine(measured.answers(shares), jnp.ones(measured.num_queries))
    np.testing.assert_allclose(got, hierarchy.closure.answers(shares), atol=1e-6)


def test_lift_puts_values_at_their_places():
    measured = Marginals(DOMAIN, (("a", "b"), ("d",)))
    hierarchy = Hierarchy(measured)
    lifted = hierarchy.lift(jnp.arange(1.0, 9.0))
    closure = hierarchy.closure
    np.testing.assert_array_equal(block(closure, lifted, ("a", "b")).ravel(), np.arange(1, 7))
    np.testing.assert_array_equal(block(closure, lifted, ("d",)), [7, 8])
    assert float(jnp.sum(jnp.abs(lifted))) == 36


def test_parents_are_the_margins_of_tables_of_two():
    hierarchy = Hierarchy(Marginals(DOMAIN, NESTED["overlapping"]))
    closure, (cells, first, second) = hierarchy.closure, hierarchy.parents
    shares = jnp.asarray(np.random.default_rng(1).dirichlet(np.ones(48)), float)
    answers = np.asarray(closure.answers(shares))
    both = [clique for clique in closure.cliques if len(clique) == 2]
    assert len(cells) == sum(block(closure, answers, clique).size for clique in both)
    product = np.zeros(closure.num_queries)
    product[cells] = answers[first] * answers[second]
    for clique in both:
        one, other = (block(closure, answers, (name,)) for name in clique)
        np.testing.assert_allclose(block(closure, product, clique), np.outer(one, other), atol=1e-6)

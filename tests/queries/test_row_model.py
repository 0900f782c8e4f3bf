"""Mixtures of products against enumeration, and tables counted without a universe."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.queries import Domain, Marginals, Prefix, RowModel
from dpjax.testing import count_false_alarm

DOMAIN = Domain({"a": ["x", "y"], "b": 3, "c": 4})
WIDE = Domain({f"a{i}": 20 for i in range(24)})


def _model(rows=5, seed=0):
    keys = jax.random.split(jax.random.key(seed), 4)
    logits = [jax.random.normal(k, (rows, n)) for k, n in zip(keys, DOMAIN.shape, strict=False)]
    log_rows = tuple(jax.nn.log_softmax(2 * one, axis=1) for one in logits)
    return RowModel(DOMAIN, log_rows, jax.nn.log_softmax(jax.random.normal(keys[3], (rows,))))


def _enumerated(model):
    codes = DOMAIN.codes(np.arange(DOMAIN.universe_size))
    return np.exp(np.asarray(model.log_prob(codes), np.float64))


def test_answers_are_those_of_the_enumerated_distribution():
    model = _model()
    law = _enumerated(model)
    assert law.sum() == pytest.approx(1, abs=1e-5)
    cliques = (("b",), ("a", "b", "c"), ("a", "c"), ("b", "c"))
    workload = Marginals(DOMAIN, cliques)
    np.testing.assert_allclose(model.answers(workload), workload.answers(law), atol=1e-6)
    with pytest.raises(TypeError, match="ask for Marginals"):
        model.answers(Prefix(24))
    with pytest.raises(ValueError, match="must be over"):
        model.answers(Marginals.all_kway(WIDE, 1))


def test_conditioning_is_bayes_rule():
    model = _model()
    law = _enumerated(model).reshape(DOMAIN.shape)
    given = _enumerated(model.condition(a="y", c=2)).reshape(DOMAIN.shape)
    np.testing.assert_allclose(given[1, :, 2], law[1, :, 2] / law[1, :, 2].sum(), rtol=1e-4)
    assert given.sum() == pytest.approx(given[1, :, 2].sum())
    with pytest.raises(ValueError, match="'a' must be one of"):
        model.condition(a="z")


@pytest.mark.parametrize("systematic", [False, True])
def test_samples_have_the_shares_of_the_model(systematic):
    model, n = _model(), 40_000
    codes = model.sample(jax.random.key(1), n, systematic=systematic)
    assert codes.shape == (n, 3)
    law = _enumerated(model)
    counts = np.bincount(np.asarray(DOMAIN.cells(codes)), minlength=24)
    spread = np.sqrt(2 * n * law * math.log(48 / 1e-9)) + math.log(48 / 1e-9)
    count_false_alarm(1e-9)
    assert np.all(np.abs(counts - n * law) <= spread)
    if systematic:
        # single attributes but for the rounding of each row
        singles = Marginals.all_kway(DOMAIN, 1)
        gaps = np.abs(np.asarray(singles.counts(codes)) - n * np.asarray(model.answers(singles)))
        assert gaps.max() < 12
        assert len({tuple(record) for record in codes[:40].tolist()}) > 5  # in random order


def test_records_are_counted_whatever_the_universe():
    codes = np.random.default_rng(0).integers(0, 20, (300, 24))
    pairs = Marginals(WIDE, (("a0", "a23"), ("a5",)))
    assert WIDE.universe_size > 2**64
    expected = np.bincount(codes[:, 0] * 20 + codes[:, 23], minlength=400)
    answers = pairs.answers_of_records(codes)
    np.testing.assert_allclose(pairs.table(answers, ("a0", "a23")).ravel(), expected / 300)
    with pytest.raises(ValueError, match="cells to be enumerated"):
        pairs.adjoint(jnp.zeros(pairs.num_queries))
    small = Marginals.all_kway(DOMAIN, 2)
    records = DOMAIN.codes(np.random.default_rng(1).integers(0, 24, 50))
    np.testing.assert_array_equal(small.counts(records), small.answers(small.histogram(records)))
    mask = np.arange(50) < 20
    np.testing.assert_array_equal(small.counts(records, mask), small.counts(records[:20]))


@pytest.mark.always  # the claim
def test_sensitivities_are_attained_by_neighbours():
    workload = Marginals(DOMAIN, (("a", "b"), ("c",), ("b", "c")))
    each = np.asarray(jax.vmap(workload.counts)(DOMAIN.codes(np.arange(24))[:, None]), float)
    pairs = itertools.combinations(each, 2)
    replaced = max(float(np.linalg.norm(x - y)) for x, y in pairs)
    assert replaced == pytest.approx(workload.sensitivity("replace_one").l2_answers)
    added = max(np.linalg.norm(each, axis=1))
    assert added == pytest.approx(workload.sensitivity("add_or_remove_one").l2_answers)

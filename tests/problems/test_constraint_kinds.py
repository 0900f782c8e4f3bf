"""The tables of the usual constraints, against their definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import problems


def _random(num_groups, num_classes, n=60, seed=0):
    rng = np.random.default_rng(seed)
    batch = {
        "y": jnp.asarray(rng.integers(num_classes, size=n)),
        "group": jnp.asarray(rng.integers(num_groups, size=n)),
    }
    rates = rng.dirichlet(np.ones(num_classes), size=n)
    return batch, rates


def _values(constraints, batch, rates):
    cells = constraints.tabulate(jnp.asarray(rates, jnp.float32), constraints.part(batch))
    sizes = jnp.maximum(constraints.counts(cells), 1e-9)
    return np.asarray(constraints.values(cells, sizes))


def _rate(rates, chosen, k):
    return rates[np.asarray(chosen), k].mean()


@pytest.mark.parametrize(("groups", "classes"), [(2, 2), (3, 2), (4, 3)])
def test_demographic_parity_is_each_group_against_the_rest(groups, classes):
    batch, rates = _random(groups, classes)
    z = np.asarray(batch["group"])
    want = [
        _rate(rates, z == g, k) - _rate(rates, z != g, k)
        for g in range(groups)
        for k in range(classes)
    ]
    con = problems.demographic_parity(groups, classes, slack=0.1)
    assert con.num_constraints == groups * classes
    assert con.part.num_parts == groups
    np.testing.assert_allclose(_values(con, batch, rates), want, atol=1e-6)


@pytest.mark.parametrize("pairs", ["rest", "all"])
@pytest.mark.parametrize(("groups", "classes"), [(2, 2), (3, 2), (3, 3)])
def test_equality_of_odds_compares_within_a_label(groups, classes, pairs):
    batch, rates = _random(groups, classes, n=200)
    y, z = np.asarray(batch["y"]), np.asarray(batch["group"])
    want = []
    for label in range(classes):
        for g in range(groups):
            others = [None] if pairs == "rest" else [o for o in range(groups) if o != g]
            for other in others:
                there = (z != g) if other is None else (z == other)
                for k in range(classes):
                    here = _rate(rates, (y == label) & (z == g), k)
                    want.append(here - _rate(rates, (y == label) & there, k))
    con = problems.equality_of_odds(groups, classes, slack=0.1, pairs=pairs)
    assert con.num_constraints == len(want)
    assert con.part.num_parts == groups * classes
    np.testing.assert_allclose(_values(con, batch, rates), want, atol=1e-6)


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_false_negative_and_cross_rates(classes):
    batch, rates = _random(2, classes)
    y = np.asarray(batch["y"])
    every = tuple(range(classes))
    missed = [1 - _rate(rates, y == c, c) for c in every]
    crossed = [_rate(rates, y != c, c) for c in every]
    fnr = problems.false_negative_rate(classes, slack=0.1, classes=every)
    cross = problems.cross_rate(classes, slack=0.1, classes=every)
    np.testing.assert_allclose(_values(fnr, batch, rates), missed, atol=1e-6)
    np.testing.assert_allclose(_values(cross, batch, rates), crossed, atol=1e-6)


def test_binary_false_negative_rate_is_one_constraint_on_class_one():
    con = problems.false_negative_rate(2, slack=0.3)
    assert con.num_constraints == 1
    np.testing.assert_array_equal(con.weights, [[[0, 0], [1, 0]]])
    batch, rates = _random(2, 2)
    np.testing.assert_allclose(
        _values(con, batch, rates), _values(problems.cross_rate(2, slack=0.3), batch, rates)
    )


def test_dedupe_halves_binary_parity_and_keeps_the_violations():
    con = problems.demographic_parity(2, 2, slack=0.07)
    short = con.dedupe()
    assert (con.num_constraints, short.num_constraints) == (4, 2)
    assert short.membership.shape == (2, 2)
    batch, rates = _random(2, 2)
    before = _values(con, batch, rates) - np.asarray(con.slack)
    after = _values(short, batch, rates) - np.asarray(short.slack)
    np.testing.assert_allclose(sorted(set(before.round(5))), sorted(after.round(5)), atol=2e-5)


def test_dedupe_keeps_distinct_constraints():
    con = problems.demographic_parity(3, 3, slack=0.07)
    assert con.dedupe().num_constraints == con.num_constraints
    with pytest.raises(TypeError, match="outside jit"):
        jax.jit(lambda c: c.dedupe())(con)


def test_from_masks_finds_the_smallest_partition_and_the_same_values():
    batch, rates = _random(3, 2)
    con = problems.equality_of_odds(3, 2, slack=0.1)
    cell = batch["y"] * 3 + batch["group"]
    doubled = jnp.where(jnp.arange(len(cell)) % 2 == 0, cell, cell + 6)
    masks = np.tile(np.asarray(con.membership), 2)
    again = problems.from_masks(masks, con.weights, con.slack)
    assert again.part.num_parts == 6
    np.testing.assert_allclose(
        _values(again, {"cell": doubled}, rates), _values(con, batch, rates), atol=1e-6
    )


def test_singletons_give_the_same_cell_weights_as_the_coarse_partition():
    batch, rates = _random(2, 2, n=12)
    con = problems.demographic_parity(2, 2, slack=0.1)
    z = np.asarray(batch["group"])
    masks = np.stack([z == 0, z == 1, z != 0, z != 1]).astype(int)
    single = problems.RateConstraints(
        jnp.asarray(masks, float), con.weights, con.slack, problems.ByField("row", 12)
    )
    sizes = jnp.asarray(masks.sum(axis=1), float)
    multipliers = jnp.asarray([0.3, 0.1, 0.0, 2.0])
    by_row = single.cell_weights(multipliers, sizes)
    by_part = con.cell_weights(multipliers, sizes)
    np.testing.assert_allclose(by_row, np.asarray(by_part)[z], rtol=1e-6)
    np.testing.assert_allclose(
        _values(single, {"row": jnp.arange(12)}, rates), _values(con, batch, rates), atol=1e-6
    )


def test_part_ids_out_of_range_contribute_nothing():
    con = problems.equality_of_odds(2, 2, slack=0.1)
    batch = {"y": jnp.array([1, 1, 2, -1, 0]), "group": jnp.array([0, 2, 0, 1, -1])}
    part = con.part(batch)
    assert part.tolist() == [2, -1, -1, -1, -1]
    cells = con.tabulate(jnp.ones((5, 2)), part)
    assert float(cells.sum()) == 2.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: problems.demographic_parity(2, 1, 0.1), "num_classes must be >= 2, got 1"),
        (lambda: problems.demographic_parity(1, 2, 0.1), "num_groups must be >= 2, got 1"),
        (lambda: problems.demographic_parity(2, 2, [0.1] * 3), r"shape \[4\], got \(3,\)"),
        (lambda: problems.demographic_parity(2, 2, float("nan")), "slack must be finite, got nan"),
        (lambda: problems.equality_of_odds(2, 2, 0.1, pairs="some"), "pairs must be one of"),
        (lambda: problems.false_negative_rate(2, 0.1, classes=[2]), r"lie in 0..1, got 2"),
        (lambda: problems.cross_rate(1, 0.1), "num_classes must be >= 2, got 1"),
        (lambda: problems.from_masks([[0, 2]], np.zeros((1, 1, 2)), 0.1), "0 and 1"),
        (lambda: problems.from_masks([[0, 1]], np.zeros((1, 2, 2)), 0.1), r"\[\?, 1, \?\]"),
        (
            lambda: problems.from_masks([[0, 1]], np.full((1, 1, 2), np.nan), 0.1),
            "weights must be finite, got nan",
        ),
        (
            lambda: problems.from_masks([[0, 1]], np.zeros((1, 1, 1)), 0.1),
            "num_classes must be >= 2, got 1",
        ),
    ],
)
def test_bad_constraints_name_value_and_bound(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_slack_may_be_swept_and_traces_once():
    traces = []

    @jax.jit
    def total(con):
        traces.append(None)
        return con.slack.sum()

    for slack in (0.1, 0.2, [0.1, 0.2, 0.3, 0.4]):
        total(problems.demographic_parity(2, 2, slack))
    assert len(traces) == 1
    swept = jax.vmap(lambda s: dpjax.problems.demographic_parity(2, 2, s).slack)(jnp.arange(3.0))
    assert swept.shape == (3, 4)

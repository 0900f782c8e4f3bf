"""Constraints that are combined, bounded on both sides, or of models with one logit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.problems import (
    ByField,
    ByFields,
    RateConstrained,
    RateConstraints,
    cross_rate,
    demographic_parity,
    equality_of_odds,
    false_negative_rate,
    from_masks,
)

PARITY = demographic_parity(2, 2, slack=0.05)
MISSED = false_negative_rate(2, slack=0.2)
ODDS = equality_of_odds(2, 2, slack=0.1)
OTHERS = from_masks([[1, 1, 0], [0, 0, 1]], np.array([[[0, 1], [0, -1]]]), 0.3, field="cell")
SOME = from_masks([[1, 0, 0]], np.array([[[0, 1]]]), 0.3, field="cell")


def records(n=300, seed=0):
    rng = np.random.default_rng(seed)
    sizes = {"y": 2, "group": 2, "cell": 3}
    data = {name: jnp.asarray(rng.integers(size, size=n)) for name, size in sizes.items()}
    return data | {"x": jnp.asarray(rng.normal(size=(n, 3)), jnp.float32)}


def values(constraints, data, rates):
    cells = constraints.tabulate(rates, constraints.part(data))
    return constraints.values(cells, jnp.maximum(constraints.counts(cells), 1e-9))


@pytest.mark.parametrize(
    ("each", "parts"),
    [
        ((PARITY, MISSED), 4),
        ((PARITY, ODDS), 4),  # the labels and groups of one say all that the other asks for
        ((MISSED, cross_rate(2, slack=0.1)), 2),
        ((PARITY, OTHERS, SOME), 6),
        ((OTHERS, SOME), 3),
        ((PARITY,), 2),
    ],
)
def test_values_are_those_of_each_over_the_coarsest_partition(each, parts):
    data = records()
    rates = jnp.asarray(np.random.default_rng(1).dirichlet((1, 1), size=300), jnp.float32)
    both = RateConstraints.combine(*each)
    assert both.part.num_parts == parts
    want = jnp.concatenate([values(one, data, rates) for one in each])
    np.testing.assert_allclose(values(both, data, rates), want, atol=1e-6)
    np.testing.assert_allclose(both.slack, np.concatenate([one.slack for one in each]))


def test_a_list_is_combined_and_solved():
    problem = RateConstrained.linear(3, 2, [PARITY, MISSED])
    assert problem.num_constraints == 5
    solver = dpjax.solvers.RateConstrainedSGDA.for_budget(
        problem, 5_000, dpjax.Budget(3.0, 1e-5), steps=5, batch_size=64
    )
    solution = dpjax.solve(solver, problem, records(), key=jax.random.key(0))
    assert solution.info.constraint_values.shape == (5, 5)


def test_a_code_out_of_range_has_no_part():
    rule = ByFields((("y", 2), ("group", 3)), (0, 1, -1, 2, 2, 3))
    batch = {
        "y": jnp.array([0, 0, 0, 1, 1, 1, 2, 0]),
        "group": jnp.array([0, 1, 2, 0, 1, 2, 0, -1]),
    }
    assert rule(batch).tolist() == [0, 1, -1, 2, 2, 3, -1, -1]
    assert rule.num_parts == 4
    with pytest.raises(ValueError, match=r'data\["y"\] must lie in 0..1'):
        rule.check({name: np.asarray(codes) for name, codes in batch.items()})


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: RateConstraints.combine(PARITY, ByField("y", 2)), "must be RateConstraints, got"),
        (
            lambda: RateConstraints.combine(PARITY, false_negative_rate(3, 0.1)),
            r"agree, got \[2, 3",
        ),
        (
            lambda: RateConstraints.combine(PARITY, demographic_parity(3, 2, 0.1)),
            "group must have one range, got 2 and 3",
        ),
        (lambda: ByFields((("y", 2),), (0,)), "table must have 2 entries, got 1"),
        (lambda: demographic_parity(2, 2), "give slack or bounds"),
        (lambda: demographic_parity(2, 2, 0.1, bounds={1: (0, 0.1)}), "give slack or bounds"),
        (lambda: demographic_parity(2, 2, bounds={2: (0, 0.1)}), r"groups 0..1 .*got \{2"),
        (lambda: demographic_parity(2, 2, bounds={1: (0.2, 0.1)}), r"low <= high, got \{1: \(0.2"),
    ],
)
def test_what_does_not_fit_is_refused(make, error):
    with pytest.raises((TypeError, ValueError), match=error):
        make()


def test_bounds_hold_on_both_sides_of_a_named_group():
    data, rng = records(), np.random.default_rng(2)
    rates = jnp.asarray(rng.dirichlet((1, 1), size=300), jnp.float32)
    group = np.asarray(data["group"])
    gap = float(rates[group == 1, 1].mean() - rates[group == 0, 1].mean())
    signed = demographic_parity(2, 2, bounds={1: (-0.02, 0.05)})
    np.testing.assert_allclose(values(signed, data, rates), [gap, -gap], atol=1e-6)
    np.testing.assert_allclose(signed.slack, [0.05, 0.02])
    both = demographic_parity(2, 2, slack=(-0.02, 0.05))
    np.testing.assert_allclose(values(both, data, rates), [-gap, gap, gap, -gap], atol=1e-6)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_model_of_one_logit_is_one_of_two_classes(shape):
    def one(params, x):
        return (x @ params).reshape(shape)

    def two(params, x):
        t = x @ params
        return jnp.stack([jnp.zeros_like(t), t])

    data, params = records(), jnp.array([1.0, -0.5, 0.25])
    single, double = (RateConstrained(h, constraints=PARITY, init=params) for h in (one, two))
    for of in ("mean_loss", "error", "disparity"):
        assert getattr(single, of)(params, data) == getattr(double, of)(params, data)
    for got, want in zip(
        *(p.per_example_gradients(params, data) for p in (single, double)), strict=True
    ):
        np.testing.assert_allclose(got, want, atol=1e-6)


def test_messages_name_what_is_missing():
    params = jnp.zeros(3)
    with pytest.raises(ValueError, match="disparity needs constraints"):
        RateConstrained.linear(3, 2).disparity(
            {"w": jnp.zeros((3, 2)), "b": jnp.zeros(2)}, records()
        )
    three = RateConstrained(lambda w, x: jnp.stack([x @ w] * 3), constraints=PARITY, init=params)
    with pytest.raises(ValueError, match=r"must have 2 columns.*got shape \[300, 3\]"):
        three.error(params, records())

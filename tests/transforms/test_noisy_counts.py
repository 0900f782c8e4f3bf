"""Integer noise by a deviation that is data: traced, swept, of several kinds at once."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import dpjax.testing as dpt
from dpjax.core import derived, register_dataclass
from dpjax.transforms import rounded_gaussian_shortfall
from dpjax.transforms.noise._noisy_counts import (
    CountTables,
    count_tables,
    noisy_counts,
    noisy_counts_shortfall,
)

COUNTS = jnp.arange(40_000, dtype=jnp.int32)


@jax.jit
def noise(key, stddev, group=None, tables=None):
    return noisy_counts(key, COUNTS, stddev, tables, group) - COUNTS


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Counter:
    """As a solver has it."""

    stddev: object

    @derived
    def tables(self) -> CountTables | None:
        return count_tables(self.stddev)


def check(made, stddev):
    """Integers, of this deviation and no other."""
    made = np.asarray(made)
    assert np.all(made % 1 == 0)
    edges = np.floor(np.linspace(-4, 4, 21) * stddev) + 0.5
    counts = np.histogram(made, np.concatenate([[-np.inf], edges, [np.inf]]))[0]
    for factor in (1, 2 / 3, 3 / 2):
        law = np.diff(np.concatenate([[0], stats.norm.cdf(edges, scale=factor * stddev), [1]]))
        if factor == 1:
            dpt.check_counts(counts, law)
        else:
            with pytest.raises(AssertionError):
                dpt.check_counts(counts, law)


def test_one_program_for_every_deviation():
    traces = []

    @jax.jit
    def noise(key, stddev):
        traces.append(1)
        return noisy_counts(key, COUNTS, stddev, None) - COUNTS

    for stddev in (3.0, 900.0, 2e5):
        made = noise(jax.random.key(1), stddev)
        check(made, stddev)
        np.testing.assert_array_equal(
            made, noisy_counts(jax.random.key(1), COUNTS, stddev, count_tables(stddev)) - COUNTS
        )
    assert len(traces) == 1


def test_sweeps_and_groups():
    swept = jax.vmap(noise, (None, 0))(jax.random.key(2), jnp.array([3.0, 50.0]))
    for made, stddev in zip(swept, (3.0, 50.0), strict=True):
        check(made, stddev)
    group = np.arange(COUNTS.size) % 2
    made = np.asarray(noise(jax.random.key(3), jnp.array([3.0, 900.0]), group))
    check(made[::2], 3.0)
    check(made[1::2], 900.0)
    dpt.check_uncorrelated(made[::2], made[1::2])


def test_tables_that_are_data_give_the_same_noise():
    group = np.arange(COUNTS.size) % 2
    stddevs = jnp.array([3.0, 900.0])
    for given in ((3.0, None), (2e5, None), (stddevs, group)):
        made = noise(jax.random.key(4), *given, count_tables(given[0]))
        np.testing.assert_array_equal(made, noise(jax.random.key(4), *given))
    # one for all
    both = noise(jax.random.key(4), jnp.array([3.0, 3.0]), group, count_tables(3.0))
    np.testing.assert_array_equal(both, noise(jax.random.key(4), 3.0))


def test_stacked_they_are_swept_by_one_program():
    traces = []

    @jax.jit
    @jax.vmap
    def sweep(counter):
        traces.append(None)
        return noise(jax.random.key(2), counter.stddev, None, counter.tables)

    for pair in ((3.0, 900.0), (50.0, 2e5)):
        stacked = jax.tree.map(lambda *a: jnp.stack(a), *map(Counter, pair))
        for made, stddev in zip(sweep(stacked), pair, strict=True):
            check(made, stddev)
        again = dataclasses.replace(stacked)  # of deviations that are stacked already
        np.testing.assert_array_equal(sweep(stacked), sweep(again))
    assert len(traces) == 1
    with pytest.raises(ValueError, match=r"shape \[2\] for deviations of shape \[\]"):
        noise(jax.random.key(2), 50.0, None, stacked.tables)


def test_tables_of_another_deviation_are_not_used():
    """Which a change of leaves, past `dataclasses.replace`, leaves behind."""
    leaves, structure = jax.tree.flatten(Counter(3.0))
    replaced = jax.tree.unflatten(structure, [9.0, *leaves[1:]])
    for counter in (replaced, jax.tree.map(lambda leaf: 3 * leaf, Counter(3.0))):
        made = noise(jax.random.key(0), counter.stddev, None, counter.tables)
        assert np.std(made) == pytest.approx(9.0, rel=0.05)
        assert np.any(made % 1 != 0)


def test_no_tables_of_what_is_no_number():
    assert count_tables(None) is None
    assert count_tables(2.0, object()) is None
    assert count_tables(np.ones(2), np.ones(3)) is None
    assert jax.eval_shape(lambda s: count_tables(s, 2.0) or (), 1.0) == ()


def test_where_there_is_no_table():
    for stddev in (0.0, 3e7):
        made = noise(jax.random.key(0), stddev, None, count_tables(stddev))
        np.testing.assert_array_equal(made, noise(jax.random.key(0), stddev))
    assert not np.any(noise(jax.random.key(0), 0.0))
    assert np.std(noise(jax.random.key(0), 3e7)) == pytest.approx(3e7, rel=0.05)
    assert np.all(np.isnan(noise(jax.random.key(0), np.nan)))


def test_keys_are_used_once():
    data = jax.random.key_data(jax.random.key(5))
    found = dpt.keys_drawn(lambda data: noise(jax.random.wrap_key_data(data), 3.0), data)
    dpt.check_draws_differ([found], "noisy counts")
    assert len(found)


def test_shortfall():
    assert noisy_counts_shortfall(30.0) == pytest.approx(rounded_gaussian_shortfall(30.0), rel=0.01)
    assert noisy_counts_shortfall(0.0) == 0


def test_tables_that_somebody_computed_with_are_not_used(key):
    tables = jax.tree.map(lambda a: 0.5 * a, count_tables(3.0))
    counts = jnp.arange(5)
    noisy = noisy_counts(key, counts, 3.0, tables)
    assert not np.allclose(noisy, np.round(noisy))
    other = noisy_counts(jax.random.clone(key), counts, 3.0, count_tables(4.0))
    np.testing.assert_array_equal(noisy, other)

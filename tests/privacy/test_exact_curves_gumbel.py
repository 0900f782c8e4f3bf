"""How exactly float32 Gumbels draw a vertex: every value that they can take, and how often.

Of two vertices with logits 0 and -g the second is drawn with probability 1 / (1 + e^g), and for
neighbours whose gaps are g and g + eta the ratio of these is at most e^eta. The values come from
the code itself: a generator whose key is the random words makes it show them all.
"""

import math

import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.audit._events import Level, bounds
from dpjax.geometry import sample_vertices
from dpjax.random._normal import gumbels
from dpjax.testing import count_false_alarm

BITS = 23  # random bits of a float32 uniform
F32 = np.float32


def taped(words):
    """A key that gives these words, once, whatever the shape that is asked for."""
    words = jnp.asarray(words, jnp.uint32)
    size = words.shape[0]
    generator = jax.extend.random.define_prng_impl(
        key_shape=(size,),
        seed=lambda _: jnp.zeros(size, jnp.uint32),
        split=lambda key, shape: jnp.zeros((*shape, size), jnp.uint32),
        random_bits=lambda key, width, shape: key.reshape(shape),
        fold_in=lambda key, data: key,
        name="tape",
        tag="tape",
    )
    return jax.random.wrap_key_data(words, impl=generator)


def truth(gap):
    return 1 / (1 + math.exp(gap))


# The default mode: 2^23 equally likely values.


@pytest.fixture(scope="module")
def default_values():
    """All of them, ascending."""
    words = np.arange(2**BITS, dtype=np.uint32) << np.uint32(9)
    return np.sort(np.asarray(jax.random.gumbel(taped(words), (2**BITS,), jnp.float32)))


def default_wins(values, gap):
    """How many of the 2^46 pairs draw the second vertex; ties go to the first."""
    raised = F32(-gap) + values
    able = raised[raised > values[0]]
    return int(np.searchsorted(values, able, side="left").sum())


@pytest.mark.slow
def test_default_gumbels_break_the_ratio_of_rare_draws(default_values):
    assert len(np.unique(default_values)) == 2**BITS
    assert default_values[[0, 1, -1]] == pytest.approx([-4.4698, -2.7690, 15.9424], abs=1e-4)
    eta, spent = 0.1, {}
    for gap in (8.0, 10.0, 12.0, 14.0, 15.0, 16.0, 17.0, 18.0):
        here, there = (default_wins(default_values, g) for g in (gap, gap + eta))
        spent[gap] = math.log(here / there) / eta
        print(f"gap {gap}: probability {here / 2**46:.3g}, loss {spent[gap]:.4f} eta")
    assert spent[8.0] < 1  # of 3e-4
    assert 1.001 < spent[10.0] < 1.002  # of 4.5e-5
    assert 1.07 < spent[14.0] < 1.09  # of 8e-7
    assert 1.6 < spent[16.0] < 1.7  # of 6e-8
    assert spent[18.0] > 8  # of 5e-11
    # the end: drawn by one in 2^46, and by none
    assert (default_wins(default_values, 20.3), default_wins(default_values, 20.5)) == (1, 0)


def test_an_audit_finds_the_coarse_draws(default_values):
    """Of four thousand million draws, which follow the law above; right ones stay below."""
    gap, eta, runs, rng = 15.0, 2.0, 4 * 10**9, np.random.default_rng(0)
    count_false_alarm(1e-7)
    coarse = [default_wins(default_values, g) / 2.0**46 for g in (gap, gap + eta)]
    for law, caught in ((coarse, True), ([truth(gap), truth(gap + eta)], False)):
        likely, unlikely = (np.asarray(rng.binomial(runs, p)) for p in law)
        shown = float(bounds(likely, unlikely, runs, runs, Level(1e-12, 1 - 1e-7)))
        assert shown > 1.2
        assert (shown > eta) == caught


# The library's draws: 46 bits, as 2^46 values that fall from one to the next.


def library_values(numbers):
    """The Gumbels that the library makes of 46-bit numbers."""
    numbers = np.asarray(numbers, np.int64)
    high, low = numbers >> BITS, numbers & (2**BITS - 1)
    words = np.concatenate([high, low]).astype(np.uint32) << np.uint32(9)
    return np.asarray(gumbels(taped(words), (len(numbers),), jnp.float32))


def blocks(per_octave):
    """All numbers cut into blocks, the shorter the nearer to either end: first and last of each."""
    below = {0, 1}
    for octave in range(2 * BITS - 1):
        count = min(per_octave, 2**octave)
        below |= {2**octave + (i + 1) * 2**octave // count for i in range(count)}
    edges = np.array(sorted(below | {2 ** (2 * BITS) - edge for edge in below}))
    return edges[:-1], edges[1:] - 1


@pytest.fixture(scope="module")
def library_blocks():
    """Chances of blocks, and the largest and smallest value in each."""
    first, last = blocks(2**12)
    both = library_values(np.concatenate([first, last])).reshape(2, -1)
    return (last - first + 1) / 2.0**46, both[0], both[1]


def library_bounds(table, gap):
    """Bounds on the probability that the second vertex is drawn."""
    chance, largest, smallest = table

    def below(ends, values):
        order = np.argsort(ends)
        mass = np.append(0, np.cumsum(chance[order]))
        return mass[np.searchsorted(ends[order], values, side="left")]

    raised = [F32(-gap) + values for values in (smallest, largest)]
    return chance @ below(largest, raised[0]), chance @ below(smallest, raised[1])


@pytest.mark.slow
def test_draws_of_the_library_keep_the_ratio_there(library_blocks):
    chance, largest, smallest = library_blocks
    assert chance.sum() == pytest.approx(1, abs=1e-12)
    assert (largest >= smallest).all()
    assert (smallest[:-1] >= largest[1:]).all()
    eta = 0.5
    for gap in (0.0, 2.0, 8.0, 12.0, 14.0, 16.0, 18.0, 20.5, 24.0, 28.0):
        here, there = (library_bounds(library_blocks, g) for g in (gap, gap + eta))
        spent = math.log(here[1] / there[0]) / eta
        print(f"gap {gap}: {here[0]:.5g} to {here[1]:.5g}, truth {truth(gap):.5g}, {spent:.5f} eta")
        assert here[1] / here[0] < 1 + 1e-3
        # the number 0 makes a value of 87, which wins over nearly all others
        assert truth(gap) * (1 - 1e-3) <= here[1]
        assert here[0] <= truth(gap) * (1 + 1e-3) + 2.0**-46
        assert spent < 1 + 2e-3


def test_vertices_are_drawn_with_these_values(rng):
    """The two columns of a draw's words are the two vertices."""
    draws, gap = 2**14, 1.5
    numbers = rng.integers(0, 2**46, size=(draws, 2))
    numbers[: draws // 2] >>= rng.integers(0, 46, size=(draws // 2, 2))  # rare ones too
    words = np.stack([numbers >> BITS, numbers & (2**BITS - 1)]).astype(np.uint32) << np.uint32(9)
    logits = jnp.array([0.0, -gap], jnp.float32)
    drawn = np.asarray(sample_vertices(taped(words.ravel()), logits, draws))
    first, second = library_values(numbers[:, 0]), library_values(numbers[:, 1])
    np.testing.assert_array_equal(drawn, F32(-gap) + second > first)
    assert 0.1 < drawn.mean() < 0.9


def test_a_million_equal_vertices_by_default_gumbels(default_values):
    """As one Gumbel each: the first wins ties with the last, and rare draws are cut earlier."""
    others, resolution = 10**6 - 1, 2.0**BITS
    high = default_values[-2000:]  # values below lose to one of the others, but for e^-200

    def chance(gap, side="left"):
        better = np.searchsorted(default_values, F32(-gap) + high, side=side)
        return np.exp(others * np.log(better / resolution)).sum() / resolution

    favoured, eta = chance(0.0, "right") / chance(0.0), 0.1
    spent = {gap: math.log(chance(gap) / chance(gap + eta)) / eta for gap in (2.0, 4.0)}
    print(f"first over last: {favoured:.4f}; losses {spent} eta at {chance(2.0):.3g}")
    assert 1.12 < favoured < 1.14
    assert 1.7 < spent[2.0] < 1.9  # of 9e-8
    assert spent[4.0] > 7  # of 2e-10


@pytest.mark.slow
def test_values_of_the_library_fall_from_one_number_to_the_next():
    """All numbers that make different floats: 2^23 of each octave, and those below."""
    before = np.inf
    for octave in range(BITS - 1, 2 * BITS):
        step = max(0, octave - BITS)
        start = 0 if octave < BITS else 2**octave
        numbers = start + (np.arange(2**BITS, dtype=np.int64) << step)
        values = library_values(numbers)
        assert values[0] <= before
        assert (np.diff(values) <= 0).all()
        before = values[-1]
    assert before == pytest.approx(-2.769, abs=1e-3)

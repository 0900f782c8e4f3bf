import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import dpjax
import dpjax.testing as dpt
from dpjax.random import _normal
from dpjax.random._normal import laplace
from dpjax.transforms import add_gaussian, add_laplace
from dpjax.transforms.noise import _independent as noise_module

LAWS = {"gaussian": (add_gaussian, stats.norm), "laplace": (add_laplace, stats.laplace)}
N = 4000


def draw(transform, size, seed, dtype=jnp.float32):
    @jax.jit
    def drawn(key):
        updates = jnp.zeros(size, dtype)
        return transform.update(updates, transform.init(updates), key=key)[0]

    return drawn(jax.random.key(seed))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", [0.01, 3.0])
def test_distribution_has_the_scale_and_no_other(law, scale):
    make, reference = LAWS[law]
    samples = draw(make(scale), N, seed=1)
    dpt.check_scale(samples, lambda s: reference(scale=s).cdf, scale)


@pytest.mark.parametrize("law", LAWS)
def test_noise_is_added_to_the_updates(law, key):
    make, _ = LAWS[law]
    transform = make(2.0)
    updates = {"a": jnp.arange(5.0), "b": jnp.full((2, 2), -7.0)}
    zeros = jax.tree.map(jnp.zeros_like, updates)
    state = transform.init(updates)
    noisy, _ = transform.update(updates, state, key=key)
    noise, _ = transform.update(zeros, state, key=key)
    for name, leaf in updates.items():
        np.testing.assert_allclose(noisy[name] - noise[name], leaf, atol=1e-5)
    still, _ = make(0.0).update(updates, state, key=key)
    for name, leaf in updates.items():
        np.testing.assert_array_equal(still[name], leaf)


@pytest.mark.parametrize("law", LAWS)
def test_leaves_steps_stages_and_keys_are_independent(law):
    make, _ = LAWS[law]
    transform = dpjax.chain(make(1.0), make(1.0))
    updates = {"a": jnp.zeros(N), "b": jnp.zeros(N)}
    state = transform.init(updates)
    first, state = transform.update(updates, state, key=jax.random.key(0))
    second, _ = transform.update(updates, state, key=jax.random.key(0))
    other, _ = transform.update(updates, transform.init(updates), key=jax.random.key(1))
    stages = [
        make(1.0).update(
            updates, make(1.0).init(None), key=jax.random.fold_in(jax.random.key(0), i)
        )
        for i in range(2)
    ]
    dpt.check_uncorrelated(first["a"], first["b"], name="leaves")
    dpt.check_uncorrelated(first["a"], second["a"], name="steps")
    dpt.check_uncorrelated(first["a"], other["a"], name="keys")
    dpt.check_uncorrelated(stages[0][0]["a"], stages[1][0]["a"], name="stages")
    # two stages of one scale add up to the variance of two draws, not to that of one doubled
    spread = np.std(np.asarray(first["a"])) / np.std(np.asarray(stages[0][0]["a"]))
    assert 1.3 < spread < 1.55
    with pytest.raises(AssertionError, match="correlated"):
        dpt.check_uncorrelated(first["a"], first["a"])


@pytest.mark.always  # the tail as claimed
def test_laplace_tail_passes_sixteen_scales(monkeypatch):
    """All 64 bits 0, or one bit set: the exponent reaches 64 halvings, 44 scales."""
    for exponent, zeros in (((0, 0), 64), ((0, 1), 63), ((1, 0), 31), ((2**31, 0), 0)):

        def drawn(key, shape, count, words=(*exponent, 2**31, 7)):
            return [jnp.full(shape, word, jnp.uint32) for word in words]

        monkeypatch.setattr(_normal, "random_words", drawn)
        magnitude = np.abs(np.asarray(laplace(jax.random.key(0), (100,), jnp.float32)))
        monkeypatch.undo()
        assert np.all(magnitude >= np.log(2) * zeros - 1e-4)
        assert np.all(magnitude <= np.log(2) * (zeros + 1) + 1e-4)


def test_laplace_sign_is_a_bit_of_its_own(monkeypatch):
    def drawn(fine):
        def words(key, shape, count):
            return [jnp.full(shape, word, jnp.uint32) for word in (2**30, 5, fine, 7)]

        monkeypatch.setattr(_normal, "random_words", words)
        value = laplace(jax.random.key(0), (1,), jnp.float32).item()
        monkeypatch.undo()
        return value

    word = 0x5A5A5A5A
    value = drawn(word)
    assert drawn(word ^ 1) == -value
    for place in range(9, 32):  # of the fraction
        other = drawn(word ^ (1 << place))
        assert np.sign(other) == np.sign(value)
        assert other != value or place < 12  # the logarithm may round the finest away


def test_laplace_tail_is_exponential():
    # of two million draws about 90 lie beyond 10 scales, as the law says
    samples = np.abs(np.asarray(laplace(jax.random.key(3), (2_000_000,), jnp.float32)))
    edges = np.array([0, 1, 2, 4, 6, 8, 10, 12, np.inf])
    observed, _ = np.histogram(samples, edges)
    expected = np.exp(-edges[:-1]) - np.exp(-edges[1:])
    dpt.check_counts(observed, expected)
    with pytest.raises(AssertionError):
        dpt.check_counts(observed, np.diff(1 - np.exp(-edges / 1.02)))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.always  # the claim
def test_low_precision_is_drawn_in_float32(law):
    make, _ = LAWS[law]
    samples = draw(make(3.0), N, seed=1, dtype=jnp.bfloat16)
    assert samples.dtype == jnp.bfloat16
    wide = draw(make(3.0), N, seed=1)
    np.testing.assert_array_equal(samples, wide.astype(jnp.bfloat16))


def test_scale_may_be_traced_and_swept(key):
    words = jax.random.key_data(key)

    def run(scale):
        return add_gaussian(scale).update(
            jnp.zeros(3),
            noise_module.AddNoiseState(jnp.zeros((), jnp.int32)),
            key=jax.random.wrap_key_data(words),
        )[0]

    swept = jax.jit(jax.vmap(run))(jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(swept[1], 2 * swept[0], rtol=1e-6)


@pytest.mark.parametrize(("make", "name"), [(add_gaussian, "stddev"), (add_laplace, "scale")])
def test_errors(make, name):
    for bad in (-1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match=f"{name} must be"):
            make(bad)
    transform = make(1.0)
    with pytest.raises(TypeError, match="key is required"):
        transform.update(jnp.zeros(2), transform.init(None))
    with pytest.raises(TypeError, match="typed key"):
        transform.update(jnp.zeros(2), transform.init(None), key=0)

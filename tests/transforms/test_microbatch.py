import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.core import Aggregator
from dpjax.transforms import clip_by_norm, microbatched_sum

B = 7


def per_example(batch):
    return {
        "w": batch["x"][:, :, None] * batch["y"][:, None, None].astype(jnp.float32),
        "b": batch["x"],
    }


@pytest.fixture
def batch(rng):
    return {"x": jnp.asarray(rng.normal(size=(B, 3)), jnp.float32), "y": jnp.arange(B) % 3}


@pytest.mark.parametrize("size", [None, 1, 3, B, B + 1])
def test_equals_the_whole_batch(batch, size):
    clip, mask = clip_by_norm(0.8), jnp.arange(B) != 2
    want, _ = clip.update(per_example(batch), clip.init(None), mask=mask)
    got = jax.jit(lambda b, m: microbatched_sum(per_example, clip, b, m, size=size))(batch, mask)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for name in want:
        assert got[name].dtype == want[name].dtype
        np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [1, 3, B + 1])
def test_spoiled_records_padding_and_empty_batches_add_nothing(batch, size):
    clip, mask = clip_by_norm(0.8), jnp.arange(B) != 2
    spoiled = batch | {"x": batch["x"].at[2].set(jnp.nan).at[5].set(jnp.inf)}
    got = microbatched_sum(per_example, clip, spoiled, mask, size=size)
    want = microbatched_sum(per_example, clip, batch, mask & (jnp.arange(B) != 5), size=size)
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-6)
    for nothing in (
        microbatched_sum(per_example, clip, spoiled, jnp.zeros(B, bool), size=size),
        microbatched_sum(
            per_example, clip, jax.tree.map(lambda a: a[:0], batch), mask[:0], size=size
        ),
    ):
        assert nothing["w"].shape == (3, 1)
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(nothing))


def test_microbatches_get_keys_of_their_own(key):
    def update(values, state, params=None, *, mask, key):
        return jax.random.normal(key, values.shape[1:]) + 0 * values.sum(), state

    noisy = Aggregator(lambda params: (), update, lambda relation: 1.0)
    x, mask = jnp.zeros((4, 1)), jnp.ones(4, bool)
    got = microbatched_sum(lambda b: b, noisy, x, mask, size=1, key=key)
    keys = [jax.random.fold_in(key, i) for i in range(4)]
    want = sum(jax.random.normal(k, (1,)) for k in keys)
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize(
    ("width", "size", "elsewhere"),
    [(2**14, 256, 1024), (2**17, 64, 512), (2**20, 64, 64), (2**22, 16, 16), (2**27, 1, 1)],
)
def test_large_values_are_taken_a_few_at_a_time(width, size, elsewhere, monkeypatch):
    seen = []

    def per_example(batch):
        seen.append(batch.shape[0])
        return jnp.broadcast_to(batch[:, None], (batch.shape[0], width))

    x, mask = jnp.ones(1000, jnp.float32), jnp.ones(1000, bool)
    clip = clip_by_norm(1.0)
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    jax.eval_shape(lambda: microbatched_sum(per_example, clip, x, mask, size=None))
    assert min(seen) == size
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    seen.clear()
    jax.eval_shape(lambda: microbatched_sum(per_example, clip, x, mask, size=None))
    assert seen[-1] == elsewhere  # all at once, in whole blocks, is 1024


def test_errors(batch):
    with pytest.raises(ValueError, match="size must be >= 1, got 0"):
        microbatched_sum(per_example, clip_by_norm(1.0), batch, jnp.ones(B, bool), size=0)


@pytest.mark.parametrize(("size", "rows"), [(1, 1), (3, 2), (20, 16), (50, 32), (100, 96)])
def test_parts_are_whole_blocks(size, rows):
    """What is left over from a block may be computed otherwise, and one record moves the others."""
    seen = []

    def per_example(part):
        seen.append(part.shape[0])
        return part

    x = jnp.ones((200, 3))
    total = microbatched_sum(per_example, clip_by_norm(9.0), x, jnp.ones(200, bool), size=size)
    assert set(seen) == {rows}
    np.testing.assert_array_equal(total, [200.0] * 3)

"""Games against online learners: sequences of gradients, adversaries, the best fixed comparator."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

T = 256
NAMES = (
    "random",
    "signs",
    "growing",
    "spiky",
    "push",
    "growing push",
    "drift",
    "gift",
    "alternating",
    "late",
)


def sequences(dim, seed=0):
    """Gradients `[F, T, dim]` fixed in advance, and how far the adversary pushes, `[F, T]`."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(len(NAMES), T, dim))
    t = np.arange(1, T + 1)
    first, last = np.eye(dim)[0], np.eye(dim)[-1]
    base = {
        "random": noise[0],
        "signs": np.sign(noise[8]),
        "growing": t[:, None] ** 3 * (first + noise[1]),
        "spiky": noise[2] * np.where(rng.random((T, 1)) < 0.02, 1e3, 1.0),
        "push": 0 * noise[3],
        "growing push": noise[4],
        "drift": np.broadcast_to(last, (T, dim)),
        "gift": np.broadcast_to(-last, (T, dim)),
        "alternating": (-1.0) ** t[:, None] * first + 0.01 * noise[6],
        "late": np.where(t[:, None] > T // 2, noise[7] + last, 0.0),
    }
    push = np.zeros((len(NAMES), T))
    push[NAMES.index("push")] = 1
    push[NAMES.index("growing push")] = t
    stacked = np.stack([base[name] for name in NAMES])
    return jnp.asarray(stacked, float), jnp.asarray(push, float)


def along(w):
    """The gradient of norm 1 that costs the most at `w` against staying at the origin."""
    size = jnp.linalg.norm(w)
    return jnp.where(size > 0, w / jnp.where(size > 0, size, 1), jnp.eye(w.shape[0])[0])


def along_largest(w):
    """Likewise of largest modulus 1: a sign at the largest entry."""
    return jnp.where(w >= 0, 1, -1) * (jnp.arange(w.shape[0]) == jnp.argmax(jnp.abs(w)))


def compiled(function):
    """`jax.jit` for programs that run once, where compiling is all the cost."""
    options = {
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
    }
    return jax.jit(function, compiler_options=options)


def play(learner, w1, base, **more):
    """`game`, compiled."""
    return compiled(lambda w1, base: game(learner, w1, base, **more))(w1, base)


def game(learner, w1, base, push=None, respond=along, degree=1.0, **more):
    """Points, gradients and averages, `[T, dim]` each, and the states before every update.

    Without an adversary, who pushes, `w1` and `base` may be trees.
    """
    steps = jax.tree.leaves(base)[0].shape[0]
    weights = jnp.arange(1, steps + 1, dtype=float) ** degree

    def body(carry, at):
        w, x, state = carry
        g, size, weight, total = at
        share = weight / total
        x = jax.tree.map(lambda a, b: a + (share * (b - a)).astype(a.dtype), x, w)
        if push is not None:
            g = g + size * respond(w)
        u, after = learner.update(
            g, state, w, weight=weight, total_weight=total, average=x, unknown=None, **more
        )
        return (optax.apply_updates(w, u), x, after), (w, g, x, state)

    start = w1, w1, learner.init(w1)
    return jax.lax.scan(body, start, (base, push, weights, jnp.cumsum(weights)))[1]


def losses(w, g):
    """Sum of the learner's losses, float64."""
    return np.sum(np.asarray(w, np.float64) * np.asarray(g, np.float64))


def total(g):
    """Sum of the gradients, float64."""
    return np.sum(np.asarray(g, np.float64), axis=0)


def squares(g, order=2):
    """Sum of the squared norms of the gradients, float64."""
    return np.sum(np.linalg.norm(np.asarray(g, np.float64), order, axis=1) ** 2)

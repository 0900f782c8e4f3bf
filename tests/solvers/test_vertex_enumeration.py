"""Tiny runs whose whole law is enumerated: the guarantee holds for it, and is nearly reached."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.problems import Saddle, SimplexRisk
from dpjax.sampling import DisjointPartition
from dpjax.solvers import AnytimeMirrorDescent, SaddleMirrorDescent, VertexInfo

ALPHAS = (1.001, 1.5, 2.0, 4.0, 16.0, 64.0)
SIGNS = np.array([[1.0, -1.0], [-1.0, 1.0]])


def log_softmax(scores):
    scores = np.asarray(scores, np.float64)
    top = scores.max(axis=-1, keepdims=True)
    return scores - top - np.log(np.exp(scores - top).sum(axis=-1, keepdims=True))


def renyi(log_p, log_q, alpha):
    """D_alpha(P || Q) of laws given by logs of their masses, along the last axis."""
    exponent = alpha * log_p + (1 - alpha) * log_q
    top = exponent.max(axis=-1, keepdims=True)
    return (top[..., 0] + np.log(np.exp(exponent - top).sum(axis=-1))) / (alpha - 1)


def hockey_stick(log_p, log_q, epsilon):
    return np.maximum(np.exp(log_p) - np.exp(epsilon + log_q), 0).sum(axis=-1)


def total_rho(solver):
    return sum(part.event.rho * part.count for part in solver.guarantee().event.events)


def assert_private(solver, log_p, log_q):
    """The exact divergences of many pairs of laws against the guarantee, in both directions."""
    rho = total_rho(solver)
    worst = 0.0
    for a, b in ((log_p, log_q), (log_q, log_p)):
        for alpha in ALPHAS:
            worst = max(worst, (renyi(a, b, alpha) / (alpha * rho)).max())
        for delta in (1e-1, 1e-2, 1e-4, 1e-8):
            epsilon = solver.guarantee().epsilon(delta)
            assert hockey_stick(a, b, epsilon).max() <= delta * (1 + 1e-6)
    assert worst <= 1 + 1e-3
    return worst


# Descent-ascent: 2 x 2 games, one vertex a draw, two steps of one record.


def game_law(tau, output):
    """From records `[..., 2, 2, 2]` to the logs of the law of all draws, `[..., outcomes]`."""
    solver = SaddleMirrorDescent(
        DisjointPartition(2, 1, "given"), (tau, tau), (2.0, 2.0), 1, output
    )
    problem = Saddle.matrix_game((2, 2))
    xs = solver.sampler.plan(jax.random.key(0), 2)
    fresh = output == "fresh"

    def logits(matrices, drawn):  # drawn: the vertices of x in both steps, then those of y
        pad = jnp.zeros((2, int(fresh)), jnp.int32)
        indices = tuple(jnp.concatenate([d[:, None], pad], axis=1) for d in (drawn[:2], drawn[2:]))
        return solver.replay(problem, {"A": matrices}, VertexInfo(indices), xs).logits

    played = np.array(list(itertools.product((0, 1), repeat=4)))
    every = jax.jit(jax.vmap(jax.vmap(logits, (None, 0)), (0, None)))

    def law(matrices):
        scores = every(jnp.asarray(matrices, float), jnp.asarray(played, jnp.int32))
        x, y = (log_softmax(s) for s in scores)  # [data sets, played, 3, 2]
        # outcomes: played in steps 1, 2 (x, y); played last (x, y); fresh ones in steps 1 to 3
        total = None
        for b, log in enumerate((x, y)):
            own = played[:, 2 * b : 2 * b + 2]
            base = sum(log[:, np.arange(16), t, own[:, t]] for t in (0, 1))
            per_row = [log[:, :, 2, :]] + ([log[:, :, t, :] for t in range(3)] if fresh else [])
            for row in per_row:  # one more draw each, independent given what was played
                base = base[..., None] + row.reshape(*row.shape[:2], *(1,) * (base.ndim - 2), 2)
            base = base.reshape(*base.shape[:2], -1)
            total = base if total is None else total[..., None] + base[:, :, None, :]
        return total.reshape(len(matrices), -1)

    return solver, law


def game_pairs(rng, count):
    """Neighbouring pairs of data sets of two records: signs, and games at random."""
    first = np.concatenate([np.stack([SIGNS, 0 * SIGNS])[None]] * 2 + [np.stack([SIGNS] * 2)[None]])
    second = first.copy()
    second[:, 0] = -SIGNS
    second[1, 0] = 0
    a = rng.uniform(-1, 1, (count, 2, 2, 2))
    b = a.copy()
    changed = rng.integers(0, 2, count)
    b[np.arange(count), changed] = rng.uniform(-1, 1, (count, 2, 2))
    extreme = rng.random(count) < 0.5
    a, b = (np.where(extreme[:, None, None, None], np.sign(m), m) for m in (a, b))
    return np.concatenate([first, a]), np.concatenate([second, b])


@pytest.mark.parametrize(("output", "draws"), [("fresh", 8), ("played", 4)])
def test_descent_spends_what_it_counts_and_no_less(output, draws, rng):
    reached = 0.0
    for tau in (0.01, 0.3, 1.0):
        solver, law = game_law(tau, output)
        eta = 2 * tau * 2
        assert total_rho(solver) == pytest.approx(draws * eta**2 / 8)
        log_p, log_q = (law(matrices) for matrices in game_pairs(rng, 30))
        assert np.exp(log_p).sum(axis=1) == pytest.approx(1)
        assert log_p.shape[1] == 2 ** (12 if output == "fresh" else 6)
        reached = max(reached, draws * assert_private(solver, log_p, log_q))
    print(f"{output}: {reached:.4f} of {draws}")
    assert reached >= draws - 0.1
    # a count of T (K + 1) for both blocks together, 6 or 3, would be refuted
    assert reached > 3 * (2 if output == "fresh" else 1)


# Anytime: two vertices, draws at times 1 to q, at multiples of q and last.


@pytest.mark.parametrize(
    ("steps", "refresh"),
    [
        (3, 2),
        pytest.param(4, 2, marks=pytest.mark.slow),
        pytest.param(3, 1, marks=pytest.mark.slow),
    ],
)
def test_draws_from_averages_spend_at_most_what_they_count(steps, refresh, rng):
    times = [t for t in range(1, steps + 1) if t <= refresh or t % refresh == 0]
    problem = SimplexRisk(lambda w, rec: w @ rec["B"] @ w, dim=2, grad_range=2.0)
    outcomes = np.array(list(itertools.product((0, 1), repeat=len(times))))
    indices = np.zeros((len(outcomes), steps, 1), np.int32)
    for t in range(1, steps + 1):
        indices[:, t - 1, 0] = outcomes[:, np.searchsorted(times, t, side="right") - 1]
    count = 40
    data = rng.normal(size=(count, steps, 2, 2)) * 10.0 ** rng.integers(-1, 3, (count, 1, 1, 1))
    other = data.copy()
    changed = rng.integers(0, steps, count) // 2
    other[np.arange(count), changed] = 10 * rng.normal(size=(count, 2, 2))
    # one record alone, for the first vertex or against it
    data[0], other[0] = 0, 0
    data[0, 0], other[0, 0] = np.diag([1, -1]), np.diag([-1, 1])
    shares = []
    for tau in (0.05, 1.0):
        solver = AnytimeMirrorDescent(DisjointPartition(steps, 1, "given"), tau, 2.0, 1, refresh)
        xs = solver.sampler.plan(jax.random.key(0), steps)

        @jax.jit
        @jax.vmap
        def logits(matrices, solver=solver, xs=xs):
            def one(drawn):
                info = VertexInfo((drawn,))
                return solver.replay(problem, {"B": matrices}, info, xs).logits[0]

            return jax.vmap(one)(jnp.asarray(indices))

        def law(matrices, logits=logits):
            log = log_softmax(logits(jnp.asarray(matrices, float)))
            rows = np.arange(len(outcomes))
            drawn = sum(log[:, rows, t - 1, outcomes[:, i]] for i, t in enumerate(times))
            return (drawn[..., None] + log[:, :, -1, :]).reshape(len(matrices), -1)

        log_p, log_q = law(data), law(other)
        assert np.exp(log_p).sum(axis=1) == pytest.approx(1)
        # the first draw is free of data, the last is always made
        assert total_rho(solver) == pytest.approx(len(times) * (4 * tau) ** 2 / 8)
        shares.append(assert_private(solver, log_p, log_q))
    print(f"steps {steps}, refresh {refresh}: {max(shares):.3f} of rho")
    # the mean over draws of the square of the share of iterates that the first record moves
    ideal = np.mean([((t - 1) / t) ** 2 for t in [*times[1:], steps + 1]])
    assert max(shares) == pytest.approx(ideal, rel=0.05)

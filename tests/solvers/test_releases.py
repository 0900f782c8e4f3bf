"""The noise that runs, release by release, is the noise that the event names."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import dpjax
from dpjax.solvers import RateConstrainedSGDA
from dpjax.testing import check_scale, count_false_alarm

DRAWS = 4000
DATA = {
    "x": jnp.ones((50, 3)),
    "y": jnp.zeros(50, jnp.int32),
    "group": jnp.asarray([0] * 20 + [1] * 30, jnp.int32),
}


def _solver(**fields):
    parity = dpjax.problems.demographic_parity(2, 2, slack=0.05)
    problem = dpjax.problems.RateConstrained.linear(3, 2, parity)
    solver = RateConstrainedSGDA.for_budget(
        problem, 2000, dpjax.Budget(1.0, 1e-5), steps=20, batch_size=100, **fields
    )
    return problem, solver


def _draws(run, seed):
    words = jax.random.key_data(jax.random.split(jax.random.key(seed), DRAWS))
    return np.asarray(jax.jit(jax.vmap(lambda w: run(jax.random.wrap_key_data(w))))(words))


@pytest.mark.slow
def test_laplace_table_has_the_scale_of_its_event():
    """On an empty batch the size of a group is the sum of two Laplace cells."""
    problem, solver = _solver(histogram="laplace", estimator="ratio", denominator="ema")
    claimed = solver.guarantee().event.event.event.events[0].noise_multiplier

    def size(key):
        state = solver.init(problem, key=key)
        return solver.step(problem, DATA, jnp.zeros(50, bool), state)[0].memory.sizes[0]

    def cdf_of_scale(scale):
        def cdf(x):
            t = np.abs(x) / scale
            tail = (0.5 + t / 4) * np.exp(-t)
            return np.where(x > 0, 1 - tail, tail)

        return cdf

    check_scale(_draws(size, 0), cdf_of_scale, claimed)


def test_part_counts_have_the_deviation_of_their_event():
    problem, solver = _solver(denominator="fixed", count_noise=7.0)
    assert solver.guarantee().event.events[1].noise_multiplier == 7.0

    def size(key):
        state = solver.init(problem, key=key)
        return solver.prologue(problem, DATA, state).memory.sizes[0]

    counts = _draws(size, 1) / solver.sampler.rate
    count_false_alarm(1e-15)  # 9 standard errors
    assert np.mean(counts) == pytest.approx(20, abs=1)
    check_scale(counts - 20, lambda scale: stats.norm(scale=scale).cdf, 7.0)

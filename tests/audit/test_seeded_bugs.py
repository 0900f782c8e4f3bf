"""An audit that cannot fail proves nothing: known mistakes, and the right code beside each.

Each bound is above the truth with probability 1e-7 at most, so the right code fails by chance with
that probability, and a bound above the claim shows a mistake. Coarse Gumbel noise, which shows at
one draw in a million, has its audit where its law is enumerated:
tests/privacy/test_exact_curves_gumbel.py.
"""

import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import dp_event as dpe

from dpjax import audit
from dpjax.core import PyTree, register_dataclass
from dpjax.privacy import Guarantee, joint_poisson_epsilon
from dpjax.problems import Risk
from dpjax.sampling import FullBatch
from dpjax.solvers import DPSGD
from dpjax.testing import count_false_alarm
from dpjax.transforms import BinaryTree, add_gaussian, clip_by_norm, correlated_noise

DELTA = 1e-2
FALSE_ALARM = 1e-7
CONFIDENCE = 1 - FALSE_ALARM


@pytest.fixture(autouse=True)
def _counted():
    count_false_alarm(FALSE_ALARM)


def _gradient_is_record(w, record):
    return w @ record


def _drawn_to_record(w, record):
    # a record of zeros has no gradient: it stands for an absent one
    return 0.5 * record[0] * jnp.sum((w - record) ** 2)


def bug(kind):
    return register_dataclass(dataclass(frozen=True)(kind))


@bug
class MeanForSum(DPSGD):
    """Divides by the realised size of the batch."""

    def descend(self, problem, gradients, batch, mask, state):
        right = DPSGD(**{f.name: getattr(self, f.name) for f in dataclasses.fields(self)})
        size = jnp.maximum(jnp.sum(mask), 1).astype(jnp.float32)
        right = dataclasses.replace(right, batch_size=size)
        return right.descend(problem, gradients, batch, mask, state)


@bug
class ReusedKey(DPSGD):
    """Draws the noise of the first step in every step."""

    def descend(self, problem, gradients, batch, mask, state):
        after, info = super().descend(problem, gradients, batch, mask, state)
        return after._replace(noise=state.noise), info


@bug
class HalvedNoise(DPSGD):
    """Halves the standard deviation."""

    def make_noise(self):
        return add_gaussian(0.5 * self.noise_multiplier * self.clip_norm)


@bug
class DoubledSensitivity(DPSGD):
    """Sums the last microbatch twice, which is the only one."""

    def descend(self, problem, gradients, batch, mask, state):
        twice = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), batch)
        return super().descend(problem, gradients, twice, jnp.concatenate([mask, mask]), state)


def shown_by(kind, loss, noise, steps, runs):
    """(The lower bound, the claim) for one record among four that add nothing."""
    solver = kind(FullBatch(steps), noise, 1.0, 1.0, 2.0, average="last")
    data = jnp.zeros((4, 3)).at[0].set(1.0)
    # the batch's size shows only where a record is really gone
    neighbour = data[1:] if kind is MeanForSum else data.at[0].set(0.0)
    shown = audit.lower_bound(
        solver,
        Risk(loss, jnp.zeros(3)),
        data,
        neighbour,
        runs=runs,
        delta=DELTA,
        key=jax.random.key(0),
        confidence=CONFIDENCE,
    )
    return shown, solver.guarantee().epsilon(DELTA)


@pytest.mark.parametrize(
    ("kind", "loss", "noise", "steps", "runs"),
    [
        (MeanForSum, _gradient_is_record, 8.0, 3, 6000),
        (ReusedKey, _drawn_to_record, 2.0, 2, 6000),
        (HalvedNoise, _gradient_is_record, 1.0, 1, 10_000),
        (DoubledSensitivity, _gradient_is_record, 1.0, 1, 10_000),
    ],
)
def test_solver_with_a_mistake_is_caught(kind, loss, noise, steps, runs):
    shown, claimed = shown_by(kind, loss, noise, steps, runs)
    assert shown > claimed
    right, claimed_too = shown_by(DPSGD, loss, noise, steps, runs)
    assert claimed_too == claimed
    assert right <= claimed


RATE, NOISE = 0.1, 0.5


def _pair(data, key):
    """Two releases of one Poisson batch of at most one record."""
    keys = jax.random.split(key, 3)
    present = jax.random.bernoulli(keys[0], RATE) * data
    return present + NOISE * jnp.stack([jax.random.normal(k) for k in keys[1:]])


def test_pair_of_one_batch_accounted_independently_is_caught():
    shown = audit.mechanism_lower_bound(
        _pair,
        jnp.zeros(()),
        jnp.ones(()),
        runs=200_000,
        delta=DELTA,
        key=jax.random.key(1),
        confidence=CONFIDENCE,
        score=jnp.sum,
    )
    one = dpe.PoissonSampledDpEvent(RATE, dpe.GaussianDpEvent(NOISE))
    independent = Guarantee(dpe.ComposedDpEvent([one, one])).epsilon(DELTA)
    joint = joint_poisson_epsilon(RATE, 1, DELTA, gaussian=NOISE, histogram_gaussian=NOISE)
    assert independent < shown < joint


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class PrintedTree(BinaryTree):
    """Noise for log2(T) levels, as printed; at a power of two there is one more."""

    @property
    def node_factor(self):
        return float(np.sqrt(np.ceil(np.log2(self.num_steps))))


def _prefix_sums(tree, noise):
    transform = correlated_noise(tree, noise)

    def mechanism(data: PyTree, key: jax.Array) -> PyTree:
        state = transform.init(data[0])
        sums = []
        for row in data:
            noisy, state = transform.update(row, state, key=key)
            sums.append(noisy)
        return sums

    return mechanism


@pytest.mark.parametrize(("tree", "caught"), [(PrintedTree(2), True), (BinaryTree(2), False)])
def test_tree_at_a_power_of_two(tree, caught):
    noise = 0.7
    shown = audit.mechanism_lower_bound(
        _prefix_sums(tree, noise),
        jnp.zeros((2, 1)),
        jnp.zeros((2, 1)).at[0].set(1.0),
        runs=100_000,
        delta=DELTA,
        key=jax.random.key(2),
        confidence=CONFIDENCE,
    )
    claimed = Guarantee(tree.event(noise)).epsilon(DELTA)
    assert (shown > claimed) == caught
    assert shown > 0.7 * claimed


def test_clipping_forgotten_is_caught():
    def mechanism(data, key):
        noise = add_gaussian(1.0)
        return noise.update(jnp.sum(data, 0), noise.init(None), key=key)[0]

    def clipped(data, key):
        clip, noise = clip_by_norm(1.0), add_gaussian(1.0)
        total, _ = clip.update(data, clip.init(None), mask=jnp.ones(len(data), bool))
        return noise.update(total, noise.init(None), key=key)[0]

    data = jnp.full((2, 2), 3.0)
    claimed = Guarantee(dpe.GaussianDpEvent(1.0)).epsilon(DELTA)
    for run, caught in ((mechanism, True), (clipped, False)):
        shown = audit.mechanism_lower_bound(
            run,
            data,
            data.at[0].set(0.0),
            runs=4000,
            delta=DELTA,
            key=jax.random.key(4),
            confidence=CONFIDENCE,
        )
        assert (shown > claimed) == caught

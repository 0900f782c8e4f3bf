"""Wrong mechanisms and wrong accounting, as the exact curves find them: all must be violated."""

import dataclasses
from unittest import mock

import jax
import jax.numpy as jnp
import pytest
from dp_accounting import dp_event as dpe
from exact import ADD, OTHER, REMOVED, REPLACE, compare, descent, descent_pair, gradients
from test_exact_curves import GONE, KNOWN, sgda, sgda_pair
from test_exact_curves_vertices import SWAP, frank_wolfe

import dpjax
from dpjax import transforms
from dpjax.core import register_dataclass
from dpjax.sampling import DisjointPartition, FullBatch, PoissonSampler
from dpjax.solvers import DPSGD
from dpjax.solvers.descent import _dpsgd as module

FOILS = {}


def foil(function):
    """One that gives a guarantee and pairs of laws that break it."""
    FOILS[function.__name__.replace("_", " ")] = function
    return function


def _kind(**methods):
    """A solver that differs from DPSGD in these methods."""
    return register_dataclass(
        dataclasses.dataclass(frozen=True)(type("Tampered", (DPSGD,), methods))
    )


def _wrong(kind, sampler, sets=REMOVED, **fields):
    solver = descent(sampler, kind=kind, **fields)
    return solver.guarantee(), descent_pair(solver, sets)


@foil
def halved_noise():
    def make_noise(self):
        return transforms.add_gaussian(self.noise_multiplier * self.clip_norm / 2)

    return _wrong(_kind(make_noise=make_noise), PoissonSampler(0.3, 1, 2))


@foil
def doubled_sensitivity():
    def step(self, problem, batch, mask, state):
        with mock.patch.object(module, "clip_by_norm", lambda c: transforms.clip_by_norm(2 * c)):
            return DPSGD.step(self, problem, batch, mask, state)

    def make_noise(self):
        return transforms.add_gaussian(self.noise_multiplier * self.clip_norm)

    return _wrong(_kind(step=step, make_noise=make_noise), PoissonSampler(0.3, 1, 2))


@foil
def mean_for_sum():
    nominal = 2.0

    def step(self, problem, batch, mask, state):
        size = jnp.maximum(jnp.sum(mask), 1).astype(float)
        return DPSGD.step(dataclasses.replace(self, batch_size=size), problem, batch, mask, state)

    def make_noise(self):  # after division that of a sum over the nominal size
        size = self.batch_size / nominal
        return transforms.add_gaussian(self.noise_multiplier * self.clip_norm * size)

    sets = [(gradients(5.0, -5.0), 2), (gradients(5.0, -5.0), 1)]
    kind = _kind(step=step, make_noise=make_noise)
    return _wrong(kind, FullBatch(1), sets, batch_size=nominal)


@foil
def a_record_counted_twice():
    def step(self, problem, batch, mask, state):
        twice = jax.tree.map(lambda a: jnp.concatenate([a, a]), batch)
        return DPSGD.step(self, problem, twice, jnp.concatenate([mask, mask]), state)

    return _wrong(_kind(step=step), FullBatch(2))


@foil
def another_record_accounted_as_none():
    solver = descent(DisjointPartition(2, 1, "given"), relation="replace_one")
    claimed = dpjax.Guarantee(solver.guarantee().event, ADD)
    return claimed, descent_pair(solver, OTHER)


@foil
def a_cut_batch_that_is_no_failure():
    """The first of two records takes the only slot, and drives out the other."""
    solver = descent(PoissonSampler(0.9, 1, 2, capacity=1), 1.0)
    sets = [(gradients(5.0, -5.0), 2), (gradients(-5.0, 0.0), 1)]
    return dpjax.Guarantee(solver.guarantee().event), descent_pair(solver, sets)


@foil
def one_batch_accounted_as_two():
    """The printed accounting of a table and a gradient, each amplified by itself."""
    solver = sgda(PoissonSampler(0.05, 1, 2), 1.0, "laplace", 0.5, **KNOWN)
    parts = (dpe.LaplaceDpEvent(0.5), dpe.GaussianDpEvent(1.0))
    event = dpe.ComposedDpEvent([dpe.PoissonSampledDpEvent(0.05, part) for part in parts])
    return dpjax.Guarantee(event), sgda_pair(solver, GONE)


@foil
def draws_from_scores_of_doubled_range():
    claimed, _ = frank_wolfe(REPLACE, SWAP)
    return claimed, frank_wolfe(REPLACE, SWAP, sharpness=4.0)[1]


@pytest.mark.parametrize("name", list(FOILS))
def test_wrong_things_are_found_out(name, x64):
    excess, share = compare(*FOILS[name]())
    print(f"{name}: by {excess:.4f}, {share:.3f} times the claim")
    assert excess > 1e-3
    assert share > 1.1

"""Reprs of solvers, guarantees and solutions: privacy and noise in a few lines, never the data."""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import dp_event as dpe

import dpjax
import dpjax.testing as dpt
from dpjax.runtime import UnknownGuarantee
from dpjax.sampling import FullBatch, PoissonSampler
from dpjax.solvers import DPFTRL, DPSGD, RateConstrainedSGDA
from dpjax.solvers.descent._dpsgd import DPSGDInfo
from dpjax.solvers.vertices._steps import VertexInfo

BUDGET = dpjax.Budget(1.0, 1e-5)
SOLVERS = pytest.mark.parametrize("entry", dpt.entries("solver"), ids=lambda entry: entry.name)
LINEAR = dpjax.problems.RateConstrained.linear(3, 2)
DATA = {"x": jnp.full((40, 3), 0.123456), "y": jnp.ones(40, int)}


@functools.cache
def case(entry):
    return entry.make()


def made(entry, value=1.3):
    return case(entry).build(value)


def stacked(entry):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(made(entry, z) for z in (1.1, 1.3)))


def relation_of(solver):
    return getattr(solver, "primal", solver).relation


@SOLVERS
def test_a_solver_shows_relation_epsilon_steps_and_batches_in_few_lines(entry):
    solver = made(entry)
    shown = repr(solver)
    lines = shown.split("\n  ")
    assert lines[0] == f"{type(solver).__name__}(relation={relation_of(solver)!r})"
    assert lines[1].startswith("epsilon ")
    assert " at delta 1e-05, " in lines[1]
    shown_epsilon = float(lines[1].split()[1])
    assert 0 <= shown_epsilon - solver.guarantee().epsilon(1e-5) < 2e-3 * shown_epsilon
    steps = solver.sampler.steps
    assert lines[2].startswith(f"{steps} step{'' if steps == 1 else 's'}, ")
    assert "batch" in lines[2]
    assert type(solver.sampler).__name__ in lines[2]
    assert len(lines) <= 8
    assert max(map(len, lines)) <= 100
    assert str(solver) == shown
    assert "rray(" not in shown


@SOLVERS
def test_fields_that_are_stacked_or_traced_are_shown_by_shape(entry):
    runs = stacked(entry)
    shown = [repr(runs)]

    def inside(solver):
        shown.append(repr(solver))
        return jnp.zeros(())

    jax.eval_shape(inside, runs)
    jax.vmap(inside)(runs)
    for text in shown:
        assert text.startswith(f"{type(runs).__name__}(relation={relation_of(runs)!r})\n")
        assert "epsilon not known" in text
        assert f"{runs.sampler.steps} step" in text
        assert len(text.splitlines()) <= 8
        assert "rray(" not in text
        assert "Tracer" not in text
    assert "array [2" in shown[0]
    assert "traced [2" in shown[1]
    assert "traced [" in shown[2]


def test_the_noise_in_a_mean_gradient_is_over_the_clip_norm():
    solver = DPSGD.for_budget(LINEAR, 10_000, BUDGET, steps=200)
    share = float(solver.noise_multiplier) / 625
    line = repr(solver).splitlines()[3]
    assert f"; {share:.4g} x clip norm in a coordinate of each mean of 625" in line
    solver = DPFTRL.for_budget(LINEAR, 10_000, BUDGET, noise="buffered", epochs=1)
    # the first step's noise is the whole of the first sum's
    share = float(solver.noise_multiplier) * solver.noise.prefix_stddev()[0] / 100
    line = repr(solver).splitlines()[3]
    assert f"; {share:.4g} x clip norm in a coordinate of the first mean of 100" in line


def test_fields_at_their_default_are_left_out_and_large_ones_are_shown_by_shape():
    sampler = PoissonSampler(0.5, 4, 40)
    shown = repr(DPSGD(sampler, 2.0, 1.0, 0.25, 20.0))
    assert "4 steps, expected batch 20 of 40 records (PoissonSampler)" in shown
    assert shown.endswith("learning_rate=0.25")
    descent = DPSGD(sampler, 2.0, 1.0, 0.25, 20.0, average="last", microbatch_size=7)
    counts = jnp.full(40, 0.123456)
    shown = repr(RateConstrainedSGDA(descent, 0.1, 3.0, part_counts=counts, denominator="fixed"))
    assert "part_counts=array [40]" in shown
    assert "microbatch_size=7" in shown
    assert "average='last'" in shown
    assert "temperature" not in shown
    assert "0.1235" not in shown


def test_a_repr_takes_no_longer_than_the_accountant():
    solver = DPSGD.for_budget(LINEAR, 10_000, BUDGET, steps=300)
    repr(solver)
    start = time.perf_counter()
    repr(solver)
    assert time.perf_counter() - start < 0.1  # of values computed before


def test_no_repr_raises():
    leaves, structure = jax.tree.flatten(DPSGD(FullBatch(2), 1.0, 1.0, 1.0, 4.0))
    hollow = jax.tree.unflatten(structure, [object()] * len(leaves))  # as transformations make them
    assert "epsilon not known: TypeError" in repr(hollow)
    assert "noise object x clip norm object in a sum" in repr(hollow)
    solver = DPSGD(FullBatch(2), 0.0, 1.0, 1.0, 4.0)
    assert "epsilon inf at delta 1e-05, inf at delta 1e-06 (not private)" in repr(solver)
    many = [dpe.PoissonSampledDpEvent(0.1, dpe.GaussianDpEvent(1.0 + i)) for i in range(9)]
    shown = repr(dpjax.Guarantee(dpe.ComposedDpEvent(many)))
    assert "epsilon takes long to compute: ask .epsilon(delta)" in shown
    assert shown.endswith("... 9 in all)")
    assert repr(UnknownGuarantee()).startswith("UnknownGuarantee: the solver's fields were traced")


def test_a_guarantee_shows_relation_epsilon_and_event():
    event = dpe.SelfComposedDpEvent(dpe.PoissonSampledDpEvent(0.25, dpe.GaussianDpEvent(3.0)), 10)
    guarantee = dpjax.Guarantee(event, "replace_one", 1e-9)
    first, second, third = repr(guarantee).splitlines()
    assert first == "Guarantee(relation='replace_one', failure_probability=1e-09)"
    values = [float(text.split()[0]) for text in second.removeprefix("  epsilon ").split(", ")]
    for value, delta in zip(values, (1e-5, 1e-6), strict=True):
        exact = guarantee.epsilon(delta)
        assert exact <= value < exact * 1.002  # rounded up
    assert third == "  event 10 x PoissonSampled(0.25, Gaussian(3))"
    assert "epsilon 0 at" in repr(dpjax.Guarantee(dpe.NoOpDpEvent()))


def test_an_info_shows_a_line_a_field():
    solver = DPSGD.for_budget(LINEAR, 40, BUDGET, steps=3000)
    info = DPSGDInfo(jnp.arange(3000, dtype=jnp.float32), jnp.float32(0.5))
    head, norms, clip = repr(info).splitlines()
    assert head == "DPSGDInfo"
    assert norms == "  gradient_norm: float32 [3000], 0 ... 2999, from 0 to 2999"
    assert clip == "  clip_norm: 0.5"
    seen = []
    jax.jit(lambda info: seen.append(repr(info)))(info)
    assert seen == ["DPSGDInfo\n  gradient_norm: traced [3000]\n  clip_norm: traced []"]
    shapes = jax.eval_shape(lambda: dpjax.solve(solver, LINEAR, DATA, key=jax.random.key(0)).info)
    assert len(repr(shapes).splitlines()) == 3
    assert "rray" not in repr(VertexInfo((jnp.zeros((9, 3), int),)))


def test_a_solution_shows_shapes_and_nothing_secret():
    key, others = jax.random.key(0), jax.random.split(jax.random.key(1))
    solver = DPSGD.for_budget(LINEAR, 40, BUDGET, steps=5)
    solution = dpjax.solve(solver, LINEAR, DATA, key=key, sensitive=True)
    shown = repr(solution)
    head, *rest = shown.splitlines()
    assert head == "Solution"
    assert rest[:3] == [
        "  params ['b'] [2], ['w'] [3, 2]",
        "  info .gradient_norm [5], .clip_norm [5]",
        "  sensitive: raw values, not private",
    ]
    assert "\n".join(line[2:] for line in rest[3:]) == repr(solution.guarantee)
    assert "key" not in shown
    assert "rray" not in shown
    assert "clipped_fraction" not in shown
    words = np.asarray(jax.random.key_data(solution.state.key))
    assert not any(str(word) in shown for word in words if word > 1000)
    runs = jax.vmap(lambda k: dpjax.solve(solver, LINEAR, DATA, key=k))(others)
    assert "['w'] [2, 3, 2]" in repr(runs)
    many = dpjax.core.Solution([jnp.zeros(1)] * 9, solution.guarantee, (), None)
    assert "[5] [1], ... 9 leaves in all" in repr(many)

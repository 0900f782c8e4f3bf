"""A sampler that dpjax does not know, written as a user would, with its own event."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import dp_event as dpe

import dpjax
from dpjax.testing import Entry, SamplerCase, check_sampler, entries

N, EPOCHS, BATCHES = 40, 3, 4


@dataclasses.dataclass(frozen=True)
class Epochs:
    """Every record once an epoch, in the batch that its place in the data says."""

    steps: int = EPOCHS * BATCHES
    slots: int = N // BATCHES
    default_relation: str = "replace_one"

    def plan(self, key, num_records):
        rows = jnp.arange(N, dtype=jnp.int32).reshape(BATCHES, self.slots)
        return jnp.tile(rows, (EPOCHS, 1))

    def batch(self, x, num_records):
        return x, x < num_records

    def event(self, step):
        return dpe.SelfComposedDpEvent(step, EPOCHS)

    def check_relation(self, relation):
        if relation.name != "REPLACE_ONE":
            raise ValueError(f"relation must be replace_one, got {relation.name.lower()}")

    def participation_rate(self, num_records):
        return 1 / BATCHES

    def failure_probability(self):
        return 0.0


STRANGER = jax.tree_util.register_static(Epochs)()
MEMBERS = sorted(name for name in vars(dpjax.core.Sampler) if not name.startswith("_"))


def lacking(name):
    """Another stranger, without one member."""
    kept = {key: value for key, value in vars(Epochs).items() if not key.startswith("__")}
    kept.pop(name, None)
    return type("Lacking", (), kept)()


def problem():
    return dpjax.problems.RateConstrained.linear(num_features=3, num_classes=2)


def data():
    x = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)
    return {"x": jnp.asarray(x), "y": jnp.asarray(x[:, 0] > 0, jnp.int32)}


def test_it_conforms():
    check_sampler(Entry("Epochs", "sampler", lambda: SamplerCase(STRANGER, N, random=False)))


def test_it_runs_in_dpsgd_with_its_own_event():
    budget = dpjax.Budget(2.0, 1e-3)
    solver = dpjax.solvers.DPSGD.for_budget(problem(), N, budget, sampler=STRANGER)
    assert solver.relation == "replace_one"
    assert solver.batch_size == N / BATCHES
    solution = dpjax.solve(solver, problem(), data(), key=jax.random.key(0))
    # three releases at the doubled sensitivity of replace-one
    z = solver.noise_multiplier
    once = dpjax.Guarantee(dpe.GaussianDpEvent(z / 2 / EPOCHS**0.5))
    np.testing.assert_allclose(solution.guarantee.epsilon(1e-3), once.epsilon(1e-3), rtol=1e-3)
    assert 1.99 < solution.guarantee.epsilon(1e-3) <= 2.0
    assert np.isfinite(jax.tree.leaves(solution.params)[0]).all()


def test_it_counts_table_and_gradient_jointly():
    descent = dpjax.solvers.DPSGD(STRANGER, 3.0, 1.0, 1.0, 10.0, relation="replace_one")
    solver = dpjax.solvers.RateConstrainedSGDA(descent, dual_learning_rate=0.1, histogram_noise=4.0)
    assert solver.guarantee().event == STRANGER.event(dpe.GaussianDpEvent(12 / 5))


def test_a_relation_it_does_not_hold_under_is_refused():
    with pytest.raises(ValueError, match="relation must be replace_one, got add_or_remove_one"):
        dpjax.solvers.DPSGD(STRANGER, 1.0, 1.0, 1.0, 10.0)


@pytest.mark.parametrize("name", MEMBERS)
def test_one_that_lacks_something_is_refused_at_construction(name):
    bad = lacking(name)
    with pytest.raises(TypeError, match=rf"without {name}: see dpjax.core.Sampler"):
        dpjax.solvers.DPSGD(bad, 1.0, 1.0, 1.0, 10.0, relation="replace_one")
    with pytest.raises(TypeError, match=rf"without {name}: see dpjax.core.Sampler"):
        dpjax.solvers.DPSGD.for_budget(problem(), N, dpjax.Budget(1.0, 1e-3), sampler=bad)


def solvers():
    """Every registered solver that is made with a sampler of the user's, once a class."""
    first = {entry.name.split("(")[0]: entry for entry in reversed(entries("solver"))}
    made = [entry.make().build(1.0) for entry in first.values()]
    made = [getattr(solver, "primal", solver) for solver in made]
    return {type(solver).__name__: solver for solver in made}


def test_every_solver_refuses_a_sampler_without_an_event():
    made = solvers()
    assert {"DPSGD", "DPFTRL", "OnlineToBatch", "OnlineToNonconvex", "FrankWolfe"} <= set(made)
    for name, solver in made.items():
        if "sampler" not in {field.name for field in dataclasses.fields(solver)}:
            continue
        try:
            dataclasses.replace(solver, sampler=lacking("event"))
        except TypeError as error:
            assert "sampler must be" in str(error), name  # noqa: PT017
        else:
            pytest.fail(f"{name} took a sampler without an event")


def test_solve_runs_no_step_with_a_sampler_without_an_event():
    solver = dpjax.solvers.DPSGD(STRANGER, 1.0, 1.0, 1.0, 10.0, relation="replace_one")
    object.__setattr__(solver, "sampler", lacking("event"))

    class Watched(type(problem())):
        def check(self, data):
            pytest.fail("the data were read")

    watched = object.__new__(Watched)
    with pytest.raises(TypeError, match="without event"):
        dpjax.solve(solver, watched, data(), key=jax.random.key(0))


def test_solve_runs_no_step_where_there_is_no_guarantee():
    @dpjax.core.register_dataclass
    @dataclasses.dataclass(frozen=True)
    class Unaccounted(dpjax.solvers.DPSGD):
        def guarantee(self):
            raise ValueError("no accountant")

        def init(self, problem, *, key):
            pytest.fail("it ran")

    solver = Unaccounted(STRANGER, 1.0, 1.0, 1.0, 10.0, relation="replace_one")
    with pytest.raises(ValueError, match="no accountant"):
        dpjax.solve(solver, problem(), data(), key=jax.random.key(0))


EPOCHS_OF_PARTITIONS = dpjax.sampling.IndependentPartition(4, N, epochs=2)


def test_solvers_of_one_pass_take_no_sampler_of_several():
    """They count a record once: its class alone would let a sampler of epochs in."""
    made = solvers()
    refused = {"AnytimeMirrorDescent", "SaddleMirrorDescent", "OnlineToBatch"} & set(made)
    assert len(refused) >= 2
    for name in refused:
        relation = {"sampler": EPOCHS_OF_PARTITIONS, "relation": "add_or_remove_one"}
        with pytest.raises(ValueError, match=r"each record in one batch|record is in one step"):
            dataclasses.replace(made[name], **relation)


def test_correlated_noise_asks_how_a_stranger_takes_part():
    noise = dpjax.transforms.BufferedToeplitz(12, (0.3,), (0.9,), 3)
    fields = (1.0, 1.0, 1.0, 10.0)
    with pytest.raises(ValueError, match="state its participation"):
        dpjax.solvers.DPSGD(STRANGER, *fields, relation="replace_one", noise=noise)
    stated = {"participation": dpjax.sampling.Participation("fixed", EPOCHS, BATCHES)}
    kind = dataclasses.dataclass(frozen=True)(type("Stating", (Epochs,), stated))
    sampler = jax.tree_util.register_static(kind)()
    solver = dpjax.solvers.DPSGD(sampler, *fields, relation="replace_one", noise=noise)
    assert solver.guarantee().event == dpe.GaussianDpEvent(1.0)
    banded = dpjax.transforms.Banded(12, coefficients=(1, 0.5, 0.3, 0.2))
    solver = dataclasses.replace(solver, noise=banded)
    assert solver.guarantee().event == STRANGER.event(dpe.GaussianDpEvent(1.0))
    with pytest.raises(ValueError, match=r"at most 3 participations 5 steps apart, but Stating"):
        dataclasses.replace(
            solver, noise=dpjax.transforms.Banded(12, coefficients=(1, 0.5, 0.3, 0.2, 0.1))
        )

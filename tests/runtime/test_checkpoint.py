"""A run with checkpoints is the plain run, to the bit, however often it is interrupted."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.runtime.checkpoint._checkpoint import CheckpointFolder

pytest.importorskip("orbax.checkpoint")

from interruptions import ENTRIES, identical, interrupt, solve, until_done, whole_steps
from interruptions import case_of as case_of_entry

from tests.entries import one_of_each

REPRESENTATIVE = (
    "DPSGD(partition, adam, last iterate)",
    "DPFTRL(tree)",
    "OnlineToBatch(full batch)",
    "OnlineToNonconvex(add or remove)",
    "SaddleMirrorDescent(add or remove)",
    "RateConstrainedSGDA(J = 0)",
)
OTHER_STATES = (
    "DPSGD(host, truncate)",
    "DPSGD(shards)",
    "DPFTRL(buffered, adam)",
    "OnlineToBatch(tree, whole, microbatches)",
    "OnlineToNonconvex(first, periods)",
    "RateConstrainedSGDA(fixed, orthant)",
)
NAMES = [
    pytest.param(name, marks=[] if name in REPRESENTATIVE else pytest.mark.slow)
    for name in dict.fromkeys([*REPRESENTATIVE, *one_of_each(), *OTHER_STATES])
]


def case_of(name):
    return case_of_entry(name)


def test_the_representative_solvers_are_registered():
    assert set(REPRESENTATIVE) <= set(ENTRIES)


@pytest.mark.parametrize("name", NAMES)
def test_interrupted_and_plain_runs_agree_to_the_bit(name, tmp_path, monkeypatch):
    job = case_of(name)
    steps = job[0].sampler.steps
    plain = solve(job)
    with monkeypatch.context() as patch:
        patch.setattr("dpjax.runtime._loop.chunk_length", lambda steps: 2)
        assert identical(solve(job, progress=True), plain)
    assert identical(solve(job, checkpoint=tmp_path / "whole", every=3), plain)

    rng = np.random.default_rng(len(name))
    at = rng.choice(np.arange(1, steps + 1), size=min(3, steps), replace=False).tolist()
    left = interrupt(monkeypatch, at)
    resumed, attempts = until_done(job, tmp_path / "broken", everies=(1,))
    assert attempts == len(at)
    assert not left
    assert identical(resumed, plain)


@pytest.fixture(scope="module")
def tree_run():
    job = case_of("DPFTRL(tree)")
    return job, solve(job)


def test_death_before_the_save_and_other_intervals(tree_run, tmp_path, monkeypatch):
    job, plain = tree_run
    interrupt(monkeypatch, {2, 4}, after=False)
    resumed, attempts = until_done(job, tmp_path, everies=(2, 1, 3))
    assert attempts == 2
    assert identical(resumed, plain)


def test_a_finished_run_runs_no_step_again(tree_run, tmp_path, monkeypatch):
    job, plain = tree_run
    assert identical(solve(job, checkpoint=tmp_path), plain)
    assert whole_steps(tmp_path) == [4, 5]

    def refuse(*args):
        raise AssertionError

    monkeypatch.setattr("dpjax.runtime._loop.Job.start", refuse)
    monkeypatch.setattr(CheckpointFolder, "save", refuse)
    for progress in (False, True):
        assert identical(solve(job, checkpoint=tmp_path, progress=progress), plain)


@pytest.mark.parametrize("what", ["noise", "key", "outputs", "step"])
def test_a_resume_that_forgets_something_is_seen(what, tree_run, tmp_path, monkeypatch):
    """The comparison above has the power to tell a wrong resume."""
    job, plain = tree_run
    interrupt(monkeypatch, {2})
    restore = CheckpointFolder.restore

    def forgetful(self, like):
        found = restore(self, like)
        if found is None:
            return None
        step, (state, outputs) = found
        if what == "noise":
            state = state._replace(noise=jax.tree.map(np.zeros_like, state.noise))
        elif what == "key":
            other = jax.random.split(jax.random.wrap_key_data(jnp.asarray(state.key)))[0]
            state = state._replace(key=np.asarray(jax.random.key_data(other)))
        elif what == "outputs":
            outputs = jax.tree.map(np.zeros_like, outputs)
        else:
            step += 1
        return step, (state, outputs)

    monkeypatch.setattr(CheckpointFolder, "restore", forgetful)
    resumed, attempts = until_done(job, tmp_path)
    assert attempts == 1
    assert not identical(resumed, plain)


@pytest.mark.parametrize("checkpoints", [False, True])
def test_the_loss_is_traced_once(checkpoints, tmp_path):
    traces = []

    def loss(w, record):
        traces.append(None)
        return jnp.sum((w - record["x"]) ** 2)

    problem = dpjax.problems.Risk(loss, jnp.zeros(3))
    solver = dpjax.solvers.DPSGD(dpjax.sampling.FullBatch(3), 1.0, 1.0, 0.5, 8.0)
    data = {"x": np.ones((8, 3), np.float32)}
    del traces[:]
    options = {"checkpoint": tmp_path} if checkpoints else {}
    solve((solver, problem, data), sensitive=False, **options)  # diagnostics trace it once more
    assert len(traces) == 1


def test_the_folder_is_its_owners_alone(tree_run, tmp_path):
    path = tmp_path / "a" / "b"
    solve(tree_run[0], checkpoint=str(path))
    assert path.stat().st_mode & 0o777 == 0o700


def test_keywords_that_do_not_go_together(tree_run, tmp_path):
    job, _ = tree_run
    with pytest.raises(ValueError, match="every = 2 needs checkpoint"):
        solve(job, every=2)
    with pytest.raises(ValueError, match="every must be >= 1, got 0"):
        solve(job, every=0, checkpoint=tmp_path)
    with pytest.raises(TypeError, match="every must be an integer"):
        solve(job, every=1.5, checkpoint=tmp_path)


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap])
def test_checkpoints_need_concrete_values(transform, tree_run, tmp_path):
    words = jax.random.key_data(jax.random.split(jax.random.key(0), 2))

    def run(words):
        key = jax.random.wrap_key_data(words)
        return solve(tree_run[0], key=key, checkpoint=tmp_path / "none").params

    with pytest.raises(TypeError, match="checkpoint needs concrete values"):
        transform(run)(words if transform is jax.vmap else words[0])
    with pytest.raises(TypeError, match="checkpoint needs concrete values"):
        jax.jit(lambda: solve(tree_run[0], checkpoint=tmp_path / "none").params)()
    assert not (tmp_path / "none").exists()


def test_a_folder_in_use_is_refused(tree_run, tmp_path, monkeypatch):
    job, _ = tree_run

    def second(self, step, tree):
        solve(job, checkpoint=tmp_path)

    monkeypatch.setattr(CheckpointFolder, "save", second)
    with pytest.raises(RuntimeError, match="in use by another run"):
        solve(job, checkpoint=tmp_path)


def test_orbax_is_named_where_it_is_missing(tree_run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    with pytest.raises(ImportError, match=r"pip install 'dpjax\[checkpoint\]'"):
        solve(tree_run[0], checkpoint=tmp_path / "none")
    assert not (tmp_path / "none").exists()

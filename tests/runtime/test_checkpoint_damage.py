"""Damaged checkpoints are passed over for the last whole one, and never believed."""

import shutil

import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.runtime.checkpoint._checkpoint import CheckpointFolder

pytest.importorskip("orbax.checkpoint")

from interruptions import caught, identical, solve, whole_steps

STEPS = 6


def distance(w, record):
    return jnp.sum((w - record["x"]) ** 2)


JOB = (
    dpjax.solvers.DPSGD(dpjax.sampling.PoissonSampler(0.5, STEPS, 12), 1.0, 1.0, 0.5, 8.0),
    dpjax.problems.Risk(distance, jnp.ones(40, jnp.float32)),
    {"x": np.random.default_rng(0).normal(size=(12, 40)).astype(np.float32)},
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that was killed after its fifth step, and the plain run."""
    path = tmp_path_factory.mktemp("whole")
    plain = solve(JOB)
    assert identical(solve(JOB, checkpoint=path, every=1), plain)
    shutil.move(path / "step_000000000005", path / "kept")
    shutil.rmtree(path / "step_000000000006")
    solve(JOB, checkpoint=path, every=4)
    shutil.rmtree(path / "step_000000000006")
    shutil.move(path / "kept", path / "step_000000000005")
    assert whole_steps(path) == [4, 5]
    return path, plain


def files(path):
    return sorted(each for each in path.rglob("*") if each.is_file())


def damage(path, how, rng):
    """Spoils a checkpoint: all of its files, or the only one that is given."""
    for file in files(path) if path.is_dir() else [path]:
        content = bytearray(file.read_bytes())
        if how == "cut":
            file.write_bytes(content[: len(content) // 2])
        elif how == "deleted":
            file.unlink()
        elif content:
            content[rng.integers(len(content))] ^= 1 << rng.integers(8)
            file.write_bytes(content)


@pytest.mark.parametrize("how", ["cut", "deleted", "flipped"])
def test_a_damaged_last_checkpoint_is_passed_over(how, whole, tmp_path, rng):
    path, plain = whole
    folder = shutil.copytree(path, tmp_path / "run")
    damage(folder / "step_000000000005", how, rng)
    resumed, messages = caught(lambda: solve(JOB, checkpoint=folder, every=1))
    assert identical(resumed, plain)
    assert len(messages) == 1
    assert str(folder) in messages[0]
    assert "step_000000000005 cannot be read" in messages[0]
    assert "going on from step 4" in messages[0]
    assert whole_steps(folder) == [5, 6]
    assert caught(lambda: solve(JOB, checkpoint=folder))[1] == []


@pytest.mark.parametrize("how", ["cut", "deleted", "flipped"])
def test_one_damaged_file_is_harmless_or_seen(how, whole, tmp_path, rng):
    """A few hundred bytes of array data in each checkpoint, so that flips meet them as well."""
    path, plain = whole
    seen = 0
    for i, file in enumerate(files(path / "step_000000000005")):
        folder = shutil.copytree(path, tmp_path / str(i))
        damage(folder / file.relative_to(path), how, rng)
        resumed, messages = caught(lambda at=folder: solve(JOB, checkpoint=at, every=3))
        assert identical(resumed, plain), file
        assert all("going on from step 4" in message for message in messages)
        seen += len(messages)
    assert seen >= 2  # some files say things twice, or say nothing that matters


def test_the_checksum_covers_every_byte(whole, tmp_path, monkeypatch, rng):
    """Flipped between reading and comparing: no other check of the file can see that."""
    path, plain = whole
    check = CheckpointFolder._check

    def after_a_flip(self, step, packed):
        if step == 5:
            packed = packed.copy()
            packed[rng.integers(32, packed.size)] ^= 1 << rng.integers(8)
        return check(self, step, packed)

    monkeypatch.setattr(CheckpointFolder, "_check", after_a_flip)
    for i in range(5):
        folder = shutil.copytree(path, tmp_path / str(i))
        resumed, messages = caught(lambda at=folder: solve(JOB, checkpoint=at))
        assert "going on from step 4" in messages[0]
        assert identical(resumed, plain)


@pytest.mark.parametrize("how", ["cut", "flipped"])
def test_with_no_whole_checkpoint_the_run_starts_over(how, whole, tmp_path, rng):
    path, plain = whole
    folder = shutil.copytree(path, tmp_path / "run")
    for step in (4, 5):
        damage(folder / f"step_{step:012d}", how, rng)
    resumed, messages = caught(lambda: solve(JOB, checkpoint=folder, every=1))
    assert identical(resumed, plain)
    assert len(messages) == 1
    assert "step_000000000004, step_000000000005" in messages[0]
    assert "going on from the first step" in messages[0]


def test_an_unfinished_checkpoint_is_removed(whole, tmp_path):
    path, plain = whole
    folder = shutil.copytree(path, tmp_path / "run")
    unfinished = folder / "step_000000000006.orbax-checkpoint-tmp-3"
    shutil.copytree(folder / "step_000000000005", unfinished)
    resumed, messages = caught(lambda: solve(JOB, checkpoint=folder, every=1))
    assert identical(resumed, plain)
    assert len(messages) == 1
    assert unfinished.name in messages[0]
    assert "going on from step 5" in messages[0]
    assert not unfinished.exists()


def test_a_checkpoint_of_another_run_is_not_taken(whole, tmp_path):
    path, plain = whole
    folder, other = shutil.copytree(path, tmp_path / "run"), tmp_path / "other"
    solve(JOB, seed=4, checkpoint=other, every=1)
    shutil.rmtree(folder / "step_000000000005")
    shutil.copytree(other / "step_000000000005", folder / "step_000000000005")
    resumed, messages = caught(lambda: solve(JOB, checkpoint=folder, every=1))
    assert identical(resumed, plain)
    assert "going on from step 4" in messages[0]


def test_a_checkpoint_under_the_number_of_another_step_is_not_taken(whole, tmp_path):
    path, plain = whole
    folder = shutil.copytree(path, tmp_path / "run")
    shutil.move(folder / "step_000000000004", folder / "step_000000000006")
    resumed, messages = caught(lambda: solve(JOB, checkpoint=folder, every=1))
    assert identical(resumed, plain)
    assert "step_000000000006 cannot be read" in messages[0]

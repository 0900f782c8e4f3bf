"""A folder of checkpoints belongs to one run: anything else is refused by name."""

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax.runtime.checkpoint._fingerprint import digest_of

pytest.importorskip("orbax.checkpoint")

from interruptions import (
    Interrupted,
    caught,
    identical,
    solve,
    whole_steps,
)

N, STEPS = 12, 4
SHIFT = np.linspace(0.0, 1.0, 2000, dtype=np.float32)


def on_host(x):
    return np.asarray(x) * np.float32(0.5)


def other_on_host(x):
    return np.asarray(x) * np.float32(0.25)


def losses(shift=SHIFT, power=2, host=on_host):
    """A loss that closes over an array and asks a function on the host."""

    def loss(w, record):
        like = jax.ShapeDtypeStruct((), jnp.float32)
        target = jax.pure_callback(
            lambda x: host(x).astype(np.float32), like, record["x"][0], vmap_method="expand_dims"
        )
        return jnp.sum((w - record["x"]) ** power) + jnp.mean(jnp.sin(w[0] + shift)) * target

    return loss


LOSS, SGD = losses(), optax.sgd(0.5)


def job(loss=LOSS, optimizer=SGD, value=0.0, radius=2.0, **fields):
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(N, 3)).astype(np.float32)}
    data["x"][3, 1] += value
    problem = dpjax.problems.Risk(loss, jnp.ones(3, jnp.float32), radius=radius)
    solver = dpjax.solvers.DPSGD(
        dpjax.sampling.PoissonSampler(0.5, STEPS, N), 1.0, 1.0, 0.5, 8.0, optimizer=optimizer
    )
    return dataclasses.replace(solver, **fields), problem, data


@pytest.fixture(scope="module")
def plain():
    return solve(job())


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """A folder of a run that died before its first step."""

    def die(self):
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr("dpjax.runtime._loop.Job.start", die)
        with pytest.raises(Interrupted):
            solve(job(), checkpoint=tmp_path, every=1)
    assert whole_steps(tmp_path) == []
    return tmp_path


def changed_cell():
    return job(losses(shift=np.where(np.arange(2000) == 1000, SHIFT + 1e-6, SHIFT)))


OTHERS = {
    "a record": (lambda: job(value=1e-6), {"data"}),
    "the noise": (lambda: job(noise_multiplier=1.5), {"solver"}),
    "the relation": (lambda: job(relation="replace_one"), {"solver"}),
    "the sampler": (
        lambda: job(sampler=dpjax.sampling.PoissonSampler(0.5, STEPS, N + 1)),
        {"solver"},
    ),
    "the radius": (lambda: job(radius=3.0), {"problem"}),
    "the loss": (lambda: job(losses(power=4)), {"program"}),
    "an array in the loss": (changed_cell, {"program"}),
    "a host function": (lambda: job(losses(host=other_on_host)), {"program"}),
    "the optimizer": (lambda: job(optimizer=optax.adam(0.5)), {"program"}),
    "its constant": (lambda: job(optimizer=optax.sgd(0.25)), {"program"}),
}


def named(message):
    """What a refusal says that differs."""
    names = re.search(r"it differs in (.*?)\. Going on is refused", message).group(1)
    return {name.split(" (")[0] for name in names.split(", ") if not name.endswith("here)")}


def refusal(folder, *args, **options):
    with pytest.raises(ValueError, match="belongs to another run") as error:
        solve(*args, checkpoint=folder, every=1, **options)
    assert "give the data away" in str(error.value)
    return str(error.value)


@pytest.mark.slow
def test_other_runs_are_refused_before_the_first_checkpoint_and_after(begun, plain):
    """First with the manifest alone, then with checkpoints; then the run itself goes on."""
    for what, (other, names) in OTHERS.items():
        assert names <= named(refusal(begun, other())), what
    assert named(refusal(begun, job(value=1e-6))) == {"data"}
    assert named(refusal(begun, job(), seed=4)) == {"key"}
    made_anew = job(losses(), optax.sgd(0.5))
    assert identical(solve(made_anew, checkpoint=begun, every=1), plain)
    for what in ("a record", "the loss", "the noise"):
        other, names = OTHERS[what]
        assert names <= named(refusal(begun, other())), what
    assert identical(solve(job(), checkpoint=begun, every=1), plain)


def test_other_settings_are_refused(begun, monkeypatch):
    assert "sensitive (True there, False here)" in refusal(begun, job(), sensitive=False)
    for name in ("jax", "jaxlib"):
        with monkeypatch.context() as patch:
            patch.setattr(f"{name}.__version__", "0.0.1")
            assert f"{name} (" in refusal(begun, job())


def test_double_precision_is_refused(begun, everywhere_x64):
    assert "x64 (False there, True here)" in refusal(begun, job())


def test_the_manifest_gives_no_data_away(begun, tmp_path_factory):
    """Under another key every digest is another: guesses cannot be tried without the key."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    solve(job(), seed=4, checkpoint=elsewhere)
    here, there = (json.loads((p / "run.json").read_text())["run"] for p in (begun, elsewhere))
    keyed = {name for name in here if isinstance(here[name], str) and len(here[name]) == 64}
    assert keyed == {"key", "data", "problem", "solver", "batches", "program"}
    assert all(here[name] != there[name] for name in keyed)


def spoil(folder, how):
    """Damages the manifest."""
    manifest = folder / "run.json"
    if how == "deleted":
        manifest.unlink()
    elif how == "cut":
        manifest.write_bytes(manifest.read_bytes()[:-20])
    else:
        content = json.loads(manifest.read_text())
        content["run"]["data"] = content["run"]["data"][::-1]
        manifest.write_text(json.dumps(content))


@pytest.mark.parametrize("how", ["cut", "changed"])
def test_without_manifest_and_checkpoint_nothing_goes_on(how, begun):
    spoil(begun, how)
    with pytest.raises(ValueError, match=r"run\.json cannot be read, and no whole checkpoint"):
        solve(job(), checkpoint=begun, every=1)


@pytest.mark.parametrize("how", ["cut", "changed", "deleted"])
def test_a_whole_checkpoint_replaces_the_manifest(how, tmp_path, plain):
    solve(job(), checkpoint=tmp_path, every=1)
    spoil(tmp_path, how)
    with pytest.raises(ValueError, match=r"run\.json cannot be read"):
        solve(job(value=1e-6), checkpoint=tmp_path, every=1)
    assert whole_steps(tmp_path) == [STEPS - 1, STEPS]
    resumed, messages = caught(lambda: solve(job(), checkpoint=tmp_path, every=1))
    assert identical(resumed, plain)
    assert len(messages) == 1
    assert "written again" in messages[0]
    content = json.loads((tmp_path / "run.json").read_text())
    assert content["check"] == digest_of(content["run"]).hex()

"""Checkpoints against programs, states and folders that were made to confuse them."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax.runtime.checkpoint._checkpoint import open_folder
from dpjax.runtime.checkpoint._digest import tree_digest, value_digest

pytest.importorskip("orbax.checkpoint")

from interruptions import identical, interrupt, solve, until_done


def closing_over(value):
    def run(x):
        return x, value

    return run


def of_two(one, other):
    def run(x):
        return x * one + other

    return run


def keyword_default(value):
    def run(x, *, factor=value):
        return x * factor

    return run


def decorated(factor):
    def run(x):
        return x

    @functools.wraps(run)
    def wrapper(x):
        return factor * run(x)

    return wrapper


class Scaled:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return self.factor * x

    def method(self, x):
        return self.factor * x


PAIRS = {
    "a tuple": [closing_over((1.0, value)) for value in (1.0, 2.0)],
    "a list": [closing_over([value]) for value in (1.0, 2.0)],
    "a dict": [closing_over({"factor": value}) for value in (1.0, 2.0)],
    "its names": [closing_over({name: 1.0}) for name in ("one", "other")],
    "a set": [closing_over({value}) for value in (1.0, 2.0)],
    "a scalar of NumPy": [closing_over(np.float32(value)) for value in (1.0, 2.0)],
    "two numbers": [of_two(1, 23), of_two(12, 3)],
    "a shape": [closing_over(np.ones(shape)) for shape in ((2, 3), (3, 2))],
    "a dtype": [closing_over(np.zeros(2, dtype)) for dtype in (np.int32, np.float32)],
    "a slice": [closing_over(slice(stop)) for stop in (1, 2)],
    "an object": [Scaled(value) for value in (1.0, 2.0)],
    "an object inside": [closing_over(Scaled(value)) for value in (1.0, 2.0)],
    "the object of a method": [Scaled(value).method for value in (1.0, 2.0)],
    "a keyword's default": [keyword_default(value) for value in (1.0, 2.0)],
    "an argument's name": [functools.partial(max, **{name: 1}) for name in ("key", "default")],
    "a decorator": [decorated(value) for value in (1.0, 2.0)],
    "one function twice": [of_two(math.sin, math.cos), of_two(math.sin, math.sin)],
}


@pytest.mark.parametrize("what", PAIRS)
def test_host_functions_that_differ_in_one_thing_are_told_apart(what):
    one, other = (value_digest(function, strict=False) for function in PAIRS[what])
    assert one != other


def test_other_peoples_folders_are_left_alone(tmp_path):
    """A folder whose name begins like a checkpoint's, and one of a checkpoint being written."""
    ours = tmp_path / "step_000000000007.orbax-checkpoint-tmp-1"
    theirs = [tmp_path / name for name in ("step_size_sweep", "step_7", "step_7.old")]
    for folder in (ours, *theirs):
        folder.mkdir()
        (folder / "notes").write_text("precious")
    like = {"a": jax.ShapeDtypeStruct((2,), np.float32)}
    with open_folder(tmp_path, {"key": "a run"}) as folder:
        folder.claim(like)
        with pytest.warns(RuntimeWarning, match="not written to the end"):
            assert folder.restore(like) is None
        folder.save(8, {"a": np.ones(2, np.float32)})
        assert folder.restore(like)[0] == 8
    assert not ours.exists()
    assert all((folder / "notes").read_text() == "precious" for folder in theirs)


def odd_transform():
    """An optimizer whose state has every kind of leaf, changing from step to step."""

    def init(params):
        del params
        return {
            "half": jnp.ones(3, jnp.bfloat16),
            "flag": jnp.zeros((), bool),
            "small": jnp.full((5,), -3, jnp.int8),
            "empty": jnp.zeros((0, 2)),
            "none": None,
            "weak": jnp.asarray(1.0) * 1,
            "python": 2.0,
            "key": jax.random.key(3, impl="rbg"),
        }

    def update(updates, state, params=None):
        del params
        key, use = jax.random.split(state["key"])
        state = state | {
            "half": state["half"] * 1.5,
            "flag": ~state["flag"],
            "small": -state["small"],
            "weak": state["weak"] * 0.3,
            "python": state["python"] * 0.7,
            "key": key,
        }
        drawn = jax.random.normal(use, (3,)) + state["weak"] + state["python"]
        return -0.1 * (updates + drawn + state["half"].astype(drawn.dtype)), state

    return optax.GradientTransformation(init, update)


def test_leaves_of_every_kind_come_back(tmp_path, monkeypatch):
    problem = dpjax.problems.Risk(lambda w, record: jnp.sum(w * record) ** 2, jnp.ones(3))
    sampler = dpjax.sampling.PoissonSampler(0.5, 5, 8)
    solver = dpjax.solvers.DPSGD(sampler, 1.0, 1.0, 0.5, 8.0, optimizer=odd_transform())
    job = solver, problem, np.linspace(-1.0, 1.0, 24, dtype=np.float32).reshape(8, 3)
    interrupt(monkeypatch, [1, 4])
    resumed, attempts = until_done(job, tmp_path, everies=(1, 2))
    assert attempts == 2
    assert identical(resumed, solve(job))


def test_arrays_of_the_same_bytes_are_told_apart():
    zeros = [np.zeros(6, np.int32), np.zeros(6, np.float32), np.zeros((2, 3), np.float32)]
    zeros.append(-zeros[1])
    seen = {tree_digest({"x": array}) for array in zeros}
    assert len(seen) == len(zeros)

"""Committed runs were made with the present defaults, or are named as due again."""

import dataclasses
import functools
import json

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import _compare, _defaults, _results, _runner
from benchmarks.__main__ import main, studies

# what they measure are times and bytes, errors of noise that is set by hand, or peers
WITHOUT = {
    *("hot_paths", "many_devices", "noise_strategies", "noise_throughput"),
    *("network_cost", "query_aim", "roofline", "sampling_cost", "scaling", "step_time"),
}


@pytest.mark.always  # a stale number must fail the build at once
@pytest.mark.parametrize("study", [name for name in studies() if name not in WITHOUT])
def test_a_run_has_the_present_defaults_or_is_due_again(study):
    now, then = _defaults.of(study), _defaults.stored(study)
    assert now, f"{study} must name solvers in `defaults()`"
    changed = ["no defaults stored"] if then is None else _defaults.differences(then, now)
    if study in _defaults.RUN_AGAIN:
        assert changed, f"{study} has the present defaults: take it off RUN_AGAIN"
    else:
        told = (
            f"python -m benchmarks run {study}, or add it to RUN_AGAIN in benchmarks/_defaults.py"
        )
        assert not changed, "\n".join([told, *changed])


def test_what_has_no_defaults_is_a_study_and_not_due_again():
    assert set(studies()) >= WITHOUT
    assert set(studies()) - WITHOUT >= set(_defaults.RUN_AGAIN)
    assert list(_defaults.RUN_AGAIN) == sorted(set(_defaults.RUN_AGAIN))
    assert [name for name in WITHOUT if _defaults.of(name)] == []


def test_the_page_of_results_names_what_is_due_again(monkeypatch):
    monkeypatch.setattr(_defaults, "RUN_AGAIN", ("regret", "tune"))
    told = _defaults.sentence()
    assert told == "Run before the present defaults, and due again: `regret`, `tune`."
    assert told in " ".join(_results.page().split())
    monkeypatch.setattr(_defaults, "RUN_AGAIN", ())
    assert _defaults.sentence() == ""
    assert "due again" not in _results.page()


@dataclasses.dataclass(frozen=True)
class Solver:
    rate: float
    capacity: int
    weights: object
    inner: object = None
    _cache: int = 0


def test_fields_resolve_to_plain_json():
    made = Solver(1 / 3, 7, jnp.arange(10.0), {"f": len, "x": (np.float32(2), None, [1, 2])})
    found = _defaults.resolved(made)
    assert json.loads(json.dumps(found)) == {
        "class": "Solver",
        "rate": 0.333333,
        "weights": {"shape": [10], "first": 0.0, "last": 9.0, "mean": 4.5},
        "inner": {"f": "len", "x": [2.0, None, [1, 2]]},
    }


@pytest.mark.parametrize(
    ("then", "now", "expected"),
    [
        ({"a": 1.0}, {"a": 1.0005}, []),
        ({"a": 1.0}, {"a": 1.01}, ["a: 1.0 in the run, 1.01 now"]),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, ["a, b[1]: 2 in the run, 3 now"]),
        ({"a": True}, {"a": 1.0}, ["a: True in the run, 1.0 now"]),
        ({"a": 1}, {"b": 1}, ["a: only in the run", "b: only in the code"]),
        ([1], [1, 2], [": [1] in the run, [1, 2] now"]),
    ],
)
def test_differences_name_the_place(then, now, expected):
    assert _defaults.differences(then, now) == expected


def test_defaults_are_stored_where_there_are_none_and_never_over_others(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(_runner, "RESULTS", tmp_path)
    monkeypatch.setattr(_runner, "load", functools.partial(_runner.load, folder=tmp_path))
    monkeypatch.setattr(_defaults, "of", lambda study: {"a": {"x": 1}, "b": {"x": 2}})
    monkeypatch.setattr(_defaults, "RUN_AGAIN", ("tune",))
    for name in ("regret", "tune"):
        _runner.save(name, {"value": 1}, fast=False, folder=tmp_path, environment={})
    assert main(["defaults", "regret"]) == 0
    assert _defaults.stored("regret") == {"a": {"x": 1}, "b": {"x": 2}}
    assert _runner.load("regret")["value"] == 1
    assert main(["defaults", "tune", "games"]) == 1
    _runner.save("regret", {}, fast=False, folder=tmp_path, defaults={"a": {"x": 3}})
    assert main(["defaults", "regret"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "defaults: tune must be run again: it is named in RUN_AGAIN",
        "defaults: games names no solver, or has no committed run",
        "defaults: regret must be run again: a, x: 3 in the run, 1 now",
    ]


def test_two_results_of_other_defaults_say_so():
    old = {"study": "s", "fast": False, "environment": {}, "loss": 1.0, "defaults": {"a": 1}}
    text, worse = _compare.report(old, {**old, "defaults": {"a": 2}}, tolerance=0.1)
    assert "- a: 1 in the run, 2 now" in text
    assert not worse

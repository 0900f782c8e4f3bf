"""`python -m benchmarks compare`: pairing, verdicts, exit status."""

import copy
import json

import pytest

from benchmarks import _compare, _runner
from benchmarks.__main__ import main
from benchmarks._pairs import identifying, pairs

ENVIRONMENT = {"processor": "A", "cores": 2, "x64": False, "versions": {"jax": "1"}}


def times(median, width=0.02):
    return {
        "median": median,
        "lower_quartile": median * (1 - width),
        "upper_quartile": median * (1 + width),
        "repeats": 9,
    }


def result(**values):
    return {"study": "s", "fast": False, "environment": dict(ENVIRONMENT), **values}


def verdicts(old, new, tolerance=0.1):
    found = [p for p in pairs(old, new) if _compare._both(p)]
    return {c.path: c.verdict for c in (_compare._judged(p, tolerance) for p in found)}


@pytest.fixture
def run(tmp_path, capsys):
    """Exit status and output of the command on two results."""

    def call(old, new, *options):
        names = [tmp_path / "a.json", tmp_path / "b.json"]
        for name, content in zip(names, (old, new), strict=True):
            name.write_text(content if isinstance(content, str) else json.dumps(content))
        status = main(["compare", *map(str, names), *options])
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    return call


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        (times(1.0), times(1.5), "slower"),
        (times(1.5), times(1.0), "faster"),
        (times(1.0), times(1.05), "same"),
        (times(1.0, width=0.5), times(1.5, width=0.5), "within spread"),
        ([1.0, 1.1, 0.9, 1.0], [2.0, 2.1, 1.9, 2.0], "slower"),
        (1.0, 5.0, "no spread"),
        (times(1.0), 5.0, "no spread"),
    ],
)
def test_times_are_judged_by_their_spread(old, new, verdict):
    assert verdicts({"step_seconds": old}, {"step_seconds": new}) == {"step_seconds": verdict}


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ({"error": 0.1}, {"error": 0.2}, "worse"),
        ({"error": 0.2}, {"error": 0.1}, "better"),
        ({"error": 0.1}, {"error": 0.105}, "same"),
        ({"error": 0.1, "error_std": 0.06}, {"error": 0.2, "error_std": 0.06}, "within spread"),
        ({"error": 0.1, "error_std": 0.01}, {"error": 0.2, "error_std": 0.01}, "worse"),
        ({"loss": 0.1, "loss_error": 0.04}, {"loss": 0.2, "loss_error": 0.04}, "within spread"),
        ({"mean": 1.0, "std": 0.1}, {"mean": 1.5, "std": 0.1}, "worse"),
        ({"max": 1.0, "max_range": [0.5, 1.9]}, {"max": 1.5, "max_range": [1, 2]}, "within spread"),
        ({"accuracy": 0.9}, {"accuracy": 0.6}, "worse"),
        ({"accuracy": [0.6, 0.61, 0.62]}, {"accuracy": [0.9, 0.9, 0.9]}, "better"),
        ({"temp_bytes": 100}, {"temp_bytes": 200}, "worse"),
        ({"items_per_second": times(10.0)}, {"items_per_second": times(5.0)}, "slower"),
        ({"items_per_second": 10.0}, {"items_per_second": 5.0}, "no spread"),
        ({"error": 0.1}, {"error": float("nan")}, "worse"),
        ({"error": 0.0}, {"error": 0.1}, "worse"),
        ({"error": 0.0}, {"error": 0.0}, "same"),
        ({"ratio": 1.0}, {"ratio": 2.0}, ""),
        ({"epsilon": 1.0}, {"epsilon": 2.0}, ""),
        ({"process": {"peak_bytes": 1}}, {"process": {"peak_bytes": 9}}, ""),
        ({"fit": times(1.0)}, {"fit": times(2.0)}, "slower"),
    ],
)
def test_numbers_are_judged_by_what_they_are(old, new, verdict):
    assert list(verdicts(old, new).values()) == [verdict]


def test_records_are_paired_by_what_identifies_them():
    old = [
        {"method": m, "n": n, "epsilon": e, "loss": 0.1 * i}
        for i, (m, n, e) in enumerate((m, n, e) for m in "ab" for n in (1, 2) for e in (0.5, 1.0))
    ]
    new = copy.deepcopy(old[::-1])
    assert set(verdicts({"rows": old}, {"rows": new}).values()) == {"same"}
    new[0]["loss"] *= 2  # b, 2, 1.0
    worse = [p for p, v in verdicts({"rows": old}, {"rows": new[:-1]}).items() if v == "worse"]
    assert worse == ["rows[method=b, n=2, epsilon=1.0].loss"]
    alone = [p.path for p in pairs({"rows": old}, {"rows": new[:-1]}) if p.new is None]
    assert alone == ["rows[method=a, n=1, epsilon=0.5]"]


def test_what_is_measured_does_not_identify():
    old = [{"d": 1, "steps": 5, "loss": 0.1}, {"d": 2, "steps": 6, "loss": 0.2}]
    new = [{"d": 2, "steps": 9, "loss": 0.3}, {"d": 1, "steps": 7, "loss": 0.4}]
    assert identifying(old, new) == ("d",)
    same = [{"loss": 0.1}, {"loss": 0.1}]
    assert identifying(same, same) is None  # then by position
    assert [p.path for p in pairs(same, same)] == ["[0].loss", "[1].loss"]


def test_slower_or_worse_is_told_by_the_exit_status(run):
    old, new = result(step_seconds=times(1.0)), result(step_seconds=times(2.0))
    status, text = run(old, new)
    assert status == 1
    assert "step_seconds" in text
    assert "2.000  slower" in text
    assert run(new, old)[0] == 0
    assert run(old, new, "--tolerance", "1.5")[0] == 0
    assert run(old, old)[0] == 0


def test_only_some_numbers(run):
    old = result(step_seconds=times(1.0), rows=[{"name": "x", "error": 0.1}])
    new = result(step_seconds=times(2.0), rows=[{"name": "x", "error": 0.1}])
    assert run(old, new, "--only", "ERROR")[0] == 0
    assert run(old, new, "--only", "step*onds")[0] == 1
    status, text = run(old, new, "--only", "no such")
    assert status == 2
    assert "'no such'" in text


def test_other_environments_and_settings_are_said_first(run):
    old, new = result(batch=8, error=0.1), result(batch=9, error=0.1)
    new["environment"] |= {"cores": 4, "x64": True, "versions": {"jax": "2"}}
    new["environment"] |= {"load_average": [3.5, 1, 1], "usable_cores": 4, "date": "today"}
    status, text = run(old, new)
    assert status == 0
    assert text.startswith("Environments differ:")
    for line in ("- cores: 2 -> 4", "- x64: False -> True", "- version of jax: 1 -> 2"):
        assert line in text
    assert "- date" not in text
    assert "second began on a busy machine: load 3.5 on 4 cores" in text
    assert "- batch: 8 -> 9" in text
    assert run(old, old)[1].startswith("Same environment.")


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (result(error=0.1) | {"study": "t"}, "study is 's' in the first, 't' in the second"),
        (result(error=0.1) | {"fast": True}, "fast is False in the first, True in the second"),
        ("{", "not JSON"),
        ("[1]", "no result of a study"),
        (result(other=0.1), "no number stands in both"),
    ],
)
def test_files_that_cannot_be_compared(run, new, message):
    status, text = run(result(error=0.1), new)
    assert status == 2
    assert message in text


def test_missing_files_and_bad_options(tmp_path, capsys, run):
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "No such file" in capsys.readouterr().err
    assert run(result(error=0.1), result(error=0.1), "--tolerance", "-1")[0] == 2


# outcomes of tests are no results of a study
_COMMITTED = sorted(set(_runner.RESULTS.glob("*.json")) - set(_runner.RESULTS.glob("tests.*")))


@pytest.mark.parametrize("path", _COMMITTED, ids=lambda p: p.stem)
def test_committed_results_compare_with_themselves(path):
    found = _compare.read(path)
    text, worse = _compare.report(found, found)
    assert not worse
    assert "alone" not in text
    assert " same" in text

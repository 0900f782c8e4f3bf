"""The results that docs/tuning.md shows are those of the committed run, and so is what it says."""

from pathlib import Path

from benchmarks import _runner, tune

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tuning.md"


def test_the_tables_are_those_of_the_committed_run():
    text = PAGE.read_text(encoding="utf-8")
    for part in tune.summary(_runner.load("tune")).split("\n\n"):
        assert part in text


def test_what_the_page_says_is_so():
    result = _runner.load("tune")
    assert all(p["default"] < p["hindsight"] + 0.01 for p in result["points"])  # nothing to tune
    of = {
        name: [p for p in result["points"] if p["problem"] == name] for name in ("adult", "credit")
    }
    assert all(abs(p["tuned"] - p["default"]) < 0.003 for p in of["credit"])
    assert all(p["tuned"] < p["default"] for p in of["adult"] if p["epsilon"] >= 1)
    assert all(p["tuned"] < p["naive"] + 0.001 for p in result["points"])
    for row in result["bounds"]:
        assert row["loose"] - row["hindsight"] < 0.003
        assert row["loose"] < row["tuned"]

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
    real = [p for p in result["points"] if p["problem"] in ("adult", "credit")]
    assert all(abs(p["tuned"] - p["default"]) < 0.004 for p in real)
    assert all(p["tuned"] < p["naive"] + 0.001 for p in result["points"])
    for row in result["bounds"]:
        assert row["loose"] - row["hindsight"] < 0.003
        assert row["loose"] < row["tuned"]

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
    poor = [p for p in result["points"] if p["regret_share"] is not None]
    assert len(poor) == 6
    assert max(p["regret_share"] for p in poor) < 0.1
    real = [p for p in result["points"] if p["problem"] in ("adult", "credit")]
    assert all(abs(p["tuned"] - p["default"]) < 0.003 for p in real)
    assert all(p["tuned"] < p["naive"] + 0.001 for p in result["points"])
    for row in result["bounds"]:
        tuned_for = row["loose"] - row["tuned"]
        assert tuned_for > 0.1 if row["features"] != "bounded" else tuned_for < 0

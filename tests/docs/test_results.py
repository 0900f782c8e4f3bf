"""The README's numbers are those of the committed benchmark runs."""

from benchmarks import _readme, _runner


def test_readme_results_come_from_the_committed_runs():
    text = _readme.README.read_text()
    stands = text.split(_readme.START)[1].split(_readme.END)[0]
    assert stands == _readme.results(), "run: python -m benchmarks readme"


def test_adult_meets_the_goal_at_epsilon_one():
    points = _runner.load("fair_frontiers")["frontiers"]["adult_parity"]["private"]
    mine = [p for p in points if p["epsilon"] == 1.0]
    assert min(p["error"] for p in mine if p["disparity"] <= 0.05) <= 0.163
    assert min(p["error"] for p in mine if p["disparity"] <= 0.02) <= 0.168
    assert all(p["accounted"] <= 1.0 for p in mine)

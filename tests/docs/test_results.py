"""The README's numbers are those of the committed benchmark runs."""

import json
import re

from benchmarks import (
    _headlines,
    _page,
    _results,
    _runner,
    dimension,
    nonsmooth,
    online_to_batch,
    vertex_reference,
)
from benchmarks.__main__ import studies


def test_the_headlines_of_the_readme_come_from_the_committed_runs():
    text = _headlines.README.read_text()
    stands = text.split(_headlines.START)[1].split(_headlines.END)[0]
    assert stands == _headlines.headlines(), "run: python -m benchmarks readme"


def test_the_page_of_results_comes_from_the_committed_runs():
    assert _results.PAGE.read_text() == _results.page(), "run: python -m benchmarks readme"


def test_the_page_of_benchmarks_comes_from_the_committed_runs():
    assert _page.PAGE.read_text() == _page.page(), "run: python -m benchmarks readme"


def test_the_page_tells_of_every_study(tmp_path):
    text = _page.page(tmp_path)
    assert [name for name in studies() if f"run {name}` | no committed results" not in text] == []
    result = _runner.load("step_time")
    result["environment"] |= {"date": "2026-01-02 03:04 UTC", "commit": "abc+dirty"}
    result["environment"] |= {"load_average": [9.0, 1.0, 1.0], "usable_cores": 2}
    result["microseconds_per_step"]["SGD"]["median"] = 123456.0
    (tmp_path / "step_time.json").write_text(json.dumps(result))
    text = _page.page(tmp_path)
    assert "2026-01-02 03:04 UTC, abc+dirty, busy" in text
    assert "123456" in text


def test_links_of_the_page_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", _page.PAGE.read_text())
    assert links
    assert [link for link in links if not (_page.PAGE.parent / link).exists()] == []


def test_adult_meets_the_goal_at_epsilon_one():
    points = _runner.load("fair_frontiers")["frontiers"]["adult_parity"]["private"]
    mine = [p for p in points if p["epsilon"] == 1.0]
    assert min(p["error"] for p in mine if p["disparity"] <= 0.05) <= 0.163
    assert min(p["error"] for p in mine if p["disparity"] <= 0.02) <= 0.168
    assert all(p["accounted"] <= 1.0 for p in mine)


def test_methods_over_vertices_meet_their_goals():
    points = _runner.load("vertex_reference")["points"]
    assert all(p["accounted"] <= p["epsilon"] for p in points if "diffprivlib" not in p["method"])
    published = _runner.load("vertex_reference")["published"]
    for task, methods in published.items():
        for method, goals in methods.items():
            mine = [p for p in points if (p["task"], p["method"]) == (task, method)]
            means = [p["mean"] for p in sorted(mine, key=lambda p: p["n"])]
            assert len(means) == len(goals)
            above = [m for m, goal in zip(means, goals, strict=True) if m > goal]
            assert not above, (task, method)
    # rates in n and in epsilon, over two decades each: -1/2 and -2/5, or faster
    for task, method, over, rate in (
        ("game", "played", "n", -0.5),
        ("game", "fresh", "n", -0.5),
        ("game, epsilon", "played", "epsilon", -0.5),
        ("regression", "anytime", "n", -0.5),
        ("regression", "played", "n", -0.5),
        ("regression, epsilon", "anytime", "epsilon", -0.5),
        ("regression, epsilon", "played", "epsilon", -0.5),
    ):
        assert vertex_reference.slope(points, task, method, over) <= rate + 0.1, (task, method)


def test_error_grows_with_the_logarithm_of_the_dimension():
    wide = _runner.load("dimension")
    assert {p["dim"] for p in wide["points"]} >= {100, 1_000_000}
    for problem, method, power in (
        ("game", "played", 1),
        ("game", "by the rule", 1),
        ("regression", "Frank-Wolfe", 1),
        ("regression", "polished", 1),
        ("regression", "anytime", 1.5),  # 0.9 and 1.2 in two runs of three seeds each
    ):
        assert dimension.growth(wide, problem, method) <= power, (problem, method)


def test_a_million_features_take_less_than_a_minute():
    million = _runner.load("million_features")
    assert (million["dim"], million["num_records"]) == (1_000_000, 100_000)
    assert million["seconds"]["run"] < 60
    assert million["ratio"] < 3
    assert million["peak_gigabytes"] < million["data_gigabytes"] + 6


def test_correlated_noise_meets_its_goals():
    noise = _runner.load("noise_strategies")
    errors = {(e["steps"], e["strategy"]): e["max_squared"] for e in noise["errors"]}
    assert errors[1024, "buffered Toeplitz"] <= 10.8
    assert errors[1024, "binary tree"] >= 100
    assert noise["dim"] == 1_000_000
    assert noise["ratios"]["buffered Toeplitz"] <= 1.5


def test_online_to_batch_meets_its_goals():
    points = _runner.load("online_to_batch")["points"]
    assert all(p["accounted"] <= p["epsilon"] for p in points)
    assert {p["n"] for p in points} >= {1_000, 10_000, 100_000, 1_000_000}
    assert {p["dim"] for p in points} == {10, 100, 1_000}
    # by default, where training is of use, no worse in one pass than the plain method of one pass
    found = {
        (p["task"], p["dim"], p["n"], p["method"]): p["mean"] for p in points if not p["tuned"]
    }
    for (task, dim, n, method), mean in found.items():
        large = (task, dim, n) == ("least squares", 100, 1_000_000)  # which the page says
        if method == "DP-FTRL" and mean < 0.9 and "epsilon" not in task and not large:
            assert found[task, dim, n, "online-to-batch, one pass"] <= mean, (task, dim, n)
    # rates: 1 / sqrt(n) or faster over three decades
    for task in online_to_batch.MAKERS:
        for method in ("online-to-batch", "online-to-batch, one pass"):
            assert online_to_batch.slope(points, task, method, "n") <= -0.5, (task, method)


def test_nonsmooth_losses_are_solved_better_than_by_gradient_descent():
    result = _runner.load("nonsmooth")
    rows = {
        (r["task"], r["method"], r["epsilon"]): r
        for r in result["tasks"]
        if "loss" in r and not r["tuned"]
    }
    tasks = {task for task, _, _ in rows}
    assert len(tasks) == 5
    assert set(nonsmooth.REAL) < tasks
    for (task, method, epsilon), theirs in rows.items():
        if method != "DP-SGD":
            continue
        mine = rows[task, "ours", epsilon]
        spread = 2 * (mine["loss_error"] + theirs["loss_error"])
        assert mine["loss"] <= theirs["loss"] + spread, (task, epsilon)
        assert mine["goldstein"] <= theirs["goldstein"] + 0.001, (task, epsilon)
        assert mine["loss"] < rows[task, "start", None]["loss"] / 2
        assert max(mine["accounted"], theirs["accounted"]) <= epsilon
    # what is proved of the published sizes does not show at these numbers of records
    published = [r for (_, method, _), r in rows.items() if method.startswith("as published")]
    assert published
    assert all(r["accounted"] < r["epsilon"] / 2 for r in published)


def test_values_cost_little_more_than_the_losses():
    cost = _runner.load("nonsmooth")["cost"]
    assert {r["dim"] for r in cost} == {10_000}
    assert all(r["ratio"] <= 1.5 for r in cost if r["records"] >= 1_024)


def test_query_release_reaches_its_goals_by_default():
    result = _runner.load("query_release")
    rows = [row for row in result["rows"] if row["claimed"] is not None]
    assert all(row["claimed"] <= row["epsilon"] for row in rows)
    assert all(row["seeds"] >= 5 for row in rows)

    def default(data, method):
        kept = [r for r in rows if (r["data"], r["method"]) == (data, method)]
        return {r["epsilon"]: r for r in kept if r["configuration"] == "default"}

    ours = default("adult", "GaussianFit")
    goals = {0.1: 0.0155, 0.25: 0.0070, 0.5: 0.0038, 1.0: 0.0020}
    assert {e: ours[e]["max"] <= goal for e, goal in goals.items()} == dict.fromkeys(goals, True)
    # and nothing that was run beside it, tuned or not, has a smaller mean error on either table
    for data in ("adult", "credit"):
        mine = default(data, "GaussianFit")
        others = [r for r in rows if r["data"] == data and r["method"] != "GaussianFit"]
        worse = [r for r in others if r["mean"] <= mine[r["epsilon"]]["mean"]]
        assert not worse
    times = result["times"]["fits"]
    assert times["GaussianFit"]["median"] < times["mbi, 1000 iterations"]["median"] / 3


def test_sixteen_million_cells_fit_in_little_memory():
    universe = _runner.load("query_universe")
    assert universe["cells"] == 2**24
    assert universe["marginals"] == 2024
    assert universe["megabytes"]["peak"] < 4096

"""Every number that docs/choosing.md shows is that of a committed run."""

import re
from pathlib import Path

from benchmarks import _runner
from benchmarks._text import table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "choosing.md"
BALL = {
    "`OnlineToBatch`": "online-to-batch",
    "`OnlineToBatch`, one pass": "online-to-batch, one pass",
    "`DPSGD`": "DP-SGD",
    "`DPFTRL`, one pass": "DP-FTRL",
    "diffprivlib (pure epsilon)": "diffprivlib",
}
NONSMOOTH = {
    "the starting point": "start",
    "`DPSGD`": "DP-SGD",
    "`OnlineToNonconvex`": "ours",
    "... from values alone": "ours, values alone",
    "`DPSGD`, one pass": "DP-SGD, one pass",
    "`OnlineToNonconvex`, one pass": "ours, one pass",
}
QUERIES = {
    "`GaussianFit`": "GaussianFit",
    "mbi's fit of the same answers": "mbi",
    "Gaussian noise, no fit": "Gaussian answers, no fit",
    "`FrankWolfeRelease`": "FrankWolfeRelease",
    "`MirrorDescentRelease`": "MirrorDescentRelease",
    "`MWEM`": "MWEM",
    "`SaddleRelease`": "SaddleRelease",
    "`HistogramRelease`": "HistogramRelease",
}


def short(value):
    """Two digits; nothing where a method was not run."""
    return "" if value is None else f"{value:.2g}"


def fair():
    curves = _runner.load("fair_frontiers")["frontiers"]
    rows = []
    for title, name, slack in (
        ("Adult, parity", "adult_parity", 0.05),
        ("Adult, parity", "adult_parity", 0.02),
        ("Adult, parity, as published", "adult_parity_as_published", 0.05),
        ("Credit default, parity", "credit_parity", 0.01),
        ("Parkinsons, parity", "parkinsons_parity", 0.05),
        ("Adult, false negatives", "adult_false_negatives", 0.25),
        ("Adult, false negatives", "adult_false_negatives", 0.15),
        ("Adult, parity", "adult_10000_parity", 0.05),
        ("Adult, parity", "adult_3000_parity", 0.05),
        ("Adult, parity", "adult_1000_parity", 0.05),
    ):
        (ours,) = [p for p in curves[name]["private"] if (p["epsilon"], p["slack"]) == (1.0, slack)]
        (plain,) = [p for p in curves[name]["non_private"] if p["slack"] == slack]
        numbers = [f"{p[q]:.3f}" for p in (ours, plain) for q in ("error", "disparity")]
        rows.append([title, f"{slack:g}", f"{curves[name]['num_train']:,}", *numbers])
    head = ["problem", "slack", "records", "error", "gap or rate", "not private: error"]
    return table([*head, "gap or rate"], rows)


def groups():
    points = _runner.load("group_risk")["points"]
    rows = [
        [p["method"], f"{p['error']:.3f}", f"{p['worst_group_error']:.3f}"]
        for p in points
        if p["epsilon"] in (None, 1.0)
    ]
    return table(["method", "error", "worst group's error"], rows)


def ball():
    points = [p for p in _runner.load("online_to_batch")["points"] if not p["tuned"]]
    cells = [("logistic", 10, 10**3), ("logistic", 10, 10**5), ("logistic", 100, 10**4)]
    cells += [("logistic", 100, 10**5), ("logistic", 1000, 10**5)]
    cells += [("least squares", 10, 10**5), ("least squares", 100, 10**5)]
    at = {(p["task"], p["dim"], p["n"], p["method"]): p["mean"] for p in points}
    rows = [
        [name, *(short(at.get((task, dim, n, method))) for task, dim, n in cells)]
        for name, method in BALL.items()
    ]
    return table(["method", *(f"{task}, d = {dim}, n = {n:,}" for task, dim, n in cells)], rows)


def epsilons():
    points = _runner.load("online_to_batch")["points"]
    at = {(p["task"], p["epsilon"], p["method"]): p["mean"] for p in points if not p["tuned"]}
    columns = [
        (task, epsilon) for task in ("logistic", "least squares") for epsilon in (0.25, 1.0, 4.0)
    ]
    rows = [
        [name, *(short(at[f"{task}, epsilon", epsilon, method]) for task, epsilon in columns)]
        for name, method in BALL.items()
        if method != "diffprivlib"
    ]
    return table(["method", *(f"{task}, epsilon {epsilon:g}" for task, epsilon in columns)], rows)


def real():
    points = [p for p in _runner.load("online_to_batch")["real"] if not p["tuned"]]
    at = {(p["data"], p["epsilon"], p["method"]): 100 * p["accuracy"] for p in points}
    cells = [(data, epsilon) for data in ("adult", "credit_default") for epsilon in (0.5, 1.0, 4.0)]
    rows = [
        [name, *(f"{at[data, epsilon, method]:.1f}%" for data, epsilon in cells)]
        for name, method in BALL.items()
    ]
    plain = [f"{at[data, None, 'not private']:.1f}%" for data, _ in cells]
    title = {"adult": "Adult", "credit_default": "Credit"}
    head = [f"{title[data]}, epsilon {epsilon:g}" for data, epsilon in cells]
    return table(["method", *head], [*rows, ["not private", *plain]])


def dimensions():
    points = _runner.load("dimension")["points"]
    dims = [100, 300, 1_000, 10_000, 100_000, 1_000_000]
    at = {(p["problem"], p["method"], p["dim"]): p["mean"] for p in points}
    rows = [
        [what, name, *(short(at.get((problem, method, dim))) for dim in dims)]
        for what, problem, name, method in (
            ("regression", "regression", "`FrankWolfe`", "Frank-Wolfe"),
            ("regression", "regression", "`AnytimeMirrorDescent`, one pass", "anytime"),
            ("regression", "regression", "`DPSGD`", "DP-SGD"),
            ("regression", "regression", "noisy statistics, once", "one-shot statistics"),
            ("game", "game", "`SaddleMirrorDescent`, one pass", "played"),
            ("game", "game", "`DPSGD` on both players", "DP-SGDA"),
            ("game", "game", "noise on the mean matrix, once", "one-shot Gaussian"),
        )
    ]
    return table(["problem", "method", *(f"d = {dim:,}" for dim in dims)], rows)


def records():
    points = _runner.load("vertex_reference")["points"]
    at = {(p["task"], p["method"], p["n"]): p["mean"] for p in points}
    columns = [("game", 3_000), ("game", 30_000), ("game", 300_000)]
    columns += [("regression", 10_000), ("regression", 100_000), ("regression", 1_000_000)]
    columns += [("logistic", 100_000)]
    rows = []
    for name, methods in {
        "`SaddleMirrorDescent`": ["played"],
        "`AnytimeMirrorDescent`": ["anytime"],
        "`PolishedFrankWolfe`": ["polished"],
        "`FrankWolfe`": ["Frank-Wolfe"],
        "`DPSGD`": ["DP-SGDA", "DP-SGD"],
        "`MultilevelSaddle`": ["multilevel"],
        "noise on statistics, once": ["one-shot Gaussian", "one-shot statistics"],
        "diffprivlib (pure epsilon)": ["diffprivlib (pure epsilon)"],
    }.items():
        found = [[at[t, m, n] for m in methods if (t, m, n) in at] for t, n in columns]
        rows.append([name, *(short(one[0] if one else None) for one in found)])
    return table(["method", *(f"{task}, n = {n:,}" for task, n in columns)], rows)


def nonsmooth():
    rows = [r for r in _runner.load("nonsmooth")["tasks"] if not r["tuned"]]
    at = {(r["task"], r["method"], r["epsilon"]): r.get("loss") for r in rows}
    tasks = {
        "phase retrieval": "phase retrieval",
        "capped regression": "capped regression",
        "ReLU network": "network",
        "Adult, ramp loss": "adult",
        "Credit, ramp loss": "credit_default",
    }
    found = [
        [
            name,
            *(f"{at[t, m, None if m == 'start' else 1.0]:.4f}" for t in tasks.values()),
        ]
        for name, m in NONSMOOTH.items()
    ]
    return table(["method", *tasks], found)


def queries():
    rows = [r for r in _runner.load("query_release")["rows"] if r["configuration"] == "default"]
    at = {(r["data"], r["method"], r["epsilon"]): r["max"] for r in rows}
    cells = [(data, epsilon) for data in ("adult", "credit") for epsilon in (0.1, 1.0)]
    found = [
        [name, *(f"{at[data, method, epsilon]:.4f}" for data, epsilon in cells)]
        for name, method in QUERIES.items()
        if all((data, method, epsilon) in at for data, epsilon in cells)
    ]
    return table(
        ["method", *(f"{data.title()}, epsilon {epsilon:g}" for data, epsilon in cells)], found
    )


TABLES = (fair, groups, ball, epsilons, real, records, dimensions, nonsmooth, queries)


def test_the_tables_are_those_of_the_committed_runs():
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    numeric = [one.strip() for one in found if re.search(r"\d\.\d", one)]
    assert numeric == [make() for make in TABLES]


def test_the_prose_has_no_result_that_is_in_no_table():
    text = re.sub(r"^```.*?^```$", "", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S)
    tables = "\n".join(make() for make in TABLES)
    prose = re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)
    strays = [n for n in re.findall(r"\d+\.\d+", prose) if not re.search(rf"\b{n}\b", tables)]
    assert not strays


def cells(make):
    """The rows of a table as numbers by the names before them; None where a method was not run."""
    found = {}
    for line in make().splitlines()[2:]:
        row = [cell.strip().rstrip("%") for cell in line.strip("|").split("|")]
        start = 2 if row[0] in ("regression", "game") else 1
        found[tuple(row[:start])] = [float(cell) if cell else None for cell in row[start:]]
    return found


def test_what_the_page_says_of_the_tables_is_so():
    plain = cells(groups)
    assert plain[("DP-SGD",)][1] < min(plain[("DP-SGDA",)][1], plain[("mirror descent-ascent",)][1])

    on_ball = cells(ball)
    ours, objective = on_ball[("`OnlineToBatch`",)], on_ball[("diffprivlib (pure epsilon)",)]
    by_epsilon = cells(epsilons)
    for other in ("`DPSGD`", "`DPFTRL`, one pass"):
        assert all(a < b for a, b in zip(ours, on_ball[(other,)], strict=True)), other
        pairs = zip(by_epsilon[("`OnlineToBatch`",)], by_epsilon[(other,)], strict=True)
        assert all(a < b for a, b in pairs), other
    assert [a < b for a, b in zip(ours[:4], objective[:4], strict=True)] == [False] * 2 + [True] * 2

    accuracy = cells(real)
    below = [name for name in accuracy if name[0] not in ("`DPSGD`", "not private")]
    for column in (0, 1, 3, 4):
        assert accuracy[("`DPSGD`",)][column] >= max(accuracy[name][column] for name in below)
    assert accuracy[("diffprivlib (pure epsilon)",)][2] >= accuracy[("not private",)][2]

    wide = cells(dimensions)
    regression = {name[1]: row for name, row in wide.items() if name[0] == "regression"}
    for column in range(5):
        known = {name: row[column] for name, row in regression.items() if row[column] is not None}
        want = "`FrankWolfe`" if column else "noisy statistics, once"
        assert min(known, key=known.get) == want
    played = wide["game", "`SaddleMirrorDescent`, one pass"]
    for other in ("`DPSGD` on both players", "noise on the mean matrix, once"):
        assert all(a > b for a, b in zip(played[:2], wide["game", other][:2], strict=True))

    losses = cells(nonsmooth)
    pairs = zip(losses[("`OnlineToNonconvex`",)], losses[("`DPSGD`",)], strict=True)
    assert all(a <= b for a, b in pairs)
    once = zip(
        losses[("`OnlineToNonconvex`, one pass",)], losses[("`DPSGD`, one pass",)], strict=True
    )
    assert [a < b for a, b in once] == [True, True, True, False, False]

    errors = cells(queries)
    for column in range(4):
        by_error = sorted(errors, key=lambda name: errors[name][column])
        assert by_error[0] == ("`GaussianFit`",)

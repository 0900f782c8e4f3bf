"""Results on linear models, convex problems on balls, and correlated noise."""

from typing import Any

from benchmarks import _runner, noise_strategies, online_to_batch
from benchmarks._text import table as _table
from benchmarks._text import text as _text

_NAMES = {
    "online-to-batch": "`OnlineToBatch`",
    "online-to-batch, one pass": "`OnlineToBatch`, one pass",
    "online-to-batch, as published": "`OnlineToBatch`, as published (one pass)",
    "DP-SGD": "`DPSGD`",
    "DP-FTRL": "`DPFTRL`, buffered Toeplitz (one pass)",
    "DP-FTRL, tree": "`DPFTRL`, tree (one pass)",
    "diffprivlib": "diffprivlib (pure epsilon)",
    "not private": "not private",
}


def blocks() -> list[str]:
    """Convex problems on balls, real data, correlated noise."""
    result, noise = _runner.load("online_to_batch"), _runner.load("noise_strategies")
    points = result["points"]
    return [
        *linear(_runner.load("linear_models")),
        "## Convex problems on a ball",
        _text("""
            Excess population risk over that of the starting point (1 is no better than not to
            train) at epsilon 1, with the same stated bounds on gradients for all methods (study
            `online_to_batch`). Logistic regression in d dimensions:
        """),
        synthetic(points, "logistic"),
        _text("Least squares, with features of falling scale:"),
        synthetic(points, "least squares"),
        *lessons(result),
        _text("""
            Logistic regression on the real data above:
        """),
        real(result["real"]),
        _text(f"""
            Noise of private prefix sums over T steps at noise multiplier 1: mean and largest
            standard deviation over the steps, and the time of a step for {noise["dim"]:,} numbers
            against independent noise (study `noise_strategies`):
        """),
        noise_strategies.readme(noise),
    ]


def linear(result: dict[str, Any]) -> list[str]:
    """Linear models from one draw of noise."""
    head = ["task", "d", "n", "dpjax", "`DPSGD`", "diffprivlib (pure epsilon)"]
    peers = ("DP-SGD", "diffprivlib")
    cells: dict[tuple[Any, ...], dict[str, float]] = {}
    for p in result["points"]:
        place = (p["task"], f"{p['dim']:,}", f"{p['n']:,}")
        cells.setdefault(place, {})[p["method"]] = p["median"]
    rows = [
        [*place, *(_short(at.get(method)) for method in ("linear_model_solver", *peers))]
        for place, at in cells.items()
    ]
    fits: dict[tuple[Any, ...], dict[str, Any]] = {}
    for r in result["real"]:
        fits.setdefault((_title(r["data"]), f"{r['epsilon']:g}"), {})[r["method"]] = r
    real_rows = [
        [*place, *(_score(at[method], 4) for method in ("linear_model_solver", *peers))]
        for place, at in fits.items()
    ]
    seconds = {name: f"{times['median']:.2g}" for name, times in result["time"].items()}
    together = next(name for name in seconds if name.endswith(" seeds"))
    return [
        "## Linear models",
        _text("""
            `linear_model_solver`, which `fit` takes, draws noise once and finds the exact
            minimiser. Excess population risk over that of the starting point (1 is no better than
            not to train) on a ball, at epsilon 1. Least squares is `LinearModel("huber")`:
        """),
        _table(head, rows),
        _text("""
            Logistic regression on real data, rows scaled to norm 1, radius 20: excess mean loss on
            the training set over its minimiser, and accuracy on the test set:
        """),
        _table(["data", "epsilon", *head[3:]], real_rows),
        _text(f"""
            A fit of d = 10, n = 10,000 takes {seconds["one seed"]} s, {together}
            {seconds[together]} s in one program; diffprivlib {seconds["diffprivlib"]} s, and
            scikit-learn without privacy {seconds["scikit-learn, not private"]} s.
        """),
    ]


def synthetic(points: list[dict[str, Any]], task: str) -> str:
    """Methods by dimension and number of records."""
    mine = [p for p in points if p["task"] == task]
    cells = sorted({(p["dim"], p["n"]) for p in mine})
    names = [n for n in _NAMES if any(p["method"] == n for p in mine)]
    head = ["method", *[f"d = {d}, n = 10^{len(str(n)) - 1}" for d, n in cells]]
    rows = [[_NAMES[name], *[_cell(mine, name, d, n) for d, n in cells]] for name in names]
    return _table(head, rows)


def _cell(points: list[dict[str, Any]], method: str, dim: int, n: int) -> str:
    found = {
        p["tuned"]: f"{p['mean']:.2g}"
        for p in points
        if (p["method"], p["dim"], p["n"]) == (method, dim, n)
    }
    return " ".join([found.get(False, ""), f"({found[True]})" if True in found else ""]).strip()


def real(rows: list[dict[str, Any]]) -> str:
    """Methods by data set and epsilon."""
    sets = list(dict.fromkeys(r["data"] for r in rows))
    epsilons = sorted({r["epsilon"] for r in rows if r["epsilon"] is not None})
    head = ["method", *[f"{_title(name)}, epsilon {e:g}" for name in sets for e in epsilons]]
    names = [n for n in _NAMES if any(r["method"] == n for r in rows)]
    table = []
    for method in names:
        line = [_NAMES[method]]
        for name in sets:
            for epsilon in epsilons:
                wanted = None if method == "not private" else epsilon
                found = {
                    r["tuned"]: r
                    for r in rows
                    if (r["data"], r["method"], r["epsilon"]) == (name, method, wanted)
                }
                shown = [_score(found[False])] if False in found else []
                shown += [f"({_score(found[True])})"] if True in found else []
                line.append(" ".join(shown))
        table.append(line)
    return _table(head, table)


def _score(row: dict[str, Any], digits: int = 3) -> str:
    return f"{row['excess']:.{digits}f}, {100 * row['accuracy']:.1f}%"


def _title(name: str) -> str:
    return {"adult": "Adult", "credit_default": "Credit"}[name]


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


def _four(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def lessons(result: dict[str, Any]) -> list[str]:
    """What the smaller tables say."""
    learners = {(r["task"], r.get("n"), r["learner"]): r["mean"] for r in result["learners"]}
    far = {(r["distance"], r["single_pass"]): r for r in result["distances"]}
    names = list(dict.fromkeys(r["learner"] for r in result["learners"]))
    rows = [
        [
            name if name == online_to_batch.FIXED else f"`{name}`",
            *[_four(learners.get(("logistic", n, name))) for n in (1_000, 10_000)],
            f"{learners['quadratic, no noise', None, name]:.1e}",
        ]
        for name in names
    ]
    head = ["learner", "logistic, n = 1,000", "n = 10,000", "quadratic, no noise"]
    columns = (
        "adagrad_norm, best diameter",
        "optimistic, best diameter",
        "adagrad_norm, diameter 20",
        "gradient_descent",
        "distance_adaptive",
        "parameter_free",
    )
    distances = [
        [
            f"{distance:g}",
            "one pass" if single else "full batch",
            *[f"{far[distance, single][c]:.1e}" for c in columns],
        ]
        for distance, single in far
    ]
    return [
        _text("""
            Learners of `OnlineToBatch`: the logistic problem in ten dimensions, and 512 steps
            without noise on a quadratic of falling curvatures:
        """),
        _table(head, rows),
        _text("""
            Huber regression in a ball of radius 10 (4,096 records, epsilon 4.38): excess risk by
            the distance of the optimum from the start, of learners that are told no scale, of the
            best of five diameters and of the ball's own:
        """),
        _table(["distance", "data", *columns], distances),
    ]

"""Results on nonsmooth nonconvex problems."""

from typing import Any

from benchmarks import _runner, nonsmooth
from benchmarks._text import table as _table
from benchmarks._text import text as _text

_NAMES = {
    "start": "the starting point",
    "DP-SGD": "`DPSGD`",
    "ours": "`OnlineToNonconvex`",
    "ours, values alone": "... from values alone",
    "ours, all data": "... {moves} moves on all data",
    "ours, all data, periods of 8": "... the same in periods of 8",
    "ours, by the bound": "... the plan by the bound",
    "DP-SGD, one pass": "`DPSGD`, one pass",
    "ours, one pass": "`OnlineToNonconvex`, one pass",
    "ours, one pass, add-or-remove": "... under add-or-remove-one",
    "ours, one pass, values alone": "... from values alone",
    "ours, one pass, periods of 8": "... in periods of 8",
    "ours, one pass, by the bound": "... the plan by the bound",
    "as published": "... as published",
    "as published, values alone": "... as published, from values alone",
    "DP-SGD, no noise": "`DPSGD` without noise",
    "ours, no noise": "`OnlineToNonconvex` without noise",
}
_TASKS = {
    "phase retrieval": "phase retrieval",
    "capped regression": "capped regression",
    "network": "ReLU network",
    "adult": "Adult",
    "credit_default": "Credit",
}
_PASSES = {"multi": "several passes", "single": "one pass", "full": "all data"}


def blocks(result: dict[str, Any] | None = None) -> list[str]:
    """Losses and Goldstein norms, exponents, black boxes, cost of values."""
    result = _runner.load("nonsmooth") if result is None else result
    rows, epsilons = result["tasks"], sorted({r["epsilon"] for r in result["tasks"]} - {None})
    shown = " and ".join(f"{e:g}" for e in epsilons)
    cells = _against(rows, "DP-SGD", tuned=False)
    chosen = _against(rows, "DP-SGD", tuned=True)
    return [
        "## Nonsmooth nonconvex problems",
        _text(f"""
            Amplitude phase retrieval and capped-l1 regression with a fifth of outliers
            ({nonsmooth.RECORDS:,} records, {nonsmooth.DIM} dimensions), a two-layer ReLU network
            with absolute loss and a planted teacher (as many records, {11 * nonsmooth.HIDDEN}
            parameters), and ramp loss of a linear classifier. Mean loss over the training records
            at epsilon {shown}:
        """),
        tasks(rows, "loss"),
        _text(f"""
            In several passes `OnlineToNonconvex` has less loss than `DPSGD` in {cells[0]} of these
            {cells[1]} cells, and in {chosen[0]} where the learning rate of `DPSGD` is chosen by the
            true loss.
        """),
        _text(f"""
            The same points' Goldstein norm at radius {result["radius"]:g}, from above, by
            `dpjax.audit.goldstein_norm` with all records:
        """),
        tasks(rows, "goldstein"),
        "![nonsmooth](../benchmarks/results/nonsmooth.png)",
        _text("Accuracy on test records of the classifiers with ramp loss:"),
        tasks([r for r in rows if r["task"] in nonsmooth.REAL], "accuracy"),
        _text("""
            Losses of which only values exist, on Adult: errors of a linear score, in JAX and
            counted by NumPy. Accuracy on test records:
        """),
        black_box(result["black_box"]),
        _text("""
            Exponents of the Goldstein norm in the number of records n, in epsilon and in the
            dimension d: of default runs (quantile regression by a tanh, with noise, and the
            network), and of the proved bounds at sizes where these say something, their leading
            terms in brackets:
        """),
        exponents(result),
        _text(f"""
            Cost of estimates from values along m pairs of points, for B records in
            {result["cost"][0]["dim"]:,} dimensions, against the 2mB losses alone at points ready in
            memory; temporary arrays do not count those points
            ({result["environment"]["processor"]}, {result["environment"]["cores"]} cores):
        """),
        cost(result["cost"]),
    ]


def tasks(rows: list[dict[str, Any]], value: str) -> str:
    """Methods by task; in a cell the value at each epsilon, tuned ones in brackets."""
    columns = [task for task in _TASKS if any(r["task"] == task for r in rows)]
    names = [
        name for name in _NAMES if any(r["method"] == name and _stated(r, value) for r in rows)
    ]
    lines = [
        [
            _NAMES[name].format(moves=nonsmooth.MOVES),
            *[
                _cell([r for r in rows if (r["task"], r["method"]) == (t, name)], value)
                for t in columns
            ],
        ]
        for name in names
    ]
    return _table(["method", *[_TASKS[task] for task in columns]], lines)


def _stated(row: dict[str, Any], value: str) -> bool:
    return value in row or "error" in row


def _cell(rows: list[dict[str, Any]], value: str) -> str:
    parts = []
    for tuned in (False, True):
        found = [r for r in rows if r["tuned"] == tuned and _stated(r, value)]
        shown = " / ".join(_shown(r, value) for r in sorted(found, key=lambda r: r["epsilon"] or 0))
        parts.append(f"({shown})" if shown and tuned else shown)
    return " ".join(part for part in parts if part)


def _shown(row: dict[str, Any], value: str) -> str:
    if "error" in row:
        return "not run" if row["error"].startswith("not run") else "refused"
    if value == "accuracy":
        return f"{100 * row[value]:.1f}%"
    return f"{row[value]:.4f}" if row[value] < 0.1 else f"{row[value]:.3f}"


def _against(rows: list[dict[str, Any]], method: str, tuned: bool) -> tuple[int, int]:
    """In how many cells ours by default has less loss than a method, and of how many."""
    found = {
        (r["method"], r["tuned"], r["task"], r["epsilon"]): r["loss"] for r in rows if "loss" in r
    }
    pairs = [
        (loss, found[method, tuned, task, epsilon])
        for (name, chosen, task, epsilon), loss in found.items()
        if (name, chosen) == ("ours", False) and (method, tuned, task, epsilon) in found
    ]
    return sum(mine < other for mine, other in pairs), len(pairs)


def black_box(rows: list[dict[str, Any]]) -> str:
    """Methods by epsilon."""
    epsilons = sorted({r["epsilon"] for r in rows})
    found = {(r["method"], r["epsilon"]): r for r in rows}
    lines = [
        [name, *[f"{100 * found[name, e]['test_accuracy']:.1f}%" for e in epsilons]]
        for name in dict.fromkeys(r["method"] for r in rows)
    ]
    return _table(["loss, method", *[f"epsilon {e:g}" for e in epsilons]], lines)


def exponents(result: dict[str, Any]) -> str:
    """Measured ones, then those of the bounds with their leading terms in brackets."""
    lines = []
    for row in result["fitted"]:
        slopes = [_power(row["slopes"].get(over)) for over in ("n", "epsilon", "dim")]
        lines.append([f"measured, {row['problem']}, {_PASSES[row['passes']]}", *slopes])
    for row in result["bounds"]:
        name = "fresh estimates" if row["period"] == "1" else "longer periods"
        slopes = [
            f"{_power(row['slopes'][over])} ({_power(row['leading'][over])})"
            for over in ("n", "epsilon", "dim")
        ]
        lines.append([f"proved, {name}, {_PASSES[row['passes']]}", *slopes])
    return _table(["", "n", "epsilon", "d"], lines)


def _power(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def cost(rows: list[dict[str, Any]]) -> str:
    """A line for each model and size."""
    lines = [
        [
            r["model"],
            f"{r['directions']:,}",
            f"{r['records']:,}",
            f"{r['milliseconds']['estimate']:.0f}",
            f"{r['milliseconds']['losses alone']:.0f}",
            f"{r['ratio']:.2f}",
            _megabytes(r),
        ]
        for r in rows
    ]
    head = ["model", "m", "B", "ms", "losses alone, ms", "ratio", "temporary MB (losses alone)"]
    return _table(head, lines)


def _megabytes(row: dict[str, Any]) -> str:
    mine, alone = row["megabytes"]["estimate"], row["megabytes"]["losses alone"]
    return "" if mine is None or alone is None else f"{mine:.0f} ({alone:.0f})"

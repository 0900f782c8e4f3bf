"""The README's table of headline results, each from a committed run, losses among them."""

from pathlib import Path
from typing import Any

from benchmarks import _runner
from benchmarks._text import table

README = Path(__file__).parents[1] / "README.md"
START, END = "<!-- results -->\n", "<!-- /results -->"


def headlines() -> str:
    """What stands between the README's result marks."""
    head = ["at epsilon 1, by default settings", "dpjax", "in comparison", "study"]
    rows = [*_fair(), *_queries(), *_nonsmooth(), *_ball(), *_vertices(), *_step()]
    return "\n" + table(head, rows) + "\n\n"


def write() -> Path:
    """Puts the table between the marks of the README."""
    text = README.read_text()
    head, rest = text.split(START)
    README.write_text(head + START + headlines() + END + rest.split(END)[1])
    return README


def _one(rows: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    """The one row with these values."""
    (found,) = [r for r in rows if all(r.get(name) == value for name, value in wanted.items())]
    return found


def _fair() -> list[list[str]]:
    curves = _runner.load("fair_frontiers")["frontiers"]["adult_parity"]
    ours = _one(curves["private"], epsilon=1.0, slack=0.05)
    (plain,) = [p for p in curves["non_private"] if p["slack"] == 0.05]
    return [
        [
            "Adult with demographic parity, slack 0.05: test error (gap)",
            f"{ours['error']:.3f} ({ours['disparity']:.3f})",
            f"not private {plain['error']:.3f} ({plain['disparity']:.3f})",
            "`fair_frontiers`",
        ]
    ]


def _queries() -> list[list[str]]:
    result = _runner.load("query_release")
    rows = [r for r in result["rows"] if r["epsilon"] == 1.0]
    found = []
    for data, numbers in (
        ("adult", "14,955 marginals of Adult"),
        ("credit", "marginals of Credit"),
    ):
        at = {
            method: _one(rows, data=data, method=method, configuration="default")["max"]
            for method in ("GaussianFit", "mbi", "Gaussian answers, no fit")
        }
        found.append(
            [
                f"{numbers}, largest error",
                f"{at['GaussianFit']:.4f}",
                f"mbi's fit {at['mbi']:.4f}, noise alone {at['Gaussian answers, no fit']:.4f}",
                "`query_release`",
            ]
        )
    return found


def _nonsmooth() -> list[list[str]]:
    rows = [r for r in _runner.load("nonsmooth")["tasks"] if r["epsilon"] == 1.0 and not r["tuned"]]
    found = []
    names = {"ours": "`OnlineToNonconvex`", "DP-SGD": "`DPSGD`"}
    for task, title in (
        ("network", "ReLU network, absolute loss"),
        ("adult", "ramp loss on Adult"),
    ):
        losses = {m: _one(rows, task=task, method=m)["loss"] for m in names}
        better, other = (
            f"{names[m]} {losses[m]:.4f}" for m in sorted(losses, key=lambda m: losses[m])
        )
        found.append([f"{title}: training loss", better, other, "`nonsmooth`"])
    return found


def _ball() -> list[list[str]]:
    result = _runner.load("linear_models")
    methods = ("linear_model_solver", "DP-SGD", "diffprivlib")
    found = []
    for dim, n in ((100, 10_000), (10, 100_000)):
        at = {
            m: _one(result["points"], task="logistic", method=m, dim=dim, n=n)["median"]
            for m in methods
        }
        found.append(
            [
                f"logistic regression, d = {dim}, n = {n:,}: excess risk of the start's",
                f"{at['linear_model_solver']:.2g}",
                f"`DPSGD` {at['DP-SGD']:.2g}, diffprivlib (pure epsilon) {at['diffprivlib']:.2g}",
                "`linear_models`",
            ]
        )
    real = {
        m: 100 * _one(result["real"], data="adult", epsilon=1.0, method=m)["accuracy"]
        for m in methods
    }
    others = f"`DPSGD` {real['DP-SGD']:.1f}%, diffprivlib (pure epsilon) {real['diffprivlib']:.1f}%"
    ours = f"{real['linear_model_solver']:.1f}%"
    return [*found, ["logistic regression on Adult: accuracy", ours, others, "`linear_models`"]]


def _vertices() -> list[list[str]]:
    points = _runner.load("dimension")["points"]
    ball = {
        m: _one(points, problem="regression", method=m, dim=10_000)["mean"]
        for m in ("polished", "Frank-Wolfe", "DP-SGD")
    }
    game = {
        m: _one(points, problem="game", method=m, dim=300)["mean"]
        for m in ("by the rule", "one-shot Gaussian", "DP-SGDA")
    }
    return [
        [
            "least squares on an l1 ball, d = 10,000: excess risk",
            f"{ball['polished']:.2g}",
            f"`FrankWolfe` {ball['Frank-Wolfe']:.2g}, `DPSGD` {ball['DP-SGD']:.2g}",
            "`dimension`",
        ],
        [
            "matrix game of 300 strategies: duality gap",
            f"{game['by the rule']:.3f}",
            f"`DPSGD` on both players {game['DP-SGDA']:.3f}, "
            f"noise alone {game['one-shot Gaussian']:.3f}",
            "`dimension`",
        ],
    ]


def _step() -> list[list[str]]:
    times = _runner.load("step_time")["microseconds_per_step"]

    def at(name: str) -> str:
        return f"{times[name]['median']:.0f}"

    return [
        [
            "a DP-SGD step on Adult, batch 512, microseconds on 2 cores",
            at("DP-SGD (dpjax)"),
            f"jax_privacy {at('DP-SGD (jax_privacy)')}, optax.contrib "
            f"{at('DP-SGD (optax.contrib)')}, opacus {at('DP-SGD (opacus)')}, "
            f"SGD {at('SGD')}",
            "`step_time`",
        ]
    ]

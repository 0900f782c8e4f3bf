"""The documentation's page of results, made from the committed runs so that it cannot drift."""

import textwrap
from pathlib import Path

from benchmarks import (
    _defaults,
    _results_convex,
    _results_nonsmooth,
    _results_queries,
    _results_vertices,
    _runner,
    adult_splits,
    fair_frontiers,
    network_cost,
    networks,
    step_time,
)
from benchmarks._text import text as _text

PAGE = Path(__file__).parents[1] / "docs" / "results.md"
HEAD = """# Results

Every number on this page is that of a committed run; `python -m benchmarks readme` writes the page.
In a checkout, `benchmarks/results` has every point and its spread, and `benchmarks/README.md`
machines, versions and commits. [Choosing a solver](choosing.md) draws the conclusions.

"""
HOW = "How the studies were run, all by default settings but for what brackets in tables show:"


def page() -> str:
    """The whole page."""
    frontiers = _runner.load("fair_frontiers")["frontiers"]
    times = _runner.load("step_time")
    machine, ratios = times["environment"], times["ratios"]
    blocks = [
        HEAD.strip(),
        *([_text(told)] if (told := _defaults.sentence()) else []),
        HOW,
        "\n".join(_setting(*row) for row in _settings()),
        "## Fair training",
        _text("""
            `RateConstrainedSGDA` on real data, with nothing set but the slack. The last two columns
            are the same model by full-batch descent-ascent without noise or clipping:
        """),
        fair_frontiers.readme(frontiers),
        _text("""
            On Adult at epsilon 1, DP-FERMI is printed with error 0.176 at disparity 0.046 and 0.187
            at 0.010. It was not rerun, and it protects the sex alone where we protect the whole
            record. Much of the difference is the features: ours are one-hot and binned by public
            bounds.
        """),
        _text(adult_splits.readme(_runner.load("adult_splits"))),
        "![frontiers](../benchmarks/results/fair_frontiers.png)",
        _text(f"""
            On Parkinsons ({frontiers["parkinsons_parity"]["num_train"]} training rows) and on a
            thousand rows of Adult noise costs more accuracy than parity does, and `for_budget`
            warns that the budget cannot see the slack. On Credit default the unconstrained model is
            nearly fair already.
        """),
        _text(f"""
            One step at expected batch {times["batch"]} on Adult ({machine["processor"]},
            {machine["cores"]} cores, jax {machine["versions"]["jax"]}; study `step_time`):
        """),
        step_time.readme(times),
        _text(f"""
            For a linear model DP-SGD never forms per-example gradients, and it avoids a transposed
            product that is slow on CPU. It costs {ratios["DP-SGD / SGD"]:.2f} of a plain SGD step
            by `jax.grad`, although Poisson batches carry 1.4 times the rows, and
            {ratios["DP-SGD / SGD, our product"]:.2f} of SGD with that same product. Constraints
            make a step {ratios["RaCO / DP-SGD"]:.2f} times as long.
        """),
        _text(f"""
            A step on networks, {network_cost.BATCH} records, on CPU (study `network_cost`). The
            peak is that of a process over what it had before the first step, with compilation;
            planned are the temporaries of the compiled program:
        """),
        network_cost.summary(_runner.load("network_cost")),
        _text("""
            Test accuracy of a small convolutional network on the digits of scikit-learn (1,347
            training records, delta 1e-4, add-or-remove-one; study `networks`). Step sizes are
            multiples of the default. All columns have batches of 64, 20 epochs and clip norm 1:
        """),
        networks.summary(_runner.load("networks")),
        *_results_convex.blocks(),
        *_results_nonsmooth.blocks(),
        *_results_queries.blocks(),
        *_results_vertices.blocks(),
    ]
    return "\n\n".join(blocks) + "\n"


def _setting(study: str, relation: str, figures: str, brackets: str, chosen: str) -> str:
    """An entry of the list of studies."""
    parts = [f"{study}: {relation}; {figures}."]
    parts += [f"In brackets: {brackets}."] if brackets else []
    lines = textwrap.wrap(
        " ".join([*parts, f"Choices, and their data: {chosen}."]),
        98,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "- " + "\n  ".join(lines)


def _settings() -> list[tuple[str, str, str, str, str]]:
    """Studies: relation and delta, figures, brackets, and what was chosen on what."""
    seeds = {
        "fair_frontiers": _runner.load("fair_frontiers")["frontiers"]["adult_parity"]["seeds"],
        **{s: _runner.load(s)["seeds"] for s in ("dimension", "vertex_reference", "query_release")},
        "nonsmooth": max(r.get("seeds", 0) for r in _runner.load("nonsmooth")["tasks"]),
    }
    groups = _runner.load("group_risk")
    true_loss = "chosen by the true loss, which is not private"
    generators = "instances from these generators"
    return [
        (
            "`fair_frontiers`",
            f"add-or-remove-one, {_delta('fair_frontiers')}",
            f"means of {seeds['fair_frontiers']} seeds on one 75/25 split",
            "",
            "rules for steps, clip norm, share and dual step: subsamples of Adult's training rows, "
            "Credit default and Parkinsons, with other seeds, and with an eye on the test results "
            "of the first split of these",
        ),
        (
            "`linear_models`",
            f"replace-one, {_delta('linear_models')}",
            "medians over data seeds",
            "",
            "constants of the rules: other instances",
        ),
        (
            "`online_to_batch`",
            f"replace-one, {_delta('online_to_batch')}",
            "means over seeds",
            "the learning rate, and a clip norm of the stated bound or a quarter of it, chosen by "
            "the true risk, which is not private",
            "factor in the default number of steps of `OnlineToBatch`, and its default learner: "
            f"{generators}, and these data sets",
        ),
        (
            "`nonsmooth`",
            f"add-or-remove-one, one pass replace-one unless stated; {_delta('nonsmooth')}",
            f"means of {seeds['nonsmooth']} seeds",
            f"the learning rate {true_loss}",
            f"factors in the defaults of `OnlineToNonconvex`: {generators}, and these data sets",
        ),
        (
            "`query_release`",
            "replace-one, 1/n^2",
            f"means of {seeds['query_release']} seeds, and their range in round brackets",
            "square: the best of three configurations, chosen by the true error on Adult at each "
            "epsilon, which is not private; on Credit nothing was chosen anew, and MWEM in NumPy "
            "ran as chosen on Adult",
            "prior of `GaussianFit`, default steps of the methods that select: Adult's true "
            "errors, so that Credit is the fair comparison",
        ),
        (
            "`dimension`, `vertex_reference`",
            f"replace-one, {_delta('dimension')}",
            f"means of {seeds['dimension']} and {seeds['vertex_reference']} seeds",
            "",
            f"default plans and number of Frank-Wolfe steps: {generators}, some of them the very "
            "ones reported; `certified=True` plans by the bounds alone",
        ),
        (
            "`group_risk`",
            f"add-or-remove-one, {_delta('group_risk')}",
            f"means of {groups['num_splits']} splits of {groups['seeds']} seeds",
            "",
            "loss and radius of mirror descent-ascent: a few, by the first split's test records",
        ),
    ]


def _delta(study: str) -> str:
    return f"{_runner.load(study)['delta']:g}".replace("e-0", "e-")


def write() -> Path:
    """Writes the page."""
    PAGE.write_text(page())
    return PAGE

"""The documentation's page of results, made from the committed runs so that it cannot drift."""

from pathlib import Path

from benchmarks import (
    _results_convex,
    _results_nonsmooth,
    _results_queries,
    _results_vertices,
    _runner,
    adult_splits,
    fair_frontiers,
    step_time,
)
from benchmarks._text import text as _text

PAGE = Path(__file__).parents[1] / "docs" / "results.md"
HEAD = """# Results

Every number on this page is that of a committed run under `benchmarks/results`, and
`python -m benchmarks readme` writes the page. `benchmarks/README.md` has the studies by name, with
the machine, versions and commit of each. What follows is in [choosing a solver](choosing.md).

## Fair training
"""


def page() -> str:
    """The whole page."""
    frontiers = _runner.load("fair_frontiers")["frontiers"]
    times = _runner.load("step_time")
    machine, ratios = times["environment"], times["ratios"]
    blocks = [
        HEAD.strip(),
        _text(f"""
            Real data: defaults only, the averaged iterate, add/remove one record,
            delta 1e-5, mean of {frontiers["adult_parity"]["seeds"]} seeds on one 75/25 split. Each
            private figure is `RateConstrainedSGDA` with nothing set but the slack; the last two
            columns are the same model by full-batch descent-ascent without noise or clipping. From
            `benchmarks/results/fair_frontiers.json`, which has every point and its spread:
        """),
        fair_frontiers.readme(frontiers),
        _text("""
            On Adult the method that earlier work reports at epsilon 1, DP-FERMI, is printed with
            error 0.176 at disparity 0.046 and 0.187 at 0.010; it was not rerun, and it protects
            the sex alone where we protect the whole record. Much of the difference is the
            features: ours are one-hot and binned by public bounds.
        """),
        _text(adult_splits.readme(_runner.load("adult_splits"))),
        "![frontiers](../benchmarks/results/fair_frontiers.png)",
        _text(f"""
            Where it does not do well: on Parkinsons
            ({frontiers["parkinsons_parity"]["num_train"]} training rows) and on a thousand rows of
            Adult noise costs more accuracy than parity does, and `for_budget` warns that the budget
            cannot see the slack; on Credit default the unconstrained model is nearly fair already.
            Rules for steps, clip norm, share and dual step were chosen on subsamples of Adult's
            training rows, Credit default and Parkinsons, with other seeds.
        """),
        _text(f"""
            One step at expected batch {times["batch"]} on Adult ({machine["processor"]},
            {machine["cores"]} cores, jax {machine["versions"]["jax"]};
            `benchmarks/results/step_time.json`), medians of interleaved runs:
        """),
        step_time.readme(times),
        _text(f"""
            DP-SGD here costs {ratios["DP-SGD / SGD"]:.2f} of a plain SGD step by `jax.grad`,
            although it draws Poisson batches and carries 1.4 times the rows: for a linear model it
            never forms per-example gradients, and it avoids a transposed product that is slow on
            CPU. Against SGD with that same product it costs
            {ratios["DP-SGD / SGD, our product"]:.2f}. Constraints make a step
            {ratios["RaCO / DP-SGD"]:.2f} times as long.
        """),
        *_results_convex.blocks(),
        *_results_nonsmooth.blocks(),
        *_results_queries.blocks(),
        *_results_vertices.blocks(),
    ]
    return "\n\n".join(blocks) + "\n"


def write() -> Path:
    """Writes the page."""
    PAGE.write_text(page())
    return PAGE

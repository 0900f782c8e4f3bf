"""`python -m dpjax`: private fair training on Adult, next to its non-private frontier.

`python -m dpjax fit` trains on a CSV file of your own, `python -m dpjax predict` applies the model,
`python -m dpjax release` gives private tables and synthetic rows of one.
"""

import argparse
import importlib
import json
import math
import signal
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm.auto import tqdm

from dpjax.datasets import Dataset, adult
from dpjax.privacy import Budget, effective_noise_multiplier
from dpjax.problems import RateConstrained, demographic_parity
from dpjax.runtime import solve
from dpjax.solvers import RateConstrainedSGDA

SLACKS = (0.0, 0.02, 0.05, 0.1, 0.2)


def main(argv: list[str] | None = None) -> int:
    """Runs the job; returns the exit status, 2 where an argument cannot be used."""
    argv = sys.argv[1:] if argv is None else argv
    name, run = "python -m dpjax", _run
    if argv[:1] in (["fit"], ["predict"], ["release"]):
        command, *argv = argv
        name, run = f"{name} {command}", importlib.import_module(f"dpjax._{command}_command").run
    try:
        run(argv)
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"{name}: error: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    return 0


def _run(argv: list[str]) -> None:
    if argv and not argv[0].startswith("-"):
        raise ValueError(f"unknown command {argv[0]!r}: commands are fit, predict and release")
    args = _parse(argv)
    train, test = adult().split(test=0.25, seed=args.seed)
    budget = Budget(args.epsilon, args.delta)
    if math.isinf(budget.epsilon):
        raise ValueError("epsilon must be finite, got inf: training without privacy runs beside it")
    say = sys.stderr if args.json else sys.stdout
    print(
        f"Adult: {len(train)} training and {len(test)} test records, {train.num_features} "
        f"features; demographic parity between the sexes\n"
        f"budget: epsilon {budget.epsilon:g}, delta {budget.delta:g}, add/remove one record; "
        f"{args.seeds} seeds a slack",
        file=say,
    )
    private, reference = [], []
    with tqdm(total=2 * len(args.slacks), desc="training", unit="frontier point") as bar:
        for slack in args.slacks:
            private.append(_point(train, test, slack, args, private=True))
            bar.update()
            reference.append(_point(train, test, slack, args, private=False))
            bar.update()
    result = {"dataset": "adult", "num_train": len(train), "num_test": len(test)}
    result |= {"runs": private, "non_private": reference}
    path = _plot(result, Path(args.plot)) if args.plot else None
    print(json.dumps(result) if args.json else _table(private, reference))
    if path:
        print(f"plot: {path}", file=say)


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m dpjax",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        description="Private fair training on Adult (UCI census data, included), beside the same "
        "training without privacy. Commands for a CSV file of your own: "
        "`python -m dpjax fit --help`, `python -m dpjax predict --help`, "
        "`python -m dpjax release --help`.",
    )
    add = parser.add_argument
    add("--epsilon", type=float, default=1.0, help="privacy loss of one run, > 0")
    add("--delta", type=float, default=1e-5, help="its failure probability, in [0, 1)")
    add(
        "--slacks",
        type=float,
        nargs="+",
        default=list(SLACKS),
        metavar="SLACK",
        help="bounds on the difference between the sexes in positive-prediction rate, in [0, 1]; a "
        "row of the table each",
    )
    add("--seeds", type=int, default=3, help="runs averaged for each slack, >= 1")
    add("--seed", type=int, default=0, help="of the train/test split and of the keys")
    add("--steps", type=int, help="steps of a run, >= 1; None: chosen by the solver")
    add("--fast", action="store_true", help="one seed, two slacks, 100 steps")
    add("--json", action="store_true", help="print one JSON object to stdout")
    add("--plot", default="dpjax-adult.png", metavar="FILE", help="PNG to write; '' for none")
    args = parser.parse_args(argv)
    if args.fast:
        args.seeds, args.slacks, args.steps = 1, args.slacks[1:3], args.steps or 100
    if args.seeds < 1:
        parser.error(f"--seeds must be >= 1, got {args.seeds}")
    if args.steps is not None and args.steps < 1:
        parser.error(f"--steps must be >= 1, got {args.steps}")
    if args.plot and not Path(args.plot).parent.is_dir():
        parser.error(f"--plot must name a file in an existing folder, got {args.plot}")
    return args


def _point(
    train: Dataset, test: Dataset, slack: float, args: argparse.Namespace, *, private: bool
) -> dict[str, Any]:
    """Errors and disparities of hard predictions on the test records, and the time it took.

    Where it is not private, of one run over all records a step, with neither noise nor clipping.
    """
    budget = Budget(args.epsilon if private else math.inf, args.delta)
    seed, seeds = (args.seed, args.seeds) if private else (0, 1)
    steps = args.steps if private else args.steps or 1000
    parity = demographic_parity(num_groups=2, num_classes=2, slack=slack)
    problem = RateConstrained.linear(train.num_features, 2, parity)
    solver = RateConstrainedSGDA.for_budget(problem, len(train), budget, steps=steps)
    start = time.perf_counter()
    keys = jax.random.split(jax.random.key(seed), seeds)
    runs = [solve(solver, problem, train.as_dict(), key=key) for key in keys]
    params = jax.block_until_ready([run.params for run in runs])
    told: dict[str, Any] = {"seconds": time.perf_counter() - start, "slack": slack}
    data = jax.tree.map(jnp.asarray, test.as_dict())
    for name, of in (("error", problem.error), ("disparity", problem.disparity)):
        values = [float(of(each, data)) for each in params]
        told |= {name: float(np.mean(values)), f"{name}_std": float(np.std(values))}
    if private:
        noises = solver.histogram_noise, solver.primal.noise_multiplier
        told |= {"epsilon": solver.guarantee().epsilon(budget.delta), "delta": budget.delta}
        told |= {"sigma_eff": effective_noise_multiplier(*noises)}
        told |= {"steps": solver.sampler.steps, "seeds": seeds}
    return told


def _table(private: list[dict[str, Any]], reference: list[dict[str, Any]]) -> str:
    lines = [
        "        |            private            |   not private    |       private",
        "  slack | error   disparity   epsilon   | error  disparity | sigma_eff  seconds",
        "  ----- | ------  ---------   -------   | ------ --------- | ---------  -------",
    ]
    for run, plain in zip(private, reference, strict=True):
        lines.append(
            f"  {run['slack']:5.3f} | {run['error']:.4f}  {run['disparity']:9.4f}   "
            f"{run['epsilon']:7.4f}   | {plain['error']:.4f} {plain['disparity']:9.4f} | "
            f"{run['sigma_eff']:9.3f}  {run['seconds']:7.1f}"
        )
    return "\n".join(lines) + _LEGEND


_LEGEND = """

error      share of the test records that are classified wrongly, mean over the seeds
disparity  difference between the sexes in positive-prediction rate on the test records, mean over
           the seeds; slack bounds it on the training records, so it may be larger here
epsilon    of one run, at the delta above
sigma_eff  noise of both releases of a step, as the multiplier of one
seconds    of all the seeds, with compiling
"""


def _plot(result: dict[str, Any], path: Path) -> Path | None:
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        print("no plot: install the extra, pip install 'dpjax[plot]'", file=sys.stderr)
        return None
    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    runs, plain = result["runs"], result["non_private"]
    names = ("disparity", "error", "disparity_std", "error_std")
    x, y, xerr, yerr = ([run[name] for run in runs] for name in names)
    label = f"dpjax, epsilon {max(run['epsilon'] for run in runs):.2f}"
    axes.errorbar(x, y, yerr, xerr, fmt="o-", capsize=3, label=label)
    x_plain, y_plain = ([run[name] for run in plain] for name in names[:2])
    axes.plot(x_plain, y_plain, "s--", color="grey", label="not private")
    for run, at in zip(runs, zip(x, y, strict=True), strict=True):
        axes.annotate(f" {run['slack']:g}", at, fontsize="small", va="bottom")
    axes.set(
        xlabel="demographic disparity of hard predictions (test)",
        ylabel="test error",
        title="Adult: error against disparity, by slack",
    )
    axes.legend()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return path.resolve()


if __name__ == "__main__":
    if sys.platform != "win32":  # end quietly when piped into `head`
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())

"""`python -m dpjax`: private fair training on Adult, next to its non-private frontier.

`python -m dpjax fit` trains on a CSV file of your own.
"""

import argparse
import json
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
from dpjax.sampling import FullBatch
from dpjax.solvers import RateConstrainedSGDA

SLACKS = (0.0, 0.02, 0.05, 0.1, 0.2)


def main(argv: list[str] | None = None) -> int:
    """Runs the job; returns the exit status, 2 where an argument cannot be used."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["fit"]:
        from dpjax._fit_command import main as fit_main

        return fit_main(argv[1:])
    args = _parse(argv)
    try:
        return _run(args)
    except (ValueError, OSError) as error:
        print(f"python -m dpjax: error: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2


def _run(args: argparse.Namespace) -> int:
    train, test = adult().split(test=0.25, seed=args.seed)
    budget = Budget(args.epsilon, args.delta)
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
            private.append(_private(train, test, slack, budget, args))
            bar.update()
            reference.append(_non_private(train, test, slack, args))
            bar.update()
    result = {
        "dataset": "adult",
        "num_train": len(train),
        "num_test": len(test),
        "runs": private,
        "non_private": reference,
    }
    path = _plot(result, Path(args.plot)) if args.plot else None
    if args.json:
        print(json.dumps(result))
    else:
        print(_table(private, reference))
    if path:
        print(f"plot: {path}", file=say)
    return 0


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m dpjax",
        description="Private fair training on Adult (UCI census data, included), beside the same "
        "training without privacy. `python -m dpjax fit --help` is for a CSV file of your own.",
    )
    parser.add_argument(
        "--epsilon", type=float, default=1.0, help="privacy loss of one run, > 0 (default: 1)"
    )
    parser.add_argument(
        "--delta",
        type=float,
        default=1e-5,
        help="its failure probability, in [0, 1) (default: 1e-5)",
    )
    parser.add_argument(
        "--slacks",
        type=float,
        nargs="+",
        default=list(SLACKS),
        metavar="SLACK",
        help="bounds on the difference between the sexes in positive-prediction rate, in [0, 1]; a "
        f"row of the table each (default: {' '.join(f'{slack:g}' for slack in SLACKS)})",
    )
    parser.add_argument(
        "--seeds", type=int, default=3, help="runs averaged for each slack, >= 1 (default: 3)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the train/test split and of the keys (default: 0)"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=None,
        help="steps of a run, >= 1 (default: chosen by the solver)",
    )
    parser.add_argument("--fast", action="store_true", help="one seed, two slacks, 100 steps")
    parser.add_argument("--json", action="store_true", help="print one JSON object to stdout")
    parser.add_argument(
        "--plot",
        default="dpjax-adult.png",
        metavar="FILE",
        help="PNG to write; '' for none (default: dpjax-adult.png)",
    )
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


def _private(
    train: Dataset, test: Dataset, slack: float, budget: Budget, args: argparse.Namespace
) -> dict[str, Any]:
    problem = _problem(train, slack)
    start = time.perf_counter()
    solver = RateConstrainedSGDA.for_budget(
        problem, num_records=len(train), budget=budget, steps=args.steps
    )
    keys = jax.random.split(jax.random.key(args.seed), args.seeds)
    params = [solve(solver, problem, train.as_dict(), key=key).params for key in keys]
    jax.block_until_ready(params)
    seconds = time.perf_counter() - start
    return {
        **_evaluate(problem, params, test),
        "slack": slack,
        "epsilon": solver.guarantee().epsilon(budget.delta),
        "delta": budget.delta,
        "sigma_eff": effective_noise_multiplier(
            solver.histogram_noise, solver.primal.noise_multiplier
        ),
        "steps": solver.sampler.steps,
        "seeds": args.seeds,
        "seconds": seconds,
    }


def _non_private(
    train: Dataset, test: Dataset, slack: float, args: argparse.Namespace
) -> dict[str, Any]:
    """The same descent-ascent on the full batch, without noise or clipping."""
    problem = _problem(train, slack)
    start = time.perf_counter()
    solver = RateConstrainedSGDA.for_budget(
        problem,
        len(train),
        Budget(1.0, args.delta),
        sampler=FullBatch(args.steps or 1000),
        noise_multiplier=0.0,
        histogram_noise=0.0,
        clip_norm=1e6,
    )
    solution = solve(solver, problem, train.as_dict(), key=jax.random.key(0), progress=False)
    params = [jax.block_until_ready(solution.params)]
    seconds = time.perf_counter() - start
    return {**_evaluate(problem, params, test), "slack": slack, "seconds": seconds}


def _problem(train: Dataset, slack: float) -> RateConstrained:
    parity = demographic_parity(num_groups=2, num_classes=2, slack=slack)
    return RateConstrained.linear(train.num_features, 2, parity)


def _evaluate(problem: RateConstrained, params: list[Any], test: Dataset) -> dict[str, float]:
    """Mean and spread over seeds of the hard test error and disparity."""
    data = jax.tree.map(jnp.asarray, test.as_dict())
    errors = [float(problem.error(p, data)) for p in params]
    gaps = [float(problem.disparity(p, data)) for p in params]
    return {
        "error": float(np.mean(errors)),
        "error_std": float(np.std(errors)),
        "disparity": float(np.mean(gaps)),
        "disparity_std": float(np.std(gaps)),
    }


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
    axes.errorbar(
        [r["disparity"] for r in runs],
        [r["error"] for r in runs],
        xerr=[r["disparity_std"] for r in runs],
        yerr=[r["error_std"] for r in runs],
        fmt="o-",
        capsize=3,
        label=f"dpjax, epsilon {max(r['epsilon'] for r in runs):.2f}",
    )
    axes.plot(
        [r["disparity"] for r in plain],
        [r["error"] for r in plain],
        "s--",
        color="grey",
        label="not private",
    )
    for run in runs:
        axes.annotate(
            f" {run['slack']:g}", (run["disparity"], run["error"]), fontsize="small", va="bottom"
        )
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
    sys.exit(main())

"""Command line of the benchmarks."""

import argparse
import gc
import importlib
import pkgutil
import sys
import time
from pathlib import Path
from types import ModuleType

import benchmarks
from benchmarks import _compare, _defaults, _runner
from benchmarks._environment import environment


def studies() -> list[str]:
    """Names of all studies: the modules of this package without a leading underscore."""
    found = pkgutil.iter_modules(benchmarks.__path__)
    return sorted(m.name for m in found if m.name[0] != "_" and not m.ispkg)


def study(name: str) -> ModuleType:
    """The module of a study: `run`, `summary`, and perhaps `readme` and `plot`."""
    return importlib.import_module(f"benchmarks.{name}")


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    if args.command == "list":
        for name in studies():
            print(f"{name:16} {(study(name).__doc__ or '').strip().splitlines()[0]}")
    elif args.command == "run":
        if args.fast:  # traced programs are millions of objects, and no garbage
            gc.set_threshold(100_000, 50, 100)
        for name in studies() if "all" in args.study else args.study:
            _run(name, fast=args.fast, data=args.data)
    elif args.command == "defaults":
        return _stored(args.study)
    elif args.command == "plot":
        have = [n for n in studies() if (_runner.RESULTS / f"{n}.json").exists()]
        if unknown := [name for name in args.study if name not in have]:
            print(f"plot: no committed result of {', '.join(unknown)}", file=sys.stderr)
            return 2
        for name in args.study or have:
            _plot(name)
    elif args.command == "readme":
        from benchmarks import _headlines, _page, _results, _scaling_page

        for written in (_headlines, _page, _results, _scaling_page):
            print(written.write())
    else:
        return _compared(args)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Studies of errors, times and memory: runs them, and writes their pages from "
        "committed results.",
    )
    named = "names that `list` prints, or all"
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="name the studies")
    run = commands.add_parser("run", help="run studies and write their JSON and plots")
    run.add_argument("study", nargs="+", choices=[*studies(), "all"], metavar="STUDY", help=named)
    run.add_argument("--fast", action="store_true", help="smoke run: small sizes, no plots")
    run.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="folder with data files that are not embedded (default: they are downloaded)",
    )
    plot = commands.add_parser("plot", help="draw plots again from the committed JSON")
    plot.add_argument("study", nargs="*", metavar="STUDY", help="default: all that have results")
    defaults = commands.add_parser(
        "defaults",
        help="store the present defaults in a committed result that lacks some",
        description="Stores what solvers resolve to now in the JSON of a committed run, where the "
        "run has none of a cell that the study names. It is for a cell added to a study, and for "
        "runs older than this record: then with the dpjax of the run's commit. Defaults that "
        "differ from those of the run are refused; run the study again.",
    )
    defaults.add_argument("study", nargs="+", choices=studies(), metavar="STUDY")
    compare = commands.add_parser(
        "compare",
        help="whether a second result of a study is slower or worse than a first",
        description=_compare.__doc__,
        epilog="Exit status: 0 if nothing is slower or worse, 1 if something is, 2 if the files "
        "cannot be compared.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    compare.add_argument("old", type=Path, metavar="A.json")
    compare.add_argument("new", type=Path, metavar="B.json")
    compare.add_argument(
        "--only", default="", metavar="PATTERN", help="part of a number's place; * is anything"
    )
    compare.add_argument(
        "--tolerance",
        type=float,
        default=_compare.TOLERANCE,
        help="change, as a fraction, that is no change (default %(default)s)",
    )
    commands.add_parser("readme", help="write all pages of results from the committed JSON")
    return parser


def _run(name: str, *, fast: bool, data: Path | None) -> None:
    before, start = environment(), time.perf_counter()
    module = study(name)
    result = module.run(fast=fast, data=data)
    seconds = time.perf_counter() - start
    defaults = None if fast else _defaults.of(name)
    path = _runner.save(
        name, result, fast=fast, environment=before, seconds=seconds, defaults=defaults
    )
    print(path)
    print(module.summary(result))
    if not fast:
        _plot(name)


def _stored(names: list[str]) -> int:
    failed = False
    for name in names:
        try:
            print(_defaults.store(name))
        except ValueError as error:
            print(f"defaults: {error}", file=sys.stderr)
            failed = True
    return int(failed)


def _plot(name: str) -> None:
    module = study(name)
    if hasattr(module, "plot"):
        print(module.plot(_runner.load(name)))


def _compared(args: argparse.Namespace) -> int:
    try:
        if not args.tolerance >= 0:
            raise _compare.NotComparable(f"--tolerance must be >= 0, got {args.tolerance}")
        old, new = (_compare.read(path) for path in (args.old, args.new))
        text, worse = _compare.report(old, new, tolerance=args.tolerance, only=args.only)
    except _compare.NotComparable as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    print(text)
    return int(worse)


if __name__ == "__main__":
    sys.exit(main())

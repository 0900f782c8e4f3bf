"""Command line of the benchmarks."""

import argparse
import importlib
import pkgutil
import sys
from pathlib import Path

import benchmarks
from benchmarks import _runner


def studies() -> list[str]:
    """Names of all studies: the modules of this package without a leading underscore."""
    return sorted(m.name for m in pkgutil.iter_modules(benchmarks.__path__) if m.name[0] != "_")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="name the studies")
    run = commands.add_parser("run", help="run a study and write its JSON and plots")
    run.add_argument("study", choices=studies())
    run.add_argument("--fast", action="store_true", help="smoke run: small sizes, no plots")
    run.add_argument("--data", type=Path, default=None, help="folder with the data files")
    plot = commands.add_parser("plot", help="draw plots again from the committed JSON")
    plot.add_argument("study", nargs="*", help="default: all that have results")
    commands.add_parser("readme", help="write the README's results from the committed JSON")
    args = parser.parse_args(argv)

    if args.command == "list":
        for name in studies():
            doc = importlib.import_module(f"benchmarks.{name}").__doc__ or ""
            print(f"{name:16} {doc.strip().splitlines()[0]}")
        return 0
    if args.command == "readme":
        from benchmarks import _readme

        print(_readme.write())
        return 0
    if args.command == "plot":
        have = [n for n in studies() if (_runner.RESULTS / f"{n}.json").exists()]
        for name in args.study or have:
            module = importlib.import_module(f"benchmarks.{name}")
            if hasattr(module, "plot"):
                print(module.plot(_runner.load(name)))
        return 0
    module = importlib.import_module(f"benchmarks.{args.study}")
    result = module.run(fast=args.fast, data=args.data)
    path = _runner.save(args.study, result, fast=args.fast)
    print(path)
    print(module.summary(result))
    if not args.fast and hasattr(module, "plot"):
        print(module.plot(_runner.load(args.study)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

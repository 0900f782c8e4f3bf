"""`python -m dpjax.audit --entries MODULE`: what its solvers claim against what runs show."""

import argparse
import importlib
import sys

import jax

from dpjax.audit._registered import audit_registered
from dpjax.testing import entries


def main(argv: list[str] | None = None) -> int:
    """Runs the audits; returns 1 if a bound is above a claim, 2 where an input cannot be used."""
    try:
        return _run(_parse(argv))
    except ValueError as error:
        print(f"python -m dpjax.audit: error: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2


def _run(args: argparse.Namespace) -> int:
    if args.entries:
        try:
            importlib.import_module(args.entries)
        except ImportError as error:
            raise ValueError(f"--entries {args.entries}: {error}") from error
    chosen = [e for e in entries("solver") if args.all or any(n in e.name for n in args.names)]
    if not chosen:
        raise ValueError(
            f"no registered solver's name holds any of {args.names}; --entries MODULE imports a "
            "module that calls dpjax.testing.register, --list prints what it registers"
        )
    if args.list:
        print("\n".join(entry.name for entry in chosen))
        return 0
    chances = {name: getattr(args, name) for name in ("runs", "epsilon", "delta", "confidence")}
    key, progress = jax.random.key(args.seed), sys.stderr.isatty()
    rows = audit_registered(chosen, **chances, key=key, progress=progress)
    print(
        f"epsilon at delta = {args.delta:g}, and delta at epsilon = 0: claimed, and shown by "
        f"{args.runs} runs on each of two neighbours\n"
        f"(all bounds together hold with probability {args.confidence:g})\n"
    )
    width = max(len(row.name) for row in rows)
    titles = ("epsilon", "shown", "delta", "shown")
    print(f"{'solver':{width}}  {'relation':17}  {'  '.join(f'{t:>8}' for t in titles)}")
    for row in rows:
        numbers = "  ".join(f"{number:8.3f}" for number in row[2:])
        print(f"{row.name:{width}}  {row.relation:17}  {numbers}{'' if row.holds else '  ABOVE'}")
    broken = [row.name for row in rows if not row.holds]
    if broken:
        print(f"\nABOVE THE CLAIM: {', '.join(broken)}")
    else:
        print(f"\nall {len(rows)} stay below their claims")
    return 1 if broken else 0


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m dpjax.audit",
        description="Runs registered solvers on two neighbouring data sets, and compares the "
        "epsilon that the runs show, a lower bound, with the one claimed.",
        epilog="Exit status: 0 if no bound is above its claim, 1 if one is, 2 if an input cannot "
        "be used.",
    )
    add = parser.add_argument
    add("names", nargs="*", help="parts of solvers' names (default: all solvers)")
    add("--entries", metavar="MODULE", help="module to import, which registers solvers")
    add("--all", action="store_true", help="every registered solver")
    add("--list", action="store_true", help="print the names and stop")
    add("--runs", type=int, default=4000, help="runs on each of two neighbours (default: 4000)")
    add(
        "--epsilon",
        type=float,
        default=4.0,
        help="what each solver is set to claim, about; > 0 (default: 4)",
    )
    add("--delta", type=float, default=1e-2, help="at which epsilons are compared (default: 0.01)")
    add(
        "--confidence",
        type=float,
        default=0.999,
        help="probability that all bounds hold together, in (0, 1) (default: 0.999)",
    )
    add("--seed", type=int, default=0, help="of the keys, >= 0 (default: 0)")
    args = parser.parse_args(argv)
    if args.all and args.names:
        parser.error(f"--all takes no names, got {' '.join(args.names)}")
    args.all = not args.names
    return args


if __name__ == "__main__":
    sys.exit(main())

"""`python -m dpjax.audit --entries MODULE`: what its solvers claim against what runs show."""

import argparse
import importlib
import sys

import jax

from dpjax.audit._registered import Audited, audit_registered
from dpjax.testing import entries


def main(argv: list[str] | None = None) -> int:
    """Runs the audits; returns 1 if a bound is above a claim, else 0."""
    args = _parse(argv)
    if args.entries:
        importlib.import_module(args.entries)
    chosen = [e for e in entries("solver") if args.all or any(n in e.name for n in args.names)]
    if not chosen:
        print(
            f"no registered solver's name holds any of {args.names}; --entries MODULE imports a "
            "module that calls dpjax.testing.register, --list prints what it registers",
            file=sys.stderr,
        )
        return 2
    if args.list:
        print("\n".join(entry.name for entry in chosen))
        return 0
    rows = audit_registered(
        chosen,
        runs=args.runs,
        epsilon=args.epsilon,
        delta=args.delta,
        confidence=args.confidence,
        key=jax.random.key(args.seed),
        progress=sys.stderr.isatty(),
    )
    print(
        f"epsilon at delta = {args.delta:g}: claimed, and shown by {args.runs} runs on each of two "
        f"neighbours\n(all bounds together hold with probability {args.confidence:g})\n"
    )
    print(_table(rows))
    broken = [row.name for row in rows if not row.holds]
    if broken:
        print(f"\nABOVE THE CLAIM: {', '.join(broken)}")
    else:
        print(f"\nall {len(rows)} stay below their claims")
    return 1 if broken else 0


def _table(rows: list[Audited]) -> str:
    width = max(len(row.name) for row in rows)
    lines = [f"{'solver':{width}}  {'relation':17}  {'claimed':>8}  {'shown':>8}"]
    for row in rows:
        mark = "" if row.holds else "  ABOVE"
        lines.append(
            f"{row.name:{width}}  {row.relation:17}  {row.claimed:8.3f}  {row.shown:8.3f}{mark}"
        )
    return "\n".join(lines)


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dpjax.audit", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of solvers' names")
    parser.add_argument("--entries", metavar="MODULE", help="a module that registers solvers")
    parser.add_argument("--all", action="store_true", help="every registered solver")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    parser.add_argument("--runs", type=int, default=4000, help="runs on each of two neighbours")
    parser.add_argument("--epsilon", type=float, default=4.0, help="about what each shall claim")
    parser.add_argument("--delta", type=float, default=1e-2, help="where epsilons are compared")
    parser.add_argument("--confidence", type=float, default=0.999, help="of all rows together")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    if not (args.all or args.names):
        args.all = True
    return args


if __name__ == "__main__":
    sys.exit(main())

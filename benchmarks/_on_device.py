"""What `run_gpu.sh` asks of Python: which device there is, a study's result and the tests'."""

import argparse
import importlib
import sys
import time
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import jax

from benchmarks import _runner


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks._on_device", description=__doc__)
    parser.add_argument("device", help="as by jax.default_backend(), and in the files' names")
    parser.add_argument("--study", help="run it, into results/STUDY.DEVICE.json")
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--tests", type=Path, help="JUnit report, into results/tests.DEVICE.json")
    args = parser.parse_args(argv)
    found = jax.default_backend()
    if found != args.device:
        print(f"wanted {args.device}, found {found}", file=sys.stderr)
        return 1
    if args.study:
        study = importlib.import_module(f"benchmarks.{args.study}")
        start = time.perf_counter()
        result = study.run(fast=args.fast, data=args.data)
        seconds = time.perf_counter() - start
        name = f"{args.study}.{args.device}"
        print(_runner.save(name, result, fast=args.fast, seconds=seconds))
        print(study.summary(result))
    elif args.tests:
        print(_runner.save(f"tests.{args.device}", outcome(args.tests), fast=False))
    else:
        print(jax.__version__, found, [device.device_kind for device in jax.devices()])
    return 0


def outcome(report: Path) -> dict[str, Any]:
    """How many tests passed, and the names of those that did not."""
    cases = list(xml.etree.ElementTree.parse(report).getroot().iter("testcase"))

    def named(*kinds: str) -> list[str]:
        return [
            f"{case.get('classname')}::{case.get('name')}"
            for case in cases
            if any(case.find(kind) is not None for kind in kinds)
        ]

    failed, skipped = named("failure", "error"), named("skipped")
    return {
        "passed": len(cases) - len(failed) - len(skipped),
        "failed": failed,
        "skipped": skipped,
    }


if __name__ == "__main__":
    sys.exit(main())

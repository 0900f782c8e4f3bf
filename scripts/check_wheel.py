"""Checks that a wheel holds what it must, and nothing that it must not.

python scripts/check_wheel.py dist/dpjax-0.1.0-py3-none-any.whl
"""

import argparse
import zipfile
from pathlib import Path

MAX_BYTES = 2_000_000
REQUIRED = (
    "dpjax/__main__.py",
    "dpjax/py.typed",
    "dpjax/datasets/data/adult.json",
    "dpjax/datasets/data/adult.xz",
    "dpjax/datasets/data/README.md",
)


def problems(wheel: Path) -> list[str]:
    """What is wrong with it, one sentence each."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    found = [f"{name} is missing" for name in REQUIRED if name not in names]
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        found.append("the licence is missing")
    package = ("dpjax/", "dpjax-")
    found += [f"{name} does not belong in it" for name in names if not name.startswith(package)]
    if (size := wheel.stat().st_size) > MAX_BYTES:
        found.append(f"it must be <= {MAX_BYTES} bytes, got {size}")
    return found


def main() -> None:
    """The command line: exits with what is wrong, or prints the size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    wheel = parser.parse_args().wheel
    if found := problems(wheel):
        raise SystemExit("\n".join(f"{wheel.name}: {problem}" for problem in found))
    print(f"{wheel.name}: {wheel.stat().st_size:,} bytes, complete")


if __name__ == "__main__":
    main()

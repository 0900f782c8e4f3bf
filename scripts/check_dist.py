"""Checks that a wheel and a source distribution hold what they must, and nothing else.

    python scripts/check_dist.py dist/

Needs the standard library alone. The folder holds one of each, as `python -m build` makes them: the
wheel from the source distribution.
"""

import argparse
import email
import fnmatch
import re
import tarfile
import zipfile
from collections.abc import Iterator
from email.message import Message
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_BYTES = 2_000_000  # of the wheel
REQUIRED = (
    "dpjax/__main__.py",
    "dpjax/py.typed",
    "dpjax/datasets/data/adult.json",
    "dpjax/datasets/data/adult.xz",
    "dpjax/datasets/data/README.md",
)
# what users may want to run, and release notes; in the source distribution alone
FOLDERS = (".ci", "benchmarks", "docs", "dpjax", "notebooks", "scripts", "tests")
FILES = (
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "MANIFEST.in",
    "constraints.txt",
    "mkdocs.yml",
    "pyproject.toml",
)
LEFTOVERS = (
    "*/__pycache__/*",
    "*.py[co]",
    "*.fast.json",
    "notebooks/executed/*",
    "*/.ipynb_checkpoints/*",
    "*/.DS_Store",
)
LINK = re.compile(r"(!?)\[[^\]]*\]\(([^)\s]+)\)")


def left_over(name: str) -> bool:
    """Whether it is something that runs leave behind."""
    return any(fnmatch.fnmatch(name, pattern) for pattern in LEFTOVERS)


def read_wheel(path: Path) -> dict[str, bytes]:
    """Every file by name."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def read_source(path: Path) -> dict[str, bytes]:
    """Every file by name, less the folder that holds all."""
    with tarfile.open(path) as archive:
        files = [(member.name, archive.extractfile(member)) for member in archive]
        return {name.partition("/")[2]: file.read() for name, file in files if file is not None}


def in_tree() -> Iterator[str]:
    """The names of the files of the checkout that belong to the source distribution."""
    yield from FILES
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            if path.is_file() and not left_over(name):
                yield name


def package(files: dict[str, bytes]) -> dict[str, bytes]:
    """The files of the importable package."""
    return {name: data for name, data in files.items() if name.startswith("dpjax/")}


def of_contents(wheel: dict[str, bytes], source: dict[str, bytes]) -> Iterator[str]:
    """What is missing, superfluous or different."""
    for name in REQUIRED:
        if name not in wheel:
            yield f"the wheel lacks {name}"
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel):
        yield "the wheel lacks the licence"
    for name in wheel:
        if not name.startswith(("dpjax/", "dpjax-")):
            yield f"the wheel must not hold {name}"
    for name in in_tree():
        if name not in source:
            yield f"the source distribution lacks {name}"
    for where, files in (("wheel", wheel), ("source distribution", source)):
        yield from (f"the {where} must not hold {name}" for name in files if left_over(name))
    if package(wheel) != package(source):
        odd = {name for name, _ in package(wheel).items() ^ package(source).items()}
        yield f"wheel and source distribution differ in {', '.join(sorted(odd))}"


def versions(metadata: Message, source: dict[str, bytes]) -> dict[str, str | None]:
    """The version, by where it stands."""

    def search(pattern: str, name: str) -> str | None:
        found = re.search(pattern, source[name].decode(), re.MULTILINE)
        return found and found[1]

    return {
        "metadata": metadata["Version"],
        "dpjax.__version__": search(r'^__version__ = "(.+)"$', "dpjax/__init__.py"),
        "CHANGELOG.md": search(r"^## \[?(\d[^]\s]*)", "CHANGELOG.md"),
        "CITATION.cff": search(r"^version: (\S+)$", "CITATION.cff"),
    }


def of_metadata(metadata: Message, source: dict[str, bytes]) -> Iterator[str]:
    """What package indexes would show and is wrong."""
    if len(set((stated := versions(metadata, source)).values())) != 1:
        yield f"the version must be one, got {stated}"
    classifiers = metadata.get_all("Classifier", [])
    named = [re.search(r"Python :: 3\.(\d+)$", classifier) for classifier in classifiers]
    if metadata["Requires-Python"] != f">=3.{min((int(n[1]) for n in named if n), default=0)}":
        yield "the lowest version of Python among the classifiers must be Requires-Python"
    if metadata["License-Expression"] != "Apache-2.0" or not metadata.get_all("License-File"):
        yield "the licence must be stated, with its file"
    # a package index shows the description alone, where relative links lead nowhere
    published = metadata.get_all("Project-URL")
    for is_image, target in LINK.findall(str(metadata.get_payload())):
        path = target.partition("#")[0]
        if not path or "://" in target or target.startswith("mailto:"):
            continue
        if is_image:
            yield f"the description shows an image by a relative link: {target}"
        elif path not in source:
            yield f"the description links to {path}, which the source distribution lacks"
        elif published:
            yield f"the description has a relative link: {target}; the project has {published[0]}"


def problems(wheel: Path, source: Path) -> list[str]:
    """What is wrong with the two, one sentence each."""
    in_wheel, in_source = read_wheel(wheel), read_source(source)
    found = [*of_contents(in_wheel, in_source)]
    name = next(name for name in in_wheel if name.endswith(".dist-info/METADATA"))
    found += of_metadata(email.message_from_bytes(in_wheel[name]), in_source)
    if (size := wheel.stat().st_size) > MAX_BYTES:
        found.append(f"the wheel must be <= {MAX_BYTES} bytes, got {size}")
    return found


def main() -> None:
    """The command line: exits with what is wrong, or prints the sizes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    if found := problems(wheel, source):
        raise SystemExit("\n".join(found))
    for path in (wheel, source):
        print(f"{path.name}: {path.stat().st_size:,} bytes, complete")


if __name__ == "__main__":
    main()

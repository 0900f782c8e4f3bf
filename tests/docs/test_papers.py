"""Version and licence are the same wherever they stand."""

import re
import tomllib
from pathlib import Path

import dpjax

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_one_version():
    latest = re.search(r"^## \[?(\d[^]\s]*)", read("CHANGELOG.md"), re.MULTILINE)
    cited = re.search(r"^version: (\S+)$", read("CITATION.cff"), re.MULTILINE)
    assert PROJECT["version"] == dpjax.__version__ == latest[1] == cited[1]


def test_every_release_says_what_matters_for_privacy():
    releases = re.split(r"^## ", read("CHANGELOG.md"), flags=re.MULTILINE)[1:]
    assert releases
    assert all("### Privacy-relevant" in release for release in releases)


def test_one_licence():
    assert PROJECT["license"] == "Apache-2.0"
    assert "license: Apache-2.0" in read("CITATION.cff")
    assert "END OF TERMS AND CONDITIONS" in read("LICENSE")


def test_only_constraints_hold_exact_versions():
    extras = PROJECT["optional-dependencies"].values()
    requirements = PROJECT["dependencies"] + [r for extra in extras for r in extra]
    assert not [r for r in requirements if "==" in r]
    lines = [line for line in read("constraints.txt").splitlines() if line[0] != "#"]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)

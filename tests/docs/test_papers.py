"""Version, licence and requirements are the same wherever they stand."""

import datetime
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import dpjax

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def releases():
    """Heading and text of each release of the changelog, the newest first."""
    parts = re.split(r"^## (.+)\n", read("CHANGELOG.md"), flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def lowest(*arguments):
    command = [sys.executable, str(ROOT / "scripts" / "lowest.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return dict(line.split("==") for line in done.stdout.splitlines())


def test_one_version():
    latest = re.match(r"\[?(\d[^]\s]*)", releases()[0][0])[1]
    cited = re.search(r"^version: (\S+)$", read("CITATION.cff"), re.MULTILINE)[1]
    assert dpjax.__version__ == latest == cited
    # the metadata takes it from the package
    assert PROJECT["dynamic"] == ["version"]
    assert PYPROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "dpjax.__version__"}


def test_versions_are_semantic_and_fall():
    numbers = []
    for heading, _ in releases():
        version, date = re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\S+)", heading).groups()
        assert date == "unreleased" or datetime.date.fromisoformat(date)
        numbers.append(tuple(map(int, version.split("."))))
    assert numbers == sorted(set(numbers), reverse=True)


def test_every_release_says_what_matters_for_privacy():
    assert releases()
    for _, text in releases():
        assert re.findall(r"^### (.+)$", text, re.MULTILINE)[0] == "Privacy-relevant"


def test_only_the_newest_release_may_be_unreleased():
    assert not [heading for heading, _ in releases()[1:] if heading.endswith("unreleased")]


def test_a_citation_has_the_date_of_a_release():
    date = re.search(r"- (\S+)$", releases()[0][0])[1]
    cited = re.search(r"^date-released: \"?([\d-]+)\"?$", read("CITATION.cff"), re.MULTILINE)
    assert (cited and cited[1]) == (None if date == "unreleased" else date)


def test_citation_names_what_the_format_requires():
    keys = re.findall(r"^([\w-]+):", read("CITATION.cff"), re.MULTILINE)
    assert {"cff-version", "message", "title", "authors", "type", "license"} <= set(keys)
    assert len(keys) == len(set(keys))
    assert f'name: "{PROJECT["authors"][0]["name"]}"' in read("CITATION.cff")


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


def test_constraints_lie_within_the_bounds():
    def numbers(version):
        return [int(part) for part in re.findall(r"\d+", version)]

    def plain(name):
        return re.sub(r"[-_.]+", "-", name).lower()

    lines = [line for line in read("constraints.txt").splitlines() if line[0] != "#"]
    tested = {plain(name): version for name, version in (line.split("==") for line in lines)}
    for name, bound in lowest().items():
        assert numbers(tested[plain(name)]) >= numbers(bound), name


def test_lowest_versions_are_those_of_pyproject():
    own = lowest()
    assert len(own) == len(PROJECT["dependencies"])
    for name, bound in own.items():
        assert any(re.match(rf"{name}>={bound}(,|$)", r) for r in PROJECT["dependencies"])
    assert own.items() < lowest("test").items()
    assert lowest("test").keys() - lowest("test", "--without", "pytest").keys() == {"pytest"}
    assert "dpjax[sklearn]" not in lowest("test")


def test_supported_versions_stand_on_the_page():
    page = read("docs/versioning.md")
    rows = re.findall(r"^\| ([\w, -]+) \| ([<>=][^ |]+) \|", page, re.MULTILINE)
    shown = {name: bound for names, bound in rows for name in names.split(", ")}
    required = [re.match(r"([\w-]+)(.*)", r).groups() for r in PROJECT["dependencies"]]
    assert shown == {"Python": PROJECT["requires-python"], **dict(required)}


def test_classifiers_begin_at_the_oldest_python():
    named = [c.rpartition(" :: ")[2] for c in PROJECT["classifiers"] if " :: 3." in c]
    assert PROJECT["requires-python"] == f">={named[0]}"
    minor = [int(version.removeprefix("3.")) for version in named]
    assert minor == list(range(minor[0], minor[0] + len(minor)))

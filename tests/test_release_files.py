"""The check of wheels and source distributions finds what is wrong with them."""

import email
import runpy
import tarfile
import zipfile
from pathlib import Path

import pytest

import dpjax

ROOT = Path(__file__).resolve().parents[1]
CHECK = runpy.run_path(str(ROOT / "scripts" / "check_dist.py"))
METADATA = f"""\
Metadata-Version: 2.4
Name: dpjax
Version: {dpjax.__version__}
Classifier: Programming Language :: Python :: 3.12
Classifier: Programming Language :: Python :: 3.11
Requires-Python: >=3.11
License-Expression: Apache-2.0
License-File: LICENSE

A [page](docs/numerics.md#noise), and [another](https://example.org/).
"""


@pytest.fixture
def source():
    return {name: (ROOT / name).read_bytes() for name in CHECK["in_tree"]()}


@pytest.fixture
def wheel(source):
    licence = {f"dpjax-{dpjax.__version__}.dist-info/licenses/LICENSE": b""}
    return {**CHECK["package"](source), **licence}


def contents(wheel, source):
    return list(CHECK["of_contents"](wheel, source))


def metadata(source, old="", new="", text=METADATA):
    assert old in text
    return list(CHECK["of_metadata"](email.message_from_string(text.replace(old, new)), source))


def test_what_is_right_passes(wheel, source):
    assert not contents(wheel, source)
    assert not metadata(source)


def test_both_files_are_read_whole(wheel, source, tmp_path):
    name = f"dpjax-{dpjax.__version__}"
    with zipfile.ZipFile(tmp_path / f"{name}.whl", "w") as archive:
        for path, data in {**wheel, f"{name}.dist-info/METADATA": METADATA.encode()}.items():
            archive.writestr(path, data)
    with tarfile.open(tmp_path / f"{name}.tar.gz", "w:gz") as archive:
        for path in source:
            archive.add(ROOT / path, f"{name}/{path}")
    problems = CHECK["problems"](tmp_path / f"{name}.whl", tmp_path / f"{name}.tar.gz")
    assert not [problem for problem in problems if "bytes" not in problem]
    assert CHECK["read_source"](tmp_path / f"{name}.tar.gz") == source


@pytest.mark.parametrize(
    "name", ["dpjax/py.typed", "dpjax/datasets/data/adult.xz", "dpjax/runtime/_solve.py"]
)
def test_a_file_that_the_wheel_lacks(wheel, source, name):
    del wheel[name]
    assert name in " ".join(contents(wheel, source))


@pytest.mark.parametrize("name", ["tests/conftest.py", "docs/numerics.md", "CHANGELOG.md"])
def test_a_file_that_the_source_lacks(wheel, source, name):
    del source[name]
    assert contents(wheel, source) == [f"the source distribution lacks {name}"]


@pytest.mark.parametrize("name", ["tests/conftest.py", "dpjax/core/__pycache__/_solve.pyc"])
def test_a_file_too_many_in_the_wheel(wheel, source, name):
    found = contents(wheel | {name: b""}, source)
    assert f"the wheel must not hold {name}" in found


@pytest.mark.parametrize(
    "name", ["benchmarks/results/study.fast.json", "notebooks/executed/00_quickstart.ipynb"]
)
def test_leftovers_of_runs_in_the_source(wheel, source, name):
    found = contents(wheel, source | {name: b""})
    assert found == [f"the source distribution must not hold {name}"]


def test_a_wheel_of_another_source(wheel, source):
    wheel["dpjax/runtime/_solve.py"] += b"\n"
    assert contents(wheel, source) == [
        "wheel and source distribution differ in dpjax/runtime/_solve.py"
    ]


@pytest.mark.parametrize("name", ["dpjax/__init__.py", "CHANGELOG.md", "CITATION.cff"])
def test_versions_that_differ(source, name):
    source[name] = source[name].replace(dpjax.__version__.encode(), b"9.9.9")
    assert "version must be one" in metadata(source)[0]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (f"Version: {dpjax.__version__}", "Version: 9.9.9", "version must be one"),
        ("Requires-Python: >=3.11", "Requires-Python: >=3.10", "lowest version of Python"),
        ("License-File: LICENSE\n", "", "licence"),
        ("docs/numerics.md#noise", "docs/none.md", "links to docs/none.md"),
        ("[page]", "![page]", "image by a relative link"),
        ("License-File", "Project-URL: Home, https://example.org\nLicense-File", "relative link"),
    ],
)
def test_wrong_metadata(source, old, new, said):
    (found,) = metadata(source, old, new)
    assert said in found

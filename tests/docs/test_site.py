"""The site builds without a warning, and shows every public name with what it guarantees."""

import html.parser
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
symbols = runpy.run_path(str(ROOT / "scripts" / "site_symbols.py"))["symbols"]
PACKAGES = sorted(
    path.parent.name
    for path in (ROOT / "dpjax").glob("*/__init__.py")
    if symbols(f"dpjax.{path.parent.name}")
)
MARKER = re.compile(r"^<!-- api: (\w+) of dpjax\.(\w+) -->$", re.MULTILINE)


def test_every_page_is_in_the_navigation_once():
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    pages += [f"notebooks/{path.stem}.md" for path in (ROOT / "notebooks").glob("*.py")]
    assert sorted(listed) == sorted(pages)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_kind_of_name_has_its_place(package):
    """So that what is exported later is shown too."""
    text = (DOCS / "api" / f"{package}.md").read_text(encoding="utf-8")
    kinds = {(symbol.kind, package) for symbol in symbols(f"dpjax.{package}")}
    assert sorted(MARKER.findall(text)) == sorted(kinds)


class Text(html.parser.HTMLParser):
    """Identifiers, boxes, rows of tables, and the prose that a page shows."""

    def __init__(self, path):
        super().__init__()
        self.open, self.identifiers, self.boxes, self.prose = [], [], 0, ""
        self.tables = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attributes = {name: value or "" for name, value in attrs}
        kinds = attributes.get("class", "").split()
        self.identifiers.append(attributes.get("id"))
        self.boxes += {"admonition", "guarantee"} <= set(kinds)
        if tag == "table":
            self.tables.append([])
        if tag == "tr" and self.tables:
            self.tables[-1].append(0)
        if tag in ("td", "th"):
            self.tables[-1][-1] += 1
        if tag not in ("br", "hr", "img", "input", "link", "meta"):
            raw = tag in ("code", "head", "nav", "pre", "script", "svg") or "arithmatex" in kinds
            self.open.append((tag, raw))

    def handle_endtag(self, tag):
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        if not any(raw for _, raw in self.open):
            self.prose += data


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for module in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(module)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return folder


def guarantees(package):
    """How many docstrings of a package's public names have a paragraph of that name."""
    import dpjax.testing

    module = getattr(dpjax, package)
    docs = [vars(module)[s.name].__doc__ or "" for s in symbols(f"dpjax.{package}")]
    return sum(bool(re.search(r"^ *Guarantee: ", doc, re.MULTILINE)) for doc in docs)


@pytest.mark.slow
def test_every_public_name_is_shown(site):
    for package in PACKAGES:
        shown = Text(site / "api" / package / "index.html").identifiers
        assert {symbol.home for symbol in symbols(f"dpjax.{package}")} <= set(shown)
    links = (site / "api" / "dpjax" / "index.html").read_text(encoding="utf-8")
    for symbol in symbols("dpjax"):
        page = symbol.home.split(".")[1]
        assert f'href="../{page}/#{symbol.home}"' in links


@pytest.mark.slow
def test_guarantees_stand_out(site):
    counts = {p: Text(site / "api" / p / "index.html").boxes for p in PACKAGES if p != "sklearn"}
    assert counts["solvers"] > 10
    assert all(count >= guarantees(package) for package, count in counts.items())


@pytest.mark.slow
def test_markup_was_understood(site):
    """No formula, table, section or marker is left as it was typed."""
    left = re.compile(
        r"\$|\\[a-z]{2,}|\*\*|`|\]\[|:::|<!--|^\s*(?:\||- |\d+\. (?!.*¶))"  # ¶: a heading
        r"|^(?:Args|Guarantee|Source): ",
        re.MULTILINE,
    )
    for path in sorted(site.rglob("*.html")):
        text = Text(path)
        assert not left.findall(text.prose), path
        assert all(len(set(rows)) == 1 for rows in text.tables), path
        formulas = re.findall(r'class="arithmatex">([^<]*)<', path.read_text(encoding="utf-8"))
        assert not [formula for formula in formulas if "$" in formula], path
        assert "static_field(" not in path.read_text(encoding="utf-8"), path


@pytest.mark.slow
def test_plots_are_there(site):
    for page in sorted(site.rglob("*.html")):
        for source in re.findall(r'<img [^>]*src="([^"]+)"', page.read_text(encoding="utf-8")):
            if not source.startswith("https://"):
                assert (page.parent / source).resolve().is_file(), (page, source)


@pytest.mark.slow
def test_no_page_asks_another_host_for_anything(site):
    asked = re.compile(r'<(?:script|link|img|iframe)\b[^>]*?(?:src|href)="((?:https?:)?//[^"]+)"')
    for page in sorted(site.rglob("*.html")):
        assert asked.findall(page.read_text(encoding="utf-8")) == [], page
    for path in (DOCS / "assets").rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//", path.read_text(encoding="utf-8")), path

"""Every link of the documentation leads somewhere; those to other sites are only well formed."""

import functools
import re
import runpy
import unicodedata
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
symbols = runpy.run_path(str(ROOT / "scripts" / "site_symbols.py"))["symbols"]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/README.md", "notebooks/*.py")
    for path in ROOT.glob(pattern)
)
FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
TARGETS = [
    re.compile(r"\]\(\s*<?([^\s)>]*)>?(?:\s+[\"'][^\"']*[\"'])?\s*\)"),  # [text](target "title")
    re.compile(r"^\s*\[[^]]+\]:\s+<?(\S+?)>?(?:\s|$)", re.MULTILINE),  # [name]: target
    re.compile(r"(?:href|src)=\"([^\"]*)\""),
    re.compile(r"<([a-z]+://[^>\s]+)>"),
]
CROSS_REFERENCE = re.compile(r"\]\[([\w.]+)\]")
HEADING = re.compile(r"^(#{1,6}) +(.+?) *#* *$", re.MULTILINE)
LINK_TEXT = re.compile(r"!?\[([^]]*)\]\([^)]*\)")


def prose(path):
    """The Markdown of a page, or of a notebook's comments, without blocks of code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        comments = [line for line in text.splitlines() if line.startswith("#")]
        text = "\n".join(line[1:].removeprefix(" ") for line in comments)
    return FENCE.sub("", text)


def targets(text):
    """Where the links and images of a page lead, as they are written."""
    return [found[1] for target in TARGETS for found in target.finditer(CODE.sub("`", text))]


def anchors(path):
    """What may follow # in a link to a page: as mkdocs makes it for its own, else as GitHub."""
    ours = path.is_relative_to(ROOT / "docs")
    found = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", prose(path)))
    if path.parent == ROOT / "docs" / "api" and (ROOT / "dpjax" / path.stem).is_dir():
        found |= {symbol.home for symbol in symbols(f"dpjax.{path.stem}")}
    for heading in HEADING.finditer(prose(path)):
        slug = (_of_mkdocs if ours else _of_github)(LINK_TEXT.sub(r"\1", heading[2]))
        same = sum(1 for other in found if re.fullmatch(rf"{re.escape(slug)}[-_]\d+", other))
        again = f"_{same + 1}" if ours else f"-{same + 1}"
        found.add(slug + again if slug in found else slug)
    return found


def _of_mkdocs(title):
    plain = unicodedata.normalize("NFKD", title.replace("`", "")).encode("ascii", "ignore")
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain.decode()).strip().lower())


def _of_github(title):
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def complaint(page, target):
    """Why a link of a page leads nowhere, or None."""
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        good = parts.scheme == "https" and re.fullmatch(r"[\w-]+(\.[\w-]+)+", parts.netloc)
        return None if good else "is no https address"
    path = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if not target or not path.exists():
        return "leads to no file"
    docs, plots = ROOT / "docs", ROOT / "benchmarks" / "results"
    if page.is_relative_to(docs) and not any(path.is_relative_to(p) for p in (docs, plots)):
        return "leads out of the site"
    if parts.fragment and parts.fragment not in anchors(path):
        return "leads to no heading"
    return None


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    path = ROOT / page
    assert not {t: why for t in targets(prose(path)) if (why := complaint(path, t))}


@pytest.mark.parametrize("page", PAGES)
def test_cross_references_are_of_public_names(page):
    named = set(CROSS_REFERENCE.findall(CODE.sub("`", prose(ROOT / page))))
    if not page.startswith("docs/"):
        assert not {name for name in named if name.startswith("dpjax.")}, "only the site has these"
    assert {name for name in named if name.startswith("dpjax.")} <= _homes()


@functools.cache
def _homes():
    packages = [path.parent.name for path in (ROOT / "dpjax").glob("*/__init__.py")]
    return {symbol.home for name in packages for symbol in symbols(f"dpjax.{name}")}


def test_pages_are_found():
    assert {"README.md", "CHANGELOG.md", "docs/index.md", "docs/api/solvers.md"} <= set(PAGES)
    assert sum(len(targets(prose(ROOT / page))) for page in PAGES) > 50


@pytest.mark.parametrize(
    ("link", "why"),
    [
        ("[a](missing.md)", "leads to no file"),
        ("[a]()", "leads to no file"),
        ("![a](../benchmarks/results/missing.png)", "leads to no file"),
        ("[a](numerics.md#no-such-heading)", "leads to no heading"),
        ("[a](#no-such-heading)", "leads to no heading"),
        ("[a](api/solvers.md#dpjax.solvers.NoSuchSolver)", "leads to no heading"),
        ("[a](../README.md)", "leads out of the site"),
        ("[a](http://jax.dev)", "is no https address"),
        ("[a](https:/jax.dev)", "is no https address"),
        ('<a href="missing.html">', "leads to no file"),
        ("[a]\n\n[a]: missing.md", "leads to no file"),
        ("[a](numerics.md)", None),
        ('[a](numerics.md#keys "title")', None),
        ("![a](../benchmarks/results/scaling.png)", None),
        ("[a](api/solvers.md#dpjax.solvers.DPSGD)", None),
        ("[`f`](https://docs.jax.dev/en/latest/)", None),
    ],
)
def test_bad_links_are_found(link, why):
    (target,) = targets(link)
    assert complaint(ROOT / "docs" / "index.md", target) == why


def test_code_has_no_links():
    assert not targets("`x[0](1)` and ``y[`0`](z)``")
    assert not targets(FENCE.sub("", "```python\nf[0](x)\n```\n"))


def test_anchors_are_those_of_each_reader():
    assert _of_mkdocs("Random numbers: `rbg` -- and more") == "random-numbers-rbg-and-more"
    assert _of_github("Random numbers: `rbg` & more") == "random-numbers-rbg--more"

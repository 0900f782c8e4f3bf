"""Hooks of mkdocs: pages of the API from what packages export, plots of runs, notebooks.

A page says `<!-- api: classes of dpjax.solvers -->` where the classes of that package belong, in
the order of its `__init__.py`. Images of `benchmarks/results` keep the relative links by which they
are found in the repository.
"""

import posixpath
import re
from typing import Any

from mkdocs.structure.files import File, Files
from site_notebooks import pages
from site_symbols import KINDS, ROOT, symbols

PLOTS = "benchmarks/results"
_MARKER = re.compile(rf"^<!-- api: ({'|'.join(KINDS)}|names) of ([\w.]+) -->$", re.MULTILINE)
_PLOT = re.compile(rf"(?:\.\./)+{PLOTS}/[\w.-]+")


def on_page_markdown(markdown: str, *, page: Any, **kwargs: Any) -> str:
    """Fills the markers, and leads links to plots to where the site has them."""
    markdown = _MARKER.sub(lambda found: _filled(found[1], found[2]), markdown)
    folder = posixpath.dirname(page.file.src_uri)

    def plot(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", folder, found[0]))
        right = target.startswith(PLOTS)
        return posixpath.relpath(target, folder or ".") if right else found[0]

    return _PLOT.sub(plot, markdown)


def _filled(kind: str, package: str) -> str:
    found = symbols(package)
    if kind == "names":
        rows = [f"| [`{package}.{s.name}`][{s.home}] | {s.summary} |" for s in found]
        return "\n".join(["| name | what it is |", "| --- | --- |", *rows])
    return "\n\n".join(f"::: {s.home}" for s in found if s.kind == kind)


def on_files(files: Files, *, config: Any) -> Files:
    """Adds plots and notebooks, which lie outside the folder of pages."""
    for path in sorted((ROOT / PLOTS).glob("*.png")):
        uri = path.relative_to(ROOT).as_posix()
        files.append(File(uri, str(ROOT), config.site_dir, config.use_directory_urls))
    for name, (text, images) in pages().items():
        files.append(File.generated(config, f"notebooks/{name}.md", content=text))
        for image, content in images.items():
            files.append(File.generated(config, f"notebooks/{image}", content=content))
    return files

"""What is cut off in a page is found, where a browser is installed."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "check_site.py"
browser = runpy.run_path(str(SCRIPT))["browser"]
HEAD = '<!doctype html><meta name="viewport" content="width=device-width"><div class="md-content">'
LONG = "<span>" + "word" * 60 + "</span>"


def run(site, **environment):
    command = [sys.executable, str(SCRIPT), str(site)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


def test_without_a_browser_nothing_is_measured_and_nothing_fails(tmp_path):
    (tmp_path / "index.html").write_text(HEAD + LONG)
    done = run(tmp_path, PATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("no browser is installed")


def test_a_folder_without_pages_is_an_error(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 2
    assert "holds no pages" in done.stderr.splitlines()[-1]


@pytest.mark.slow
# a browser is no requirement of the project; scripts/check_site.py says where it is missing
@pytest.mark.skipif(browser() is None, reason="needs Chromium")
def test_what_is_cut_off_is_found(tmp_path):
    pages = {
        "good": "<p>A few words.</p>",
        "scrolls": f'<div style="overflow-x:auto">{LONG}</div>',
        "beyond": f"<p>{LONG}</p>",
        "hidden": f'<div style="overflow:hidden;width:300px">{LONG}</div>',
        "formula": r'<div class="arithmatex">\[x\]</div>',
        "wide": '<div style="width:900px">A box.</div>',
    }
    for name, body in pages.items():
        (tmp_path / f"{name}.html").write_text(HEAD + body)
    done = run(tmp_path, **os.environ)
    assert done.returncode == 1
    *found, last = done.stdout.splitlines()
    assert last == f"6 pages at (390, 1280) px: {len(found)} findings"
    named = {tuple(line.split(": ")[0].split(" at ")) for line in found}
    assert named == {
        *(("/beyond.html", f"{width} px") for width in (390, 1280)),
        *(("/hidden.html", f"{width} px") for width in (390, 1280)),
        ("/formula.html",),
        ("/wide.html", "390 px"),
    }
    for name in ("beyond", "hidden", "formula", "wide"):
        (tmp_path / f"{name}.html").unlink()
    assert run(tmp_path, **os.environ).returncode == 0

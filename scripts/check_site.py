"""Looks for cut-off content in the built site, as Chromium lays it out.

    python scripts/check_site.py site/ [--width 390 --width 1280]

Every page is laid out at each width. It fails where a page scrolls sideways, where something
visible reaches beyond the page and is in nothing that scrolls, where an element hides part of its
own text, where a formula was not set, and where a page asks another host for anything. Without a
browser (chromium, google-chrome, or what CHROME names) it says so and succeeds.
"""

import argparse
import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDTHS = (390, 1280)
SECONDS = 900  # on a busy machine it takes minutes
HARNESS = """<!doctype html><meta charset="utf-8"><body style="margin:0"><script>
const PAGES = %s, WIDTHS = %s;
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

// Whether one of an element's ancestors, itself among them, scrolls sideways.
function scrolls(element, view) {
  for (let e = element; e; e = e.parentElement) {
    if (/auto|scroll/.test(view.getComputedStyle(e).overflowX) && e !== view.document.body &&
        e !== view.document.documentElement) return true;
  }
  return false;
}

function named(element) {
  const kinds = typeof element.className === "string" ? element.className.trim() : "";
  const text = (element.textContent || "").trim().replace(/\\s+/g, " ").slice(0, 60);
  return element.tagName.toLowerCase() + (kinds ? "." + kinds.split(/\\s+/).join(".") : "") +
    " '" + text + "'";
}

function measured(view, width) {
  const found = [], root = view.document.documentElement;
  if (root.scrollWidth > width + 1) found.push("the page is " + root.scrollWidth + " px wide");
  const parts = ".md-content *, .md-header *, .md-footer *, .md-banner *";
  const whole = view.document.querySelector(".md-content") ? parts : "body *";
  let last = null;
  for (const element of view.document.querySelectorAll(whole)) {
    if (element.closest(".katex-mathml, .md-search, svg, [hidden]")) continue;
    const box = element.getBoundingClientRect(), style = view.getComputedStyle(element);
    if (!box.width || !box.height || style.visibility === "hidden") continue;
    if (last && last.contains(element)) continue;  // told of what holds it
    const beyond = box.right > width + 1 || box.left < -1;
    const hides = /hidden|clip/.test(style.overflowX) && element.clientWidth > 1 &&
      element.scrollWidth > element.clientWidth + 1;
    if (beyond && !scrolls(element, view)) {
      found.push("beyond the page (" + Math.round(box.left) + " to " + Math.round(box.right) +
        " px): " + named(element));
      last = element;
    } else if (hides && element.closest(".md-content")) {
      found.push("hides " + (element.scrollWidth - element.clientWidth) + " px: " + named(element));
      last = element;
    }
  }
  return found;
}

// What does not depend on the width.
function loaded(view) {
  const found = [];
  for (const formula of view.document.querySelectorAll(".arithmatex")) {
    if (!formula.querySelector(".katex")) found.push("not set as a formula: " + named(formula));
  }
  for (const error of view.document.querySelectorAll(".katex-error")) {
    found.push("not understood: " + named(error));
  }
  for (const entry of view.performance.getEntriesByType("resource")) {
    if (new URL(entry.name).host !== location.host) found.push("asks for " + entry.name);
  }
  return found;
}

async function measure() {
  const frame = document.body.appendChild(document.createElement("iframe"));
  frame.style.cssText = "border:0;height:900px";
  const report = {};
  for (const page of PAGES) {
    frame.style.width = WIDTHS[0] + "px";
    await new Promise((done) => { frame.onload = done; frame.src = page; });
    const view = frame.contentWindow;
    const still = view.document.createElement("style");
    still.textContent = "* { transition: none !important; animation: none !important }";
    view.document.head.append(still);
    await view.document.fonts.ready;
    await sleep(50);
    report[page] = { "": loaded(view) };
    for (const width of WIDTHS) {
      frame.style.width = width + "px";
      await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
      await sleep(20);
      report[page][width + " px"] = measured(view, width);
    }
  }
  return report;
}
measure().catch((error) => ({ failed: { "": [String(error)] } })).then((report) =>
  fetch("/__report__", { method: "POST", body: JSON.stringify(report) }));
</script>"""
_REPORT: dict[str, dict[str, list[str]]] = {}
_DONE = threading.Event()


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the site, the page that measures it, and takes what that finds."""

    harness = b""

    def do_GET(self) -> None:
        """A file of the site, or the page that measures."""
        if self.path != "/__measure__":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(self.harness)

    def do_POST(self) -> None:
        """The findings."""
        _REPORT.update(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()
        _DONE.set()

    def log_message(self, *arguments: Any) -> None:
        """Nothing: a line a file would bury the findings."""


def browser() -> str | None:
    """The command of an installed browser."""
    for name in filter(None, (os.environ.get("CHROME"), *BROWSERS)):
        if found := shutil.which(name):
            return found
    return None


def pages(site: Path) -> list[str]:
    """Addresses of all pages, but for the one of errors."""
    found = sorted(site.rglob("*.html"))
    return [f"/{path.relative_to(site).as_posix()}" for path in found if path.name != "404.html"]


def report(site: Path, command: str, widths: tuple[int, ...]) -> dict[str, dict[str, list[str]]]:
    """What is wrong, by page and width.

    Raises:
      TimeoutError: the browser did not finish.
    """
    Handler.harness = (HARNESS % (json.dumps(pages(site)), json.dumps(widths))).encode()
    _REPORT.clear()
    _DONE.clear()
    serving = functools.partial(Handler, directory=str(site))
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), serving) as server,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        arguments += [f"--user-data-dir={profile}", "--window-size=1400,1000", "--no-first-run"]
        process = subprocess.Popen(
            [command, *arguments, f"http://127.0.0.1:{server.server_address[1]}/__measure__"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            if not _DONE.wait(SECONDS):
                raise TimeoutError(f"{command} did not finish in {SECONDS} seconds")
        finally:
            process.terminate()
            process.wait(timeout=20)
            server.shutdown()
    return _REPORT


def lines(found: dict[str, dict[str, list[str]]]) -> Iterator[str]:
    """A line for each finding."""
    for page, by_width in found.items():
        for width, wrong in by_width.items():
            yield from (f"{page}{f' at {width}' if width else ''}: {what}" for what in wrong)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("site", type=Path, help="folder that mkdocs built")
    parser.add_argument("--width", type=int, action="append", metavar="PIXELS", help=f"{WIDTHS}")
    arguments = parser.parse_args()
    if not pages(arguments.site):
        parser.error(f"{arguments.site} holds no pages: build the site first")
    command = browser()
    if command is None:
        print(f"no browser is installed ({', '.join(BROWSERS)}): nothing was measured")
        return 0
    widths = tuple(arguments.width or WIDTHS)
    found = report(arguments.site, command, widths)
    told = list(lines(found))
    print("\n".join([*told, f"{len(found)} pages at {widths} px: {len(told)} findings"]))
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())

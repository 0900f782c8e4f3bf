"""Pages of the site from notebooks: text, code, and the outputs of a run that was kept.

`scripts/notebooks.py run --save notebooks/executed` keeps runs. Without them a page shows the code
alone, and says so: building the site runs nothing.
"""

import base64
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "notebooks"
EXECUTED = FOLDER / "executed"
_BADGE = re.compile(r"^\[!\[[^\]]*\]\([^)]*\)\]\([^)]*\)\n*", re.MULTILINE)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_NOT_RUN = "The site was built without a run of this notebook: it shows the code, and no outputs."
_SHORTENED = "Outputs are those of a shortened run (`DPJAX_FAST=1`): fewer steps, larger errors."
_NOT_AS_IS = "The text was changed since this notebook ran: it shows the code, and no outputs."


def pages() -> dict[str, tuple[str, dict[str, bytes]]]:
    """Markdown and images by name, of every notebook."""
    return {path.stem: page(path, EXECUTED / path.name) for path in sorted(FOLDER.glob("*.ipynb"))}


def page(source: Path, executed: Path) -> tuple[str, dict[str, bytes]]:
    """Markdown of a notebook, and its images by name; outputs where the same code was run."""
    notebook = json.loads(source.read_text(encoding="utf-8"))
    remark, ran = _NOT_RUN, None
    if executed.is_file():
        ran = json.loads(executed.read_text(encoding="utf-8"))
        if [_text(c["source"]) for c in ran["cells"]] == [
            _text(c["source"]) for c in notebook["cells"]
        ]:
            remark = _SHORTENED if ran["metadata"].get("shortened") else ""
        else:
            remark, ran = _NOT_AS_IS, None
    about = f"`notebooks/{source.name}` in a checkout. {remark}".strip()
    images: dict[str, bytes] = {}
    blocks: list[str] = []
    for cell in (ran or notebook)["cells"]:
        text = _text(cell["source"])
        if cell["cell_type"] == "markdown":
            blocks.append(_BADGE.sub("", text))
        elif text.strip():
            blocks.append(_fenced(text, "python"))
            shown = _merged(cell.get("outputs", []))
            blocks += [_output(output, source.stem, images) for output in shown]
    title, _, rest = blocks[0].partition("\n")
    return "\n\n".join(
        [title, f"*{about}*", rest.strip(), *filter(None, blocks[1:])]
    ) + "\n", images


def _merged(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbouring prints as one; bars and remarks of the machine, on stderr, are left out."""
    kept: list[dict[str, Any]] = []
    for output in outputs:
        if output.get("name") == "stderr":
            continue
        if kept and output["output_type"] == kept[-1]["output_type"] == "stream":
            kept[-1] = {**output, "text": _text(kept[-1]["text"]) + _text(output["text"])}
        else:
            kept.append(output)
    return kept


def _output(output: dict[str, Any], name: str, images: dict[str, bytes]) -> str:
    """Markdown of one output; an image is put among the images."""
    if output["output_type"] == "stream":
        return _fenced(_text(output["text"]), "text")
    data = output.get("data", {})
    if "image/png" in data:
        file = f"{name}-{len(images)}.png"
        images[file] = base64.b64decode(_text(data["image/png"]))
        return f"![Figure {len(images)}]({file})"
    return _fenced(_text(data["text/plain"]), "text") if "text/plain" in data else ""


def _fenced(text: str, language: str) -> str:
    text = _COLOURS.sub("", text).strip("\n")
    return f"````{language}\n{text}\n````" if text else ""


def _text(value: str | list[str]) -> str:
    return value if isinstance(value, str) else "".join(value)

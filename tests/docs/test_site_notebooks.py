"""Pages made of notebooks: outputs of a run that was kept, or a sentence that there are none."""

import base64
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PNG = b"\x89PNG, or so"


@pytest.fixture
def notebooks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import site_notebooks

    yield site_notebooks
    sys.modules.pop("site_notebooks")


def saved(path, code, outputs=(), **metadata):
    title = "# A title\n\n[![Open in Colab](https://host/a.svg)](https://host/)\n\nText of $x$."
    cells = [
        {"cell_type": "markdown", "source": title},
        {"cell_type": "code", "source": code, "outputs": list(outputs)},
    ]
    path.write_text(json.dumps({"cells": cells, "metadata": metadata}))
    return path


def outputs():
    image = {"image/png": base64.b64encode(PNG).decode(), "text/plain": "<Figure>"}
    return [
        {"output_type": "stream", "name": "stdout", "text": ["\x1b[31mone\x1b[0m\n"]},
        {"output_type": "stream", "name": "stderr", "text": "/a/folder: a warning\n"},
        {"output_type": "stream", "name": "stdout", "text": "```\n"},
        {"output_type": "display_data", "data": image},
        {"output_type": "execute_result", "data": {"text/plain": "3"}},
        {"output_type": "execute_result", "data": {"text/html": "<b>3</b>"}},
    ]


def test_a_kept_run_is_shown_with_text_and_figures(notebooks, tmp_path):
    source = saved(tmp_path / "a.ipynb", "f()\n3")
    ran = saved(tmp_path / "ran.ipynb", "f()\n3", outputs())
    text, images = notebooks.page(source, ran)
    assert text == (
        "# A title\n\n*`notebooks/a.ipynb` in a checkout.*\n\nText of $x$.\n\n"
        "````python\nf()\n3\n````\n\n````text\none\n```\n````\n\n![Figure 1](a-0.png)\n\n"
        "````text\n3\n````\n"
    )
    assert images == {"a-0.png": PNG}


def test_a_shortened_run_says_so(notebooks, tmp_path):
    source = saved(tmp_path / "a.ipynb", "3")
    ran = saved(tmp_path / "ran.ipynb", "3", outputs(), shortened=True)
    assert "a shortened run (`DPJAX_FAST=1`)" in notebooks.page(source, ran)[0]


def test_without_a_run_of_this_very_code_there_are_no_outputs(notebooks, tmp_path):
    source = saved(tmp_path / "a.ipynb", "3")
    text, images = notebooks.page(source, tmp_path / "none.ipynb")
    assert "built without a run of this notebook" in text
    assert images == {}
    text, images = notebooks.page(source, saved(tmp_path / "ran.ipynb", "4", outputs()))
    assert "changed since this notebook ran" in text
    assert "````python\n3\n````" in text
    assert images == {}


def test_every_notebook_has_a_page(notebooks):
    pages = notebooks.pages()
    assert set(pages) == {path.stem for path in (ROOT / "notebooks").glob("*.py")}
    for text, _ in pages.values():
        assert text.startswith("# ")
        assert "colab-badge" not in text

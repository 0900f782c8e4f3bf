"""The page "Your own CSV" runs as it stands: Adult from a raw file, in eight statements."""

import ast
import re
from pathlib import Path

import jax
import numpy as np
import pytest

import dpjax

PAGE = Path(__file__).resolve().parents[2] / "docs" / "your_own_csv.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
SCHEMA = re.findall(r"^```json\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def test_it_is_short_and_its_schema_is_one():
    assert len(PAGE.read_text("utf-8").split()) <= 1000  # code and all
    assert len(ast.parse(BLOCKS[1]).body) == 8
    assert dpjax.queries.Domain.from_json(SCHEMA[0]).shape == (9, 2, 4)


@pytest.mark.slow  # four releases, each compiled
def test_it_runs(tmp_path, monkeypatch):
    pandas = pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    shown = {}
    for block in BLOCKS:
        exec(compile(block, str(PAGE), "exec"), shown)
    synthetic = shown["released"].sample_frame(1000, key=jax.random.key(2))
    assert type(synthetic) is pandas.DataFrame
    assert list(synthetic.columns) == ["age", "hours", "workclass", "rich", "surveyed"]
    assert shown["domain"].encode(synthetic).shape == (1000, 5)
    assert 0.01 < synthetic["hours"].isna().mean() < 0.1
    released, table = shown["released"], shown["table"]
    truth = (table["rich"] == "Yes").mean()
    shares = released.table("rich").set_index("rich")["share"]
    assert abs(shares["Yes"] - truth) < 0.01
    assert released.guarantee.epsilon(1e-9) <= 1.0
    edges = dict(shown["finer"].spec)["hours"].edges
    quantiles = table["hours"].quantile([0.2, 0.4, 0.6, 0.8])
    assert np.all(np.abs(np.array(edges[1:-1]) - quantiles) < 2)
    assert "per person of at most 2 rows" in repr(shown["people"])

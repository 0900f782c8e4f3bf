import importlib.util
import json
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from dpjax.datasets import adult, adult_table
from dpjax.datasets._adult import _BLOCKS, _verified_table
from dpjax.datasets._adult_schema import COLUMNS, NUMERIC, REGION_OF, REGIONS, VOCABULARY, unpack
from dpjax.datasets._dataset import encode, feature_names
from scripts.build_adult import pack

ROOT = Path(__file__).resolve().parents[2]
FOLDER = resources.files("dpjax.datasets") / "data"


@pytest.fixture(scope="module")
def table():
    return adult_table()


@pytest.fixture(scope="module")
def d():
    return adult()


def test_contract(d):
    n, p = 48842, len(d.feature_names)
    assert (d.x.shape, d.y.shape, d.group.shape) == ((n, p), (n,), (n,))
    assert (d.x.dtype, d.y.dtype, d.group.dtype) == (np.float32, np.int32, np.int32)
    assert len(d) == n
    assert d.num_features == p
    assert len(set(d.feature_names)) == p
    assert set(np.unique(d.y)) == set(np.unique(d.group)) == {0, 1}


def test_counts_are_those_of_the_published_file(d, table):
    assert d.y.sum() == 11687
    assert d.group.sum() == 32650
    assert (table["workclass"] == "?").sum() == 2799
    assert d.y[:32561].sum() == 7841


def test_features_are_finite_and_bounded(d):
    assert np.isfinite(d.x).all()
    norms = np.sqrt((d.x.astype(np.float64) ** 2).sum(axis=1))
    assert norms.max() <= d.norm_bound * (1 + 1e-12)


def test_sex_is_not_among_the_features(d):
    assert "sex" not in {block.column for block in _BLOCKS}
    for name, column in zip(d.feature_names, d.x.T, strict=True):
        assert not np.array_equal(column, d.group), name
        assert not np.array_equal(1 - column, d.group), name


def test_a_record_alone_is_encoded_as_within_the_table(d, table):
    rng = np.random.default_rng(0)
    for i in rng.choice(len(d), size=50, replace=False):
        x = encode({name: column[i : i + 1] for name, column in table.items()}, _BLOCKS)
        np.testing.assert_array_equal(x[0], d.x[i])


def test_the_vocabularies_are_complete_and_tight(table):
    for column, vocabulary in VOCABULARY.items():
        assert set(table[column].tolist()) == set(vocabulary), column
        assert len(set(vocabulary)) == len(vocabulary)
    countries = set(VOCABULARY["native-country"])
    assert countries == set(REGION_OF) | {"United-States", "?"}
    assert set(REGION_OF.values()) <= set(REGIONS)


def test_unknown_categories_give_a_zero_block(table):
    record = {name: column[:1].copy() for name, column in table.items()}
    record["occupation"] = np.array(["Astronaut"])
    x, names = encode(record, _BLOCKS), feature_names(_BLOCKS)
    at = [i for i, name in enumerate(names) if name.startswith("occupation")]
    assert at
    assert not x[0, at].any()


def test_a_changed_file_is_refused():
    blob = (FOLDER / "adult.xz").read_bytes()
    record = json.loads((FOLDER / "adult.json").read_text())
    with pytest.raises(ValueError, match=r"adult.xz must have sha256 52a5.*, got "):
        _verified_table(blob[:-1] + bytes([blob[-1] ^ 1]), record["sha256"], record["rows"])
    with pytest.raises(ValueError, match="must hold 5 records"):
        unpack(blob, 5)


def test_pack_round_trip_and_bad_values(table):
    some = {name: column[:100] for name, column in table.items()}
    back = unpack(pack(some), 100)
    assert tuple(back) == COLUMNS
    for name in COLUMNS:
        np.testing.assert_array_equal(back[name], some[name])
        assert (back[name].dtype.kind == "i") == (name in NUMERIC)
    with pytest.raises(ValueError, match=r"race must be one of .* got 'Green'"):
        pack({**some, "race": np.array(["Green"] * 100)})
    with pytest.raises(ValueError, match=r"age must lie in \[0, 2\*\*32\)"):
        pack({**some, "age": some["age"] - 100})


@pytest.mark.slow
def test_the_script_rebuilds_the_committed_files_byte_for_byte(tmp_path, original):
    script = ROOT / "scripts" / "build_adult.py"
    train, test = original("adult_train.csv.gz"), original("adult_test.csv.gz")
    spec = importlib.util.spec_from_file_location("build_adult", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    record = module.build(train, test, tmp_path)
    assert record["rows"] == 48842
    for name in ("adult.xz", "adult.json"):
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes(), name


def test_the_folder_names_source_licence_and_checksum():
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    record = json.loads((FOLDER / "adult.json").read_text())
    for word in ("10.24432/C5XW20", "CC BY 4.0", record["sha256"]):
        assert word in text


def test_groups_by_sex_and_race():
    table = adult_table()
    by_race, by_both = adult(group="race"), adult(group="sex_race")
    for i in (0, 5, 40_000):
        assert by_race.group_names[by_race.group[i]] == table["race"][i]
        name = f"{table['sex'][i].lower()}, {table['race'][i]}"
        assert by_both.group_names[by_both.group[i]] == name
    assert len(by_both.group_names) == 10
    assert np.bincount(by_both.group).min() == 155
    np.testing.assert_array_equal(by_both.x, by_race.x)
    with pytest.raises(ValueError, match="sex_race"):
        adult(group="age")

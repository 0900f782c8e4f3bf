import io
import json
import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.queries import Domain

LABELLED = Domain({"sex": ["F", "M"], "race": ("white", "black", "other"), "age": 4})
CODES = np.array([[1, 2, 3], [0, 0, 0], [1, 1, 2]])
COLUMNS = {
    "age": [3, 0, 2],
    "race": ["other", "white", "black"],
    "weight": [0.5, 1.5, 2.5],
    "sex": ["M", "F", "M"],
}


class Frame:
    """As much of a data frame as is used: names, and columns that are no arrays."""

    class Column:
        def __init__(self, values):
            self._values = values

        def __len__(self):
            return len(self._values)

        def __array__(self, dtype=None, copy=None):
            array = np.empty(len(self._values), object)
            array[:] = self._values
            return array

    def __init__(self, columns):
        self._data = columns
        self.columns = list(columns)

    def __getitem__(self, name):
        return self.Column(self._data[name])


def structured():
    rows = zip(COLUMNS["sex"], COLUMNS["age"], COLUMNS["race"], strict=True)
    return np.array(list(rows), dtype=[("sex", "U1"), ("age", "i8"), ("race", "U5")])


def test_what_it_says_of_itself():
    assert LABELLED.attributes == ("sex", "race", "age")
    assert LABELLED.shape == (2, 3, 4)
    assert LABELLED.labels == (("F", "M"), ("white", "black", "other"), None)
    assert LABELLED.universe_size == 24
    assert Domain({str(i): 50 for i in range(40)}).universe_size == 50**40


def test_equal_by_value_hashable_and_without_leaves():
    same = Domain([("sex", np.array(["F", "M"])), ("race", LABELLED.labels[1]), ("age", 4)])
    assert same == LABELLED
    assert hash(same) == hash(LABELLED)
    assert pickle.loads(pickle.dumps(same)) == LABELLED
    for other in ({"sex": 2, "race": 3, "age": 4}, {"race": 3, "sex": 2}):
        assert Domain(other) != LABELLED
    assert jax.tree.leaves(LABELLED) == []
    assert jax.tree.map(lambda x: x, LABELLED) == LABELLED
    assert jax.jit(lambda d: jnp.zeros(d.universe_size))(LABELLED).shape == (24,)


def test_projection_keeps_the_domains_order():
    part = LABELLED.project(["age", "sex"])
    assert part.spec == (("sex", ("F", "M")), ("age", 4))


def test_json_from_text_path_and_file(tmp_path):
    text = json.dumps({"sex": ["F", "M"], "race": ["white", "black", "other"], "age": 4})
    path = tmp_path / "domain.json"
    path.write_text(text)
    for source in (
        text,
        "  " + text,
        path,
        str(path),
        io.StringIO(text),
        io.BytesIO(text.encode()),
    ):
        assert Domain.from_json(source) == LABELLED


KINDS = {
    "mapping of lists": COLUMNS,
    "mapping of arrays": {name: np.array(column) for name, column in COLUMNS.items()},
    "mapping of objects": {name: np.array(column, object) for name, column in COLUMNS.items()},
    "frame": Frame(COLUMNS),
    "structured array": structured(),
    "codes": CODES,
    "list of codes": CODES.tolist(),
    "small codes": CODES.astype(np.uint8),
    "whole floats": CODES.astype(float),
    "codes in jax": jnp.asarray(CODES),
    "codes of labels": COLUMNS | {"race": np.array([2, 0, 1])},
    "whole floats in a column": COLUMNS | {"age": [3.0, 0.0, 2.0]},
}


@pytest.mark.parametrize("table", KINDS.values(), ids=list(KINDS))
def test_encode_takes_tables_of_all_kinds(table):
    codes = LABELLED.encode(table)
    assert codes.dtype == np.int32
    np.testing.assert_array_equal(codes, CODES)


def test_numbers_as_labels():
    domain = Domain({"size": [30, 10, 20.5], "old": [False, True], "mixed": ["a", 3]})
    codes = domain.encode(
        {
            "size": [10, 20.5, 30],
            "old": [True, False, True],
            "mixed": np.array(["a", 3, "a"], object),
        }
    )
    np.testing.assert_array_equal(codes, [[1, 1, 0], [2, 0, 1], [0, 1, 0]])
    # an array is of codes, also where the labels are numbers
    np.testing.assert_array_equal(domain.encode([[2, 1, 0]]), [[2, 1, 0]])
    assert [column.tolist() for column in domain.decode(codes).values()] == [
        [10, 20.5, 30],
        [True, False, True],
        ["a", 3, "a"],
    ]


def test_decode_inverts_encode():
    decoded = LABELLED.decode(CODES)
    assert {name: column.tolist() for name, column in decoded.items()} == {
        name: COLUMNS[name] for name in LABELLED.attributes
    }
    np.testing.assert_array_equal(LABELLED.encode(decoded), CODES)


def test_cells_are_numbered_in_c_order():
    every = np.stack(np.unravel_index(np.arange(24), (2, 3, 4)), axis=1)
    cells = LABELLED.cells(every)
    assert cells.dtype == jnp.int32
    np.testing.assert_array_equal(cells, np.arange(24))
    np.testing.assert_array_equal(LABELLED.codes(cells), every)
    np.testing.assert_array_equal(LABELLED.codes(cells.reshape(4, 6)), every.reshape(4, 6, 3))
    np.testing.assert_array_equal(
        jax.jit(lambda c: LABELLED.codes(LABELLED.cells(c)))(every), every
    )
    assert LABELLED.cells(np.zeros((0, 3), int)).shape == (0,)


def test_the_last_cells_of_a_large_universe():
    domain = Domain({"a": 2**15, "b": 2**15, "c": 1})
    last = domain.cells([[2**15 - 1, 2**15 - 1, 0]])
    assert last.tolist() == [2**30 - 1]
    assert domain.codes(last).tolist() == [[2**15 - 1, 2**15 - 1, 0]]


def test_traced_codes_out_of_range_count_as_the_nearest():
    codes = np.array([[-5, 0, 9], [7, 1, 200]])
    got = jax.jit(LABELLED.cells)(codes)
    np.testing.assert_array_equal(got, LABELLED.cells([[0, 0, 3], [1, 1, 3]]))
    small = jax.jit(LABELLED.cells)(codes.astype(np.int8))
    np.testing.assert_array_equal(small, LABELLED.cells([[0, 0, 3], [1, 1, 0]]))
    assert jax.jit(LABELLED.codes)(jnp.array([-1, 99])).tolist() == [[0, 0, 0], [1, 2, 3]]


SPECS = {
    "none": ({}, ValueError, "must have >= 1 attribute, got none"),
    "size 0": ({"a": 2, "b": 0}, ValueError, "size of attribute 'b' must be >= 1, got 0"),
    "negative": ({"a": -3}, ValueError, "size of attribute 'a' must be >= 1, got -3"),
    "fraction": ({"a": 2.5}, TypeError, "attribute 'a' must be a number of codes.* got 2.5"),
    "flag": ({"a": True}, TypeError, "attribute 'a' must be a number of codes.* got True"),
    "text": ({"a": "xyz"}, TypeError, "attribute 'a' must be a number of codes.* got 'xyz'"),
    "no labels": ({"a": []}, ValueError, "labels of 'a' must be >= 1, got none"),
    "labels twice": ({"a": ["x", "y", "x"]}, ValueError, "labels of 'a' .* got 'x' twice"),
    "label NaN": ({"a": ["x", math.nan]}, TypeError, "labels of 'a' must be .* got nan"),
    "label None": ({"a": ["x", None]}, TypeError, "labels of 'a' must be .* got None"),
    "name": ({3: 2}, TypeError, "name of an attribute must be text, got 3"),
    "twice": ([("a", 2), ("a", 3)], ValueError, "distinct, got 'a' twice"),
    "no pairs": (["ab", "cd"], TypeError, "mapping or pairs"),
    "no mapping": (7, TypeError, "must be a mapping of attributes, got int"),
}


@pytest.mark.parametrize(("spec", "error", "message"), SPECS.values(), ids=list(SPECS))
def test_bad_domains(spec, error, message):
    with pytest.raises(error, match=message):
        Domain(spec)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("{", ValueError, "must be a JSON object"),
        ('{"a": 2, "a": 3}', ValueError, "distinct, got 'a' twice"),
        ('{"a": {"x": 0}}', ValueError, r"column 'a': kind must be one of \['numeric'.*got None"),
        ('{"a": null}', TypeError, "attribute 'a' must be a number of codes"),
    ],
)
def test_bad_json(text, error, message):
    with pytest.raises(error, match=message):
        Domain.from_json(text)
    with pytest.raises(ValueError, match="must be a JSON object, got list"):
        Domain.from_json(io.StringIO("[1, 2]"))


TABLES = {
    "label": (
        COLUMNS | {"race": ["other", "purple", "purple"]},
        ValueError,
        r"column 'race' must hold one of its 3 labels .*'white'.*: 2 of 3 rows",
    ),
    "label None": (COLUMNS | {"sex": ["M", None, "F"]}, ValueError, "'sex' .*: 1 of 3"),
    "label list": (Frame(COLUMNS | {"sex": ["M", [1], "F"]}), ValueError, r"'sex' .*: 1 of 3"),
    "code": (COLUMNS | {"age": [3, 4, 0]}, ValueError, r"'age' .*in \[0, 4\): 1 of 3"),
    "negative": (COLUMNS | {"age": [3, -1, 0]}, ValueError, "'age' .*: 1 of 3"),
    "fraction": (
        COLUMNS | {"age": [3, 1.5, 0]},
        ValueError,
        "'age' must hold an int.*: 1 of 3",
    ),
    "NaN": (COLUMNS | {"age": [3, np.nan, 0]}, ValueError, "'age' .*: 1 of 3"),
    "infinite": (COLUMNS | {"age": [3, np.inf, 0]}, ValueError, "'age' .*: 1 of 3"),
    "None": (Frame(COLUMNS | {"age": [3, None, 0]}), ValueError, "'age' .*: 1 of 3"),
    "text": (COLUMNS | {"age": ["3", "0", "1"]}, ValueError, "'age' .*: 3 of 3"),
    "code of labels": (COLUMNS | {"race": [2, 0, 3]}, ValueError, "'race' .*: 1 of 3"),
    "missing": ({"sex": ["M"], "age": [1]}, ValueError, r"lacks column 'race': it has \['sex'"),
    "missing in frame": (Frame({"sex": ["M"]}), ValueError, "lacks column 'race'"),
    "lengths": (COLUMNS | {"age": [3, 0]}, ValueError, "of one length, got .*'age': 2"),
    "empty": ({"sex": [], "race": [], "age": []}, ValueError, "n >= 1 records, got none"),
    "no rows": (np.zeros((0, 3), int), ValueError, "n >= 1 records, got none"),
    "matrix": (COLUMNS | {"age": np.zeros((3, 2))}, ValueError, r"'age' must have shape \[\?\]"),
    "columns": (CODES[:, :2], ValueError, r"shape \[n, 3\], one column .* got \[3, 2\]"),
    "vector": ([1, 2, 3], ValueError, r"shape \[n, 3\].* got \[3\]"),
    "ragged": ([[1, 2, 3], [1]], ValueError, r"shape \[n, 3\]"),
    "array of text": (np.array([["F", "white", "1"]]), TypeError, "mapping of columns by name"),
    "array NaN": (CODES + np.nan, ValueError, "column 'sex' .*: 3 of 3"),
    "array code": (CODES + np.array([0, 1, 0]), ValueError, r"column 'race' .*: 1 of 3"),
    "nothing": (None, TypeError, "table must be an array of codes"),
}


@pytest.mark.parametrize(("table", "error", "message"), TABLES.values(), ids=list(TABLES))
def test_bad_tables(table, error, message):
    with pytest.raises(error, match=message):
        LABELLED.encode(table)


def test_bad_codes_and_cells():
    with pytest.raises(ValueError, match=r"codes of 'race' must lie in \[0, 3\): 1 of 2"):
        LABELLED.cells([[1, 2, 3], [1, 3, 3]])
    with pytest.raises(ValueError, match=r"codes of 'sex' must lie in \[0, 2\): "):
        LABELLED.decode([[-1, 2, 3]])
    with pytest.raises(ValueError, match=r"shape \[\.\.\., 3\], one column for each of \['sex'"):
        LABELLED.cells([[1, 2]])
    with pytest.raises(TypeError, match="codes must be of an integer type, got float"):
        LABELLED.cells(CODES + 0.5)
    with pytest.raises(TypeError, match="codes must be of an integer type, got float"):
        jax.jit(LABELLED.cells)(CODES + 0.5)
    with pytest.raises(ValueError, match=r"cells must lie in \[0, 24\): "):
        LABELLED.codes([3, 24])
    with pytest.raises(TypeError, match="cells must be of an integer type"):
        LABELLED.codes([0.5])


def test_unknown_attributes_are_named_with_the_known_ones():
    with pytest.raises(ValueError, match=r"one of \['sex', 'race', 'age'\], got 'height'"):
        LABELLED.project(["sex", "height"])
    with pytest.raises(ValueError, match="distinct, got 'sex' twice"):
        LABELLED.project(["sex", "age", "sex"])
    with pytest.raises(TypeError, match="several names, got 'sex'"):
        LABELLED.project("sex")
    with pytest.raises(ValueError, match=">= 1 attribute"):
        LABELLED.project([])


def test_a_universe_beyond_int32_says_how_large_it_is_and_what_to_do():
    domain = Domain({f"a{i}": 2 for i in range(31)})
    assert domain.encode(np.zeros((2, 31), int)).shape == (2, 31)
    with pytest.raises(ValueError, match=r"got 2147483648 \(2\*\*31.0\).*drop attributes.*merge"):
        domain.cells(np.zeros((2, 31), int))
    with pytest.raises(ValueError, match=r"< 2\*\*31 cells"):
        domain.codes([0])
    assert domain.project(domain.attributes[1:]).cells(np.ones((1, 30), int)).tolist() == [
        2**30 - 1
    ]

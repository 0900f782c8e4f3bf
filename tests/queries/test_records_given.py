"""Records of another kind than codes and cells are refused by name, not read by their shape."""

import numpy as np
import pytest

from dpjax.queries import Concat, Domain, Marginals, Prefix

DOMAIN = Domain({"a": 2, "b": 3})
TABLES = Marginals.all_kway(DOMAIN, 1)
FAMILIES = {
    "marginals": TABLES,
    "concat": Concat((TABLES, Prefix(DOMAIN, "b"))),
    "prefix of a domain": Prefix(DOMAIN, "b"),
    "prefix": Prefix(6),
}
COLUMNS = {"b": np.array([2, 0]), "a": np.array([1, 0])}


class Frame:
    """A table as data frames are: an array as well, its columns in an order of their own."""

    columns = ("b", "a")
    shape = (2, 2)

    def __array__(self, dtype=None, copy=None):
        return np.stack([COLUMNS["b"], COLUMNS["a"]], axis=1)

    def __getitem__(self, name):
        return COLUMNS[name]


STRUCTURED = np.array([(2, 1), (0, 0)], dtype=[("b", int), ("a", int)])
TABLE_KINDS = {"dict": COLUMNS, "Frame": Frame(), "ndarray": STRUCTURED}
WRONG = TABLE_KINDS | {"str": "codes", "NoneType": None, "int": 3, "Marginals": TABLES}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", ["answers_of_records", "histogram", "record_cells"])
def test_no_array_is_no_records(family, kind, method):
    message = rf"records must be an array of integers, .* got {kind}: domain.encode\(table\)"
    with pytest.raises(TypeError, match=message):
        getattr(FAMILIES[family], method)(WRONG[kind])


@pytest.mark.parametrize("kind", TABLE_KINDS)
def test_what_the_message_says_works(kind):
    codes = DOMAIN.encode(TABLE_KINDS[kind])
    assert codes.tolist() == [[1, 2], [0, 0]]
    answers = TABLES.answers_of_records(codes)
    np.testing.assert_allclose(answers, [0.5, 0.5, 0.5, 0.0, 0.5])
    np.testing.assert_allclose(TABLES.answers_of_records(codes.tolist()), answers)

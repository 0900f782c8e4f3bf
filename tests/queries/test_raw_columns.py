"""Raw columns: codes and back, what is missing, what is refused; frames of other libraries."""

import datetime
import decimal
import fractions
import io
import itertools
import json
import math
import re

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax.queries import Categorical, Date, Domain, Numeric
from dpjax.queries._domain import decode_into
from dpjax.queries.tables._frames import container_of
from dpjax.queries.tables._labels import reading

KEY = jax.random.key(0)
LIBRARIES = ("pandas", "polars", "pyarrow")


def coded(column, values):
    return Domain.from_columns({"x": column}).encode({"x": values})[:, 0]


def back(column, codes, key=KEY):
    codes = np.asarray(codes, np.int32)[:, None]
    return Domain.from_columns({"x": column}).decode(codes, key=key)["x"]


integers = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)
days = st.dates(datetime.date(1, 1, 1), datetime.date(9999, 12, 31))
labels = st.one_of(st.text(), st.integers(), st.floats(allow_nan=False), st.booleans())


@st.composite
def kinds(draw):
    missing = draw(st.booleans())
    kind = draw(st.sampled_from(["numeric", "integer", "categorical", "date"]))
    if kind == "categorical":
        some = draw(st.lists(labels, min_size=2, max_size=6, unique_by=reading))
        other = some.pop() if draw(st.booleans()) else None
        return Categorical(some, other, missing=missing)
    if kind == "date":
        start = draw(days)
        end = min(start + datetime.timedelta(draw(st.integers(0, 400))), datetime.date.max)
        unit = draw(st.sampled_from(["day", "week", "month", "quarter", "year"]))
        return Date(start, end, unit, missing=missing)
    ends = integers if kind == "integer" else floats
    edges = sorted(draw(st.lists(ends, min_size=2, max_size=6, unique_by=lambda e: e + 0.0)))
    scale = "log" if edges[0] > 0 and draw(st.booleans()) else "linear"
    return Numeric(edges=edges, scale=scale, integer=kind == "integer", missing=missing)


@settings(max_examples=40, deadline=None)
@given(kinds(), st.integers(0, 2**31))
def test_what_is_decoded_has_the_same_code(column, seed):
    codes = np.random.default_rng(seed).integers(0, column.size, 40)
    values = back(column, codes, jax.random.key(seed))
    np.testing.assert_array_equal(coded(column, values), codes)
    # types follow from the declaration, not from what was drawn
    assert back(column, codes[:1]).dtype.kind == values.dtype.kind
    if isinstance(column, Numeric) and not column.missing:
        assert values.dtype == (np.int64 if column.integer else np.float64)
        assert np.all((values >= column.low) & (values <= column.high))
    schema = Domain.from_columns({"x": column, "é": Numeric(0, 1)})
    assert Domain.from_json(schema.to_json()) == schema


@settings(max_examples=30, deadline=None)
@given(st.lists(integers, min_size=2, max_size=5, unique=True), st.lists(integers, min_size=1))
def test_integers_are_compared_exactly(edges, values):
    column = Numeric(edges=sorted(edges), integer=True)
    inside = [min(max(v, column.low), column.high) for v in values]
    true = [min(sum(e <= v for e in column.edges), column.bins) - 1 for v in inside]
    for given_values in (
        np.array(values, np.int64),
        np.array(values, object),
        [decimal.Decimal(v) for v in values],
    ):
        assert coded(column, given_values).tolist() == true


anything = st.one_of(
    *(st.none(), st.booleans(), integers, st.integers(), st.floats(), st.just(np.float32(0.1))),
    st.decimals(allow_nan=False),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(anything, min_size=1, max_size=8), st.sampled_from([float, int]))
def test_the_code_of_a_number_does_not_depend_on_other_records(values, kind):
    edges = [kind(e) for e in (-(2**53) - 3, 0, 1, 2**53 + 1, 2**60)]
    column = Numeric(edges=edges, integer=kind is int, missing=True)
    assert coded(column, values).tolist() == [coded(column, [v]).item() for v in values]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.none(), labels), min_size=1, max_size=8))
def test_the_code_of_a_label_does_not_depend_on_other_records(values):
    column = Categorical(["", "0", 2, 1.5, "True"], "other", missing=True)
    assert coded(column, values).tolist() == [coded(column, [v]).item() for v in values]


VALUES_OF_ALL_TYPES = [
    *(0, 1, 2.0, 0.5, True, False, np.float32(0.5), np.int8(2), np.bool_(True), math.inf, None),
    *("0", "1", "2.0", " 1", "0.5", "True", "false", "01", "1e0", "inf", "x", "1_0", b"1", "1"),
    *(decimal.Decimal("0.5"), fractions.Fraction(2), 10**400, 2**53, 2**53 + 1, -1, math.nan),
]
LABELS_OF_ALL_TYPES = [
    *(["1", "2", "0"], [1, 2, 0], ["1", "2", "x"], [0.5, "1"], [True, False], ["true", "0.5"]),
    *(["F", "M"], ["x", "inf"], [2**53, 1]),
]


@pytest.mark.parametrize("labels", LABELS_OF_ALL_TYPES, ids=str)
@pytest.mark.parametrize("raw", [False, True])
def test_one_record_does_not_change_how_others_are_read(labels, raw):
    """By search over a record and one of any type that joins."""
    domain = Domain({"x": Categorical(labels, "other", missing=True) if raw else labels})

    def encoded(values):
        try:
            return domain.encode({"x": values})[:, 0].tolist()
        except ValueError:  # outside the domain
            return [None] * len(values)

    alone = [encoded([value]) for value in VALUES_OF_ALL_TYPES]
    pairs = zip(VALUES_OF_ALL_TYPES, alone, strict=True)
    for (first, code), (second, other) in itertools.product(pairs, repeat=2):
        both = encoded([first, second])
        assert both == [None] * 2 or both == code + other, (first, second)


ROWS_OF_A_FILE = ["1", "2", "1.0", "01", "1e0", "true", "TRUE", "x", "", " 2", "0.5", "2.5"]


@pytest.mark.parametrize("labels", [["1", "2", "x"], [1, 2], ["true", "x"], ["0.5", "2"]], ids=str)
def test_a_row_of_a_file_does_not_change_how_others_are_read(labels):
    """By search over a row and one that joins, a column of a file for each: `pandas.read_csv`
    types a column by all of its rows.
    """
    pandas = pytest.importorskip("pandas")
    tables = np.array(list(itertools.product(ROWS_OF_A_FILE, repeat=2))).T

    def encoded(rows):
        names = [str(place) for place in range(rows.shape[1])]
        text = "\n".join(",".join(row) for row in [names, *rows.tolist()])
        domain = Domain(dict.fromkeys(names, Categorical(labels, "other", missing=True)))
        return domain.encode(pandas.read_csv(io.StringIO(text)))

    np.testing.assert_array_equal(encoded(tables)[:1], encoded(tables[:1]))


def test_numbers_are_codes_only_where_no_label_is_a_number():
    assert Domain({"x": ["a", "b"]}).encode({"x": [1, "a", 1.0]}).tolist() == [[1], [0], [1]]
    assert Domain({"x": ["2", "1"]}).encode({"x": [1, "1", 2]}).tolist() == [[1], [1], [0]]
    assert Domain({"x": ["2", "1"]}).encode([[1], [0]]).tolist() == [[1], [0]]
    for values in ([True], ["1"], [2], [0.5], [-1], [math.inf], [10**400]):
        with pytest.raises(ValueError, match="one of its 2 labels"):
            Domain({"x": ["a", "b"]}).encode({"x": values})


def test_integers_beyond_what_floats_hold():
    for size in (24, 53, 62):
        column = Numeric(edges=[0, 2**size, 2**size + 1, 2**size + 2], integer=True)
        assert coded(column, [2**size - 1, 2**size, 2**size + 1, 2**size + 2]).tolist() == [
            *(0, 1, 2, 2)
        ]
        assert back(column, [1] * 5).tolist() == [2**size] * 5
    huge = np.array([2**64 - 1, 0], np.uint64)
    assert coded(Numeric(0, 2**63 - 1, bins=2, integer=True), huge).tolist() == [1, 0]
    assert coded(Numeric(-5, -1, bins=5, integer=True), huge).tolist() == [4, 4]
    assert coded(Numeric(0, 1, bins=2), [10**400, -(10**400), 0.5]).tolist() == [1, 0, 1]


def test_numbers_outside_count_as_the_nearest_end():
    column = Numeric(10, 20, bins=5)
    assert column.edges == (10, 12, 14, 16, 18, 20)
    values = [-math.inf, 9, 10, 11.9, 12, 19.9, 20, 21, math.inf]
    assert coded(column, values).tolist() == [0, 0, 0, 0, 1, 4, 4, 4, 4]
    whole = Numeric(10, 20, bins=3, integer=True)
    assert whole.edges == (10, 13, 17, 20)
    assert whole.texts == ("[10, 13)", "[13, 17)", "[17, 20]")
    values = [-math.inf, 9, 12.9, 13, -1e300, 20, 1e300, math.inf]
    assert coded(whole, values).tolist() == [0, 0, 0, 1, 0, 2, 2, 2]
    assert Numeric(0, 3, integer=True).texts == ("0", "1", "2", "3")
    assert coded(Numeric(0, 1, bins=2, integer=True), [True, False]).tolist() == [1, 0]


def test_numbers_are_uniform_in_their_bins():
    drawn = back(Numeric(edges=[0.0, 1.0, 11.0]), [1] * 4000)
    assert 1 <= drawn.min() < 1.1
    assert 10.9 < drawn.max() < 11
    assert abs(drawn.mean() - 6) < 0.3
    drawn = back(Numeric(edges=[0, 4, 7], integer=True), [0, 1] * 2000)
    for some, whole in ((drawn[::2], range(4)), (drawn[1::2], range(4, 8))):
        counts = [np.sum(some == value) for value in whole]
        assert sum(counts) == 2000
        assert min(counts) > 350
    with pytest.raises(ValueError, match="key is required: column 'x' is drawn"):
        back(Numeric(0, 1), [0], None)
    np.testing.assert_array_equal(back(Numeric(0, 1), [0, 1]), back(Numeric(0, 1), [0, 1]))
    other = back(Numeric(0, 1), [0, 1], jax.random.key(1))
    assert np.all(other != back(Numeric(0, 1), [0, 1]))


def test_a_log_scale_has_equal_ratios_and_draws_by_them():
    column = Numeric(1, 10_000, bins=4, scale="log")
    np.testing.assert_allclose(column.edges, [1, 10, 100, 1000, 10_000], rtol=1e-12)
    assert coded(column, [0, 9.9, 500, 1e9]).tolist() == [0, 0, 2, 3]
    drawn = back(column, [2] * 4000)
    assert 100 <= drawn.min() < 101
    assert 990 < drawn.max() < 1000
    # the median of a logarithm that is uniform; of a number that is, 550
    assert abs(np.log10(np.median(drawn)) - 2.5) < 0.05
    whole = Numeric(1, 1000, bins=6, scale="log", integer=True)
    assert whole.edges == (1, 3, 10, 32, 100, 316, 1000)
    assert set(back(whole, [0] * 200)) == {1, 2}
    assert back(whole, [5] * 4000).max() > 990
    assert Numeric(1, 5, scale="log", integer=True).edges == (1, 2, 3, 4, 5, 5)
    text = Domain.from_columns({"x": whole}).to_json()
    assert dict(Domain.from_json(text).spec)["x"] == whole
    assert "scale" not in Domain.from_columns({"x": Numeric(1, 2)}).to_json()


DAYS = ["2019-12-29", "2019-12-30", "2020-01-05", "2020-01-06", "2020-02-29", "2020-12-31"]


@pytest.mark.parametrize(
    ("unit", "codes", "last"),
    [
        ("day", [0, 1, 7, 8, 62, 368], "2020-12-31"),
        ("week", [0, 1, 1, 2, 9, 53], "2020-12-28"),
        ("month", [0, 0, 1, 1, 2, 12], "2020-12"),
        ("quarter", [0, 0, 1, 1, 1, 4], "2020Q4"),
        ("year", [0, 0, 1, 1, 1, 1], "2020"),
    ],
)
def test_days_by_the_calendar(unit, codes, last):
    column = Date(DAYS[0], DAYS[-1], unit)
    for dtype in ("datetime64[D]", "datetime64[ns]"):
        assert coded(column, np.array(DAYS, dtype)).tolist() == codes
    dates = [datetime.date.fromisoformat(day) for day in DAYS]
    assert coded(column, dates).tolist() == codes
    late = [datetime.datetime.combine(day, datetime.time(23, 59)) for day in dates]
    assert coded(column, late).tolist() == codes
    assert (column.texts[-1], column.size) == (last, codes[-1] + 1)
    outside = np.array(["0001-01-01", "9999-12-31"], "datetime64[D]")
    assert coded(column, outside).tolist() == [0, codes[-1]]
    assert np.all(np.unique(back(column, codes * 20)) >= np.datetime64(DAYS[0]))


MISSING = {
    "numeric": (Numeric(0, 10, bins=2, missing=True), [1.0, None, 7, math.nan], [0, 2, 1, 2]),
    "integer": (
        Numeric(0, 9, bins=2, integer=True, missing=True),
        [1, None, 7, float("nan")],
        [0, 2, 1, 2],
    ),
    "text": (Categorical(["a", "b"], missing=True), ["a", None, "b", math.nan], [0, 2, 1, 2]),
    "other": (Categorical(["a"], "z", missing=True), ["a", None, "q", "z"], [0, 2, 1, 1]),
    "flag": (Categorical([False, True], missing=True), [False, None, True, None], [0, 2, 1, 2]),
    "date": (
        Date("2020-01-01", "2020-02-01", missing=True),
        [datetime.date(2020, 1, 2), None, datetime.date(2020, 2, 1), np.datetime64("NaT", "D")],
        [0, 2, 1, 2],
    ),
}


@pytest.mark.parametrize(("column", "values", "codes"), MISSING.values(), ids=list(MISSING))
def test_a_missing_value_has_a_code_of_its_own(column, values, codes):
    assert coded(column, np.array(values, object)).tolist() == codes
    decoded = back(column, codes)
    np.testing.assert_array_equal(coded(column, decoded), codes)
    assert Domain({"x": column}).labels[0][-1] is None
    without = [v for v, code in zip(values, codes, strict=True) if code != 2]
    assert coded(column, without).tolist() == [c for c in codes if c != 2]
    declared = Domain.from_json(
        Domain({"x": column}).to_json().replace('"missing": true', '"missing": false')
    )
    with pytest.raises(ValueError, match=r"column 'x' holds \d missing values in 4 rows: give"):
        declared.encode({"x": np.array(values, object)})


@pytest.mark.parametrize("library", [dict, *LIBRARIES])
def test_a_column_may_be_missing_altogether(library):
    table = {name: [None, None] for name in TABLE} | {"ward": [0, 1]}
    if library is not dict:
        module = pytest.importorskip(library)
        table = module.table(table) if library == "pyarrow" else module.DataFrame(table)
    assert DOMAIN.encode(table).tolist() == [[4, 4, ward, 2, 2, 6] for ward in (0, 1)]


def test_masked_arrays():
    column = Numeric(0, 9, bins=2, integer=True, missing=True)
    masked = np.ma.masked_array([1, 5, 7], [False, True, False])
    assert coded(column, masked).tolist() == [0, 2, 1]


REFUSED = {
    "unsorted": (lambda: Numeric(edges=[0, 2, 1]), ValueError, "edges must increase"),
    "equal": (lambda: Numeric(edges=[0, 1, 1]), ValueError, "edges must increase"),
    "equal integers": (
        lambda: Numeric(edges=[0, 0, 1], integer=True),
        ValueError,
        "edges must increase",
    ),
    "one edge": (lambda: Numeric(edges=[0]), ValueError, "edges must be >= 2"),
    "infinite": (lambda: Numeric(0, math.inf), ValueError, "high must be finite, got inf"),
    "no range": (lambda: Numeric(), TypeError, "bounds are public and must not be read off"),
    "no high": (lambda: Numeric(0), TypeError, "bounds are public"),
    "array": (lambda: Numeric(np.arange(3), 4), TypeError, "low must be numbers, got ndarray"),
    "order": (lambda: Numeric(3, 1), ValueError, "low must be < high, got 3.0 and 1.0"),
    "order of integers": (
        lambda: Numeric(3, 1, integer=True),
        ValueError,
        "low must be < high, got 3 and 1",
    ),
    "bins": (lambda: Numeric(1, 3, bins=4, integer=True), ValueError, "bins must be <= 3"),
    "no bins": (lambda: Numeric(1, 3, bins=0), ValueError, "bins must be >= 1"),
    "fraction": (lambda: Numeric(1, 3.5, integer=True), ValueError, "must be integers of 64 bits"),
    "log of 0": (lambda: Numeric(0, 3, scale="log"), ValueError, "low must be > 0 on a log scale"),
    "scale": (lambda: Numeric(1, 3, scale="ln"), ValueError, "scale must be one of"),
    "both": (lambda: Numeric(1, 3, edges=[1, 4]), ValueError, "these do not agree"),
    "labels": (lambda: Categorical(["a", "b", "a"]), ValueError, "distinct, got 'a' twice"),
    "types": (lambda: Categorical([1, True]), ValueError, "distinct, got 1 twice"),
    "alike": (lambda: Categorical(["1", "01"]), ValueError, "types their column, got '1' and '01'"),
    "alike in floats": (
        lambda: Domain({"a": [2**53, 2**53 + 1]}),
        ValueError,
        "labels of 'a' must",
    ),
    "alike to other": (lambda: Categorical([True], "TRUE"), ValueError, "got True and 'TRUE'"),
    "other": (lambda: Categorical(["a", "b"], "a"), ValueError, "distinct, got 'a' twice"),
    "text": (lambda: Categorical("ab"), TypeError, "labels must be a list, got 'ab'"),
    "none": (lambda: Categorical([]), ValueError, "labels must be >= 1"),
    "label": (lambda: Categorical(["a", None]), TypeError, "text or numbers, got None"),
    "day": (lambda: Date("yesterday", "2020-01-01"), ValueError, "start must be a day like"),
    "days": (lambda: Date("2020-01-02", "2020-01-01"), ValueError, "start must be <= end"),
    "unit": (lambda: Date("2020-01-02", "2020-01-03", "hour"), ValueError, "unit must be one of"),
    "missing": (lambda: Date("2020-01-02", "2020-01-03", missing=1), TypeError, "missing must be"),
    "data": (
        lambda: Domain.from_columns({"a": [1, 2]}),
        TypeError,
        "column 'a' must be Numeric, Categorical or Date, got list: .* not be read off the data",
    ),
    "table": (lambda: Domain.from_columns([("a", 3)]), TypeError, "must not be read off the data"),
}


@pytest.mark.parametrize(("make", "error", "message"), REFUSED.values(), ids=list(REFUSED))
def test_bad_columns(make, error, message):
    with pytest.raises(error, match=message):
        make()


VALUES = {
    "text": (Numeric(0, 1), ["0.5", "zebra"], "column 'x' must hold numbers: 2 of 2"),
    "some text": (Numeric(0, 1), np.array([1, "zebra"], object), "numbers: 1 of 2"),
    "dates": (Numeric(0, 1), np.array(DAYS, "datetime64[D]"), "numbers: 6 of 6"),
    "label": (Categorical(["a"]), ["a", "zebra"], "labels that are not declared: 1 of 2 .*other="),
    "list": (Categorical(["a"]), np.array(["a", ["zebra"]], object), "not declared: 1 of 2"),
    "days as text": (Date("2020-01-01", "2021-01-01"), ["2020-01-02"], "dates: 1 of 1.*to_dateti"),
    "days as numbers": (Date("2020-01-01", "2021-01-01"), [7390], "must hold dates: 1 of 1"),
    "zone": (
        Date("2020-01-01", "2021-01-01"),
        [datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC)],
        "'x' has a time zone: convert it to a public one",
    ),
}


@pytest.mark.parametrize(("column", "values", "message"), VALUES.values(), ids=list(VALUES))
def test_refused_values_are_counted_and_never_shown(column, values, message):
    with pytest.raises(ValueError, match=message) as raised:
        coded(column, values)
    assert not re.search("zebra|7390", str(raised.value))


SCHEMAS = {
    "version": ({"version": 2, "columns": {}}, "schema must have version 1"),
    "no version": ({"columns": {}}, "schema must have version 1"),
    "kind": ({"a": {"kind": "number"}}, r"column 'a': kind must be one of .*got 'number'"),
    "field": ({"a": {"kind": "numeric", "lo": 1}}, "column 'a': numeric has no field 'lo', only"),
    "value": ({"a": {"kind": "numeric", "low": 3, "high": 1}}, "column 'a': low must be < high"),
    "type": ({"a": {"kind": "categorical"}}, "column 'a': categorical needs the field 'labels'"),
}


@pytest.mark.parametrize(("schema", "message"), SCHEMAS.values(), ids=list(SCHEMAS))
def test_a_bad_schema_is_named_by_column_and_field(schema, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Domain.from_json(json.dumps(schema))
    if "columns" not in schema:
        with pytest.raises((ValueError, TypeError), match=message):
            Domain.from_json(json.dumps({"version": 1, "columns": schema}))


def test_a_schema_written_by_hand():
    text = """{"version": 1, "columns": {
        "age": {"kind": "numeric", "low": 0, "high": 99, "bins": 10, "integer": true},
        "sex": {"kind": "categorical", "labels": ["F", "M"], "missing": true},
        "seen": {"kind": "date", "start": "2020-01-01", "end": "2020-12-31"},
        "ward": 4, "side": ["left", "right"]}}"""
    domain = Domain.from_json(text)
    assert domain.shape == (10, 3, 12, 4, 2)
    assert Domain.from_json(domain.to_json()) == domain
    assert hash(domain) == hash(Domain.from_json(domain.to_json()))
    assert domain.project(["sex", "ward"]).shape == (3, 4)


DOMAIN = Domain.from_columns(
    {
        "size": Numeric(0, 2**60, bins=4, integer=True, missing=True),
        "weight": Numeric(0.0, 8.0, bins=4, missing=True),
        "ward": Numeric(0, 3, integer=True),
        "sex": Categorical(["F", "M"], missing=True),
        "smokes": Categorical([False, True], missing=True),
        "seen": Date("2020-01-01", "2020-06-30", missing=True),
    }
)
TABLE = {
    "size": [2**59 + 1, None, 3],
    "weight": [1.5, None, 8.0],
    "ward": [0, 1, 3],
    "sex": ["M", "F", None],
    "smokes": [True, None, False],
    "seen": [datetime.date(2020, 1, 31), None, datetime.date(2020, 6, 1)],
}
CODES = [[2, 0, 0, 1, 1, 0], [4, 4, 1, 0, 2, 6], [0, 3, 3, 2, 0, 5]]


def frames(library):
    """The table in each of the types that the library has for it."""
    module = pytest.importorskip(library)
    if library == "pandas":
        plain = module.DataFrame(TABLE)
        size = module.array(TABLE["size"], dtype="Int64")  # as floats they are not exact
        yield plain.assign(size=size)
        seen = module.to_datetime(plain["seen"])
        yield plain.assign(size=size, seen=seen, sex=plain["sex"].astype("category"))
        yield plain.assign(size=size, smokes=module.array(TABLE["smokes"], dtype="boolean"))
        yield plain.assign(size=size, sex=plain["sex"].astype("string")).set_index("ward", drop=0)
    elif library == "polars":
        yield module.DataFrame(TABLE)
        seen, sex = module.col("seen").cast(module.Datetime), module.col("sex")
        yield module.DataFrame(TABLE).with_columns(seen, sex.cast(module.Categorical))
        yield module.DataFrame(TABLE).with_columns(weight=module.Series([1.5, math.nan, 8]))
    else:
        yield module.table(TABLE)


@pytest.mark.parametrize("library", LIBRARIES)
def test_frames(library):
    for frame in frames(library):
        assert DOMAIN.encode(frame).tolist() == CODES
        assert container_of(frame) == library
        decoded = decode_into(DOMAIN, library, CODES, KEY)
        assert type(decoded) is type(frame)
        assert DOMAIN.encode(decoded).tolist() == CODES
        again = decode_into(DOMAIN, library, CODES[:1], KEY)  # none is missing here
        other = decode_into(DOMAIN, library, CODES[1:2], KEY)  # most are
        types = [
            str(getattr(table, "schema", getattr(table, "dtypes", None)))
            for table in (decoded, again, other)
        ]
        assert types[0] == types[1] == types[2]
        assert list(getattr(decoded, "column_names", decoded.columns)) == list(TABLE)


def test_frames_with_a_time_zone_and_lazy_ones_are_refused():
    domain = Domain.from_columns({"seen": Date("2020-01-01", "2020-06-30")})
    pandas = pytest.importorskip("pandas")
    zoned = pandas.DataFrame({"seen": pandas.to_datetime(["2020-01-31"]).tz_localize("UTC")})
    polars = pytest.importorskip("polars")
    for frame in (
        zoned,
        polars.DataFrame({"seen": [datetime.datetime(2020, 1, 31, tzinfo=datetime.UTC)]}),
    ):
        with pytest.raises(ValueError, match="column 'seen' has a time zone"):
            domain.encode(frame)
    with pytest.raises(TypeError, match="lazy: collect"):
        domain.encode(polars.DataFrame({"seen": []}).lazy())
    with pytest.raises(ValueError, match="n >= 1 records, got none"):
        domain.encode(polars.DataFrame({"seen": []}))


def test_a_mapping_of_arrays():
    arrays = {name: np.array(values, object) for name, values in TABLE.items()}
    assert DOMAIN.encode(arrays).tolist() == CODES
    decoded = DOMAIN.decode(np.array(CODES), key=KEY)
    kinds = [column.dtype.kind for column in decoded.values()]
    assert "".join(kinds) == "OfiOOM"
    assert DOMAIN.encode(decoded).tolist() == CODES


def test_large_integers_do_not_depend_on_a_missing_value():
    column = Numeric(0, 2e19, bins=2, missing=True)
    domain = Domain.from_columns({"a": column})
    whole = np.array([15 * 10**18, 15 * 10**18, 3], np.uint64)
    floats = np.array([15e18, 15e18, np.nan])
    assert domain.encode({"a": whole})[:2].tolist() == domain.encode({"a": floats})[:2].tolist()

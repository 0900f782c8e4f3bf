"""From a raw table to labelled tables and synthetic rows, with edges paid for, and per person."""

import decimal
import itertools
import math

import jax
import numpy as np
import pytest
from dp_accounting import dp_event as dpe

import dpjax
from dpjax.api._private_edges import apart, edge_logits
from dpjax.privacy import bounded_range_rho
from dpjax.queries import Categorical, Date, Domain, Marginals, Numeric

BUDGET = dpjax.Budget(1.0, 1e-6)
DOMAIN = Domain.from_columns(
    {
        "age": Numeric(0, 99, bins=4, integer=True, missing=True),
        "sex": Categorical(["F", "M"]),
        "seen": Date("2020-01-01", "2020-12-31", "quarter"),
    }
)


def raw(n=4000, seed=0):
    rng = np.random.default_rng(seed)
    age = rng.integers(0, 120, n).astype(float)
    age[rng.random(n) < 0.1] = np.nan
    days = np.datetime64("2020-01-01") + rng.integers(0, 366, n)
    return {"age": age, "sex": np.where(age > 50, "M", "F"), "seen": days}


@pytest.fixture(scope="module")
def released():
    # a histogram: nothing is fitted, which takes seconds to compile
    return dpjax.release(DOMAIN, raw(), BUDGET, key=jax.random.key(0), method="histogram")


@pytest.mark.slow  # compiles a fit
def test_error_bars_of_tables_below_those_measured():
    released = dpjax.release(DOMAIN, raw(), BUDGET, key=jax.random.key(0), method="gaussian_fit")
    pairs = released.table("sex", "age")["stddev"]
    deviation = np.asarray(released.workload.table(released.stddev, ("sex", "age"))).ravel()
    np.testing.assert_allclose(pairs, deviation, rtol=1e-5)
    # of five cells, and known from the pairs with the other attribute too
    assert pairs[0] < released.table("sex")["stddev"][0] < math.sqrt(5) * pairs[0]
    assert np.isnan(released.table("age", "sex", "seen")["stddev"]).all()


@pytest.mark.slow  # compiles two fits
def test_tables_with_the_target_get_more_of_the_budget():
    pairs = Marginals.all_kway(Domain({"a": 30, "b": 30, "c": 30}), 2)
    codes = np.random.default_rng(0).integers(0, 30, (4000, 3))
    truth = np.asarray(pairs.answers_of_records(codes))

    def noise(**target):
        made = dpjax.release(
            pairs, codes, BUDGET, key=jax.random.key(0), method="gaussian_fit", **target
        )
        assert 0.99 < made.guarantee.epsilon(1e-6) <= 1.0
        noise = np.std(np.split(np.asarray(made.raw) - truth, 3), axis=1)
        # a replaced record moves two cells of each table; accountants double what it moves
        shift = np.sqrt(np.sum(2 / (4000 * noise) ** 2))
        assert shift == pytest.approx(2 / made.guarantee.event.noise_multiplier, rel=0.06)
        return noise, made.reason

    plain, _ = noise()
    named, reason = noise(target="c")
    assert "tables with 'c' have 8 times the precision" in reason
    # two of three tables, (a, c) and (b, c), have eight times the third's: 17 in all, not 3
    want = np.sqrt(17 / 3 / np.array([1, 8, 8]))
    np.testing.assert_allclose(named / plain, want, rtol=0.1)


def test_a_target_is_an_attribute_and_the_only_division():
    def attempt(workload=DOMAIN, data=None, **options):
        data = raw(40) if data is None else data
        return dpjax.release(workload, data, BUDGET, key=jax.random.key(0), **options)

    with pytest.raises(ValueError, match=r"target must be one of \('age', .*, got 'income'"):
        attempt(target="income")
    with pytest.raises(TypeError, match="target needs marginals, got the workload Prefix"):
        attempt(dpjax.queries.Prefix(4), np.zeros(8, int), target="sex")
    with pytest.raises(ValueError, match="target and allocation both divide the budget"):
        attempt(target="sex", method="gaussian_fit", allocation=[1, 1, 1])


def test_a_domain_stands_for_its_pairs(released):
    assert released.workload == Marginals.all_kway(DOMAIN, 2)
    one = Domain({"sex": ["F", "M"]})
    alone = dpjax.release(
        one, {"sex": ["F", "M"] * 50}, BUDGET, key=jax.random.key(0), method="histogram"
    )
    assert alone.workload == Marginals.all_kway(one, 1)
    with pytest.raises(TypeError, match="data must be the records, got the workload Domain"):
        dpjax.release(released.workload, DOMAIN, BUDGET, key=jax.random.key(0))


def test_tables_have_labels_counts_and_error_bars(released):
    table = released.table("sex", "age")
    assert list(table) == ["sex", "age", "share", "count", "stddev"]
    bins = ["[0, 25)", "[25, 50)", "[50, 75)", "[75, 99]", None]
    assert table["age"].tolist() == 2 * bins
    assert table["sex"].tolist() == 5 * ["F"] + 5 * ["M"]
    truth = Marginals(DOMAIN, (("age", "sex"),)).answers_of_records(DOMAIN.encode(raw()))
    np.testing.assert_allclose(table["share"], np.reshape(truth, (5, 2)).T.ravel(), atol=0.01)
    np.testing.assert_array_equal(table["count"], 4000 * table["share"])
    turned = released.table("age", "sex")["share"].reshape(5, 2).T.ravel()
    np.testing.assert_array_equal(table["share"], turned)
    deviation = np.asarray(released.workload.table(released.stddev, ("sex", "age"))).ravel()
    np.testing.assert_allclose(table["stddev"], deviation, rtol=1e-5)
    # what is not measured itself: below a measured table, and beyond all of them
    below = released.table("sex")
    assert below["share"].sum() == pytest.approx(1, abs=1e-5)
    assert 0 < below["stddev"][0] < 10 * deviation[0]
    assert np.isnan(released.table("age", "sex", "seen")["stddev"]).all()


def test_what_tables_refuse(released):
    with pytest.raises(ValueError, match="got 'income'"):
        released.table("income")
    domain = Domain({"share": 2, "b": 2})
    other = dpjax.release(
        domain, np.zeros((9, 2), int), BUDGET, key=jax.random.key(0), method="histogram"
    )
    with pytest.raises(ValueError, match="'share' is also a column of the table"):
        other.table("share")
    assert other.table("b")["b"].tolist() == [0, 1]


def test_synthetic_rows_are_raw_values(released):
    rows = released.sample_frame(500, key=jax.random.key(1), systematic=True)
    assert list(rows) == ["age", "sex", "seen"]
    ages = [age for age in rows["age"] if age is not None]
    assert all(isinstance(age, int) and 0 <= age <= 99 for age in ages)
    assert set(rows["sex"].tolist()) == {"F", "M"}
    assert rows["seen"].dtype == np.dtype("datetime64[D]")
    again = released.sample_frame(500, key=jax.random.key(1), systematic=True)
    assert rows["age"].tolist() == again["age"].tolist()
    np.testing.assert_array_equal(
        DOMAIN.encode(rows),
        DOMAIN.encode(released.decode(DOMAIN.encode(rows), key=jax.random.key(0))),
    )
    with pytest.raises(ValueError, match="key is required: column 'age'"):
        released.decode(DOMAIN.encode(rows))


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_come_back_as_frames(library):
    module = pytest.importorskip(library)
    frame = module.DataFrame(raw())
    released = dpjax.release(DOMAIN, frame, BUDGET, key=jax.random.key(0), method="histogram")
    table, rows = released.table("age", "sex"), released.sample_frame(50, key=jax.random.key(0))
    assert type(table) is type(rows) is module.DataFrame
    assert list(table.columns) == ["age", "sex", "share", "count", "stddev"]
    assert list(rows.columns) == ["age", "sex", "seen"]
    assert str(rows["age"].dtype) == "Int64"
    assert DOMAIN.encode(rows).shape == (50, 3)
    plain = dpjax.release(DOMAIN, raw(), BUDGET, key=jax.random.key(0), method="histogram")
    np.testing.assert_array_equal(released.answers, plain.answers)


# private edges


def neighbours(counts):
    """Tables of one record fewer, or whose value is missing now, and of one that is replaced."""
    for cell in np.flatnonzero(counts):
        removed = counts.copy()
        removed[cell] -= 1
        yield removed
        for other in range(len(counts)):
            replaced = removed.copy()
            replaced[other] += 1
            yield replaced


@pytest.mark.always  # the range as claimed
@pytest.mark.parametrize(("cells", "bins"), [(2, 2), (4, 2), (4, 3), (5, 4)])
def test_each_draw_of_an_edge_has_the_declared_range(cells, bins):
    """By search over all small tables: a record joins, leaves, is replaced or goes missing."""
    eta, largest = 0.5, 0.0
    tables = np.array(list(itertools.product(range(6), repeat=cells)))
    tables = tables[tables.sum(axis=1) <= 5]
    logits = {tuple(counts): np.asarray(edge_logits(counts, bins, eta)) for counts in tables}
    for counts in tables:
        for other in neighbours(counts):
            # normalisers cancel in the range
            ratios = logits[tuple(counts)] - logits[tuple(other)]
            largest = max(largest, float((ratios.max(axis=1) - ratios.min(axis=1)).max()))
    assert largest <= eta
    if cells > 2:
        assert largest > 0.5 * eta  # no looser than it need be by more than this


def test_edges_are_kept_apart_whatever_is_drawn():
    for drawn in itertools.product(range(5), repeat=3):
        places = apart(list(drawn), 6)
        assert places == sorted(set(places))
        assert min(places) >= 1
        assert max(places) <= 5
    assert apart([0, 2, 4], 6) == [1, 3, 5]
    assert apart([4, 4, 4], 6) == [3, 4, 5]


@pytest.mark.slow  # calibrates several times
@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove_one"])
def test_edges_and_release_meet_the_budget_together(relation):
    rng = np.random.default_rng(0)
    income = rng.exponential(30.0, 20_000)
    income[:2000] = np.nan
    table = {"income": income, "age": rng.integers(0, 100, 20_000), "sex": ["F", "M"] * 10_000}
    domain = Domain.from_columns(
        {
            "income": Numeric(0, 1000, bins=4, missing=True),
            "age": Numeric(0, 99, bins=2, integer=True),
            "sex": Categorical(["F", "M"]),
        }
    )
    budget = dpjax.Budget(1.0, 1e-6, relation)
    finer, cost = dpjax.private_edges(
        domain, table, budget, key=jax.random.key(0), columns=["age", "income"]
    )
    assert finer.shape == domain.shape
    edges = dict(finer.spec)["income"].edges
    truth = np.nanquantile(income, [0.25, 0.5, 0.75])
    np.testing.assert_allclose(edges[1:4], truth, atol=3)
    assert (edges[0], edges[-1]) == (0, 1000)
    assert dict(finer.spec)["age"].edges[1] in range(45, 56)
    # a tenth of the budget of zCDP, in equal draws
    assert cost.event.count == 1 + 3
    eta = cost.event.event.epsilon
    rho = dpjax.privacy.zcdp_budget(budget, relation=relation)
    assert 4 * bounded_range_rho(eta) == pytest.approx(0.1 * rho, rel=1e-4)
    released = dpjax.release(
        finer, table, budget, key=jax.random.key(1), num_records=20_000, spent=[cost]
    )
    assert 0.998 < released.guarantee.epsilon(1e-6) <= 1.0
    assert released.guarantee.relation.name.lower() == relation
    small = dpjax.Budget(0.1, 1e-6, relation)
    with pytest.raises(ValueError, match=r"spent must be < epsilon = 0\.1 by itself"):
        dpjax.release(finer, table, small, key=jax.random.key(0), num_records=20_000, spent=[cost])


def test_edges_of_a_pure_budget_and_what_they_refuse():
    domain = Domain.from_columns({"a": Numeric(0, 9, bins=5, integer=True), "b": Numeric(0, 1)})
    table = {"a": np.arange(1000) % 10, "b": np.linspace(0, 1, 1000)}
    pure = dpjax.Budget(1.0, 0.0)
    finer, cost = dpjax.private_edges(
        domain, table, pure, key=jax.random.key(0), columns=["a"], share=0.5
    )
    assert cost.epsilon(0.0) == pytest.approx(0.5)
    assert finer.spec[1] == domain.spec[1]
    sexes = Domain.from_columns({"sex": Categorical(["F", "M"]), "c": Numeric(0, 1, bins=2000)})
    for name, message in (("sex", "'sex' must be Numeric"), ("c", "'c' must have <= 1024 bins")):
        with pytest.raises(ValueError, match=message):
            dpjax.private_edges(sexes, table, pure, key=jax.random.key(0), columns=[name])
    with pytest.raises(ValueError, match="columns must be >= 1"):
        dpjax.private_edges(domain, table, pure, key=jax.random.key(0), columns=[])
    codes = domain.encode(table)
    with pytest.raises(TypeError, match="data must have named columns"):
        dpjax.private_edges(domain, codes, pure, key=jax.random.key(0), columns=["a"])


# guarantees per person

PAIR = Domain({"a": 2, "b": 2})
CELLS = np.array(list(itertools.product(range(2), repeat=2)))


def kept(people, codes, **fields):
    records = dpjax.PersonRecords(np.asarray(codes), unit=people, **fields)
    return records.codes(PAIR)


@pytest.mark.parametrize("max_rows", [1, 2, 3])
def test_a_person_moves_sums_by_no_more_than_the_bound(max_rows):
    """By search: all rows of one person join a table, anywhere among the rows of others."""
    bound = max_rows * Marginals.all_kway(PAIR, 1).sensitivity("add_or_remove_one").l2_answers
    rng, largest = np.random.default_rng(0), 0.0
    for number, seed in itertools.product(range(1, 6), range(25)):
        others = rng.integers(0, 3, 6)
        codes = CELLS[rng.integers(0, 4, 6)]
        places = np.sort(rng.integers(0, 7, number))
        rows = CELLS[rng.integers(0, 4, number)] if seed else np.zeros((number, 2), int)
        joined = np.insert(codes, places, rows, axis=0)
        people = np.insert(others, places, 9)
        before = kept(others, codes, max_rows=max_rows, seed=seed)
        after = kept(people, joined, max_rows=max_rows, seed=seed)
        assert len(after) - len(before) == min(number, max_rows)
        # the rows of others that are kept are the same, and in the same order
        tagged = dpjax.PersonRecords(
            {"row": np.arange(len(people))}, unit=people, max_rows=max_rows, seed=seed
        )
        left = tagged.codes(Domain({"row": len(people)}))[:, 0]
        np.testing.assert_array_equal(joined[left][people[left] != 9], before)
        counts = [np.concatenate([table.sum(0), (1 - table).sum(0)]) for table in (after, before)]
        largest = max(largest, float(np.linalg.norm(counts[0] - counts[1])))
    assert largest == pytest.approx(bound)  # attained by rows in one cell, and never passed


class Member:
    """An identity that sorts by household alone."""

    def __init__(self, household, name):
        self.parts = household, name

    def __eq__(self, other):
        return self.parts == other.parts

    def __lt__(self, other):
        return self.parts[0] < other.parts[0]

    def __hash__(self):
        return hash(self.parts)


IDENTITIES = {
    "sets": [frozenset({1}), frozenset({2}), frozenset({1, 2}), frozenset({3})],
    "members": [Member(0, "a"), Member(0, "b"), Member(1, "a"), Member(1, "b")],
    "tuples": [(1, None), (1, 2), (1, "a"), ("a", 1)],
    "numbers": [2**53, 2**53 + 1, 0.5, decimal.Decimal("1.5")],
    "mixed": ["a", 1, b"a", 0.5],
}


@pytest.mark.parametrize("kind", IDENTITIES)
def test_a_person_is_all_rows_of_equal_identity(kind):
    """By search over orders of rows: one joins with at most `max_rows`, all other rows stay."""
    one = dpjax.PersonRecords({"a": [0] * 4}, unit=[1, True, 1.0, np.int8(1)], max_rows=1)
    assert len(one.codes(Domain({"a": 1}))) == 1
    rng, domain = np.random.default_rng(0), Domain({"a": 40})
    for _ in range(20):
        rows = rng.integers(0, 4, 40)
        rows[0] = 1
        of_others = rows != 0
        before, after = (
            dpjax.PersonRecords(
                {"a": np.arange(40)[there]},
                unit=[IDENTITIES[kind][row] for row in rows[there]],
                max_rows=2,
            ).codes(domain)[:, 0]
            for there in (of_others, np.ones(40, bool))
        )
        np.testing.assert_array_equal(after[rows[after] != 0], before)
        assert len(after) - len(before) <= 2


@pytest.mark.parametrize(
    ("unit", "error", "message"),
    [
        ([1, math.nan, 2], ValueError, "1 of 3 rows have none"),
        ([1, decimal.Decimal("nan"), None], ValueError, "2 of 3 rows have none"),
        ([(1, math.nan), (1, math.nan), 2], ValueError, "an identity holds NaN"),
        ([1, "1", 2], ValueError, "a number and text of that number"),
        ([1.0, b"01", 2], ValueError, "a number and text of that number"),
        ([1.0, 2.0**53, 2], ValueError, r"floats from 2\^53 on"),
        (np.array([1, 2**24, 2], np.float32), ValueError, r"floats from 2\^24 on"),
        ([{1}, {2}, {1}], TypeError, "have a hash: give each person a number or a text"),
    ],
)
def test_identities_that_may_split_or_merge_people_are_refused(unit, error, message):
    people = dpjax.PersonRecords({"a": [0, 0, 0]}, unit=unit, max_rows=1)
    with pytest.raises(error, match=message):
        people.codes(Domain({"a": 1}))


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_people_of_a_frame(library):
    module = pytest.importorskip(library)
    table = {"a": [0, 1, 1, 0], "b": [1, 1, 0, 0], "who": ["x", "y", "y", "y"]}
    plain = dpjax.PersonRecords(table, unit="who", max_rows=2).codes(PAIR)
    framed = dpjax.PersonRecords(module.DataFrame(table), unit="who", max_rows=2).codes(PAIR)
    np.testing.assert_array_equal(plain, framed)
    frame = module.DataFrame(table | {"who": ["x", None, "y", "y"]})
    with pytest.raises(ValueError, match="1 of 4 rows have none"):
        dpjax.PersonRecords(frame, unit="who", max_rows=2).codes(PAIR)


def test_which_rows_are_kept_follows_from_a_public_order():
    codes = np.arange(4).repeat(500)
    people = np.tile(np.arange(500), 4)
    table = {"a": codes % 2, "b": codes // 2, "who": people}
    one = dpjax.PersonRecords(table, unit="who", max_rows=1).codes(PAIR)
    assert one.shape == (500, 2)
    assert len(np.unique(one, axis=0)) == 1  # the same place of everybody
    places = {
        tuple(dpjax.PersonRecords(table, unit="who", max_rows=1, seed=seed).codes(PAIR)[0])
        for seed in range(20)
    }
    assert len(places) == 4
    everything = dpjax.PersonRecords(table, unit="who", max_rows=4).codes(PAIR)
    np.testing.assert_array_equal(everything, PAIR.encode(table))
    named = dpjax.PersonRecords(table, unit=[f"p{who}" for who in people], max_rows=1)
    np.testing.assert_array_equal(named.codes(PAIR), one)


@pytest.mark.always  # noise of people as claimed
@pytest.mark.parametrize(
    "method", [pytest.param("gaussian_fit", marks=pytest.mark.slow), "histogram"]
)
def test_the_noise_is_larger_by_the_number_of_rows(method):
    codes = CELLS[np.random.default_rng(0).integers(0, 4, 3000)]
    records = dpjax.PersonRecords(codes, unit=np.arange(3000) // 3, max_rows=3)
    released = dpjax.release(
        PAIR, records, BUDGET, key=jax.random.key(0), method=method, num_records=3000
    )
    assert released.guarantee.relation.name == "ADD_OR_REMOVE_ONE"
    assert 0.998 < released.guarantee.epsilon(1e-6) <= 1.0
    assert repr(released).endswith("relation='add_or_remove_one', per person of at most 3 rows")
    # one table of counts, of which a person moves one cell by three
    assert isinstance(released.guarantee.event, dpe.GaussianDpEvent)
    stddev = released.total * float(released.stddev[0])
    if method == "gaussian_fit":  # least squares with the total known
        stddev /= math.sqrt(3 / 4)
    assert stddev / 3 == pytest.approx(released.guarantee.event.noise_multiplier, rel=1e-5)
    single = dpjax.Budget(1.0, 1e-6, "add_or_remove_one")
    row = dpjax.release(PAIR, codes, single, key=jax.random.key(0), method=method, num_records=3000)
    assert released.guarantee.failure_probability >= row.guarantee.failure_probability
    np.testing.assert_allclose(
        released.total * released.stddev, 3 * row.total * row.stddev, rtol=2e-3
    )


def test_what_has_no_guarantee_per_person_is_refused():
    codes = np.zeros((6, 2), int)
    records = dpjax.PersonRecords(codes, unit=[1, 1, 2, 2, 3, 3], max_rows=2)

    def attempt(data=records, budget=BUDGET, domain=PAIR, **options):
        return dpjax.release(domain, data, budget, key=jax.random.key(0), **options)

    with pytest.raises(ValueError, match=r"for add_or_remove_one, got replace_one: .* num_"):
        attempt(budget=dpjax.Budget(1.0, 1e-6, "replace_one"), num_records=6)
    with pytest.raises(ValueError, match="num_records is required under add_or_remove_one"):
        attempt()
    with pytest.raises(ValueError, match=r"method must be one of .* for PersonRecords, got 'mwem'"):
        attempt(method="mwem", num_records=6)
    with pytest.raises(ValueError, match="spent must be empty for PersonRecords"):
        attempt(num_records=6, spent=[dpjax.Guarantee(dpe.GaussianDpEvent(9.0))])
    with pytest.raises(ValueError, match="need a workload over a domain"):
        attempt(domain=dpjax.queries.Prefix(5), num_records=6)
    for unit, message in (
        ([1, 2], r"unit must have shape \[6\], one a row, got \[2\]"),
        (np.array([1, 2, 3, np.nan, 4, 5]), "person in every row: 1 of 6 rows have none"),
    ):
        with pytest.raises(ValueError, match=message):
            attempt(dpjax.PersonRecords(codes, unit=unit, max_rows=2), num_records=6)
    with pytest.raises(ValueError, match="max_rows must be >= 1"):
        dpjax.PersonRecords(codes, unit=[1] * 6, max_rows=0)


def test_a_number_of_records_that_is_public_is_theirs():
    codes = np.zeros((40, 2), int)
    with pytest.raises(ValueError, match=r"num_records must be 40, .* under replace-one, got 30"):
        dpjax.release(
            PAIR,
            codes,
            dpjax.Budget(1.0, 1e-6, "replace_one"),
            key=jax.random.key(0),
            num_records=30,
        )


@pytest.mark.parametrize("method", ["gaussian_fit", "histogram", "rows"])
def test_counts_are_of_the_records_there_are_not_of_the_public_number(method):
    rng = np.random.default_rng(5)
    codes = np.stack([rng.integers(0, 2, 9_000), rng.choice(3, 9_000, p=[0.7, 0.2, 0.1])], 1)
    domain, budget = Domain({"a": 2, "b": 3}), dpjax.Budget(1.0, 1e-6, "add_or_remove_one")
    truth = np.bincount(codes[:, 0] * 3 + codes[:, 1], minlength=6)
    options = {"fit_steps": 300, "rows": 20, "fits": 1} if method == "rows" else {}
    for number in (3_000, 9_000, 20_000):
        made = dpjax.release(
            domain,
            codes,
            budget,
            key=jax.random.key(1),
            num_records=number,
            method=method,
            **options,
        )
        assert abs(made.total - 9_000) < 60
        table = made.table("a", "b")
        np.testing.assert_allclose(table["share"].sum(), 1, rtol=1e-5)
        off = np.asarray(table["count"]) - truth
        # of a fit with few rows also what they leave
        assert np.abs(off).max() < (40 if method == "rows" else 5) * made.total * np.max(
            table["stddev"]
        )
        # a standard error is that of a count of this noise, whatever the public number
        assert 3 < made.total * np.max(table["stddev"]) < 8

import hashlib
import json

import numpy as np

from dpjax.datasets import adult_reduced, adult_table
from dpjax.queries import Domain

DIGEST = "6501e50ef6d3c9b1d7d5622be7fb693c40b4a69b305221ea7b06670bccc8221b"


def test_codes_have_the_recorded_digest():
    codes, domain = adult_reduced()
    assert (codes.shape, codes.dtype) == ((48842, 7), np.int32)
    assert domain.shape == (16, 7, 15, 5, 2, 2, 10)
    assert hashlib.sha256(codes.astype("<i4").tobytes()).hexdigest() == DIGEST


def test_equal_cell_for_cell_to_the_published_coding(original):
    codes, domain = adult_reduced()
    published = json.loads(original("adult-reduced-domain.json").read_text())
    assert list(published.items()) == list(zip(domain.attributes, domain.shape, strict=True))
    with original("adult-reduced.csv").open() as file:
        names = file.readline().strip().split(",")
        rows = np.loadtxt(file, delimiter=",", dtype=int)
    assert set(names) == set(domain.attributes)
    assert names != list(domain.attributes)
    np.testing.assert_array_equal(codes, rows[:, [names.index(name) for name in domain.attributes]])
    unlabelled = Domain.from_json(original("adult-reduced-domain.json"))
    columns = dict(zip(names, rows.T, strict=True))
    np.testing.assert_array_equal(unlabelled.encode(columns), codes)
    np.testing.assert_array_equal(domain.encode(columns), codes)


def test_labels_are_the_original_categories():
    codes, domain = adult_reduced()
    table = adult_table()
    decoded = domain.decode(codes)
    for name in ("education", "marital-status", "occupation", "race", "sex"):
        np.testing.assert_array_equal(decoded[name], table[name])
    np.testing.assert_array_equal(decoded["income>50K"], table[">50K"])
    for age, label in zip(table["age"][:200], decoded["age"][:200], strict=True):
        low, _, high = label.partition("-")
        assert int(low) <= age <= int(high)
    assert set(decoded["age"][table["age"] == 90]) == {"90+"}

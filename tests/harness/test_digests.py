"""Outputs for fixed keys, and claimed epsilons, are what they were."""

import json
import math

import pytest

from tests.harness import digests

KNOWN = json.loads(digests.FILE.read_text())
HEAD = (digests.FILE.parents[2] / "CHANGELOG.md").read_text().partition("\n### ")[0]


def test_every_digest_is_of_a_name_and_none_is_lost():
    """What is registered later has none until a version is dated."""
    assert set(KNOWN) <= set(digests.NAMES)
    assert len(KNOWN) >= 206, "fewer only where an entry is gone"
    assert not digests.missing() or "- unreleased" in HEAD, "a release has a digest of each"


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN)
def test_digest_is_what_it_was(name):
    found, known = digests.of(name), KNOWN[name]
    assert found.keys() == known.keys()
    for field, value in known.items():
        if isinstance(value, list):
            # of a sum whose terms cancel, what rounding does is in proportion to the terms
            room = 1e-5 + 1e-4 * value[1] if math.isfinite(value[1]) else 1e-5
            assert found[field] == pytest.approx(value, rel=1e-4, abs=room), field
        elif isinstance(value, float):
            assert found[field] == pytest.approx(value, rel=1e-4, abs=1e-5), field
        else:
            assert found[field] == value, field

"""Where the original files are, when the checkout has them beside it."""

from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def original():
    """`original(name)`: the path of an original file; the test is skipped where it is absent."""

    def find(name):
        path = DATA / name
        if not path.is_file():
            pytest.skip(f"needs the original file {name}")
        return path

    return find

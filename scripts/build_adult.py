"""Builds the Adult file that the package ships: `dpjax/datasets/data/adult.xz` and `adult.json`.

    python scripts/build_adult.py adult_train.csv.gz adult_test.csv.gz [output_folder]

The inputs are the two files of UCI Adult (https://doi.org/10.24432/C5XW20, CC BY 4.0) as CSV with
a header, gzipped. The same inputs give the same bytes: nothing in the output depends on the time,
the machine or the file names. Output: the records, packed, and their number and SHA-256.
"""

import argparse
import csv
import gzip
import hashlib
import json
import lzma
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dpjax.datasets._adult_schema import COLUMNS, NUMERIC, VOCABULARY, unpack

OUTPUT = Path(__file__).resolve().parent.parent / "dpjax" / "datasets" / "data"
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]


def pack(table: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of the embedded file for a raw table; the same table gives the same bytes.

    Raises:
        ValueError: a value is outside its vocabulary, or a number outside [0, 2**32).
    """
    parts = []
    for column in COLUMNS:
        values = table[column]
        if column in NUMERIC:
            if values.min() < 0 or values.max() >= 2**32:
                raise ValueError(f"{column} must lie in [0, 2**32), got {values.min()}")
            parts.append(values.astype("<u4").view(np.uint8).reshape(-1, 4).T.tobytes())
        else:
            index = {value: code for code, value in enumerate(VOCABULARY[column])}
            unknown = sorted(set(values.tolist()) - set(index))
            if unknown:
                raise ValueError(f"{column} must be one of {list(index)}, got {unknown[0]!r}")
            parts.append(bytes(index[value] for value in values.tolist()))
    return lzma.compress(b"".join(parts), format=lzma.FORMAT_XZ, filters=_FILTERS)


def read(paths: list[Path]) -> dict[str, np.ndarray]:
    """The raw columns of the files, one after another."""
    records: list[list[str]] = []
    for path in paths:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file)
        if tuple(header) != COLUMNS:
            raise ValueError(f"{path} must have the columns {COLUMNS}, got {header}")
        records += rows
    columns = zip(*records, strict=True)
    return {
        name: np.array(values, np.int64 if name in NUMERIC else np.str_)
        for name, values in zip(COLUMNS, columns, strict=True)
    }


def build(train: Path, test: Path, output: Path) -> dict[str, object]:
    """Writes `adult.xz` and `adult.json` into `output` and returns what the latter holds."""
    table = read([train, test])
    rows = len(table["age"])
    blob = pack(table)
    for name, values in unpack(blob, rows).items():
        np.testing.assert_array_equal(values, table[name], err_msg=name)
    record: dict[str, object] = {
        "file": "adult.xz",
        "rows": rows,
        "columns": len(COLUMNS),
        "sha256": hashlib.sha256(blob).hexdigest(),
        "source": "https://doi.org/10.24432/C5XW20",
        "licence": "CC BY 4.0",
    }
    output.mkdir(parents=True, exist_ok=True)
    (output / "adult.xz").write_bytes(blob)
    text = json.dumps(record, indent=2) + "\n"
    (output / "adult.json").write_text(text, encoding="utf-8", newline="\n")
    return record


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train", type=Path, help="adult_train.csv.gz")
    parser.add_argument("test", type=Path, help="adult_test.csv.gz")
    parser.add_argument("output", type=Path, nargs="?", default=OUTPUT, help="a folder")
    arguments = parser.parse_args()
    print(json.dumps(build(arguments.train, arguments.test, arguments.output), indent=2))


if __name__ == "__main__":
    main()

"""The embedded Adult file, which `scripts/build_adult.py` packs. Byte layout only, no meaning.

The file is xz over the columns one after another, in the order of `COLUMNS`: a text column as one
byte a record, its place in the documented vocabulary; a number as little-endian unsigned 32 bits,
stored byte plane by byte plane (all lowest bytes first), which compresses well.
"""

import lzma

import numpy as np

from dpjax.datasets._adult_schema import COLUMNS, NUMERIC, VOCABULARY


def unpack(blob: bytes, rows: int) -> dict[str, np.ndarray]:
    """The raw table: numbers as int64 `[rows]`, text columns as str `[rows]`.

    Raises:
        ValueError: the file does not hold `rows` records.
    """
    raw = np.frombuffer(lzma.decompress(blob), np.uint8)
    width = sum(4 if column in NUMERIC else 1 for column in COLUMNS)
    if raw.size != rows * width:
        raise ValueError(f"file must hold {rows} records of {width} bytes, got {raw.size} bytes")
    table: dict[str, np.ndarray] = {}
    start = 0
    for column in COLUMNS:
        size = rows * (4 if column in NUMERIC else 1)
        part = raw[start : start + size]
        start += size
        if column in NUMERIC:
            values = np.ascontiguousarray(part.reshape(4, rows).T).view("<u4")
            table[column] = values.reshape(rows).astype(np.int64)
        else:
            table[column] = np.array(VOCABULARY[column])[part]
    return table

"""The embedded Adult file: packing and unpacking. Byte layout only, no meaning.

The file is xz over the columns one after another, in the order of `COLUMNS`: a text column as one
byte a record, its place in the documented vocabulary; a number as little-endian unsigned 32 bits,
stored byte plane by byte plane (all lowest bytes first), which compresses well.
"""

import lzma
from collections.abc import Mapping

import numpy as np

from dpjax.datasets._adult_schema import COLUMNS, NUMERIC, VOCABULARY

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

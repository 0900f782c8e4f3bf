"""UCI Adult as documented: columns, vocabularies and bounds, public constants; and its file.

The vocabularies are the attribute list that UCI publishes with the data ("adult.names"), plus
`?`, its mark for a missing value, as a category of its own.

The embedded Adult file, which `scripts/build_adult.py` packs. Byte layout only, no meaning.

The file is xz over the columns one after another, in the order of `COLUMNS`: a text column as one
byte a record, its place in the documented vocabulary; a number as little-endian unsigned 32 bits,
stored byte plane by byte plane (all lowest bytes first), which compresses well.
"""

import lzma

import numpy as np

MISSING = "?"

# names of columns and categories have no spaces
_NUMERIC = "age fnlwgt education-num capital-gain capital-loss hours-per-week"
_COLUMNS = (
    "age workclass fnlwgt education education-num marital-status occupation relationship race sex "
    "capital-gain capital-loss hours-per-week native-country >50K"
)
_VOCABULARY = {
    "workclass": (
        "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay "
        "Never-worked ?"
    ),
    "education": (
        "Preschool 1st-4th 5th-6th 7th-8th 9th 10th 11th 12th HS-grad Some-college Assoc-voc "
        "Assoc-acdm Bachelors Masters Prof-school Doctorate"
    ),
    "marital-status": (
        "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent "
        "Married-AF-spouse"
    ),
    "occupation": (
        "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty "
        "Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving "
        "Priv-house-serv Protective-serv Armed-Forces ?"
    ),
    "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "sex": "Female Male",
    "native-country": (
        "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) "
        "India Japan Greece South China Cuba Iran Honduras Philippines Italy Poland Jamaica "
        "Vietnam Mexico Portugal Ireland France Dominican-Republic Laos Ecuador Taiwan Haiti "
        "Columbia Hungary Guatemala Nicaragua Scotland Thailand Yugoslavia El-Salvador "
        "Trinadad&Tobago Peru Hong Holand-Netherlands ?"
    ),
    ">50K": "No Yes",
}

NUMERIC: tuple[str, ...] = tuple(_NUMERIC.split())
COLUMNS: tuple[str, ...] = tuple(_COLUMNS.split())
VOCABULARY: dict[str, tuple[str, ...]] = {
    name: tuple(categories.split()) for name, categories in _VOCABULARY.items()
}

_EUROPE_CANADA = (
    "England Canada Germany Greece Italy Poland Portugal Ireland France Hungary Scotland "
    "Yugoslavia Holand-Netherlands"
)
_LATIN_AMERICA = (
    "Puerto-Rico Outlying-US(Guam-USVI-etc) Cuba Honduras Jamaica Mexico Dominican-Republic "
    "Ecuador Haiti Columbia Guatemala Nicaragua El-Salvador Trinadad&Tobago Peru"
)
_ASIA = "Cambodia India Japan South China Iran Philippines Vietnam Laos Taiwan Thailand Hong"

REGIONS: tuple[str, ...] = ("United-States", "Latin-America", "Europe-Canada", "Asia", MISSING)
"""Regions of birth, by geography ("South" is listed by UCI among the countries; taken as Korea)."""

REGION_OF: dict[str, str] = {
    **dict.fromkeys(_EUROPE_CANADA.split(), "Europe-Canada"),
    **dict.fromkeys(_LATIN_AMERICA.split(), "Latin-America"),
    **dict.fromkeys(_ASIA.split(), "Asia"),
}


def unpack(blob: bytes, rows: int) -> dict[str, np.ndarray]:
    """The raw table: numbers as int64 `[rows]`, text columns as str `[rows]`.

    Raises:
        ValueError: the file does not hold `rows` records.
    """
    raw = np.frombuffer(lzma.decompress(blob), np.uint8)
    ends = np.cumsum([4 if column in NUMERIC else 1 for column in COLUMNS])
    if raw.size != rows * ends[-1]:
        raise ValueError(f"file must hold {rows} records of {ends[-1]} bytes, got {raw.size} bytes")
    table: dict[str, np.ndarray] = {}
    for column, part in zip(COLUMNS, np.split(raw, rows * ends[:-1]), strict=True):
        if column in NUMERIC:
            values = np.ascontiguousarray(part.reshape(4, rows).T).view("<u4")
            table[column] = values.reshape(rows).astype(np.int64)
        else:
            table[column] = np.array(VOCABULARY[column])[part]
    return table

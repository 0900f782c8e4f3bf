"""UCI Adult: does a person of the 1994 US census earn more than 50,000 dollars a year?"""

import hashlib
import json
from importlib import resources

import numpy as np

from dpjax.core import check_choice
from dpjax.datasets import _dataset
from dpjax.datasets._adult_schema import REGION_OF, REGIONS, VOCABULARY, unpack
from dpjax.datasets._dataset import Bins, Block, Dataset, OneHot
from dpjax.queries import Domain

# The encoder of `adult().x`: public bins and vocabularies, chosen from what the columns mean.
# Ages in steps of five years; hours around the full-time week; round amounts of dollars.
_CATEGORIES = ("workclass", "education", "marital-status", "occupation", "relationship", "race")
_BLOCKS: tuple[Block, ...] = (
    Bins("age", (0, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70)),
    *(OneHot(column, VOCABULARY[column]) for column in _CATEGORIES),
    Bins("capital-gain", (0, 1, 3000, 5000, 7000, 10000, 20000)),
    Bins("capital-loss", (0, 1, 1500, 1800, 2000, 2200)),
    Bins("hours-per-week", (0, 20, 30, 35, 40, 41, 45, 50, 55, 60)),
    OneHot("native-country", REGIONS, groups=REGION_OF),
)

_NOTE = (
    "Every row of x is computed from its own record with public bins and vocabularies; a category "
    "outside the vocabulary gives an all-zero block. Sex is the group and not a feature, but "
    "'relationship' holds Husband and Wife, which all but reveal it: leaving sex out of x does "
    "not make a model fair. The survey weight fnlwgt is in adult_table() only."
)
_LAST_DECADE = 90
_AGES = (*(f"{low}-{low + 9}" for low in range(0, _LAST_DECADE, 10)), f"{_LAST_DECADE}+")

# Attributes of the domain, and the columns of `adult_table()` that they come from.
_SAME = ("education", "marital-status", "occupation", "race", "sex")
_COLUMNS = dict(zip(_SAME, _SAME, strict=True)) | {"income>50K": ">50K"}


def adult_table() -> dict[str, np.ndarray]:
    """The raw UCI Adult table, all 48,842 records and 15 columns, nothing dropped.

    The 32,561 records of UCI's training file come first, then the 16,281 of its test file. A
    missing value is the category `?`. The file is part of the package and its SHA-256 is checked
    on every load.

    Returns:
        Columns by name, *secret* all: `age`, `fnlwgt`, `education-num`, `capital-gain`,
        `capital-loss` and `hours-per-week` as int64 `[48842]`; the others, among them `sex`
        (Female, Male) and the label `>50K` (No, Yes), as str `[48842]`.

    Raises:
        ValueError: the embedded file does not match its recorded checksum.

    Example:
        >>> from dpjax.datasets import adult_table
        >>> table = adult_table()
        >>> len(table), table["workclass"][:2].tolist()
        (15, ['State-gov', 'Self-emp-not-inc'])

    Source: B. Becker and R. Kohavi, Adult, UCI Machine Learning Repository, 1996,
    https://doi.org/10.24432/C5XW20. Licence: CC BY 4.0.
    """
    folder = resources.files("dpjax.datasets") / "data"
    record = json.loads((folder / "adult.json").read_text(encoding="utf-8"))
    return _verified_table((folder / "adult.xz").read_bytes(), record["sha256"], record["rows"])


def adult(group: str = "sex") -> Dataset:
    """UCI Adult, encoded for a linear model with public constants only.

    Features are one-hot categories and one-hot bins, `x` in {0, 1}, one 1 a block, so that every
    row has l2 norm at most `norm_bound = sqrt(number of blocks)`. All 48,842 records are kept;
    `?` is a category. Sex is the group (0 female, 1 male) and not among the features, though
    `relationship`, which holds Husband and Wife, nearly tells it.

    **Privacy.** No statistic of the data enters the encoding: `feature_names`, `norm_bound` and
    the encoder itself are *public*, and a record's row is a function of that record alone. `x`,
    `y` and `group` are *secret*.

    Args:
        group: what the group of a record is: `"sex"`, `"race"` (which the features hold as well) or
            `"sex_race"`, all ten pairs, of which the smallest has 155 records.

    Returns:
        Dataset with `x [48842, p]` float32, `y [48842]` int32 (1: income above 50,000 dollars,
        23.93 %) and `group [48842]` int32.

    Raises:
        ValueError: the embedded file does not match its recorded checksum, or `group` is unknown.

    Example:
        >>> import dpjax
        >>> d = dpjax.datasets.adult()
        >>> len(d), int(d.y.sum()), d.group_names
        (48842, 11687, ('female', 'male'))

    Source: B. Becker and R. Kohavi, Adult, UCI Machine Learning Repository, 1996,
    https://doi.org/10.24432/C5XW20. Licence: CC BY 4.0.
    """
    check_choice("group", group, ("sex", "race", "sex_race"))
    table = adult_table()
    groups, group_names = _groups(table, group)
    return Dataset(
        x=_dataset.encode(table, _BLOCKS),
        y=(table[">50K"] == "Yes").astype(np.int32),
        group=groups,
        feature_names=_dataset.feature_names(_BLOCKS),
        label_names=("<=50K", ">50K"),
        group_names=group_names,
        norm_bound=_dataset.norm_bound(_BLOCKS),
        name="adult",
        source="https://doi.org/10.24432/C5XW20",
        licence="CC BY 4.0",
        note=_NOTE,
    )


def _groups(table: _dataset.Table, group: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Group of each record, and the names of the groups."""
    races = VOCABULARY["race"]
    sex = (table["sex"] == "Male").astype(np.int32)
    race = np.argmax(np.asarray(table["race"])[:, None] == np.array(races)[None, :], axis=1)
    if group == "sex":
        return sex, ("female", "male")
    if group == "race":
        return race.astype(np.int32), races
    names = tuple(f"{s}, {r}" for s in ("female", "male") for r in races)
    return (len(races) * sex + race).astype(np.int32), names


def _verified_table(blob: bytes, sha256: str, rows: int) -> dict[str, np.ndarray]:
    """Unpacks the embedded file, or raises ValueError where its digest is another."""
    digest = hashlib.sha256(blob).hexdigest()
    if digest != sha256:
        raise ValueError(f"adult.xz must have sha256 {sha256}, got {digest}: reinstall dpjax")
    return unpack(blob, rows)


def adult_reduced() -> tuple[np.ndarray, Domain]:
    """UCI Adult, coded as the seven attributes that query release is usually measured on.

    Education 16, marital status 7, occupation 15, race 5, sex 2, income above 50,000 dollars 2 and
    age 10: a universe of 336,000 cells, 9,309 of which are not empty. Codes stand for the sorted
    names of the categories, with `?`, a missing value, as one of them; ages are in tens of years,
    the last open.

    **Privacy.** The vocabularies are UCI's documented ones and the domain is *public*; a record's
    codes are a function of that record alone. The codes are *secret*.

    Returns:
        Codes `[48842, 7]` int32, in the order of `adult_table()`, and the `Domain`, with labels.

    Raises:
        ValueError: the embedded file does not match its recorded checksum.

    Example:
        >>> import dpjax
        >>> codes, domain = dpjax.datasets.adult_reduced()
        >>> codes.shape, domain.universe_size
        ((48842, 7), 336000)
        >>> {name: str(values[0]) for name, values in domain.decode(codes[:1]).items()}["age"]
        '30-39'

    Source: B. Becker and R. Kohavi, Adult, UCI Machine Learning Repository, 1996,
    https://doi.org/10.24432/C5XW20. Licence: CC BY 4.0.
    """
    table = adult_table()
    labels = {name: sorted(VOCABULARY[column]) for name, column in _COLUMNS.items()}
    domain = Domain(labels | {"age": _AGES})
    columns = {name: table[column] for name, column in _COLUMNS.items()}
    columns["age"] = np.minimum(table["age"], _LAST_DECADE) // 10
    return domain.encode(columns), domain

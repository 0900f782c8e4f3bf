"""Heart disease health indicators (BRFSS 2015): has a person had heart disease or an attack?"""

import os
from pathlib import Path

import numpy as np

from benchmarks.datasets._download import locate
from benchmarks.datasets._read import check_codes, read_columns
from dpjax.datasets import Dataset
from dpjax.datasets._dataset import Bins, Block, OneHot, Table, encode, feature_names, norm_bound

_PAGE = "https://www.kaggle.com/datasets/alexteboul/heart-disease-health-indicators-dataset"
_FILE = "heart_disease_health_indicators_BRFSS2015.csv"
_LABEL = "HeartDiseaseorAttack"
_BINARY = (
    "HighBP",
    "HighChol",
    "CholCheck",
    "Smoker",
    "Stroke",
    "PhysActivity",
    "Fruits",
    "Veggies",
    "HvyAlcoholConsump",
    "AnyHealthcare",
    "NoDocbcCost",
    "DiffWalk",
)

# Public codes of the BRFSS questionnaire; body mass index by the classes of the WHO; days a month.
_BLOCKS: tuple[Block, ...] = (
    *(OneHot(column, (0, 1)) for column in _BINARY),
    Bins("BMI", (0, 18.5, 25, 30, 35, 40)),
    OneHot("Diabetes", (0, 1, 2)),
    OneHot("GenHlth", (1, 2, 3, 4, 5)),
    Bins("MentHlth", (0, 1, 7, 14, 30)),
    Bins("PhysHlth", (0, 1, 7, 14, 30)),
    OneHot("Age", tuple(range(1, 14))),
    OneHot("Education", tuple(range(1, 7))),
    OneHot("Income", tuple(range(1, 9))),
)


def heart_indicators(
    path: str | os.PathLike[str] | None = None, *, sha256: str | None = None
) -> Dataset:
    """Heart disease health indicators of the US survey BRFSS 2015, with public constants only.

    Twenty indicators, one-hot by the survey's codes or by public bins. Sex is the group and not
    among the features.

    **Privacy.** No statistic of the data enters the encoding. `feature_names` and `norm_bound`
    are *public*; `x`, `y` and `group` are *secret*.

    Args:
        path: the local file `heart_disease_health_indicators_BRFSS2015.csv` from Kaggle; plain,
            `.gz` or `.zip`. Required: Kaggle gives it out only after signing in.
        sha256: the expected digest of that file, checked if given.

    Returns:
        Dataset with `x [253680, p]` float32, `y [253680]` int32 (1: coronary heart disease or
        myocardial infarction) and `group [253680]` int32 (0 female, 1 male).

    Raises:
        FileNotFoundError: no `path`, or not a file; the message says where to get it.
        ValueError: a wrong digest, a missing column, or a code of sex or label not documented.

    Example:
        >>> from benchmarks.datasets import heart_indicators
        >>> d = heart_indicators(
        ...     "heart_disease_health_indicators_BRFSS2015.csv"
        ... )  # doctest: +SKIP
        >>> len(d)  # doctest: +SKIP
        253680

    Source: A. Teboul, Heart Disease Health Indicators Dataset, Kaggle, from the Behavioral Risk
    Factor Surveillance System 2015 of the CDC, a work of the US government (public domain); see
    Kaggle's page for the terms of the derived file.
    """
    if path is None:
        raise FileNotFoundError(
            f"heart_indicators needs path=: sign in at {_PAGE}, download {_FILE} and pass "
            f"path={_FILE!r} (it cannot be downloaded without an account)"
        )
    file = locate(Path(path), _PAGE, _FILE, sha256)
    columns = (*dict.fromkeys(block.column for block in _BLOCKS), "Sex", _LABEL)
    table = read_columns(file, columns)
    check_codes("Sex", table["Sex"], (0, 1))
    check_codes(_LABEL, table[_LABEL], (0, 1))
    x, names = _features(table)
    return Dataset(
        x=x,
        y=table[_LABEL].astype(np.int32),
        group=table["Sex"].astype(np.int32),
        feature_names=names,
        label_names=("none", "heart disease or attack"),
        group_names=("female", "male"),
        norm_bound=norm_bound(_BLOCKS),
        name="heart_indicators",
        source=_PAGE,
        licence="BRFSS: public domain (US government); derived file: see Kaggle's page",
        note="Every row of x is computed from its own record with public codes and bins.",
    )


def _features(table: Table) -> tuple[np.ndarray, tuple[str, ...]]:
    """Encodes columns under their official names as `x [n, p]` float32, with feature names."""
    return encode(table, _BLOCKS), feature_names(_BLOCKS)

"""American Community Survey, the employment task of folktables: has a person got a job?"""

import os

import numpy as np

from benchmarks.datasets._download import locate
from benchmarks.datasets._read import check_codes, read_columns
from dpjax.core._checks import check_choice, check_int
from dpjax.datasets import Dataset
from dpjax.datasets._dataset import Bins, Block, OneHot, Table, encode, feature_names, norm_bound

_BASE = "https://www2.census.gov/programs-surveys/acs/data/pums"
_TASKS = ("ACSEmployment", "ACSEmploymentFiltered")
_STATE_CODES = (
    "AL AK AZ AR CA CO CT DE FL GA HI ID IL IN IA KS KY LA ME MD MA MI MN MS MO MT NE NV NH NJ NM "
    "NY NC ND OH OK OR PA RI SC SD TN TX UT VT VA WA WV WI WY PR"
)
_STATES = tuple(_STATE_CODES.split())
_RACES = (
    "White alone",
    "Black or African American alone",
    "American Indian alone",
    "Alaska Native alone",
    "American Indian and Alaska Native, tribes specified or not",
    "Asian alone",
    "Native Hawaiian and Other Pacific Islander alone",
    "Some Other Race alone",
    "Two or More Races",
)

# Public codes of the survey's data dictionary; a blank (not asked, by age) gives a zero block.
_BLOCKS: tuple[Block, ...] = (
    Bins("AGEP", (0, 16, 18, 20, 22, 25, 30, 35, 40, 45, 50, 55, 60, 62, 65, 70, 75, 80)),
    OneHot("SCHL", tuple(range(1, 25))),
    OneHot("MAR", tuple(range(1, 6))),
    OneHot("RELP", tuple(range(18))),
    OneHot("DIS", (1, 2)),
    OneHot("ESP", tuple(range(1, 9))),
    OneHot("CIT", tuple(range(1, 6))),
    OneHot("MIG", (1, 2, 3)),
    OneHot("MIL", (1, 2, 3, 4)),
    OneHot("ANC", (1, 2, 3, 4)),
    OneHot("NATIVITY", (1, 2)),
    OneHot("DEAR", (1, 2)),
    OneHot("DEYE", (1, 2)),
    OneHot("DREM", (1, 2)),
    OneHot("SEX", (1, 2)),
)


def folktables(
    state: str = "AL",
    year: int = 2018,
    horizon: str = "1-Year",
    survey: str = "person",
    task: str = "ACSEmployment",
    path: str | os.PathLike[str] | None = None,
    *,
    sha256: str | None = None,
) -> Dataset:
    """The employment task of folktables on one state's American Community Survey file.

    Features are the task's columns but for race, one-hot by the survey's codes or public bins of
    age; race, nine codes, is the group. Sex stays a feature, as in the task.

    **Privacy.** No statistic of the data enters the encoding, and the filter of
    "ACSEmploymentFiltered" keeps or drops each record by itself, so neighbouring surveys stay
    neighbours. How many records are kept is then *secret* though, even under replace-one.

    Args:
        state: *public*. Two-letter code of a state, or PR.
        year: *public*. 2014 to 2018; from 2019 on the survey has no column RELP.
        horizon: *public*. "1-Year" or "5-Year".
        survey: *public*. "person", the only one with this task.
        task: *public*. "ACSEmployment": every record, as the package folktables does;
            "ACSEmploymentFiltered": with the conditions of the article, 16 < AGEP < 90 and
            PWGTP >= 1.
        path: a local file: the Census Bureau's zip or the CSV in it; plain, `.gz` or `.zip`. None
            downloads the zip into the cache. `state`, `year` and `horizon` then only name it.
        sha256: the expected digest of that file, checked if given. The digest of a download is
            trusted on first use and verified from then on.

    Returns:
        Dataset with `x [n, p]` float32, `y [n]` int32 (1: employed, at work, ESR = 1) and
        `group [n]` int32 (RAC1P - 1, in 0 .. 8).

    Raises:
        ConnectionError: no download; the message says how to get the file by hand.
        ValueError: an argument is not one of those above, a wrong digest, a missing column, or a
            race code not documented.
        TypeError: `year` is not an integer.

    Example:
        >>> from benchmarks.datasets import folktables
        >>> d = folktables(path="csv_pal.zip")  # doctest: +SKIP
        >>> len(d.group_names)  # doctest: +SKIP
        9

    Source: US Census Bureau, ACS Public Use Microdata Sample (public domain); task: F. Ding,
    M. Hardt, J. Miller, L. Schmidt, Retiring Adult, NeurIPS 2021, appendix B.
    """
    check_choice("state", state, _STATES)
    check_int("year", year, minimum=2014)
    check_choice("year", year, range(2014, 2019))
    check_choice("horizon", horizon, ("1-Year", "5-Year"))
    check_choice("survey", survey, ("person",))
    check_choice("task", task, _TASKS)
    url = f"{_BASE}/{year}/{horizon}/csv_p{state.lower()}.zip"
    file = locate(path, url, f"acs_{year}_{horizon}_csv_p{state.lower()}.zip", sha256)
    columns = (*(block.column for block in _BLOCKS), "RAC1P", "ESR", "PWGTP")
    table = read_columns(file, columns)
    if task == "ACSEmploymentFiltered":
        keep = (table["AGEP"] > 16) & (table["AGEP"] < 90) & (table["PWGTP"] >= 1)
        table = {column: values[keep] for column, values in table.items()}
    check_codes("RAC1P", table["RAC1P"], tuple(range(1, 10)))
    x, names = _features(table)
    return Dataset(
        x=x,
        y=(table["ESR"] == 1).astype(np.int32),
        group=(table["RAC1P"] - 1).astype(np.int32),
        feature_names=names,
        label_names=("not employed", "employed"),
        group_names=_RACES,
        norm_bound=norm_bound(_BLOCKS),
        name=f"folktables-{task}-{state}-{year}-{horizon}",
        source=url,
        licence="public domain (US government)",
        note=(
            "Every row of x is computed from its own record with public codes and bins; the "
            "number of records that a filter keeps is secret."
        ),
    )


def _features(table: Table) -> tuple[np.ndarray, tuple[str, ...]]:
    """Encodes columns under their official names as `x [n, p]` float32, with feature names."""
    return encode(table, _BLOCKS), feature_names(_BLOCKS)

"""UCI Adult as seven categorical attributes, for query release."""

import numpy as np

from dpjax.datasets._adult import adult_table
from dpjax.datasets._adult_schema import VOCABULARY
from dpjax.queries import Domain

_LAST_DECADE = 90
_AGES = (*(f"{low}-{low + 9}" for low in range(0, _LAST_DECADE, 10)), f"{_LAST_DECADE}+")

# Attributes of the domain, and the columns of `adult_table()` that they come from.
_COLUMNS = {
    "education": "education",
    "marital-status": "marital-status",
    "occupation": "occupation",
    "race": "race",
    "sex": "sex",
    "income>50K": ">50K",
}


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
    domain = Domain(
        {name: sorted(VOCABULARY[column]) for name, column in _COLUMNS.items()} | {"age": _AGES}
    )
    columns = {name: table[column] for name, column in _COLUMNS.items()}
    columns["age"] = np.minimum(table["age"], _LAST_DECADE) // 10
    return domain.encode(columns), domain

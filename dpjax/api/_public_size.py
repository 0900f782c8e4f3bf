"""The number of records that bounds and noise are made for, and the delta that goes with it."""

from dpjax.core import check_int


def public_size(
    given: int | None, relation: str, rows: int, *, bounds: bool = True, name: str = "num_records"
) -> int:
    """The given *public* number, or that of rows under replace-one, where it is public.

    Raises:
      ValueError: If it is required, below 1, or `bounds` and there are more rows.
      TypeError: If it is no integer.
    """
    if given is None:
        if relation != "replace_one":
            what = "bound on it" if bounds else "number near it"
            raise ValueError(
                f"{name} is required under {relation}, where the number of records is secret: "
                f"pass a public {what}"
            )
        return rows
    check_int(name, given, minimum=1)
    if bounds and rows > given:
        raise ValueError(f"num_records must bound the records, got {given}, and more records")
    return int(given)


def default_delta(num_records: int) -> float:
    """$n^{-3/2}$ of the public size, and at most 1e-5."""
    return min(1e-5, float(num_records) ** -1.5)

"""The number of records that bounds and noise are made for."""

from dpjax.core import check_int


def public_size(num_records: int | None, relation: str, rows: int, *, bounds: bool = True) -> int:
    """The given *public* number, or that of rows under replace-one, where it is public.

    Raises:
      ValueError: If it is required, below 1, or `bounds` and there are more rows.
      TypeError: If it is no integer.
    """
    if num_records is None:
        if relation != "replace_one":
            what = "bound on it" if bounds else "number near it"
            raise ValueError(
                f"num_records is required under {relation}, where the number of records is secret: "
                f"pass a public {what}"
            )
        return rows
    check_int("num_records", num_records, minimum=1)
    if bounds and rows > num_records:
        raise ValueError(f"num_records must bound the records, got {num_records}, and more records")
    return int(num_records)

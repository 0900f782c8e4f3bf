"""The spellings of 0.1 for settings that are in `dpjax.papers` now."""

from typing import Any

from dpjax.core import check_choice
from dpjax.privacy import Budget
from dpjax.solvers._published import moved_setting


def paper_settings(
    problem: Any,
    num_records: int,
    budget: Budget,
    radius: float,
    oracle: str,
    passes: str,
    *,
    plan: str = "bound",
    as_published: bool = False,
    **overrides: Any,
) -> Any:
    """The solver of `for_budget(..., as_published=True)` or of a `plan`, with a warning."""
    check_choice("plan", plan, ("practical", "bound"))
    name, spelling = "by_bound", f"plan={plan!r}"
    asked: dict[str, Any] = {"radius": radius, "oracle": oracle}
    if as_published:
        if passes != "single":
            raise ValueError(
                f"passes must be 'single' with as_published, got {passes!r}: its noise and period "
                "are not stated in print"
            )
        name, spelling = "as_published", "as_published=True"
    else:
        asked["passes"] = passes
        name = "OnlineToNonconvex.for_budget" if plan == "practical" else name
    make = moved_setting("nonsmooth_nonconvex", name, spelling, depth=5)
    return make(problem, num_records, budget, **asked, **overrides)

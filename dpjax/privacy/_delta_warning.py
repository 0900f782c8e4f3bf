"""The warning about a delta with which a guarantee says little or nothing."""

import os
import sys
import warnings

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class DeltaWarning(UserWarning):
    """A delta that is large for the number of records, or too small for a failure probability.

    Guarantee: what was promised holds at the delta asked for; the warning says why it is worth
    little there.
    """


def warn_of_delta(message: str) -> None:
    """Warns by a `DeltaWarning`."""
    warn_outside(message, DeltaWarning)


def warn_outside(message: str, category: type[Warning]) -> None:
    """Warns at the line outside of this package that led here: once a line, as Python does."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)

"""Warnings about guarantees that say little and about noise that leaves nothing to learn."""

import functools
import os
import sys
import warnings

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class DeltaWarning(UserWarning):
    """A delta that is large for the number of records, or too small for a failure probability.

    Guarantee: what was promised holds at the delta asked for; the warning says why it is worth
    little there.
    """


class NoiseWarning(UserWarning):
    """Noise that swamps any signal: a run would spend its budget and learn nothing.

    Guarantee: follows from public numbers alone; the guarantee of the run holds as ever.
    """


class ResolutionWarning(NoiseWarning):
    """Noise that hides whether a constraint holds.

    Guarantee: follows from public numbers alone; the guarantee of the run holds as ever.
    """


class MultiplierWarning(UserWarning):
    """Constraints that a run did not enforce: multipliers at their bound, or rates that swing.

    Guarantee: follows from released values alone; the guarantee of the run holds as ever.
    """


class PrivacyWarning(UserWarning):
    """Something that the guarantee takes to be public was read from the data.

    Guarantee: holds where that is public; no more is promised.
    """


def warn(message: str, category: type[Warning] = DeltaWarning) -> None:
    """Warns at the line outside of this package that led here: once a line, as Python does."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


warn_of_noise = functools.partial(warn, category=NoiseWarning)

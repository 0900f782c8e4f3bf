"""The warning about noise that leaves nothing to learn."""

from dpjax.privacy._delta_warning import warn_outside


class NoiseWarning(UserWarning):
    """Noise that swamps any signal: a run would spend its budget and learn nothing.

    Guarantee: follows from public numbers alone; the guarantee of the run holds as ever.
    """


def warn_of_noise(message: str) -> None:
    """Warns by a `NoiseWarning`."""
    warn_outside(message, NoiseWarning)

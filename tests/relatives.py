"""Registered solvers whose program is that of another but for a noise, a relation or an average.

Conformance takes every entry of the registry. Tests of what lies around solvers, such as devices,
checkpoints and generators, leave these out.
"""

from dpjax.testing import entries

RELATIVES = {
    "OnlineToNonconvex(zeroth, periods)",
    "OnlineToNonconvex(add or remove)",
    "OnlineToBatch(buffered)",
    "OnlineToBatch(add or remove)",
    "FrankWolfeRelease(as published)",
    "FrankWolfeRelease(alpha, last)",
    "FrankWolfeRelease(marginals, average, add or remove)",
    "MirrorDescentRelease(histogram-once)",
    "HistogramRelease(add or remove, no projection)",
    "GaussianFit(a noise for each marginal, add or remove)",
    "DPSGD(Risk, full batch, uniform average)",
    "RateConstrainedSGDA(ema)",
    "RateConstrainedSGDA(J = 0)",
    "SaddleMirrorDescent(add or remove)",
    "AnytimeMirrorDescent(q = 1)",
}
_NAMES = [entry.name for entry in entries("solver")]
if unknown := RELATIVES - {*_NAMES}:
    raise ValueError(f"not registered: {sorted(unknown)}")
PROGRAMS = tuple(name for name in _NAMES if name not in RELATIVES)


def one_of_each() -> list[str]:
    """The first entry of each class of solvers."""
    return list({name.split("(")[0]: name for name in reversed(_NAMES)}.values())[::-1]

"""What each solver costs: formulas, from which page, predicted slopes and extrapolation come.

A formula is a Python expression in the sizes below. Bytes are those of float32 data, in passes as
the compiled CPU program makes them: an accelerator that fuses more moves fewer.
"""

import math
from typing import Any, NamedTuple

SYMBOLS = {
    "n": "records",
    "m": "expected records a batch",
    "B": "slots of a batch: `PoissonSampler.capacity`, about m + 7 sqrt(m); n for full batches",
    "p": "features, or coordinates of a vertex",
    "c": "classes",
    "d": "parameters; (p + 1) c for linear logits, else p",
    "T": "steps",
    "q": "vertices drawn a step, or random directions",
    "Q": "parts of the records",
    "S": "subsets that constraints speak of",
    "J": "constraints",
    "M": "largest level; `MultilevelSaddle` then draws q = 2^(M + 1) + 1 vertices an estimate",
    "b": "buffers of correlated noise: 1 to 4 up to a million steps",
    "k": "cells of the universe",
    "j": "queries",
    "u": "universes of numbers that one product with the workload and one with its transpose read "
    "and write: 2 j for a dense one, about 8 for all pairs of attributes",
    "a": "attributes of the table",
    "E": "evaluations of a fit",
    "r": "replays of a step",
}


class Cost(NamedTuple):
    """Formulas of a solver.

    Attributes:
      flops: additions and multiplications of a step.
      specials: exponentials, logarithms, divisions and roots of a step.
      bytes: moved between memory and processor in a step.
      noise: normal or Gumbel numbers drawn in a step.
      words: further random words of a step.
      once: bytes moved once a run, before and after the steps.
      sorted: numbers sorted once a run.
      placed: numbers added one by one to cells, once a run.
      steps: of a run.
      memory: bytes that lie in memory, at most.
      records: bytes a device sends in a step where records are spread over D devices.
      split: what else can be spread, and what a device then sends in a step.
    """

    flops: str
    specials: str
    bytes: str
    noise: str
    words: str = "0"
    once: str = "0"
    sorted: str = "0"
    placed: str = "0"
    steps: str = "T"
    memory: str = "0"
    records: str = "0"
    split: tuple[str, str] = ("", "0")


_PARAMETERS = "parameters"
_UNIVERSE = "cells of the universe"

COSTS: dict[str, Cost] = {
    "DPSGD": Cost(
        flops="4*B*p*c + 2*B*p + 10*d",
        specials="B*c + 2*d",
        bytes="(100 if p < 2**8 or B < 2**8 and p < 2**14 else 40)*B*p + 60*B*c + 100*d",
        noise="d",
        words="6*B",
        memory="4*n*p + 8*B*p + 12*B*c + 24*d",
        records="8*d",
        split=(_PARAMETERS, "8*B*c + 8*B"),
    ),
    "RateConstrainedSGDA": Cost(
        flops="4*B*p*c + 2*B*p + 10*d + 4*B*Q*c + 6*J*S*c + 4*S*Q*c",
        specials="2*B*c + 2*d",
        bytes="(100 if p < 2**8 or B < 2**8 and p < 2**14 else 40)*B*p + 100*d + 12*B*Q + 80*B*c "
        "+ 8*J*S*c",
        noise="d + Q*c",
        words="6*B",
        memory="4*n*p + 8*B*p + 12*B*c + 24*d + 8*B*Q + 4*J*S*c",
        records="8*d + 8*Q*c",
        split=(_PARAMETERS, "8*B*c + 8*B"),
    ),
    "DPFTRL": Cost(
        flops="4*B*p*c + 2*B*p + (10 + 4*b)*d",
        specials="B*c + 2*d",
        bytes="(100 if p < 2**8 or B < 2**8 and p < 2**14 else 40)*B*p + 60*B*c + (100 + 40*b)*d",
        noise="d",
        sorted="n",
        memory="4*n*p + 8*B*p + 12*B*c + (24 + 4*b)*d + 8*n",
        records="8*d",
        split=(_PARAMETERS, "8*B*c + 8*B"),
    ),
    "OnlineToBatch": Cost(
        flops="14*B*p + 40*d",
        specials="3*B + 2*d",
        bytes="(40 if p < 2**14 else 20)*B*p + 100*d",
        noise="d",
        memory="(12 if p < 2**14 else 4)*n*p + 40*d + 40*B",
        records="8*d",
        split=(_PARAMETERS, "24*B"),
    ),
    "OnlineToNonconvex": Cost(
        flops="(2*q + 6)*B*p + 8*q*d + 20*d",
        specials="3*B*q + (2 + q)*d",
        bytes="((38 if p < 2**14 else 16) + 4*q)*B*p + 16*q*d + 100*d",
        noise="d",
        words="6*B + q*d/2",
        memory="4*n*p + 8*B*p + (40 + 8*q)*d",
        records="8*d",
        split=(_PARAMETERS, "8*B*q + 8*B"),
    ),
    "SaddleMirrorDescent": Cost(
        flops="5*B*p + 2*B*q + 20*p",
        specials="2*p + 8*q*log2(p)",
        bytes="32*B*p + 60*p + 4*B*q",
        noise="q*(6.4*log2(p) + 32)",
        sorted="n",
        memory="4*n*p + 8*B*p + 24*p + 8*n + 24*B*q + 530*q*log2(p)",
        records="8*p",
        split=("coordinates", "8*B + 34*q*log2(p)"),
    ),
    "AnytimeMirrorDescent": Cost(
        flops="5*B*p + 2*B*q + 120*p",
        specials="10*p + 8*q*log2(p)",
        bytes="32*B*p + 156*p + 4*B*q",
        noise="q*(6.4*log2(p) + 32)",
        sorted="n",
        memory="4*n*p + 8*B*p + 56*p + 8*n + 24*B*q + 530*q*log2(p)",
        records="8*p",
        split=("coordinates", "8*B + 34*q*log2(p)"),
    ),
    "MultilevelSaddle": Cost(
        flops="16*B*p + 30*p",
        specials="2*p",
        bytes="100*B*p + 240*p",
        noise="q*(6.4*log2(p) + 32)*2/T",
        steps="T",
        sorted="n",
        memory="4*n*p + 8*B*p + 48*p + 8*n",
        records="24*p",
        split=("coordinates", "24*B"),
    ),
    "FrankWolfe": Cost(
        flops="4*n*p + 20*p",
        specials="n + 2*p",
        bytes="12*n*p + 60*p",
        noise="6.4*log2(p)",
        memory="4*n*p + 16*p",
        records="8*p",
        split=("coordinates", "8*n"),
    ),
    "FrankWolfeRelease": Cost(
        flops="2*u*k + 8*k + 10*j",
        specials="2*k + 4*j",
        bytes="4*u*k + 28*k + 60*j",
        noise="6.4*log2(j)",
        once="4*u*k + 12*k + 24*a*n",
        placed="n",
        memory="4*a*n + 12*k + 40*j + (4*j*k if u == 2*j else 0)",
        split=(_UNIVERSE, "8*j"),
    ),
    "MirrorDescentRelease": Cost(
        flops="2*u*k + 8*k + 10*j",
        specials="2*k + 4*j",
        bytes="4*u*k + 28*k + 60*j",
        noise="6.4*log2(j)",
        once="4*u*k + 12*k + 24*a*n",
        placed="n",
        memory="4*a*n + 12*k + 40*j + (4*j*k if u == 2*j else 0)",
        split=(_UNIVERSE, "8*j"),
    ),
    "SaddleRelease": Cost(
        flops="2*u*k + 8*k + 10*j",
        specials="2*k + 4*j",
        bytes="4*u*k + 28*k + 60*j",
        noise="6.4*log2(j)",
        once="4*u*k + 12*k + 24*a*n",
        placed="n",
        memory="4*a*n + 12*k + 40*j + (4*j*k if u == 2*j else 0)",
        split=(_UNIVERSE, "8*j"),
    ),
    "MWEM": Cost(
        flops="(r + 1.5)*(2*u*k + 6*k) + 10*j",
        specials="(r + 2)*2*k + 4*j",
        bytes="(r + 1.5)*(4*u*k + 20*k) + 60*j",
        noise="6.4*log2(j) + 1",
        once="4*u*k + 12*k + 24*a*n",
        placed="n",
        memory="4*a*n + 12*k + 40*j + (4*j*k if u == 2*j else 0)",
        split=(_UNIVERSE, "8*j*(r + 1)"),
    ),
    "GaussianFit": Cost(
        flops="2*(2*u*k + 6*k) + 160*j",
        specials="2*k + 10*j",
        bytes="2*(4*u*k + 20*k) + 340*j",
        noise="0",
        once="4*u*k + 12*k + 24*a*n",
        placed="n",
        steps="E",
        memory="4*a*n + 20*k + 200*j + (4*j*k if u == 2*j else 0)",
        split=(_UNIVERSE, "16*j"),
    ),
    "HistogramRelease": Cost(
        flops="12*k",
        specials="2*k",
        bytes="60*k",
        noise="k",
        once="2*u*k + 24*a*n",
        sorted="k",
        placed="n",
        memory="4*a*n + 24*n + 24*k",
        split=(_UNIVERSE, "8*log2(k)"),
    ),
}


class Machine(NamedTuple):
    """What a machine does in a second.

    `fresh` are bytes of new memory, which a system hands out page by page; `step` and `run` are the
    seconds of a step that does nothing and of a run without steps.
    """

    flops: float
    specials: float
    bytes: float
    noise: float
    words: float
    sorted: float
    placed: float
    step: float
    run: float
    fresh: float = math.inf
    memory: float = math.inf
    link: float = math.inf


RATES = ("flops", "specials", "bytes", "noise", "words")


def value(formula: str, sizes: dict[str, Any]) -> float:
    """A formula at given sizes."""
    return float(eval(formula, {"__builtins__": {}, "log2": math.log2}, dict(sizes)))


def seconds(name: str, sizes: dict[str, Any], machine: Machine, runs: int = 1) -> float:
    """Of so many runs at once: the sum of what each part would take by itself."""
    cost = COSTS[name]
    step = sum(value(getattr(cost, part), sizes) / getattr(machine, part) for part in RATES)
    once = sum(value(getattr(cost, part), sizes) / rate for part, rate in _once(machine).items())
    data = memory(name, sizes, runs=0)
    once += (memory(name, sizes) - data) / machine.fresh
    steps = value(cost.steps, sizes)
    return machine.run + steps * machine.step + runs * (steps * step + once)


def _once(machine: Machine) -> dict[str, float]:
    return {"once": machine.bytes, "sorted": machine.sorted, "placed": machine.placed}


def memory(name: str, sizes: dict[str, Any], runs: int = 1) -> float:
    """Bytes of so many runs on the same data."""
    data = value(_DATA.get(name, "4*n*p"), sizes)
    return data + runs * (value(COSTS[name].memory, sizes) - data)


_DATA = dict.fromkeys(
    (
        "FrankWolfeRelease",
        "MirrorDescentRelease",
        "SaddleRelease",
        "MWEM",
        "GaussianFit",
        "HistogramRelease",
    ),
    "4*a*n",
)

"""Participation: in which steps one record may take part."""

import dataclasses
import math

import jax
from dp_accounting import dp_event as dpe

from dpjax.core._checks import check_choice, check_int, check_rate
from dpjax.core._types import Sampler

_KINDS = ("fixed", "min_separation", "cyclic")


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Participation:
    r"""The steps in which one record may take part: `most` of them, `separation` apart.

    $$ \text{fixed: } \{j, j + b, j + 2b, \dots\}, \; j < b; \qquad
       \text{min\_separation: any } k \text{ steps with gaps} \ge b $$

    `"cyclic"` is `"fixed"` with each of the steps kept with probability `rate`, independently of
    everything else. A record in one step at most has k = 1 and b the number of steps; one that is
    in every step has b = 1.

    Guarantee: none of its own. A sampler claims it as `participation`, and answers for it under the
    relations that it takes; `dpjax.testing.check_sampler` compares it with batches.

    Args:
      kind: `"fixed"`, `"min_separation"` or `"cyclic"` (*public*).
      most: k, the most steps of one record, `>= 1` (*public*).
      separation: b, the least distance between two of them, `>= 1` (*public*).
      rate: Probability with which `"cyclic"` keeps each step, in (0, 1]; 1 for the others
        (*public*).

    Raises:
      TypeError: If `most` or `separation` is no integer.
      ValueError: If a value is outside its bound.

    Example:
      >>> twice = Participation("fixed", most=2, separation=5)
      >>> twice.within(Participation("min_separation", most=3, separation=4))
      True

    Source: the schemas of Choquette-Choo, McMahan, Rush and Thakurta, "Multi-epoch matrix
    factorization mechanisms for private machine learning", 2023.
    """

    kind: str
    most: int
    separation: int
    rate: float = 1.0

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, _KINDS)
        check_int("most", self.most, minimum=1)
        check_int("separation", self.separation, minimum=1)
        check_rate("rate", self.rate)
        if self.rate < 1 and self.kind != "cyclic":
            raise ValueError(f"rate must be 1 with kind={self.kind!r}, got {self.rate!r}")

    def within(self, other: "Participation") -> bool:
        """Whether these steps are among those of `other`, whose `most` cover the run if fixed."""
        if other.kind == "cyclic":
            return self == other
        if other.kind == "min_separation":
            apart = self.most == 1 or self.separation >= other.separation
            return self.most <= other.most and apart
        if self.kind == "min_separation" and self.most > 1:
            return other.separation == 1
        if self.separation == other.separation:
            return self.most <= other.most
        return self.most == 1 or self.separation % other.separation == 0

    def event(self, step: dpe.DpEvent) -> dpe.DpEvent:
        """The event of a run whose steps release `step` each, apart from one another."""
        if self.rate < 1:
            step = dpe.PoissonSampledDpEvent(float(self.rate), step)
        if self.most == 1 and self.rate == 1:
            return step
        return dpe.SelfComposedDpEvent(step, int(self.most))


def one_step(steps: int) -> Participation:
    """Of records that are in one of these steps at most."""
    return Participation("fixed", 1, steps)


def every_step(steps: int) -> Participation:
    """Of records that may be in all of these steps."""
    return Participation("fixed", steps, 1)


def cyclic(rate: float, groups: int, steps: int) -> Participation:
    """Of records that join every `groups`-th step with this probability."""
    return Participation("cyclic", math.ceil(steps / groups), groups, rate)


def participation_of(sampler: Sampler) -> Participation | None:
    """What the sampler states, or None: solvers of correlated noise then refuse it."""
    return getattr(sampler, "participation", None)

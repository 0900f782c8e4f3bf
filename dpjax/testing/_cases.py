"""Test cases that registered entries give to the conformance suite."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpjax.core import Aggregator, PyTree, Sampler, Solver


@dataclass(frozen=True)
class TransformCase:
    """A gradient transformation and updates to feed it.

    Attributes:
      build: `build(value) -> transform`, for traced values too; with `key_in_state`
        `build(value, key) -> transform`.
      updates: Float tree of at least two entries a leaf.
      values: Two values of what a user would sweep.
      params: Passed on to `update`.
      random: Whether it draws; then `update` must ask for a key.
      adds_noise: Whether it adds what it draws; then no two outputs for updates of 0 may agree, and
        `law` and `event` are required.
      law: `law(value)` is the law of a coordinate of the first output for updates of 0: a frozen
        distribution of `scipy.stats`, anything else with a `cdf`, or a distribution function.
      event: `event(value)` is the event claimed where a record changes that coordinate by
        `extra["sensitivity"]`, or by 1 without one.
      key_in_state: Whether it got its key when built and keeps it in its state (`dpjax.seeded`).
      extra: More keyword arguments of `update`.
      output: `output(updates) -> tree` of the shapes and dtypes that `update` must give; default:
        those of `updates`.
    """

    build: Callable[..., Any]
    updates: PyTree
    values: tuple[Any, Any] = (0.5, 2.0)
    params: PyTree = None
    random: bool = True
    adds_noise: bool = True
    law: Callable[[float], Any] | None = None
    event: Callable[[float], Any] | None = None
    key_in_state: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)
    output: Callable[[PyTree], PyTree] | None = None


@dataclass(frozen=True)
class AggregatorCase:
    """An aggregator and per-example values to feed it.

    Attributes:
      build: `build(value) -> aggregator`, for traced values too.
      per_example: Float tree of leaves `[B, *p]` or `OuterProduct`, with `B >= 3`.
      values: Two values of what a user would sweep.
      norm: Norm its sensitivity is stated in, or None to skip that check.
      random: Whether it draws; then `update` must ask for a key.
      shape: Shape of the sum where it is one leaf, other than that of an example.
    """

    build: Callable[..., Aggregator]
    per_example: PyTree
    values: tuple[Any, Any] = (0.5, 2.0)
    norm: str | None = "l2"
    random: bool = False
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class SamplerCase:
    """A sampler and a number of records.

    Attributes:
      sampler: Of at least two steps.
      num_records: How many records there are.
      random: Whether `plan` must ask for a key, and another key must give other batches.
      concrete_key: Whether `plan` cannot be traced.
    """

    sampler: Sampler
    num_records: int
    random: bool = True
    concrete_key: bool = False


@dataclass(frozen=True)
class Statistic:
    """What a solver releases of one batch, before noise, and how far one record may move it.

    Attributes:
      name: Shown in messages.
      of: `of(batch, mask) -> tree`.
      norm: `"l1"`, `"l2"` or `"linf"`.
      bound: Largest change allowed under add-or-remove-one.
    """

    name: str
    of: Callable[[PyTree, Any], PyTree]
    norm: str
    bound: float


@dataclass(frozen=True)
class SolverCase:
    """A solver, a problem and data.

    Attributes:
      build: `build(value) -> solver`, value being a data field such as the noise multiplier.
      problem: What it solves.
      data: Tree of leaves `[n, ...]`, `n >= 8`, floats in it where records may be NaN.
      values: Two values for `build`, both of finite epsilon.
      statistics: What is released of a batch; each is attacked by the neighbour search.
      choices: Values of the integer fields of `data` that neighbours may hold.
      concrete_key: Whether `solve` needs a concrete key.
    """

    build: Callable[..., Solver]
    problem: PyTree
    data: PyTree
    values: tuple[Any, Any] = (1.0, 2.0)
    statistics: Sequence[Statistic] = ()
    choices: Mapping[str, Sequence[int]] | None = None
    concrete_key: bool = False

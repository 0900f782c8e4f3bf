"""Cases: what is checked, with what; and the registry of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from dpjax.core import Aggregator, PyTree, Sampler, Solver, check_choice

KINDS = ("transform", "aggregator", "sampler", "solver")


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


@dataclass(frozen=True)
class Entry:
    """A registered subject.

    Attributes:
      name: Unique name, shown as the test's id.
      kind: `"transform"`, `"aggregator"`, `"sampler"` or `"solver"`.
      make: Builds the case (`TransformCase`, ...) with a tiny instance; called by each check, so
        that registering costs nothing.
      slow: Whether tests that run by default may leave it to those that take long.
      relative_of: Name of an entry of the same program but for a noise, a relation or an average;
        tests of what lies around a program run that one alone.
      facts: More that a package's own tests ask of it, by name.
    """

    name: str
    kind: str
    make: Callable[[], Any]
    slow: bool = False
    relative_of: str | None = None
    facts: Mapping[str, object] = field(
        default_factory=lambda: MappingProxyType({}), compare=False, repr=False
    )


_ENTRIES: dict[str, Entry] = {}


def register(
    name: str,
    kind: str,
    make: Callable[[], Any],
    *,
    slow: bool = False,
    relative_of: str | None = None,
    **facts: object,
) -> Entry:
    """Adds a subject to the registry; other packages register theirs with the same call.

    Args:
      name: Unique name.
      kind: `"transform"`, `"aggregator"`, `"sampler"` or `"solver"`.
      make: Takes nothing, returns the case of that kind.
      slow: Whether tests that run by default may leave it to those that take long.
      relative_of: Name of an entry, registered before, of the same program but for a noise, a
        relation or an average.
      **facts: More that your own tests ask of it.

    Returns:
      The entry.

    Raises:
      ValueError: If the kind is unknown, the name is taken, or the relative is not registered.

    Example:
      >>> import dpjax.testing as dpt, jax.numpy as jnp, optax
      >>> def make():
      ...     return dpt.TransformCase(lambda value: optax.scale(value), jnp.ones(3), random=False)
      >>> dpt.check_transform(dpt.Entry("scale", "transform", make))
    """
    check_choice("kind", kind, KINDS)
    if name in _ENTRIES:
        raise ValueError(f"name must be new, got {name!r}, which is registered")
    if relative_of is not None and relative_of not in _ENTRIES:
        raise ValueError(f"relative_of must be registered, got {relative_of!r}")
    entry = Entry(name, kind, make, slow, relative_of, MappingProxyType(facts))
    _ENTRIES[name] = entry
    return entry


def registry() -> dict[str, Entry]:
    """All entries.

    Returns:
      By name, in order of registration.
    """
    return dict(_ENTRIES)


def entries(kind: str) -> list[Entry]:
    """The entries of one kind.

    Args:
      kind: As in `register`.

    Returns:
      In order of registration.

    Raises:
      ValueError: If the kind is unknown.
    """
    check_choice("kind", kind, KINDS)
    return [entry for entry in _ENTRIES.values() if entry.kind == kind]

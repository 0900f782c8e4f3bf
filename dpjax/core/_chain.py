"""Composition of transformations with one key, and the bridge to plain optax."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax

from dpjax.core._checks import check_key
from dpjax.core._types import Aggregator, PyTree, Transform


def chain(*transforms: object) -> Any:
    r"""Runs transformations in turn, each on a key of its own.

    Stage $i$ receives $\mathrm{fold\_in}(key, i)$, so that two noise stages never share a draw,
    and one call with one key is reproducible. The first stage may be an aggregator
    (`dpjax.transforms.clip_by_norm`); then the chain takes per-example values and is an aggregator
    itself, with the sensitivity of that first stage.

    Guarantee: none of its own. What follows a noise stage is post-processing of it.

    Args:
      *transforms: Aggregator (first place only), dpjax or optax transformations.

    Returns:
      An `Aggregator` if the first stage is one, else a `GradientTransformationExtraArgs`. Its
      `update(updates, state, params=None, *, key, **extra)` passes `mask` and other extra
      arguments to every stage.

    Raises:
      TypeError: If a stage has no `init` and `update`, if an aggregator is not first, or, at
        `update`, if the key is missing.
      ValueError: At `update`, if the state is of another chain, or `key` is several or of a
        generator that repeats draws.

    Example:
      >>> import dpjax, jax, jax.numpy as jnp
      >>> private = dpjax.chain(
      ...     dpjax.transforms.clip_by_norm(1.0), dpjax.transforms.add_gaussian(0.5))
      >>> state = private.init({"w": jnp.zeros(3)})
      >>> total, state = private.update(
      ...     {"w": jnp.ones((8, 3))}, state, key=jax.random.key(0), mask=jnp.ones(8, bool))
      >>> total["w"].shape
      (3,)
    """
    stages = [as_stage(f"stage {place} of chain", each) for place, each in enumerate(transforms)]
    for position, stage in enumerate(stages):
        if position and isinstance(stage, Aggregator):
            raise TypeError(f"an aggregator must be stage 0 of a chain, got one at {position}")

    def init(params: PyTree) -> tuple[Any, ...]:
        return tuple(stage.init(params) for stage in stages)

    def update(
        updates: PyTree,
        state: tuple[Any, ...],
        params: PyTree = None,
        *,
        key: jax.Array | None = None,
        **extra: object,
    ) -> tuple[PyTree, tuple[Any, ...]]:
        key = check_key("key", key)
        if len(state) != len(stages):
            raise ValueError(f"state has {len(state)} entries, the chain has {len(stages)} stages")
        after = []
        for position, (stage, inner) in enumerate(zip(stages, state, strict=True)):
            stage_key = jax.random.fold_in(key, position)
            updates, inner = stage.update(updates, inner, params, key=stage_key, **extra)
            after.append(inner)
        return updates, tuple(after)

    if stages and isinstance(stages[0], Aggregator):
        return Aggregator(init, update, stages[0].sensitivity)
    return Transform(init, update)


def as_stage(name: str, stage: object) -> Any:
    """A transformation with extra arguments, or an aggregator as it is; else a TypeError.

    Args:
      name: As the message says it.
      stage: What was given.

    Raises:
      TypeError: If it has no `init` and `update`.
    """
    if not (hasattr(stage, "init") and hasattr(stage, "update")):
        raise TypeError(f"{name} is no transformation: {stage!r}")
    return stage if isinstance(stage, Aggregator) else optax.with_extra_args_support(stage)


def keyed(init: Callable[[PyTree], Any], step: Callable[..., tuple[PyTree, Any]]) -> Transform:
    """A transformation that needs a key, and no parameters.

    Args:
      init: `init(params) -> state`.
      step: `step(updates, state, key, **extra) -> (updates, state)`.

    Returns:
      The transformation, whose `update` raises TypeError without a typed key.
    """

    def update(
        updates: PyTree,
        state: PyTree,
        params: PyTree = None,
        *,
        key: jax.Array | None = None,
        **extra: object,
    ) -> tuple[PyTree, Any]:
        return step(updates, state, check_key("key", key), **extra)

    return Transform(init, update)


class SeededState(NamedTuple):
    """State of `seeded`.

    Attributes:
      key: The key to split next, `[]` (*secret*).
      inner: State of the wrapped transformation.
    """

    key: jax.Array
    inner: object


def seeded(transform: object, key: jax.Array) -> Transform:
    """Turns a keyed transformation into an ordinary optax one, with the key in its state.

    For `optax.chain` users. Each `update` splits the key in the state and hands one half on.
    `init` starts from `key` again: after a re-initialisation, and in every run of a `vmap` over
    other arguments, the same noise comes back. Use a new key for every run, or pass `key=` to the
    keyed transformation itself, as `dpjax.chain` does.

    Guarantee: that of `transform`, once per `init`. Two runs from one `init` on different data
    share their noise and are **not** private together.

    Args:
      transform: A transformation whose `update` takes `key=`.
      key: Typed key, scalar (*secret*).

    Returns:
      An optax transformation whose `update` needs no key.

    Raises:
      TypeError: If `key` is not a typed key, or `transform` is an aggregator.
      ValueError: If `key` is several, or of a generator that repeats draws.

    Example:
      >>> import dpjax, jax, jax.numpy as jnp, optax
      >>> noise = dpjax.seeded(dpjax.transforms.add_gaussian(0.1), jax.random.key(0))
      >>> optimizer = optax.chain(noise, optax.sgd(0.1))
      >>> state = optimizer.init({"w": jnp.zeros(2)})
      >>> updates, state = optimizer.update({"w": jnp.ones(2)}, state)
    """
    check_key("key", key)
    if isinstance(transform, Aggregator):
        raise TypeError("seeded wraps transformations; an aggregator needs mask= and key= itself")
    stage = optax.with_extra_args_support(transform)

    def init(params: PyTree) -> SeededState:
        return SeededState(key, stage.init(params))

    def update(
        updates: PyTree, state: SeededState, params: PyTree = None, **extra: object
    ) -> tuple[PyTree, SeededState]:
        rest, now = jax.random.split(state.key)
        updates, inner = stage.update(updates, state.inner, params, key=now, **extra)
        return updates, SeededState(rest, inner)

    return Transform(init, update)

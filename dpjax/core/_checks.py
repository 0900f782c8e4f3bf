"""Checks of static facts: each error names the argument, its value and its bound."""

import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

_Kinds = type | types.UnionType | tuple[type, ...]
_NUMBERS = (int, float, np.number, np.ndarray, jax.Array)
_ABSTRACT = (jax.core.Tracer, jax.core.ShapedArray, jax.ShapeDtypeStruct)


def is_traced(*values: object) -> bool:
    """Whether any leaf of `values` is a tracer or a mere shape, whose value cannot be looked at.

    Args:
      *values: Trees.

    Returns:
      True if one is.
    """
    return any(isinstance(leaf, _ABSTRACT) for leaf in jax.tree.leaves(values))


def check_finite(name: str, value: object) -> None:
    """Raises unless every entry of a public constant is finite.

    Args:
      name: As the message says it.
      value: A number or an array of any shape; what is traced passes.

    Raises:
      TypeError: If it is text or complex.
      ValueError: If one is not finite.
    """
    _check_all(name, value)


def check_positive(name: str, value: object) -> None:
    """Raises unless every entry is finite and > 0.

    Args:
      name: As the message says it.
      value: A number or an array of any shape; what is traced passes.

    Raises:
      TypeError: If it is text or complex.
      ValueError: If one is not finite, or not positive.
    """
    _check_all(name, value, "> 0", lambda array: array > 0)


def check_nonnegative(name: str, value: object) -> None:
    """Raises unless every entry is finite and >= 0.

    Args:
      name: As the message says it.
      value: A number or an array of any shape; what is traced passes.

    Raises:
      TypeError: If it is text or complex.
      ValueError: If one is not finite, or negative.
    """
    _check_all(name, value, ">= 0", lambda array: array >= 0)


def check_between(name: str, value: object, low: float, high: float) -> None:
    """Raises unless every entry lies in [low, high].

    Args:
      name: As the message says it.
      value: A number or an array of any shape; what is traced passes.
      low: The least value allowed.
      high: The largest.

    Raises:
      TypeError: If it is text or complex.
      ValueError: If one is not finite, or outside.
    """
    _check_all(name, value, f"in [{low}, {high}]", lambda array: (array >= low) & (array <= high))


def check_scalar(name: str, value: object) -> None:
    """Raises unless `value` is one real number (no bool).

    For arguments that no pytree holds, where None or a flag can only be a mistake; a tracer or an
    array of shape [] is one number.

    Args:
      name: As the message says it.
      value: What was given.

    Raises:
      TypeError: If it is no real number.
      ValueError: If it has a shape other than [].
    """
    if isinstance(value, bool) or not isinstance(value, _NUMBERS) or not is_real(value):
        raise TypeError(f"{name} must be a real number, got {_shown(value)}")
    if np.shape(value) != ():
        raise ValueError(f"{name} must be one number, got shape {list(np.shape(value))}")


def check_positive_scalar(name: str, value: object) -> None:
    """Raises unless `value` is one real number, finite and > 0; see `check_scalar`.

    Args:
      name: As the message says it.
      value: What was given; what is traced passes.

    Raises:
      TypeError: If it is no real number.
      ValueError: If it has a shape other than [], is not finite, or is not > 0.
    """
    check_scalar(name, value)
    check_positive(name, value)


def check_nonnegative_scalar(name: str, value: object) -> None:
    """Raises unless `value` is one real number, finite and >= 0; see `check_scalar`.

    Args:
      name: As the message says it.
      value: What was given; what is traced passes.

    Raises:
      TypeError: If it is no real number.
      ValueError: If it has a shape other than [], is not finite, or is not >= 0.
    """
    check_scalar(name, value)
    check_nonnegative(name, value)


def _check_all(
    name: str, value: object, bound: str = "finite", good: Callable[..., Any] = np.isfinite
) -> None:
    array = known_numbers(name, value)
    for what, fits in (("finite", np.isfinite), (bound, good)):
        if array is not None and not np.all(fits(array)):
            raise ValueError(f"{name} must be {what}, got {float(array[~fits(array)].flat[0])!r}")


def known_numbers(name: str, value: object) -> np.ndarray | None:
    """The numbers behind a public constant, or None for tracers and pytree placeholders.

    Dataclasses registered as pytrees are rebuilt with tracers, None, flags or other objects as
    leaves; a check that ran when the user built the object need not run again then. Text and
    complex numbers are no placeholders.
    """
    if isinstance(value, bool) or is_traced(value):
        return None
    if isinstance(value, list | tuple):
        known = [known_numbers(name, entry) for entry in value]
        flat = [np.ravel(entry) for entry in known if entry is not None]
        return np.concatenate(flat) if flat and len(flat) == len(known) else None
    if isinstance(value, str | bytes | complex) or not is_real(value):
        raise TypeError(f"{name} must be a real number, got {_shown(value)}")
    if isinstance(value, _NUMBERS):
        try:
            return np.asarray(value, dtype=np.float64)
        except OverflowError:
            bits = int(value).bit_length()
            raise ValueError(f"{name} must be finite, got an integer of {bits} bits") from None
    return None


def is_real(value: object) -> bool:
    """Whether an array is of integers, floats or flags; True of what is no array."""
    if not isinstance(value, np.ndarray | np.generic | jax.Array):
        return True
    kinds = (np.integer, np.floating, np.bool_)
    return any(jax.dtypes.issubdtype(value.dtype, kind) for kind in kinds)


def _shown(value: Any) -> str:
    # arrays and what holds them may be records, which messages end up in logs with
    kind = type(value).__name__
    if isinstance(value, list | tuple | dict | set):
        return f"{kind} of length {len(value)}"
    if np.shape(value):
        return f"{kind} of shape {list(np.shape(value))}"
    return f"{value!r} of type {kind}"


def check_int(name: str, value: object, *, minimum: int) -> None:
    """Raises unless `value` is an integer (no bool) with value >= minimum.

    Args:
      name: As the message says it.
      value: What was given.
      minimum: The least value allowed.

    Raises:
      TypeError: If it is no integer.
      ValueError: If it is smaller.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer, got {_shown(value)}")
    if value < minimum:
        raise ValueError(f"{name} must be >= {minimum}, got {value}")


def check_rate(name: str, value: float) -> None:
    """Raises unless 0 < value <= 1.

    Args:
      name: As the message says it.
      value: What was given.

    Raises:
      TypeError: If it is not a number.
      ValueError: If it lies outside.
    """
    _check_inside(name, value, "(0, 1]", lambda number: 0 < number <= 1)


def check_probability(name: str, value: float) -> None:
    """Raises unless 0 < value < 1.

    Args:
      name: As the message says it.
      value: What was given.

    Raises:
      TypeError: If it is not a number.
      ValueError: If it lies outside.
    """
    _check_inside(name, value, "(0, 1)", lambda number: 0 < number < 1)


def check_delta(name: str, value: float) -> None:
    """Raises unless 0 <= value < 1.

    Args:
      name: As the message says it.
      value: What was given; 0 asks for pure privacy.

    Raises:
      TypeError: If it is not a number.
      ValueError: If it lies outside.
    """
    _check_inside(name, value, "[0, 1)", lambda number: 0 <= number < 1)


def _check_inside(name: str, value: float, interval: str, inside: Callable[[float], bool]) -> None:
    """Raises unless `value` is one real number, and lies in the interval."""
    check_scalar(name, value)
    if not inside(value):
        raise ValueError(f"{name} must lie in {interval}, got {value!r}")


def check_type(name: str, value: object, kinds: _Kinds, what: str, more: str = "") -> None:
    """Raises unless the value is of one of the kinds.

    Args:
      name: As the message says it.
      value: What was given.
      kinds: As for `isinstance`.
      what: The kinds, as the message says them.
      more: What the message ends with.

    Raises:
      TypeError: If it is of another type.
    """
    if not isinstance(value, kinds):
        raise TypeError(f"{name} must be {what}, got {type(value).__name__}{more}")


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Raises unless `value` is one of `choices`.

    Args:
      name: As the message says it.
      value: What was given.
      choices: What is allowed.

    Raises:
      ValueError: If it is none of them.
    """
    if value not in choices:
        raise ValueError(f"{name} must be one of {list(choices)}, got {value!r}")


def check_shape(name: str, array: Any, shape: Sequence[int | None]) -> None:
    """Raises unless `array` has this shape.

    Args:
      name: As the message says it.
      array: Whatever that has a shape.
      shape: What it must be; None stands for any size.

    Raises:
      ValueError: If it has another.
    """
    got = np.shape(array)
    if len(got) != len(shape) or any(s not in (None, n) for s, n in zip(shape, got, strict=True)):
        want = "[" + ", ".join("?" if s is None else str(s) for s in shape) + "]"
        raise ValueError(f"{name} must have shape {want}, got {list(got)}")


def check_mask(mask: ArrayLike | None, num: int) -> jax.Array:
    """Returns `mask` as an array, of a bool for each of `num` examples.

    A mask of one entry would otherwise speak for all of them.

    Args:
      mask: What was given, `[num]` bool.
      num: Number of examples.

    Returns:
      The mask.

    Raises:
      TypeError: If it holds other things than bools.
      ValueError: If it has another shape.
    """
    if mask is None:
        raise TypeError(
            "mask is required: the one that sampler.batch returned, or jnp.ones(B, bool) if every "
            "row is a record that takes part; optax.chain drops it, dpjax.chain passes it on"
        )
    if np.shape(mask) != (num,):
        raise ValueError(
            f"mask must have shape [{num}], an entry for each row of per_example, got "
            f"{list(np.shape(mask))}; a mean gradient has no rows, "
            "jax.vmap(jax.grad(loss), (None, 0)) gives one for each record"
        )
    array = jnp.asarray(mask)
    if array.dtype != bool:
        raise TypeError(f"mask must be of type bool, got {array.dtype}")
    return array


def is_key(leaf: object) -> bool:
    """Whether this is an array of typed PRNG keys, or the shape of one."""
    return hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def check_key(name: str, key: Any) -> jax.Array:
    """Returns `key`, one typed PRNG key, as `jax.random.key` makes.

    Args:
      name: As the message says it.
      key: What was given.

    Returns:
      The key as it is.

    Raises:
      TypeError: If it is none.
      ValueError: If there are several, or their generator would repeat draws.
    """
    if key is None:
        raise TypeError(f"{name} is required: pass {name}=jax.random.key(seed)")
    if not is_key(key):
        got = type(key).__name__ + (f" of {key.dtype}" if hasattr(key, "dtype") else "")
        if getattr(key, "dtype", None) == np.uint32:
            got += " (PRNGKey makes such; jax.random.wrap_key_data takes them)"
        raise TypeError(f"{name} must be a typed key from jax.random.key(seed), got {got}")
    if str(jax.random.key_impl(key)) == "unsafe_rbg":
        raise ValueError(
            f"{name} must be of a generator whose fold_in is one-way, got unsafe_rbg, in which "
            "fold_in(fold_in(key, a), b) is fold_in(fold_in(key, b), a), so that draws would repeat"
        )
    if np.shape(key) != ():
        raise ValueError(
            f"{name} must be one key, got shape {list(np.shape(key))}: use jax.vmap over keys"
        )
    return key

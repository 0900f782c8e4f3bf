"""Which keys a program draws with: no two draws of a private run may share one."""

import functools
from collections.abc import Callable, Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from dpjax.core import PyTree
from dpjax.testing._trees import QUICK, fresh

_INLINE = ("jit", "pjit", "closed_call", "core_call", "remat2", "checkpoint", "custom_jvp_call")
_PUBLIC = "public_words"  # what is no noise may be drawn again, as directions are at two points
_WORDS = "written_out_words"  # bits of a key that JAX's own generator does not make
_JAXPR_NAMES = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_Found = list[tuple[jax.Array, jax.Array]]  # data of keys, and whether each is drawn with


def keys_drawn(fn: Callable[..., PyTree], *args: PyTree) -> np.ndarray:
    """The data of every key that `fn(*args)` turns into random bits.

    The program is traced, and rewritten so that it also returns the keys it consumes: inside jit,
    scan, cond (of the branch taken) and custom derivatives. Draws inside `lax.while_loop` and by
    NumPy are not seen, and those of random directions, which are public, are left out.

    Args:
      fn: Traceable function.
      *args: Its arguments, arrays or typed keys.

    Returns:
      `[draws, words]` uint32.

    Example:
      >>> import jax
      >>> key = jax.random.key(0)
      >>> keys_drawn(lambda key: jax.random.normal(jax.random.fold_in(key, 1)), key).shape
      (1, 2)
    """
    return _drawer(fn, *args)(*args)


def keys_drawn_by_runs(fn: Callable[..., PyTree], runs: Iterable[PyTree]) -> list[np.ndarray]:
    """`keys_drawn(fn, argument)` for several arguments of one shape, compiled once."""
    runs = list(runs)
    drawer = _drawer(fn, runs[0])
    return [drawer(argument) for argument in runs]


def _drawer(fn: Callable[..., PyTree], *args: PyTree) -> Callable[..., np.ndarray]:
    closed = jax.make_jaxpr(fn)(*args)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def run(leaves: list[jax.Array]) -> _Found:
        found: _Found = []
        _evaluate(closed.jaxpr, closed.consts, leaves, found)
        return found

    def draw(*args: PyTree) -> np.ndarray:
        found = run(jax.tree.leaves(args))
        words = max((data.shape[-1] for data, _ in found), default=2)
        rows = [np.zeros((0, words), np.uint32)]
        for data, taken in found:
            flat = np.asarray(data).reshape(-1, data.shape[-1])[np.asarray(taken).reshape(-1)]
            rows.append(np.pad(flat, ((0, 0), (0, words - flat.shape[1]))))
        return np.concatenate(rows)

    return draw


def check_draws_differ(runs: Sequence[np.ndarray], what: str) -> None:
    """Raises AssertionError if a key occurs twice, within one run or in two.

    Args:
      runs: What `keys_drawn` gave for each of several runs, `[draws, words]`.
      what: Name for the message.

    Raises:
      AssertionError: If two draws use one key.
    """
    seen: dict[bytes, tuple[int, int]] = {}
    for run, keys in enumerate(runs):
        for draw, key in enumerate(keys):
            first = seen.setdefault(key.tobytes(), (run, draw))
            if first != (run, draw):
                raise AssertionError(
                    f"{what}: draw {draw} of run {run} uses the key of draw {first[1]} of run "
                    f"{first[0]}, so both get the same noise"
                )


def _evaluate(
    jaxpr: core.Jaxpr, consts: Sequence[jax.Array], args: Sequence[jax.Array], found: _Found
) -> list[jax.Array]:
    """Evaluates a jaxpr and appends `(key data, taken)` of every draw to `found`."""
    values: dict[core.Var, jax.Array] = dict(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, args, strict=True))

    def read(atom: core.Var | core.Literal) -> jax.Array:
        # a clone, as this program and all branches of a cond look at a key besides its user
        return atom.val if isinstance(atom, core.Literal) else fresh(values[atom])

    for equation in jaxpr.eqns:
        outputs = _apply(equation, [read(atom) for atom in equation.invars], found)
        values.update(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _apply(equation: core.JaxprEqn, inputs: list[jax.Array], found: _Found) -> list[jax.Array]:
    name, params = equation.primitive.name, equation.params
    if name == "random_bits":
        data = jax.random.key_data(inputs[0])
        found.append((data, jnp.ones(data.shape[:-1], bool)))
    if name == "scan":
        return _apply_scan(params, inputs, found)
    if name == "cond":
        return _apply_cond(params, inputs, found)
    if name in _INLINE or name.startswith("custom_vjp_call"):
        inner = next(params[n] for n in _JAXPR_NAMES if n in params)
        consts = getattr(inner, "consts", ())
        if params.get("name") == _WORDS:
            found.append((inputs[0], jnp.ones(inputs[0].shape[:-1], bool)))
        if params.get("name") == _PUBLIC:
            found = []
        return _evaluate(getattr(inner, "jaxpr", inner), consts, inputs, found)
    bound = equation.primitive.get_bind_params(params)
    extra, bound = bound if isinstance(bound, tuple) else ((), bound)  # by version of JAX
    outputs = equation.primitive.bind(*extra, *inputs, **bound)
    return list(outputs) if equation.primitive.multiple_results else [outputs]


def _apply_scan(params: PyTree, inputs: list[jax.Array], found: _Found) -> list[jax.Array]:
    closed = params["jaxpr"]
    if "ft_in" in params:  # jax 0.12 and later
        num_consts, num_carry, _ = map(len, params["ft_in"].unpack())
    else:
        num_consts, num_carry = params["num_consts"], params["num_carry"]
    consts, carry = inputs[:num_consts], inputs[num_consts : num_consts + num_carry]

    def body(carry: list[jax.Array], xs: list[jax.Array]) -> PyTree:
        inner: _Found = []
        out = _evaluate(closed.jaxpr, closed.consts, [*consts, *carry, *xs], inner)
        return out[:num_carry], (out[num_carry:], inner)

    xs = inputs[num_consts + num_carry :]
    carry, (ys, inner) = jax.lax.scan(body, carry, xs, params["length"], params["reverse"])
    found.extend(inner)
    return [*carry, *ys]


def _apply_cond(params: PyTree, inputs: list[jax.Array], found: _Found) -> list[jax.Array]:
    which, operands = inputs[0], inputs[1:]
    results = []
    for number, branch in enumerate(params["branches"]):
        inner: _Found = []
        results.append(_evaluate(branch.jaxpr, branch.consts, operands, inner))
        found.extend((data, taken & (which == number)) for data, taken in inner)
    return [jax.lax.select_n(which, *outs) for outs in zip(*results, strict=True)]

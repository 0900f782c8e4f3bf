"""Programs lowered for GPU and TPU on a machine with neither, and what must not be in them."""

import math
import re

import jax
import jax.export
import pytest

ELSEWHERE = ("cuda", "tpu")
HOST = re.compile(r'custom_call @?"?(\w*callback\w*)|stablehlo\.(?:infeed|outfeed|send|recv)\b')
_INDICES = 2**31  # of a dimension, with 32-bit indices


def slow_but(first, names, always=()):
    """Names as parameters of a test, of which all but the first are slow."""
    marks = {n: pytest.mark.always if n in always else () for n in first}
    return [pytest.param(n, marks=marks.get(n, pytest.mark.slow)) for n in names]


def equations(jaxpr):
    """All equations of a program, those of loops, branches and calls within it included."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for part in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


def _size(value):
    return math.prod(value.shape) * value.dtype.itemsize


def largest(closed):
    """Bytes and type of the largest array that a program makes or holds, its arguments aside.

    Before fusion, which only lowers it. Raises AssertionError for a dimension that 32-bit indices,
    as of gathers, do not reach the end of; of arguments too.
    """
    made = [(_size(constant), "constant", constant) for constant in closed.consts]
    for equation in equations(closed.jaxpr):
        name = equation.primitive.name
        for atom in (*equation.invars, *equation.outvars):
            shape = getattr(atom.aval, "shape", ())
            assert max(shape, default=0) < _INDICES, f"{name} of {atom.aval} needs 64-bit indices"
        made += [
            (_size(v.aval), name, v.aval) for v in equation.outvars if hasattr(v.aval, "shape")
        ]
    size, name, value = max(made, key=lambda one: one[0])
    return size, f"{name}: {value.dtype}{list(value.shape)}"


def check(run, *args, name="this", most, double=False):
    """Lowers a program for both platforms, and raises AssertionError for what devices cannot do.

    Args:
      run: The program. Export refuses custom calls that may change.
      *args: Arrays or their shapes; with shapes nothing is allocated.
      name: Shown in messages.
      most: Bytes of the largest array that it may make.
      double: Whether it computes in 64 bits, as it must then.
    """
    jitted = jax.jit(run)
    size, what = largest(jitted.trace(*args).jaxpr)
    assert size <= most, f"{name} makes {size} bytes, more than {most}, in {what}"
    text = jax.export.export(jitted, platforms=ELSEWHERE)(*args).mlir_module()
    asked = HOST.search(text)
    assert not asked, f"{name} asks the host: {asked.group(0)}"
    if not jax.config.jax_enable_x64:
        said = "has" if "f64" in text else "has no"
        assert ("f64" in text) == double, f"{name} {said} 64-bit floats"

"""Host functions are told apart by what they do, and not by where they are."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.runtime.checkpoint._digest import value_digest
from dpjax.runtime.checkpoint._fingerprint import callbacks


def digest(function):
    return value_digest(function, strict=False)


def scaled(factor, table, then=abs, offset=0.0):
    def run(x, shift=offset):
        return then(factor * np.asarray(x) + table.sum() + shift)

    return run


TABLE = np.arange(3.0)
BASE = digest(scaled(2.0, TABLE))
OTHERS = {
    "a number": scaled(3.0, TABLE),
    "an array": scaled(2.0, TABLE + 1.0),
    "a function": scaled(2.0, TABLE, then=round),
    "a default": scaled(2.0, TABLE, offset=1.0),
    "the code": lambda x, shift=0.0: abs(2.0 * np.asarray(x) + TABLE.sum() - shift),
    "an argument": functools.partial(scaled(2.0, TABLE), shift=1.0),
}


def test_made_again_it_is_the_same():
    assert digest(scaled(2.0, TABLE.copy())) == BASE
    shifted = functools.partial(scaled(2.0, TABLE), shift=1.0)
    assert digest(shifted) == digest(OTHERS["an argument"])


@pytest.mark.parametrize("what", OTHERS)
def test_what_it_holds_tells_it_apart(what):
    assert digest(OTHERS[what]) != BASE


def test_a_function_that_holds_itself_ends():
    def run(x):
        return run(x - 1) if x else 0

    assert digest(run)


def test_callbacks_are_found_at_any_depth():
    def ask(x):
        return jax.pure_callback(np.sin, x, x, vmap_method="expand_dims")

    def body(carry, x):
        return jax.lax.cond(carry > 0, ask, lambda y: y, x), x

    def run(x):
        return jax.vmap(jax.jit(lambda y: jax.lax.scan(body, y, jnp.ones(2, y.dtype))[0]))(x)

    found = list(callbacks(jax.make_jaxpr(run)(jnp.ones(3)).jaxpr))
    assert found == [np.sin]
    assert digest(found[0])

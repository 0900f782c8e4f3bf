"""On the way from data to what is released, no product is left to a device's default precision.

Accelerators multiply float32 with 10 or 7 bits unless told otherwise: a norm, a table or a score
would be off by a thousandth, and with it the bound that the noise is made for. A user's loss may do
as it likes, since what it gives is clipped.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import dpjax.testing as dpt
from tests.entries import __file__ as _ENTRIES
from tests.runtime.programs import equations

ENTRIES = {entry.name: entry for entry in dpt.entries("solver")}
EXACT = (jax.lax.Precision.HIGHEST,) * 2
PRODUCTS = {"dot_general", "ragged_dot_general", "conv_general_dilated"}
# registered cases bring their losses along: they stand for a user's
USERS = (Path(_ENTRIES).parent, Path(__file__))


def is_free(equation):
    """Whether the innermost line of Python outside JAX is a user's."""
    frames = equation.source_info.traceback.frames if equation.source_info.traceback else []
    outside = [f for f in frames if "/jax/" not in f.file_name]
    if not outside:
        return False
    path = Path(outside[0].file_name)
    return any(user in (path, path.parent) for user in USERS)


def careless(program, *arguments):
    """Its products of floats that are rounded on an accelerator."""
    found = []
    for equation in equations(jax.make_jaxpr(program)(*arguments).jaxpr):
        if equation.primitive.name not in PRODUCTS or is_free(equation):
            continue
        rounded = any(jnp.issubdtype(v.aval.dtype, jnp.inexact) for v in equation.invars)
        if rounded and equation.params["precision"] != EXACT:
            found.append(f"{equation}\n{equation.source_info.traceback}")
    return found


@pytest.mark.parametrize("name", ENTRIES)
def test_products_between_data_and_release_are_exact(name):
    case = ENTRIES[name].make()
    solver, problem, key = case.build(case.values[0]), case.problem, jax.random.key(0)
    num = jax.tree.leaves(case.data)[0].shape[0]
    plan = solver.sampler.plan(key, num)

    def released(data, key, x):
        state = solver.init(problem, key=key)
        if hasattr(solver, "prologue"):
            state = solver.prologue(problem, data, state)
        indices, mask = solver.sampler.batch(x, num)
        batch = data if indices is None else jax.tree.map(lambda a: a[indices], data)
        return solver.step(problem, batch, mask, state)

    assert careless(released, case.data, key, jax.tree.map(lambda a: a[0], plan)) == []


@pytest.mark.parametrize("name", [n for n, e in dpt.registry().items() if e.kind == "aggregator"])
def test_products_of_aggregators_are_exact(name):
    case = dpt.registry()[name].make()
    aggregator, values = case.build(case.values[0]), case.per_example
    num = jax.tree.leaves(values)[0].shape[0]

    def total(values, key):
        return aggregator.update(values, aggregator.init(None), mask=jnp.ones(num, bool), key=key)[
            0
        ]

    assert careless(total, values, jax.random.key(0)) == []


def test_a_careless_product_is_found():
    # of another file than this, which is a user's
    space = {"jnp": jnp}
    exec(compile("def product(x):\n    return jnp.sum(x @ x.T)", "library.py", "exec"), space)
    product, x = space["product"], jnp.ones((3, 2))

    def scanned(x):
        return jax.lax.scan(lambda total, _: (total + product(x), None), 0.0, x)[0]

    def branched(x):
        return jax.lax.cond(x[0, 0] > 0, product, lambda x: 0.0, x)

    assert len(careless(product, x)) == 1
    assert len(careless(jax.vmap(scanned), x[None])) == 1
    assert len(careless(jax.jit(branched), x)) == 1
    assert len(careless(jax.grad(scanned), x)) >= 2
    assert careless(lambda x: jnp.sum(x @ x.T), x) == []  # a user's own
    assert careless(product, x.astype(jnp.int32)) == []
    with jax.default_matmul_precision("highest"):
        assert careless(product, x) == []

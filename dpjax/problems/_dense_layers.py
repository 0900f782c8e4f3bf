"""Per-example gradients of a network in which dense layers keep their factors."""

from collections.abc import Callable
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

from dpjax.core import PyTree
from dpjax.transforms import OuterProduct


class _Layer(NamedTuple):
    """A product of a weight matrix and one vector."""

    weight: int  # which leaf
    vector: int  # which operand, 0 or 1
    axis: int  # of the weight, along which it is contracted


def layered_gradients(loss: Callable[..., jax.Array], params: PyTree, batch: PyTree) -> PyTree:
    r"""Gradients of the loss of each record, with `OuterProduct` for the weights of dense layers.

    A matrix W that the loss uses once, in $W^\top x$ or $W x$ with one vector x a record, has the
    gradient $x c^\top$, c that of the product. Both are read off one backward pass, and the matrix
    is never formed: on CPU a step on networks of 64 to 256 hidden units takes a tenth of the time.

    Args:
      loss: `loss(params, record) -> scalar`.
      params: Float tree (*public*).
      batch: Tree with leaves `[B, ...]` (*secret*).

    Returns:
      A tree like `params` with leaves `[B, *p]` or `OuterProduct`.
    """
    leaves, structure = jax.tree.flatten(params)
    record = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), batch)
    closed = jax.make_jaxpr(loss)(params, record)
    if closed.effects or len(_vars(closed.jaxpr.outvars)) != 1:
        return jax.vmap(jax.grad(loss), in_axes=(None, 0))(params, batch)
    layers = _layers(closed.jaxpr, len(leaves))
    weights = {layer.weight for layer in layers.values()}
    others = {place: leaf for place, leaf in enumerate(leaves) if place not in weights}
    outputs = {at: _array(closed.jaxpr.eqns[at].outvars[0]) for at in layers}

    def value(
        added: dict[int, jax.Array], others: dict[int, jax.Array], record: PyTree
    ) -> tuple[jax.Array, dict[int, jax.Array]]:
        given = [others.get(place, leaf) for place, leaf in enumerate(leaves)]
        return _run(closed, layers, added, [*given, *jax.tree.leaves(record)])

    slopes = jax.vmap(jax.grad(value, argnums=(0, 1), has_aux=True), in_axes=(None, None, 0))
    zeros = {at: jnp.zeros(a.shape, a.dtype) for at, a in outputs.items()}
    (back, found), vectors = slopes(zeros, others, batch)
    for at, layer in layers.items():
        x, c = vectors[at], back[at].reshape(-1, outputs[at].size)
        found[layer.weight] = OuterProduct(x, c) if layer.axis == 0 else OuterProduct(c, x)
    return jax.tree.unflatten(structure, [found[place] for place in range(len(leaves))])


def _layers(jaxpr: Jaxpr, num: int) -> dict[int, _Layer]:
    """Equations that are dense layers, of weights among the first `num` inputs."""
    used: dict[Var, list[int]] = {}
    for at, eqn in enumerate(jaxpr.eqns):
        for var in _vars(eqn.invars):
            used.setdefault(var, []).append(at)
    found: dict[int, _Layer] = {}
    for weight, var in enumerate(jaxpr.invars[:num]):
        places = used.get(var, [])
        matrix = _array(var).ndim == 2 and jnp.issubdtype(_array(var).dtype, jnp.floating)
        if matrix and len(places) == 1:
            layer = _layer(jaxpr.eqns[places[0]], var, weight)
            found |= {} if layer is None else {places[0]: layer}
    return found


def _layer(eqn: JaxprEqn, var: Var, weight: int) -> _Layer | None:
    if eqn.primitive.name != "dot_general":
        return None
    contracted, (batched, _) = eqn.params["dimension_numbers"]
    place = [*eqn.invars].index(var)
    axes, vector = contracted[place], eqn.invars[1 - place]
    if batched or len(axes) != 1 or isinstance(vector, Literal):
        return None
    one_row = _array(vector).size == _array(var).shape[axes[0]]
    return _Layer(weight, 1 - place, axes[0]) if one_row else None


def _run(
    closed: ClosedJaxpr,
    layers: dict[int, _Layer],
    added: dict[int, jax.Array],
    values: list[PyTree],
) -> tuple[jax.Array, dict[int, jax.Array]]:
    """The function, with something added to the output of each layer; and the layers' vectors."""
    jaxpr, vectors, start = closed.jaxpr, {}, 0
    known = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    known |= zip(jaxpr.invars, values, strict=True)
    used = {*_vars(jaxpr.outvars)}.union(*(_vars(eqn.invars) for eqn in jaxpr.eqns))
    for end in [*(at + 1 for at in sorted(layers)), len(jaxpr.eqns)]:
        part, at = jaxpr.eqns[start:end], end - 1
        needed = dict.fromkeys(var for eqn in part for var in _vars(eqn.invars) if var in known)
        made = [var for eqn in part for var in eqn.outvars if var in used]
        own = jaxpr.replace(constvars=[], invars=[*needed], outvars=made, eqns=part)
        run = jaxpr_as_fun(ClosedJaxpr(own, []))
        known |= zip(made, run(*(known[var] for var in needed)), strict=True)
        if at in layers:
            eqn, start = jaxpr.eqns[at], end
            vectors[at] = known[eqn.invars[layers[at].vector]].reshape(-1)
            known[eqn.outvars[0]] += added[at]
    return known[jaxpr.outvars[0]], vectors


def _array(var: Var) -> jax.core.ShapedArray:
    return cast(jax.core.ShapedArray, var.aval)


def _vars(atoms: list[Literal | Var]) -> list[Var]:
    return [atom for atom in atoms if not isinstance(atom, Literal)]

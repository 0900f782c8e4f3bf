"""Any optimiser, in a mirror geometry."""

from typing import Any, NamedTuple

import jax

from dpjax.core import PyTree, Transform
from dpjax.core._chain import as_stage
from dpjax.papers.mirror import MirrorMap
from dpjax.transforms.learners._learner import change, learner_of, widened


class MirroredState(NamedTuple):
    """State of `mirrored`.

    Attributes:
      coords: The point in the mirror map's coordinates, in at least float32.
      base: State of the wrapped optimiser.
    """

    coords: PyTree
    base: Any


def mirrored(optimizer: object, mirror_map: MirrorMap) -> Transform:
    r"""Any optax optimiser, whose updates become steps of a mirror map.

    $$ w_{t+1} = \arg\min_w\ -\langle\mathrm{optimizer}(g_t), w\rangle + D(w, w_t) $$

    With `optax.sgd(eta)` this is mirror descent; with `dpjax.geometry.entropic` also
    multiplicative weights, whose bound `entropic` states. The parameters are the points $w_t$
    themselves; the state keeps their coordinates, such as log probabilities, so that weights too
    small for the parameters' type are not lost. (`mirror_step` takes coordinates as parameters.)

    Guarantee: none of its own. Of private gradients it is post-processing.

    Args:
      optimizer: An optax or dpjax optimiser (*public*); it sees $w_t$ as its parameters, and what
        `update` is given beside is passed on.
      mirror_map: From `dpjax.geometry`: of vectors `[d]`, or `product` of tuples of them
        (*public*).

    Returns:
      A transformation; `update(g_t, state, params=w_t, **extra)`. `init(w_1)` takes a point inside
      the map's domain: an entry 0 of a simplex would stay 0.

    Raises:
      TypeError: If `optimizer` is no transformation.
      ValueError: At `update`, if `params` is missing.

    Example:
      >>> import dpjax, jax.numpy as jnp, optax
      >>> learner = dpjax.papers.learners.mirrored(optax.sgd(0.5), dpjax.geometry.entropic())
      >>> w = jnp.array([0.5, 0.5])
      >>> updates, _ = learner.update(jnp.array([2.0, 0.0]), learner.init(w), w)
      >>> [round(float(x), 4) for x in optax.apply_updates(w, updates)]
      [0.2689, 0.7311]

    Source: Nemirovski and Yudin 1983; Beck and Teboulle, "Mirror descent and nonlinear projected
    subgradient methods for convex optimization", 2003.
    """
    stage = as_stage("optimizer", optimizer)

    def init(params: PyTree) -> MirroredState:
        return MirroredState(mirror_map.coordinates(widened(params)), stage.init(params))

    def step(
        updates: PyTree, state: MirroredState, params: PyTree, **extra: object
    ) -> tuple[PyTree, MirroredState]:
        moves, base = stage.update(updates, state.base, params, **extra)
        against = jax.tree.map(lambda move: -move, widened(moves))
        coords = mirror_map.step(state.coords, against, 1.0)
        return change(mirror_map.point(coords), params), MirroredState(coords, base)

    return learner_of(init, step)

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.core import derived, register_dataclass, static_field
from dpjax.problems import Risk
from dpjax.solvers import OnlineToBatch


def make(factor, register=register_dataclass):
    """A class of its own, with the fields of all the others."""

    @dataclasses.dataclass(frozen=True)
    class Same:
        x: object
        name: str = static_field(default="a")

        def value(self):
            return factor * self.x

    return register(Same)


def wrong(register):
    """How often a jitted function runs the method of another class."""
    classes = [make(float(i), register) for i in range(120)]

    @jax.jit
    def value(instance):
        return instance.value()

    return sum(float(value(cls(jnp.ones(())))) != i for i, cls in enumerate(classes))


def test_classes_with_the_same_fields_are_different_structures():
    first, second = (make(1.0)(2.0) for _ in range(2))
    structures = [jax.tree.structure(one) for one in (first, second)]
    assert structures[0] != structures[1]
    assert structures[0] == jax.tree.structure(type(first)(3.0))
    assert structures[0] != jax.tree.structure(type(first)(2.0, "b"))
    assert wrong(register_dataclass) == 0


def test_leaves_names_and_rebuilding():
    instance = make(1.0)({"w": np.ones(3)}, "b")
    leaves, structure = jax.tree.flatten(instance)
    assert len(leaves) == 1
    rebuilt = jax.tree.unflatten(structure, [2 * leaves[0]])
    assert (type(rebuilt), rebuilt.name) == (type(instance), "b")
    np.testing.assert_array_equal(rebuilt.x["w"], 2.0)
    ((path, _),) = jax.tree.leaves_with_path(instance)
    assert jax.tree_util.keystr(path) == ".x['w']"


def test_what_is_derived_comes_along_where_fields_are_traced():
    made = []

    @register_dataclass
    @dataclasses.dataclass(frozen=True)
    class Squared:
        x: object

        @derived
        def square(self):
            made.append(self.x)
            return None if isinstance(self.x, jax.core.Tracer) else np.square(self.x)

    one = Squared(3.0)
    assert not made  # nobody has asked
    assert jax.tree.leaves(one) == [3.0, 9.0]
    assert jax.jit(lambda s: s.square + 0 * s.x)(one) == 9
    assert made == [3.0]
    assert jax.tree.leaves(dataclasses.replace(one, x=4.0)) == [4.0, 16.0]
    # of a field that is traced from the start there is none
    assert jax.eval_shape(lambda x: len(jax.tree.leaves(Squared(x))) * x, 1.0).shape == ()
    assert made[-1] is not None
    assert jax.tree.map(lambda _: 0, one).square == 0


def test_old_names_of_fields_work_and_warn():
    problem = Risk.linear(lambda m, y: (m - y) ** 2, 3, radius=1.0, lipschitz=1.0, smoothness=1.0)
    budget = dpjax.Budget(1.0, 1e-6)
    with pytest.warns(DeprecationWarning, match="weights=.* is weight_exponent"):
        solver = OnlineToBatch.for_budget(problem, 1000, budget, weights=1.5)
    assert solver.weight_exponent == 1.5
    with pytest.warns(DeprecationWarning, match="weight_exponent"):
        assert solver.weights == 1.5
    with pytest.warns(DeprecationWarning, match="weight_exponent"):
        assert dataclasses.replace(solver, weights=2.0).weight_exponent == 2.0
    again = jax.tree.map(lambda leaf: leaf, solver)
    assert again.weight_exponent == 1.5

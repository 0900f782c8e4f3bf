"""Values that differ in anything have other digests, however they print; equal ones have one."""

import copy
import dataclasses
import enum
import threading
import types
from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax.queries import Concat, Dense, Domain, Marginals
from dpjax.runtime.checkpoint._digest import tree_digest, value_digest

LONG = np.linspace(0.0, 1.0, 3000)
NUDGED = np.where(np.arange(LONG.size) == 1500, np.nextafter(LONG, 2), LONG)
DOMAIN = Domain({"a": 2, "b": ["x", "y", "z"]})


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Number(enum.IntEnum):
    ONE = 1


@dpjax.core.register_dataclass
@dataclasses.dataclass(frozen=True)
class Held:
    """A node whose static field holds what hash and repr say nothing of."""

    leaf: jax.Array
    static: object = dpjax.core.static_field(default=None)


class Slotted:
    __slots__ = ("inner",)

    def __init__(self, inner):
        self.inner = inner


class Quiet:
    def __init__(self, inner):
        self.inner = inner

    def __repr__(self):
        return "Quiet()"


def closing_over(value):
    return lambda x: x + value


def reading():
    return LONG.sum() + np.asarray(GLOBAL)


GLOBAL = 1.0


def pairs():
    yield "the middle of an array", LONG, NUDGED
    yield "one of JAX", jnp.asarray(LONG), jnp.asarray(LONG).at[1500].add(1e-3)
    yield "an array of objects", np.array([1, "a"], object), np.array([1, "b"], object)
    yield "in a list", [1, LONG], [1, NUDGED]
    yield "in a dict", {"a": (LONG,)}, {"a": (NUDGED,)}
    yield "in a static field", Held(jnp.ones(2), LONG), Held(jnp.ones(2), NUDGED)
    yield "in a static object", Held(jnp.ones(2), Quiet(LONG)), Held(jnp.ones(2), Quiet(NUDGED))
    yield "in a slot", Slotted(LONG), Slotted(NUDGED)
    yield "in a closure", closing_over(LONG), closing_over(NUDGED)
    yield "in a schedule", optax.constant_schedule(0.1), optax.constant_schedule(0.2)
    yield "masks", np.ma.array(LONG, mask=LONG > 0.5), np.ma.array(LONG, mask=LONG > 0.6)
    text = np.dtypes.StringDType()
    yield (
        "long text",
        *(np.array(["a" * 40 + end], text) for end in "bc"),
    )
    yield "types of numbers", 1, 1.0
    yield "flags", 1, True
    yield "signs of zero", 0.0, -0.0
    yield "text and bytes", "a", b"a"
    yield "kinds of containers", (1, 2), [1, 2]
    yield "where they are cut", (("a", "b"), "c"), ("a", ("b", "c"))
    yield "order", {"a": 1, "b": 2}, {"b": 2, "a": 1}
    yield "mappings", types.MappingProxyType({"a": 1}), types.MappingProxyType({"a": 2})
    yield "choices", Colour.RED, Colour.BLUE
    yield "a choice and its number", Number.ONE, 1
    yield "domains", DOMAIN, Domain({"a": 2, "b": ["x", "y", "w"]})
    yield "domains in order", Domain({"a": 2, "b": 3}), Domain({"b": 3, "a": 2})
    yield "cliques", Marginals(DOMAIN, (("a",),)), Marginals(DOMAIN, (("b",),))
    yield "entries", Dense([[1, 0, 2]]), Dense([[1, 0, 3]])
    yield "methods", Quiet(LONG).__repr__, Quiet(NUDGED).__repr__
    yield "functions of a library", jnp.sin, jnp.cos
    yield "jitted", jax.jit(closing_over(1)), jax.jit(closing_over(2))
    yield "nothing", None, ...


PAIRS = list(pairs())


@pytest.mark.parametrize(("one", "other"), [p[1:] for p in PAIRS], ids=[p[0] for p in PAIRS])
def test_what_differs_is_told_apart(one, other):
    with np.printoptions(threshold=3, precision=1):
        digests = [value_digest(value, strict=True) for value in (one, other)]
        trees = [tree_digest({"x": Held(jnp.ones(1), value)}) for value in (one, other)]
    assert digests[0] != digests[1]
    assert trees[0] != trees[1]
    # however it prints, and made again
    assert digests[0] == value_digest(one, strict=True)
    if not callable(one) and not isinstance(one, types.MappingProxyType):
        assert digests[0] == value_digest(copy.deepcopy(one), strict=True)


def test_what_was_asked_of_a_value_before_leaves_no_trace():
    fresh, used = (Concat([Marginals.all_kway(DOMAIN, 2), Dense(np.ones((2, 6)))]) for _ in "ab")
    _ = DOMAIN.shape, used.sensitivity("replace_one")
    assert value_digest(fresh, strict=True) == value_digest(used, strict=True)


def test_sharing_leaves_no_trace():
    own = [1.0, 2.0]
    assert value_digest([own, own], strict=True) == value_digest([own, list(own)], strict=True)


def test_sets_have_no_order_of_their_own():
    assert list({0, 8}) != list({8, 0})
    assert value_digest({0, 8}, strict=True) == value_digest({8, 0}, strict=True)


def test_trees_are_equal_in_any_order_and_as_arrays_of_either_library():
    one = {"x": np.ones(3, np.float32), "y": jax.random.key(0)}
    other = {"y": jax.random.key(0), "x": jnp.ones(3, np.float32)}
    assert tree_digest(one) == tree_digest(other)
    assert tree_digest(one) != tree_digest(OrderedDict(one))
    assert tree_digest(one) != tree_digest({**one, "y": jax.random.key(0, impl="rbg")})


def test_a_value_that_holds_itself_ends():
    one, other = [1], [2]
    one.append(one)
    other.append(other)
    assert value_digest(one, strict=True) != value_digest(other, strict=True)


def test_globals_that_a_function_reads_count_where_nothing_may_collide(monkeypatch):
    before = [value_digest(reading, strict=strict) for strict in (True, False)]
    monkeypatch.setitem(globals(), "GLOBAL", 2.0)
    after = [value_digest(reading, strict=strict) for strict in (True, False)]
    assert before[0] != after[0]
    assert before[1] == after[1]


@pytest.mark.parametrize(
    "value",
    [threading.Lock(), (i for i in (1, 2)), np.frompyfunc(closing_over(1), 1, 1)],
    ids=["a lock", "a generator", "a function of C"],
)
def test_what_cannot_be_read_is_refused(value):
    for held in (value, [value], {"a": Quiet(value)}, closing_over(value)):
        with pytest.raises(TypeError, match="whose contents cannot be read"):
            value_digest(held, strict=True)
    assert value_digest([value], strict=False) != value_digest([1], strict=False)

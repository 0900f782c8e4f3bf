"""The suite must fail on the bugs it is there for."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import dp_event as dpe
from scipy import stats

import dpjax
import dpjax.testing as dpt
from dpjax.core import Aggregator, register_dataclass
from dpjax.privacy import PureZCDpEvent
from dpjax.testing._conformance_solvers import _check_structure
from dpjax.testing._conformance_transforms import check_noise
from dpjax.transforms import add_gaussian, add_laplace, clip_by_norm
from tests.entries import solvers as ours

UPDATES = {"a": jnp.ones(4), "b": jnp.ones((4, 2))}


def check(case):
    kinds = {
        dpt.TransformCase: "transform",
        dpt.AggregatorCase: "aggregator",
        dpt.SamplerCase: "sampler",
        dpt.SolverCase: "solver",
    }
    dpt.check_entry(dpt.Entry("subject", kinds[type(case)], lambda: case))


def noise_case(build, updates=UPDATES):
    return dpt.TransformCase(
        build, updates, law=lambda v: stats.norm(scale=v), event=dpe.GaussianDpEvent
    )


def transform(update):
    """A noise transformation whose `update(leaf, key, count)` gets a good key for each step."""

    def step(updates, state, params=None, *, key, **extra):
        return update(updates, key, state), state + 1

    return optax.GradientTransformationExtraArgs(lambda params: jnp.zeros((), jnp.int32), step)


def noisy(updates, key_of_leaf, scale=1.0, dtype=None):
    leaves, treedef = jax.tree.flatten(updates)
    made = []
    for i, leaf in enumerate(leaves):
        noise = scale * jax.random.normal(key_of_leaf(i), leaf.shape, dtype or leaf.dtype)
        made.append(leaf + noise)
    return treedef.unflatten(made)


@pytest.mark.slow
def test_a_good_transform_passes():
    def good(scale):
        def update(updates, key, count):
            now = jax.random.fold_in(key, count)
            return noisy(
                updates, lambda i: jax.random.fold_in(now, i), jnp.asarray(scale, "bfloat16")
            )

        return transform(update)

    check(noise_case(good))


def one_key_for_all_leaves(scale):
    def update(updates, key, count):
        now = jax.random.fold_in(key, count)
        return noisy(updates, lambda i: jax.random.clone(now))

    return transform(update)


def one_key_for_all_steps(scale):
    def update(updates, key, count):
        return noisy(updates, lambda i: jax.random.fold_in(key, i))

    return transform(update)


def key_in_the_factory(scale):
    hidden = jax.random.key(42)

    def update(updates, key, count):
        now = jax.random.fold_in(hidden, count)
        return noisy(updates, lambda i: jax.random.fold_in(now, i))

    return transform(update)


def one_draw_for_all_entries(scale):
    def update(updates, key, count):
        now = jax.random.fold_in(key, count)
        draws = [scale * jax.random.normal(jax.random.fold_in(now, i), ()) for i in range(2)]
        leaves, treedef = jax.tree.flatten(updates)
        noise = [jnp.asarray(n, leaf.dtype) for n, leaf in zip(draws, leaves, strict=True)]
        return treedef.unflatten([leaf + n for leaf, n in zip(leaves, noise, strict=True)])

    return transform(update)


def less_noise_on_large_updates(scale):
    def update(updates, key, count):
        now = jax.random.fold_in(key, count)
        drawn = noisy(
            jax.tree.map(jnp.zeros_like, updates), lambda i: jax.random.fold_in(now, i), 1.0
        )

        def add(leaf, noise):
            return leaf + (scale * jnp.where(leaf > 0, 0.5, 1) * noise).astype(leaf.dtype)

        return jax.tree.map(add, updates, drawn)

    return transform(update)


def numpy_noise(scale):
    def update(updates, key, count):
        return jax.tree.map(
            lambda u: u + jnp.asarray(np.random.default_rng(0).normal(size=u.shape), u.dtype),
            updates,
        )

    return transform(update)


def other_dtype(scale):
    def update(updates, key, count):
        now = jax.random.fold_in(key, count)
        return noisy(updates, lambda i: jax.random.fold_in(now, i), 1.0, jnp.float32)

    return transform(update)


def default_key(scale):
    def step(updates, state, params=None, *, key=None, **extra):
        key = jax.random.key(0) if key is None else key
        now = jax.random.fold_in(key, state)
        return noisy(updates, lambda i: jax.random.fold_in(now, i)), state + 1

    return optax.GradientTransformationExtraArgs(lambda params: jnp.zeros((), jnp.int32), step)


def state_of_another_type(scale):
    def step(updates, state, params=None, *, key, **extra):
        return updates, state + 0.5

    return optax.GradientTransformationExtraArgs(lambda params: jnp.zeros((), jnp.int32), step)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (one_key_for_all_leaves, "gets the same noise as leaf"),
        (one_key_for_all_steps, "of step 1 of run 0 gets the same noise as leaf .* of step 0"),
        (key_in_the_factory, "of run 1 gets the same noise as leaf .* of run 0"),
        (numpy_noise, "gets the same noise"),
        (other_dtype, "has dtype float32, want bfloat16"),
        (default_key, "without key= must raise TypeError"),
        (state_of_another_type, r"state has dtype float\d\d, want int32"),
    ],
)
def test_bad_transforms_fail(build, message):
    with pytest.raises(AssertionError, match=message):
        check(noise_case(build))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (one_draw_for_all_entries, "noise of entries . and . is correlated, by 1"),
        (less_noise_on_large_updates, "noise depends on the updates: .* by up to 0.5"),
        (lambda scale: add_gaussian(2 * scale / 3), "noise do not follow the distribution"),
        (lambda scale: add_gaussian(3 * scale / 2), "noise do not follow the distribution"),
        (lambda scale: add_laplace(scale / 2**0.5), "noise do not follow the distribution"),
        (lambda scale: add_gaussian(0.95 * scale), r"noise has about 0.9\d\d times the scale"),
        (lambda scale: add_gaussian(1.05 * scale), r"noise has about 1.0\d\d times the scale"),
    ],
)
def test_noise_of_another_law_or_scale_fails(build, message):
    with pytest.raises(AssertionError, match=message):
        check(noise_case(build))


def test_an_event_that_claims_more_noise_than_is_drawn_fails():
    draws = np.random.default_rng(0).normal(size=6000)
    for law in (stats.norm(), stats.norm().cdf):
        check_noise(draws, law, dpe.GaussianDpEvent(1.0), 1.0, "noise")
        check_noise(draws, law, dpe.GaussianDpEvent(0.7), 0.7, "noise")
        with pytest.raises(AssertionError, match=r"the event claims delta\(0.1\) = .* by 1"):
            check_noise(draws, law, dpe.GaussianDpEvent(1.01), 1.0, "noise")
        with pytest.raises(AssertionError, match="the event claims"):
            check_noise(draws, law, dpe.LaplaceDpEvent(1.5), 1.0, "noise")
        with pytest.raises(AssertionError, match="cannot tell the scale"):
            check_noise(draws[:100], law, dpe.GaussianDpEvent(1.0), 1.0, "noise")


def test_a_pure_claim_is_tested_where_no_draw_is():
    """Gaussian noise is below this Laplace mechanism's curve but for a mass of 1e-15."""
    draws = np.random.default_rng(0).normal(size=6000)
    with pytest.raises(AssertionError, match="claims a pure epsilon of 4"):
        check_noise(draws, stats.norm(), dpe.LaplaceDpEvent(0.25), 0.5, "noise")
    draws = np.random.default_rng(1).laplace(scale=0.25, size=6000)
    for law in (stats.laplace(scale=0.25), stats.laplace(scale=0.25).cdf):
        check_noise(draws, law, dpe.LaplaceDpEvent(0.25), 1.0, "noise")


def test_a_pure_claim_is_tested_for_a_change_that_several_numbers_share():
    """Staircase noise: a change by 1/2 of one number may cost as much as one by 1."""

    def staircase(x):
        # levels fall by e at +-1/2, 3/2, ...; the density is constant between
        below = np.abs(x) + 0.5
        steps, part = np.floor(below), below % 1
        tail = np.exp(-steps) * (1 - part + part * np.exp(-1)) / (1 + np.exp(-1))
        centre = 0.5 + np.abs(x) * (1 - np.exp(-1)) / (1 + np.exp(-1))
        upper = np.where(steps == 0, 1 - centre, tail)
        return np.where(x > 0, 1 - upper, upper)

    uniform = np.random.default_rng(3).uniform(size=6000)
    at = np.linspace(-40, 40, 1_600_001)
    draws = np.interp(uniform, staircase(at), at)
    with pytest.raises(AssertionError, match=r"a pure epsilon of 1, .* by 0.5 of each of 2"):
        check_noise(draws, staircase, PureZCDpEvent(0.5, epsilon=1.0), 1.0, "noise")


def test_noise_without_its_law_and_event_is_refused():
    for missing in ("law", "event"):
        case = dataclasses.replace(noise_case(add_gaussian), **{missing: None})
        with pytest.raises(AssertionError, match=r"subject: noise needs law= .* and event="):
            check(case)


@pytest.mark.slow
def test_a_hidden_key_is_seen_even_where_values_differ():
    """Noise that mixes the right key with a reused one."""

    def build(scale):
        def update(updates, key, count):
            now = jax.random.fold_in(key, count)
            hidden = jax.random.key(42)
            fresh = noisy(updates, lambda i: jax.random.fold_in(now, i))
            return noisy(fresh, lambda i: jax.random.fold_in(hidden, i))

        return transform(update)

    with pytest.raises(AssertionError, match="uses the key of draw"):
        check(noise_case(build, {"a": jnp.ones(4), "b": jnp.ones(4)}))


def aggregator(reduce, bound):
    def update(per_example, state, params=None, *, mask, key=None, **extra):
        return reduce(per_example, mask), state

    return Aggregator(lambda params: (), update, lambda relation: bound(relation))


def clipped(per_example, mask, max_norm):
    clip = clip_by_norm(max_norm)
    return clip.update(per_example, (), mask=mask)[0]


def factor(relation):
    return 2.0 if relation == "replace_one" else 1.0


def mean_over_the_realised_batch(max_norm):
    def reduce(per_example, mask):
        total = clipped(per_example, mask, max_norm)
        return total / jnp.maximum(jnp.sum(mask), 1)

    return aggregator(reduce, lambda r: factor(r) * max_norm)


def poisoned_by_nan(max_norm):
    def reduce(per_example, mask):
        norms = jnp.sqrt(jnp.sum(per_example**2, axis=1))
        scale = mask * jnp.minimum(1, max_norm / jnp.maximum(norms, 1e-12))
        wide = per_example.astype(jnp.promote_types(per_example.dtype, jnp.float32))
        return jnp.tensordot(scale, wide, 1)

    return aggregator(reduce, lambda r: factor(r) * max_norm)


def padding_leaks(max_norm):
    def reduce(per_example, mask):
        return clipped(per_example, jnp.ones_like(mask), max_norm)

    return aggregator(reduce, lambda r: factor(r) * max_norm)


def low_precision(max_norm):
    def reduce(per_example, mask):
        return clipped(per_example, mask, max_norm).astype(per_example.dtype)

    return aggregator(reduce, lambda r: factor(r) * max_norm)


def understated(max_norm):
    return aggregator(functools.partial(clipped, max_norm=max_norm), lambda r: max_norm)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (mean_over_the_realised_batch, "sum of two halves"),
        (poisoned_by_nan, "masked records that hold nan|example that holds nan"),
        (padding_leaks, "halves|masked"),
        (low_precision, "sum has dtype bfloat16, want float32"),
        (
            understated,
            "under replace_one the sum must change by at most 0.5 in l2, but to replace record",
        ),
    ],
)
def test_bad_aggregators_fail(rng, build, message):
    per_example = jnp.asarray(rng.normal(size=(5, 3)), jnp.float32)
    with pytest.raises(AssertionError, match=message):
        check(dpt.AggregatorCase(build, per_example))


def test_a_chain_whose_noise_is_nothing_fails():
    def build(scale):
        return dpjax.chain(dpjax.transforms.clip_by_norm(1.0), add_gaussian(0.0 * scale))

    with pytest.raises(AssertionError, match="another key gives the same sum"):
        check(dpt.AggregatorCase(build, jnp.ones((5, 3)), norm=None, random=True))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (lambda s, x, n: (jnp.full(3, n), jnp.zeros(3, bool)), "indices must lie in 0..4"),
        (lambda s, x, n: (jnp.zeros(3, int), jnp.ones(3, bool)), "twice in one batch"),
        (lambda s, x, n: (jnp.arange(3), jnp.ones(3)), "integers and bools"),
    ],
)
def test_bad_samplers_fail(batch, message):
    cls = jax.tree_util.register_static(
        dataclasses.dataclass(frozen=True)(
            type("Bad", (dpjax.sampling.FullBatch,), {"batch": batch})
        )
    )
    with pytest.raises(AssertionError, match=message):
        check(dpt.SamplerCase(cls(3), 5, random=False))


def _single_pass(self, step):
    return step


def _overstated_slots(self):
    return 4


@pytest.mark.parametrize(
    ("kind", "methods", "message"),
    [
        ("FullBatch", {"event": _single_pass}, "counts too few participations"),
        ("PoissonSampler", {"event": _single_pass}, "counts too few participations"),
        ("FullBatch", {"participation_rate": lambda self, n: 0.5}, "records are in 1 of batches"),
        (
            "PoissonSampler",
            {"participation_rate": lambda self, n: 0.7},
            "rate is 0.7",
        ),
        ("FullBatch", {"slots": property(_overstated_slots)}, "slots is 4, but a batch has None"),
        ("FullBatch", {"event": property()}, "got .* without event"),
        ("FullBatch", {"__hash__": lambda self: id(self)}, "a copy of it equal, of equal hash"),
        ("FullBatch", {"default_relation": "neither"}, "relation must be one of"),
    ],
)
def test_bad_claims_of_samplers_fail(kind, methods, message):
    base = getattr(dpjax.sampling, kind)
    cls = jax.tree_util.register_static(
        dataclasses.dataclass(frozen=True)(type("Bad", (base,), methods))
    )
    full = kind == "FullBatch"
    sampler = cls(16) if full else cls(0.8, 16, 5)
    with pytest.raises((AssertionError, TypeError, ValueError), match=message):
        check(dpt.SamplerCase(sampler, 5, random=not full))


def solver_case(**methods):
    """DPSGD with some methods replaced."""
    cls = register_dataclass(
        dataclasses.dataclass(frozen=True)(type("Bad", (dpjax.solvers.DPSGD,), methods))
    )
    return dpt.SolverCase(
        lambda value: cls(**(ours._DESCENT | {"noise_multiplier": value})),
        ours._linear(),
        ours._data(),
    )


DPSGD = dpjax.solvers.DPSGD


def poisoned_step(self, problem, batch, mask, state):
    state, info = DPSGD.step(self, problem, batch, mask, state)
    return state, info._replace(gradient_norm=info.gradient_norm + 0 * jnp.sum(batch["x"]))


def masked_step(self, problem, batch, mask, state):
    state, info = DPSGD.step(self, problem, batch, mask, state)
    leak = 0.01 * jnp.sum(jnp.isfinite(batch["x"][:, 0]) * batch["y"])
    return state, info._replace(gradient_norm=info.gradient_norm + leak)


def same_noise_every_step(self, problem, batch, mask, state):
    after, info = DPSGD.step(self, problem, batch, mask, state)
    return after._replace(noise=state.noise), info


def noise_of_another_run(self, problem, *, key):
    return DPSGD.init(self, problem, key=jax.random.key(3))


def promoted_state(self, problem, batch, mask, state):
    state, info = DPSGD.step(self, problem, batch, mask, state)
    return state._replace(params=jax.tree.map(lambda p: p.astype(float), state.params)), info


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"step": poisoned_step}, "not finite|masked records"),
        ({"step": masked_step}, "masked records"),
        pytest.param(
            {"step": same_noise_every_step}, "uses the key of draw", marks=pytest.mark.slow
        ),
        ({"init": noise_of_another_run}, "of run 1 uses the key of draw"),
        ({"step": promoted_state}, "state after a step"),
        (
            {
                "guarantee": lambda self: dpjax.Guarantee(
                    dpjax.privacy.joint_poisson_event(1.0, 1, gaussian=0.0)
                )
            },
            "must be finite, got inf",
        ),
        (
            {
                "guarantee": lambda self: dataclasses.replace(
                    DPSGD.guarantee(self), failure_probability=0.0
                )
            },
            r"failure_probability must be at least the sampler's, 1e-07, got 0",
        ),
    ],
)
def test_bad_solvers_fail(methods, message):
    with pytest.raises(AssertionError, match=message):
        check(solver_case(**methods))


def test_a_structure_must_name_its_class():
    def alike():
        cls = dataclasses.make_dataclass("Alike", ["noise"], frozen=True)
        return jax.tree_util.register_dataclass(cls)(1.0)

    first, second = (jax.tree.structure(alike()) for _ in range(2))
    if first == second:  # since jax 0.10
        with pytest.raises(AssertionError, match="structure must name its class"):
            _check_structure(alike(), "alike")
    else:
        _check_structure(alike(), "alike")


def test_a_swept_field_must_be_data():
    case = solver_case()
    odd = dataclasses.replace(
        case,
        build=lambda value: dpjax.solvers.DPSGD(
            dpjax.sampling.PoissonSampler(0.1 * value, 3, 24), 1.0, 1.0, 1.0, 4.0
        ),
    )
    with pytest.raises(AssertionError, match="must be a data field"):
        check(odd)

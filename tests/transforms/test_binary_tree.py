import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from noise_maps import noise_map, scale_families, smallest_shifts
from scipy import stats

import dpjax
import dpjax.testing as dpt
from dpjax.privacy import Guarantee
from dpjax.random._normal import normal
from dpjax.testing._trees import QUICK
from dpjax.transforms import BinaryTree, correlated_noise, tree_aggregation
from dpjax.transforms.noise.correlated import _tree_nodes as nodes
from dpjax.transforms.noise.correlated._strategy import knorm_noise

pytestmark = pytest.mark.usefixtures("x64")


def nodes_of(t):
    """The nodes that make up the prefix [1, t]: running sums of t's binary digits, up from 1."""
    return [*nodes_of(t & (t - 1)), t] if t else []


def covered(node):
    return range(node - (node & -node) + 1, node + 1)


def test_nodes_partition_every_prefix_and_are_as_many_as_steps():
    touched = np.zeros(1025, int)
    drawn = noise_map(BinaryTree(1024), np.ones(1024))
    for t in range(1, 1025):
        parts = nodes_of(t)
        np.testing.assert_array_equal(np.flatnonzero(drawn[t - 1]) + 1, parts)
        np.testing.assert_allclose(drawn[t - 1][drawn[t - 1] != 0], math.sqrt(11), rtol=1e-12)
        assert [j for i in parts for j in covered(i)] == list(range(1, t + 1))
        touched[covered(t)] += 1  # node t is the one that step t adds
        # a step touches bit_length nodes at most, and the first step as many
        assert touched.max() == touched[1] == t.bit_length() == nodes.largest_cost(t, 0.0)


@pytest.mark.parametrize("power", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("both", [False, True])
def test_cost_is_that_of_the_most_touched_step(power, both):
    for num_steps in (1, 2, 3, 7, 12, 33, 64):
        cost = np.zeros(num_steps + 1)
        for level, end in itertools.product(range(7), range(1, num_steps + 1)):
            if end % 2**level == 0 and (both or end % 2 ** (level + 1)):
                q = np.arange(end - 2**level + 1, end + 1)
                cost[q] += (q / end) ** power
        assert nodes.largest_cost(num_steps, power, both) == pytest.approx(cost.max(), rel=1e-12)


def test_costs_that_are_known():
    got = {k: nodes.largest_cost(2**14 - 1, 2.0 * (k - 1)) for k in (2, 3)}
    assert got == {2: pytest.approx(11.64, abs=0.005), 3: pytest.approx(10.96, abs=0.005)}
    got = {k: nodes.largest_cost(2**10 - 1, 2.0 * (k - 1)) for k in (2, 3)}
    assert got == {2: pytest.approx(7.67, abs=0.005), 3: pytest.approx(7.00, abs=0.005)}


@pytest.mark.parametrize("num_steps", [2, 21])
@pytest.mark.parametrize("exponent", [0.0, 1.0])
def test_covariance_is_that_of_shared_nodes(num_steps, exponent):
    tree = BinaryTree(num_steps, exponent)
    for scales in scale_families(num_steps).values():
        t = np.arange(1, num_steps + 1)
        stddev = [
            tree.node_factor * i**exponent * max(scales[j - 1] / j**exponent for j in covered(i))
            for i in t
        ]
        digits = [set(nodes_of(i)) for i in t]
        want = [[sum(stddev[i - 1] ** 2 for i in a & b) for a in digits] for b in digits]
        got = noise_map(tree, scales)
        np.testing.assert_allclose(got @ got.T, want, rtol=1e-9)
        np.testing.assert_allclose(tree.prefix_stddev(scales) ** 2, np.diag(want), rtol=1e-9)


def nodes_around(q, num_steps, variance_reduced):
    """(step, level) of the nodes that hold step q."""
    ends = [(-(-q // 2**level) * 2**level, level) for level in range(num_steps.bit_length())]
    return [
        (end, level)
        for end, level in ends
        if end <= num_steps and (variance_reduced or end % 2 ** (level + 1))
    ]


@pytest.mark.parametrize(
    ("num_steps", "exponent", "variance_reduced", "norm"),
    [
        (1, 0.0, False, "gaussian"),
        (8, 1.0, False, "gaussian"),
        *itertools.product([13], [0.0, 2.0], [False, True], ["gaussian"]),
        (13, 0.0, False, "l2"),
        (13, 1.0, True, "linf"),
        (22, 1.0, True, "gaussian"),
    ],
)
def test_noise_makes_up_for_any_step(num_steps, exponent, variance_reduced, norm):
    tree = BinaryTree(num_steps, exponent, variance_reduced, norm)
    power = 2 if norm == "gaussian" else 1
    levels = num_steps.bit_length() if variance_reduced else 1
    for name, scales in scale_families(num_steps).items():
        matrix = noise_map(tree, scales)
        growth = np.arange(1, num_steps + 1.0) ** exponent
        worst = 0.0
        for q in range(1, num_steps + 1):
            # moving the nodes around q, and nothing else, moves the prefixes from q on
            shift = np.zeros(matrix.shape[1])
            for end, level in nodes_around(q, num_steps, variance_reduced):
                under = slice(end - 2**level, end)
                stddev = tree.node_factor * growth[end - 1] * max(scales[under] / growth[under])
                shift[(end - 1) * levels + (level if variance_reduced else 0)] = (
                    scales[q - 1] / stddev
                )
            moved = scales[q - 1] * (np.arange(1, num_steps + 1) >= q)
            np.testing.assert_allclose(matrix @ shift, moved, atol=1e-9 * scales.max())
            worst = max(worst, np.sum(shift**power) ** (1 / power))
        assert worst <= 1 + 1e-9, name
        if (name, exponent) in {("uniform", 0.0), ("linear", 1.0), ("quadratic", 2.0)}:
            assert worst == pytest.approx(1.0, rel=1e-9)
        if norm == "gaussian":
            shifts = smallest_shifts(matrix, scales)
            norms = np.linalg.norm(shifts, axis=0)
            assert norms.max() <= worst * (1 + 1e-9)
            if not variance_reduced:  # the prefixes give the nodes away: nothing is left out
                assert norms.max() == pytest.approx(worst, rel=1e-9)


@pytest.mark.parametrize("num_steps", [1, 16, 27])
def test_variance_reduced_nodes_are_the_best_estimates(num_steps):
    """By generalised least squares from the noisy nodes of each subtree."""
    tree = BinaryTree(num_steps, variance_reduced=True)
    variance = {0: 0.0}
    for t in range(1, num_steps + 1):
        level = (t & -t).bit_length() - 1
        rows = [
            np.arange(1 << level) // 2**lower == block
            for lower in range(level + 1)
            for block in range(1 << (level - lower))
        ]
        design = np.array(rows, float)
        total = np.linalg.inv(design.T @ design).sum()  # of the sum over the subtree's leaves
        variance[t] = variance[t & (t - 1)] + num_steps.bit_length() * total
    want = np.sqrt([variance[t] for t in range(1, num_steps + 1)])
    np.testing.assert_allclose(tree.prefix_stddev(), want, rtol=1e-9)
    for scales in scale_families(num_steps).values():
        got = np.linalg.norm(noise_map(tree, scales), axis=1)
        np.testing.assert_allclose(tree.prefix_stddev(scales), got, rtol=1e-9)
    plain = BinaryTree(num_steps).prefix_stddev()
    assert np.all(tree.prefix_stddev() <= plain * (1 + 1e-12))


def run(transform, updates, key, **extra):
    def body(state, xs):
        out, state = transform.update(xs[0], state, key=key, **xs[1])
        return state, out

    @functools.partial(jax.jit, compiler_options=QUICK)
    def scan(updates, extra):
        start = transform.init(jax.tree.map(lambda leaf: leaf[0], updates))
        return jax.lax.scan(body, start, (updates, extra))[1]

    return scan(updates, extra)


@pytest.mark.slow
@pytest.mark.parametrize("variance_reduced", [False, True])
def test_aggregation_sums_nodes_that_are_drawn_once(variance_reduced, key, unrounded_steps):
    num_steps, rng = 11, np.random.default_rng(0)
    updates = {"a": rng.normal(size=(num_steps, 2)), "b": rng.normal(size=(num_steps, 1, 3))}
    updates = jax.tree.map(jnp.asarray, updates)
    sensitivity = rng.uniform(0.1, 3.0, num_steps)
    out = run(
        tree_aggregation(1.7, num_steps, variance_reduced), updates, key, sensitivity=sensitivity
    )
    still = run(tree_aggregation(0.0, num_steps, variance_reduced), updates, key)
    for name, leaf in updates.items():
        np.testing.assert_allclose(still[name], np.cumsum(leaf, axis=0), atol=1e-12)
    if variance_reduced:
        return
    steps = np.arange(1, num_steps + 1)
    for i, name in enumerate("ab"):
        shape = updates[name].shape[1:]
        keys = jax.vmap(lambda t, i=i: jax.random.fold_in(jax.random.fold_in(key, t), i))
        drawn = jax.vmap(lambda k, shape=shape: normal(k, shape, jnp.float64))
        stddev = [1.7 * max(sensitivity[j - 1] for j in covered(t)) for t in steps]
        node = [sd * noise for sd, noise in zip(stddev, drawn(keys(steps - 1)), strict=True)]
        noise = [sum(node[i - 1] for i in nodes_of(t)) for t in steps.tolist()]
        np.testing.assert_allclose(out[name] - still[name], np.array(noise), atol=1e-10)


def test_aggregation_does_not_depend_on_steps_to_come(key):
    updates = jnp.arange(30.0).reshape(10, 3)
    short = run(tree_aggregation(2.0, 10), updates, key)
    long = run(tree_aggregation(2.0, 1000), updates, key)
    np.testing.assert_array_equal(short, long)


def test_aggregation_is_of_gaussians(key):
    """One of the tree's own sums, against its own event."""
    updates = jnp.zeros((7, 4000))
    out = run(tree_aggregation(1.5, 7), updates, key)
    want = 1.5 * BinaryTree(7).prefix_stddev() / math.sqrt(3)
    for t in (0, 5, 6):
        dpt.check_scale(out[t], lambda s: stats.norm(scale=s).cdf, want[t])
    # prefixes 4 and 6 share node 4 alone, 3 and 4 nothing
    dpt.check_uncorrelated(out[2], out[3])
    dpt.check_uncorrelated(out[3], out[5] - out[3])


class Recorder(BinaryTree):
    keys: list = []  # noqa: RUF012

    def noise(self, key, like):
        self.keys.append(np.asarray(jax.random.key_data(key)).tobytes())
        return super().noise(key, like)


def test_no_two_draws_share_a_key():
    Recorder.keys.clear()
    noise = correlated_noise(Recorder(5, variance_reduced=True))
    with jax.disable_jit():
        state = noise.init(jnp.zeros(2))
        for _ in range(5):
            _, state = noise.update(jnp.zeros(2), state, key=jax.random.key(0))
    assert len(Recorder.keys) == 5 + 2 + 1  # every node of the full tree once
    assert len(set(Recorder.keys)) == len(Recorder.keys)


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("sizes", [(1,), (2, 3)])
def test_knorm_draws_have_their_density(norm, sizes, key):
    like = [jnp.zeros(size) for size in sizes]
    keys = jax.random.split(key, 4000)
    drawn = np.concatenate(jax.vmap(lambda key: knorm_noise(key, like, norm))(keys), axis=1)
    size = sum(sizes)
    length = np.linalg.norm(drawn, axis=1, ord=2 if norm == "l2" else np.inf)
    # in any norm the radius is Gamma(d), and in one dimension the noise is Laplace
    dpt.check_scale(length, lambda s: stats.gamma(size, scale=s).cdf, 1.0)
    variance = size + 1 if norm == "l2" else (size + 1) * (size + 2) / 3
    for column in drawn.T:
        dpt.count_false_alarm(1e-8)
        assert np.var(column) == pytest.approx(variance, rel=0.25)
        assert np.mean(column) == pytest.approx(0.0, abs=6 * math.sqrt(variance / 4000))
    if size == 1:
        dpt.check_scale(drawn, lambda s: stats.laplace(scale=s).cdf, 1.0)
    elif norm == "l2":  # a coordinate of a direction, squared, is Beta(1/2, (d - 1) / 2)
        for column in (drawn / length[:, None]).T:
            dpt.check_distribution(column**2, stats.beta(0.5, (size - 1) / 2).cdf)
    else:  # on the cube's surface all but the largest coordinate are uniform
        face = drawn / length[:, None]
        inner = np.sort(np.abs(face), axis=1)[:, :-1]
        dpt.check_distribution(inner.max(axis=1), lambda x: np.clip(x, 0, 1) ** (size - 1))


def test_knorm_noise_of_nothing_is_nothing(key):
    assert knorm_noise(key, {"a": jnp.zeros((0, 2))}, "l2")["a"].shape == (0, 2)
    assert knorm_noise(key, (), "linf") == ()


@pytest.mark.parametrize("distribution", ["l2", "linf"])
@pytest.mark.parametrize("exponent", [0.0, 1.0])
@pytest.mark.parametrize("multiplier", [0.2, 1.0, 8.0])
def test_pure_privacy_is_claimed_and_no_more(distribution, exponent, multiplier):
    tree = BinaryTree(21, exponent, distribution=distribution)
    due = {"add_or_remove_one": 1.0, "replace_special": 1.0, "replace_one": 2.0}
    for relation, factor in due.items():
        guarantee = Guarantee(tree.event(multiplier, relation), relation)
        claimed = factor / multiplier
        # up to what delta itself buys, and a rounding of losses that may only add
        assert guarantee.epsilon(1e-12) >= claimed * (1 - 1e-3)
        assert guarantee.epsilon(1e-12) <= claimed + 21 * 1e-4
    assert math.isinf(Guarantee(tree.event(0.0)).epsilon(1e-5))


def test_gaussian_event_is_one_gaussian():
    event = BinaryTree(100, 1.0, variance_reduced=True).event(2.5)
    assert event == dpjax.transforms.BufferedToeplitz(7).event(2.5)
    want = {"add_or_remove_one": 2.5, "replace_special": 2.5, "replace_one": 1.25}
    for relation, noise in want.items():
        got = Guarantee(event, relation).epsilon(1e-5)
        exact = float(Guarantee(BinaryTree(1).event(noise), "add_or_remove_one").epsilon(1e-5))
        assert got == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_steps": 0}, ValueError, "num_steps must be >= 1, got 0"),
        ({"num_steps": 2.0}, TypeError, "num_steps"),
        ({"num_steps": 2**31}, ValueError, "2147483648"),
        ({"num_steps": 3, "exponent": -1.0}, ValueError, "exponent"),
        ({"num_steps": 3, "distribution": "l1"}, ValueError, "distribution"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        BinaryTree(**arguments)


def test_wrong_scales_and_multipliers():
    with pytest.raises(ValueError, match="scales must have shape"):
        BinaryTree(3).prefix_stddev(np.ones(4))
    with pytest.raises(ValueError, match="noise_multiplier"):
        BinaryTree(3).event(-1.0)
    with pytest.raises(ValueError, match="relation"):
        BinaryTree(3, distribution="l2").event(1.0, "somehow")
    with pytest.raises(ValueError, match="stddev"):
        tree_aggregation(-1.0, 3)
    with pytest.raises(ValueError, match="num_steps"):
        tree_aggregation(1.0, 0)

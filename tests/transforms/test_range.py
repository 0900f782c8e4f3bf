import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax.testing as dpt
from dpjax.geometry import L1Ball, Polytope, Simplex
from dpjax.transforms import OuterProduct, clip_by_range
from dpjax.transforms.clipping._leaves import PackedSigns

B, P = 6, 5
LONG = 2**14 + 3  # rows are added one by one
CORNERS = np.random.default_rng(1).normal(size=(7, P)).astype(np.float32)
DOMAINS = {"simplex": Simplex(P), "ball": L1Ball(P, 2.5), "polytope": Polytope(CORNERS)}


@jax.jit
def clipped(values, mask, bound, domain):
    clip = clip_by_range(bound, domain)
    return clip.update(values, clip.init(None), mask=mask)[0]


def total(values, bound, domain, mask=None):
    rows = values.left if isinstance(values, OuterProduct) else values
    mask = jnp.ones(rows.shape[0], bool) if mask is None else jnp.asarray(mask)
    return clipped(values, mask, bound, domain)


def spread(matrix, domain):
    """Range of each row over the vertices, in float64."""
    if isinstance(domain, Simplex):
        return np.ptp(matrix, axis=1)
    if isinstance(domain, L1Ball):
        return 2 * domain.radius * np.abs(matrix).max(axis=1)
    return np.ptp(matrix @ np.asarray(domain.vertices, np.float64).T, axis=1)


def expected(matrix, bound, domain, mask):
    matrix = np.asarray(matrix, np.float64)
    factors = np.minimum(1, bound / np.maximum(spread(matrix, domain), 1e-300))
    if isinstance(domain, Simplex):
        matrix = matrix - (matrix.max(axis=1) + matrix.min(axis=1))[:, None] / 2
    return (factors * mask) @ matrix


def normals(rng, *shape):
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


@pytest.mark.parametrize("name", DOMAINS)
@pytest.mark.parametrize("bound", [0.3, 4.0, 1e3])
def test_equals_numpy(rng, name, bound):
    domain, rows, right = DOMAINS[name], normals(rng, B, P), normals(rng, B, 1)
    mask = np.array([True, False, True, True, True, False])
    want = expected(rows, bound, domain, mask)
    np.testing.assert_allclose(total(rows, bound, domain, mask), want, rtol=1e-5, atol=1e-5)
    outer = total(OuterProduct(rows, right), bound, domain, mask)
    formed = np.asarray(rows) * np.asarray(right)
    assert outer.shape == (P,)
    np.testing.assert_allclose(outer, expected(formed, bound, domain, mask), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "dim"),
    [
        (jnp.int8, P),
        (jnp.int8, LONG),
        (jnp.bfloat16, P),
        (jnp.bfloat16, LONG),
        (jnp.int32, P),
        (jnp.uint8, P),
        (jnp.bool_, P),
    ],
)
def test_other_types_are_summed_in_float32(rng, dtype, dim):
    rows = jnp.asarray(rng.integers(0, 2, size=(B, dim)), dtype)
    if dtype in (jnp.int8, jnp.int32):
        rows = rows.at[0, :2].set(jnp.array([-128, 127], dtype))  # a range int8 cannot hold
    right = normals(rng, B, 1)
    matrix = np.asarray(rows, np.float64)
    mask = np.arange(B) != 2
    for domain in (Simplex(dim), L1Ball(dim, 0.5), DOMAINS["polytope"]):
        if domain.dim != dim:
            continue
        got = total(rows, 0.7, domain, mask)
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, expected(matrix, 0.7, domain, mask), rtol=2e-5, atol=1e-6)
    formed = matrix * np.asarray(right, np.float64)
    got = total(OuterProduct(rows, right), 0.7, Simplex(dim), mask)
    assert got.dtype == jnp.float32
    want = expected(formed, 0.7, Simplex(dim), mask)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("dim", [P, 40])
def test_packed_signs(rng, dim):
    signs = np.where(rng.uniform(size=(B, dim)) < 0.5, 1, -1).astype(np.int8)
    signs[:, :2] = [1, -1]
    right = normals(rng, B, 1).at[1].set(jnp.nan)
    mask = np.arange(B) != 2
    for domain in (Simplex(dim), L1Ball(dim, 0.5), DOMAINS["polytope"]):
        if domain.dim == dim:
            got = total(OuterProduct(PackedSigns.pack(signs), right), 0.7, domain, mask)
            want = total(OuterProduct(jnp.asarray(signs), right), 0.7, domain, mask)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("dim", "size"), [(P, B), (LONG, B), (LONG, 40)])
def test_spoiled_examples_and_padding_add_nothing(rng, dim, size):
    rows, right = normals(rng, size, dim), normals(rng, size, 1)
    mask = np.arange(size) != 4
    kept = mask & (np.arange(size) != 1)
    domain = Simplex(dim)
    want = np.asarray(total(rows, 1.0, domain, kept))
    want_outer = np.asarray(total(OuterProduct(rows, right), 1.0, domain, kept))
    for bad in (np.nan, np.inf, -np.inf):
        spoiled = rows.at[4].set(bad).at[1, 2].set(bad)
        np.testing.assert_array_equal(total(spoiled, 1.0, domain, mask), want)
        got = total(OuterProduct(spoiled, right), 1.0, domain, mask)
        np.testing.assert_array_equal(got, want_outer)
        outer = OuterProduct(rows.at[1].set(0), right.at[1].set(bad).at[4].set(bad))
        np.testing.assert_array_equal(total(outer, 1.0, domain, mask), want_outer)


@pytest.mark.parametrize("name", DOMAINS)
def test_spoiled_examples_of_any_domain(rng, name):
    rows = normals(rng, B, P)
    want = total(rows, 1.0, DOMAINS[name], np.arange(B) != 0)
    for bad in (np.nan, np.inf, -np.inf, 3e38):
        spoiled = rows.at[0, 1].set(bad).at[0, 3].set(-bad)
        got = np.asarray(total(spoiled, 1.0, DOMAINS[name]))
        if np.isfinite(bad) and name != "simplex":  # beyond the float range or not, bounded
            change = spread((got - np.asarray(want))[None].astype(np.float64), DOMAINS[name])
            assert change[0] <= 1 + 1e-4
        else:
            np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("name", DOMAINS)
def test_bound_zero_zero_examples_and_no_examples(rng, name):
    domain, rows = DOMAINS[name], normals(rng, B, P).at[3].set(7.0)
    outer = OuterProduct(rows, normals(rng, B, 1))
    for values in (rows, outer):
        assert not np.any(total(values, 0.0, domain))
        assert not np.any(total(values, 1.0, domain, np.zeros(B, bool)))
        assert not np.any(total(jax.tree.map(jnp.zeros_like, values), 1.0, domain))
        none = total(jax.tree.map(lambda a: a[:0], values), 1.0, domain)
        assert none.shape == (P,)
        assert not np.any(none)


def test_what_no_draw_sees_hides_nothing(rng):
    domain, rows = Simplex(P), normals(rng, B, P)
    want = np.asarray(total(rows, 1.0, domain))
    # in float32, 1e30 more in every entry would leave nothing of the others, and twice 3e38 be inf
    huge = jnp.array([900.0, 1e30, 3e38, 3e38])[:, None] * jnp.ones((4, P))
    got = total(jnp.concatenate([rows, huge]), 1.0, domain)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    for left, right in ((huge, 1.0), (jnp.ones((4, P)), 1e30), (jnp.ones((4, P), jnp.int8), 1e30)):
        assert not np.any(total(OuterProduct(left, jnp.full((4, 1), right)), 1.0, domain))
    outer = OuterProduct(jnp.concatenate([rows, huge]), jnp.ones((B + 4, 1)))
    np.testing.assert_allclose(total(outer, 1.0, domain), want, rtol=1e-6, atol=1e-7)
    flat = Polytope(np.eye(3, 4, dtype=np.float32))  # the last coordinate is seen by no vertex
    unseen = jnp.zeros((1, 4)).at[0, 3].set(1e30)
    assert float(jnp.max(jnp.abs(total(unseen, 1.0, flat)))) <= 33


def test_ranges_below_the_float_range_hide_nothing():
    # float32 has 1.3e-38 and 1.2e-38, but their difference is 0
    left, right = jnp.array([[1.3e-38, 1.2e-38, 1.2e-38]]), jnp.full((1, 1), 3e38)
    got = total(OuterProduct(left, right), 1e-3, Simplex(3))
    assert np.ptp(np.asarray(got, np.float64)) <= 1e-3 * (1 + 1e-5)
    left = jnp.array([[0.9e-38, 0.0, 0.0]])
    got = total(OuterProduct(left, right), 1e-3, L1Ball(3, 1e3))
    assert 2e3 * np.max(np.abs(np.asarray(got, np.float64))) <= 1e-3 * (1 + 1e-5)


@pytest.mark.parametrize(
    ("name", "outer", "relation"),
    [
        ("simplex", False, "replace_one"),
        ("simplex", True, "add_or_remove_one"),
        ("polytope", False, "add_or_remove_one"),
    ],
)
def test_neighbours_reach_the_sensitivity_and_never_exceed_it(rng, name, outer, relation):
    domain, rows = DOMAINS[name], normals(rng, 3, P)
    values = OuterProduct(rows, normals(rng, 3, 1)) if outer else rows
    clip = clip_by_range(2.0, domain)

    def statistic(batch, mask):
        scores = domain.scores(clip.update(batch, clip.init(None), mask=mask)[0])
        return scores[:, None] - scores[None, :]  # the largest is the range

    bound = clip.sensitivity(relation)
    worst = dpt.largest_change(
        statistic, values, norm="linf", relation=relation, key=jax.random.key(0), restarts=3
    )
    assert 0.9 * bound <= worst.change <= bound * (1 + 1e-4)


def test_bound_and_domain_may_be_traced_and_swept(rng):
    rows = normals(rng, B, P)

    @jax.jit
    @jax.vmap
    def swept(bound, radius, corners):
        parts = [total(rows, bound, d) for d in (Simplex(P), L1Ball(P, radius), Polytope(corners))]
        return jnp.stack(parts), clip_by_range(bound, Simplex(P)).sensitivity("replace_one")

    bounds, radii = jnp.array([0.5, 2.0]), jnp.array([1.0, 3.0])
    corners = jnp.stack([jnp.asarray(CORNERS), 2 * jnp.asarray(CORNERS)])
    got, sensitivity = swept(bounds, radii, corners)
    np.testing.assert_array_equal(sensitivity, [1.0, 4.0])
    for i in range(2):
        domains = (Simplex(P), L1Ball(P, float(radii[i])), Polytope(corners[i]))
        for j, domain in enumerate(domains):
            want = total(rows, float(bounds[i]), domain)
            np.testing.assert_allclose(got[i, j], want, rtol=1e-5, atol=1e-6)


def test_a_traced_radius_that_is_negative_hides_nothing(rng):
    """Its ball is that of the modulus; the range used to come out negative, and nothing clipped."""
    rows = 100 * normals(rng, B, P)
    got = jax.jit(lambda radius: total(rows, 0.5, L1Ball(P, radius)))(-3.0)
    np.testing.assert_allclose(got, total(rows, 0.5, L1Ball(P, 3.0)), rtol=1e-6)


def test_long_rows_under_vmap(rng):
    rows, domain = normals(rng, 3, LONG), Simplex(LONG)
    bounds = jnp.array([0.1, 3.0])
    got = jax.vmap(lambda bound: total(rows, bound, domain))(bounds)
    for i in range(2):
        np.testing.assert_allclose(got[i], total(rows, bounds[i], domain), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.float32])
def test_no_copy_of_the_inputs(dtype):
    size, dim = 32, 100_000
    clip = clip_by_range(1.0, L1Ball(dim))

    def run(left, right, mask):
        return clip.update(OuterProduct(left, right), clip.init(None), mask=mask)[0]

    shapes = [
        jax.ShapeDtypeStruct(*s)
        for s in (((size, dim), dtype), ((size, 1), jnp.float32), ((size,), bool))
    ]
    memory = jax.jit(run).lower(*shapes).compile().memory_analysis()
    assert memory.temp_size_in_bytes < size * dim


def test_float64_stays_float64():
    if not jax.config.jax_enable_x64:
        pytest.skip("needs 64-bit types")
    for dim in (P, LONG):
        rows = jnp.ones((2, dim), jnp.float64).at[0, 0].set(1 / 3)
        for values in (rows, OuterProduct(rows, jnp.ones((2, 1), jnp.float32))):
            out = total(values, 1.0, Simplex(dim))
            assert out.dtype == jnp.float64
            np.testing.assert_allclose(float(out[0]), -1 / 3, rtol=1e-15)


def test_sensitivity_of_each_relation():
    clip = clip_by_range(1.5, Simplex(P))
    assert clip.sensitivity("add_or_remove_one") == 1.5
    assert clip.sensitivity("replace_special") == 1.5
    assert clip.sensitivity("replace_one") == 3.0
    assert isinstance(clip_by_range(jnp.float32(1.5), Simplex(P)).sensitivity("replace_one"), float)


def test_errors():
    for bad in (-1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="bound must be"):
            clip_by_range(bad, Simplex(P))
    with pytest.raises(ValueError, match="relation"):
        clip_by_range(1.0, Simplex(P)).sensitivity("friends")
    with pytest.raises(ValueError, match=r"must have shape \[\?, 5\], got \[6, 4\]"):
        total(jnp.ones((B, 4)), 1.0, Simplex(P))
    with pytest.raises(ValueError, match=r"right must have shape \[6, 1\], got \[6, 2\]"):
        total(OuterProduct(jnp.ones((B, P)), jnp.ones((B, 2))), 1.0, Simplex(P))
    clip = clip_by_range(1.0, Simplex(P))
    with pytest.raises(ValueError, match="1 leaf, one domain's, got 2"):
        clip.update([np.ones((B, P))] * 2, (), mask=np.ones(B, bool))
    out, _ = clip.update({"x": jnp.ones((B, P))}, (), mask=jnp.ones(B, bool))
    assert out["x"].shape == (P,)

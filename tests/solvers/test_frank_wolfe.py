"""Private Frank-Wolfe: its plan, its privacy by replay and by enumeration, its noiseless limit."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

import dpjax
from dpjax.geometry import L1Ball, Polytope, Simplex
from dpjax.problems import SimplexRisk
from dpjax.sampling import FullBatch, PoissonSampler
from dpjax.solvers import FrankWolfe
from dpjax.solvers.vertices._steps import coordinates
from dpjax.testing import check_counts
from dpjax.testing._trees import QUICK
from dpjax.transforms import PackedSigns

ADD, REPLACE = "add_or_remove_one", "replace_one"
CORNERS = np.random.default_rng(7).normal(size=(5, 3)).astype(np.float32)


def squares(margin, y):
    return 0.5 * (margin - y) ** 2


def logistic(w, rec):
    return jax.nn.softplus(rec["y"] * jnp.dot(rec["x"], w))


def distance(w, rec):
    return jnp.abs(jnp.dot(rec["x"], w) - rec["y"])


PROBLEMS = {
    "simplex": SimplexRisk(logistic, dim=4, grad_range=0.8),
    "l1 ball, linear": SimplexRisk.linear(squares, L1Ball(3, 2.0), grad_range=1.1),
    "polytope": SimplexRisk(distance, CORNERS, grad_range=1.2),
}


def rows(n, p, scale=1.0, seed=1):
    rng = np.random.default_rng(seed)
    x = jnp.asarray(scale * rng.normal(size=(n, p)))
    return {"x": x, "y": jnp.asarray(scale * rng.normal(size=n))}


def everyone(data):
    return jnp.ones(jax.tree.leaves(data)[0].shape[0], bool)


def quick(run):
    return jax.jit(run, compiler_options=QUICK)


def quick_run(solver, problem, data, seed):
    def run(data):
        key = jax.random.key(seed)
        return dpjax.solve(solver, problem, data, key=key)._replace(state=None)

    return quick(run)(data)


def replayed(solver, problem, data, mask, indices):
    """Logits `[T, m]` of all draws of a run that drew `indices` `[T, 1]`."""

    def body(state, index):
        (domain,) = problem.domains
        seen = coordinates(domain).logits(*solver.direction(problem, data, mask, state))
        return solver.move(problem, index, state), seen

    return jax.lax.scan(body, solver.init(problem, key=jax.random.key(0)), indices)[1]


def eta_by_hand(solver):
    influence = 2 if solver.relation == REPLACE else 1
    return influence * solver.sharpness * solver.grad_range / solver.num_records


# Plans and guarantees.

REGRESSION = SimplexRisk.linear(squares, L1Ball(100), grad_range=4.2, smoothness=1.0)


@pytest.mark.parametrize("relation", [None, ADD, REPLACE])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_the_budget_is_spent(relation, epsilon):
    budget = dpjax.Budget(epsilon, 1e-6, relation)
    for steps in (None, 1, 77):
        solver = FrankWolfe.for_budget(REGRESSION, 20_000, budget, steps=steps)
        assert solver.relation == (relation or ADD)
        assert steps in (None, solver.sampler.steps)
        assert 0.999 * epsilon <= solver.guarantee().epsilon(1e-6) <= epsilon


def test_the_event_counts_every_draw():
    solver = FrankWolfe(FullBatch(50), 90.0, 2.0, 1000.0)
    event = solver.guarantee().event
    assert (event.count, event.event.rho) == (50, pytest.approx((90 * 2 / 1000) ** 2 / 8))
    twice = dataclasses.replace(solver, relation=REPLACE).guarantee()
    assert twice.event.event.rho == pytest.approx(4 * event.event.rho)
    for guarantee, rho in ((solver.guarantee(), 0.2025), (twice, 0.81)):
        a = np.linspace(1.01, 50, 100_000)
        by_hand = rho * a + np.log1p(-1 / a) - (math.log(1e-6) + np.log(a)) / (a - 1)
        assert guarantee.epsilon(1e-6) == pytest.approx(by_hand.min(), rel=2e-3)


def test_the_default_number_of_steps():
    budget = dpjax.Budget(1.0, 1e-6)
    plan = FrankWolfe.plan(REGRESSION, 10_000, budget)
    once = plan.sharpness * math.sqrt(plan.steps)
    assert plan.steps == round((1.44 * once / math.log(200)) ** (2 / 3)) == 43
    assert plan.bound == pytest.approx(8 / 45 + math.log(200) / plan.sharpness)
    # the plan of replace-one is that of half as many records
    halved = FrankWolfe.plan(REGRESSION, 5_000, budget)
    assert halved == FrankWolfe.plan(REGRESSION, 10_000, dpjax.Budget(1.0, 1e-6, REPLACE))
    assert plan.steps / halved.steps == pytest.approx(2 ** (2 / 3), rel=0.05)
    certified = FrankWolfe.plan(REGRESSION, 10_000, budget, certified=True)
    bounds = [FrankWolfe.plan(REGRESSION, 10_000, budget, steps=t).bound for t in range(1, 1000)]
    assert certified.steps == 1 + int(np.argmin(bounds))
    assert certified.bound == min(bounds) < plan.bound
    # a linear function has its minimum at a vertex: one draw
    linear = dataclasses.replace(REGRESSION, smoothness=0.0)
    for certified in (False, True):
        assert FrankWolfe.plan(linear, 10_000, budget, certified=certified).steps == 1


def test_what_does_not_fit_is_refused():
    with pytest.raises(TypeError, match="PoissonSampler"):
        FrankWolfe(PoissonSampler(0.1, 3, 10), 1.0, 1.0, 10.0)
    for field, value in [
        ("sharpness", 0.0),
        ("grad_range", -1.0),
        ("num_records", 0),
        ("microbatch_size", 0),
        ("relation", "twins"),
    ]:
        with pytest.raises(ValueError, match=field):
            dataclasses.replace(FrankWolfe(FullBatch(2), 1.0, 1.0, 9.0), **{field: value})
    budget = dpjax.Budget(1.0, 1e-6)
    game = dpjax.problems.Saddle.matrix_game((2, 2))
    with pytest.raises(ValueError, match="SaddleMirrorDescent"):
        FrankWolfe.for_budget(game, 10, budget)
    with pytest.raises(ValueError, match="steps"):
        FrankWolfe.plan(REGRESSION, 10, budget, steps=0)


# Privacy by replay.


@pytest.mark.parametrize(
    ("name", "relation"),
    [
        ("simplex", REPLACE),
        pytest.param("simplex", ADD, marks=pytest.mark.slow),
        ("l1 ball, linear", REPLACE),
        ("l1 ball, linear", ADD),
        pytest.param("polytope", REPLACE, marks=pytest.mark.slow),
        ("polytope", ADD),
    ],
)
def test_no_neighbour_moves_a_draw_further_than_declared(name, relation, rng):
    problem, n, steps = PROBLEMS[name], 13, 6
    p = problem.num_params
    data = rows(n, p, 3.0)
    solver = FrankWolfe(
        FullBatch(steps), 40.0, problem.grad_range, 12.0, microbatch_size=4, relation=relation
    )
    indices = quick_run(solver, problem, data, 2).info.indices[0]
    assert indices.shape == (steps, 1)
    assert indices.dtype == jnp.int32

    @quick
    @jax.vmap
    def widths(position, record, other):
        def logits(record, present):
            changed = jax.tree.map(lambda a, r: a.at[position].set(r), data, record)
            mask = everyone(data).at[position].set(present)
            return replayed(solver, problem, changed, mask, indices)

        before = logits(record, True)
        after = logits(record, False) if relation == ADD else logits(other, True)
        # a NaN must not pass for no change
        return jnp.nan_to_num(jnp.ptp(after - before, axis=1), nan=jnp.inf)

    count = 200
    scale = 10.0 ** rng.integers(-1, 4, (2, count))
    x, y = rng.normal(size=(2, count, p)) * scale[..., None], rng.normal(size=(2, count)) * scale
    # opposites, whose slopes nothing turns: two of them are as far apart as records get
    x[:, 0], y[:, 0] = 1e3 * np.eye(p)[0], [-1e4, 1e4]
    if name == "simplex":
        x[:, 0] = 100 + np.array([[10], [-10]]) * np.eye(p)[0]
        y[:, 0] = 1
    records = [{"x": jnp.asarray(x[i]), "y": jnp.asarray(y[i])} for i in (0, 1)]
    found = np.asarray(widths(jnp.asarray(rng.integers(0, n, count)), *records))
    eta = eta_by_hand(solver)
    assert found.max() <= eta * (1 + 1e-4)
    print(f"{name}, {relation}: {found[1:].max() / eta:.3f}, constructed {found[0] / eta}")
    assert found[0].max() >= 0.9 * eta
    assert (found.max(axis=0) >= 0.9 * eta).all()
    event = solver.guarantee().event
    assert (event.count, event.event.rho) == (steps, pytest.approx(eta**2 / 8))


# Privacy by enumeration of tiny runs.

ALPHAS = (1.001, 1.5, 2.0, 4.0, 16.0, 64.0)


def log_softmax(scores):
    scores = np.asarray(scores, np.float64)
    scores = scores - scores.max(axis=-1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))


def renyi(log_p, log_q, alpha):
    exponent = alpha * log_p + (1 - alpha) * log_q
    top = exponent.max(axis=-1, keepdims=True)
    return (top[..., 0] + np.log(np.exp(exponent - top).sum(axis=-1))) / (alpha - 1)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize(("dim", "steps"), [(2, 3), (3, 2)])
def test_the_law_of_a_run_keeps_its_guarantee(dim, steps, relation, rng):
    problem = SimplexRisk(lambda w, rec: w @ rec["B"] @ w, dim=dim, grad_range=2.0)
    outcomes = np.array(list(itertools.product(range(dim), repeat=steps)))
    count = 60
    data = rng.normal(size=(count, 2, dim, dim)) * 10.0 ** rng.integers(-1, 3, (count, 1, 1, 1))
    other, mask = data.copy(), np.ones((count, 2), bool)
    if relation == ADD:
        mask[:, 0] = False
    else:
        other[:, 0] = 10 * rng.normal(size=(count, dim, dim))
    # one record alone: for the first vertex, against it or absent
    data[0], other[0] = 0, 0
    data[0, 0], other[0, 0] = np.diag([2] + [-2] * (dim - 1)), np.diag([-2] + [2] * (dim - 1))
    data[0, 0] *= 10
    other[0, 0] *= 10
    shares = []
    for sharpness in (0.05, 1.0):
        solver = FrankWolfe(FullBatch(steps), sharpness, 2.0, 2.0, relation=relation)

        @quick
        @jax.vmap
        def every(matrices, mask, solver=solver):
            def one(drawn):
                return replayed(solver, problem, {"B": matrices}, mask, drawn[:, None])

            return jax.vmap(one)(jnp.asarray(outcomes))

        def law(matrices, mask, every=every):
            log = log_softmax(every(jnp.asarray(matrices, float), jnp.asarray(mask)))
            at = np.arange(len(outcomes))[:, None], np.arange(steps)[None, :], outcomes
            return log[(slice(None), *at)].sum(axis=-1)

        log_p, log_q = law(data, np.ones((count, 2), bool)), law(other, mask)
        assert np.exp(log_p).sum(axis=1) == pytest.approx(1)
        rho = steps * eta_by_hand(solver) ** 2 / 8
        worst = 0.0
        for a, b in ((log_p, log_q), (log_q, log_p)):
            worst = max(worst, *((renyi(a, b, alpha) / (alpha * rho)).max() for alpha in ALPHAS))
            for delta in (1e-1, 1e-2, 1e-4, 1e-8):
                epsilon = solver.guarantee().epsilon(delta)
                tail = np.maximum(np.exp(a) - np.exp(epsilon + b), 0).sum(axis=-1)
                assert tail.max() <= delta * (1 + 1e-6)
        assert worst <= 1 + 1e-3
        shares.append(worst)
    print(f"{dim} vertices, {relation}: {max(shares):.4f} of rho")
    # with 3 vertices the halves of a draw cannot be equally likely
    assert max(shares) >= (0.98 if dim == 2 else 0.85)


def test_draws_follow_the_softmax_of_the_scores():
    problem, data = PROBLEMS["l1 ball, linear"], rows(10, 3)
    solver = FrankWolfe(FullBatch(1), 6.0, 1.1, 10.0)
    start = solver.init(problem, key=jax.random.key(0))
    direction = quick(solver.direction)(problem, data, everyone(data), start)
    scores = quick(L1Ball(3, 2.0).logits)(*direction)

    def run(seed):
        state = solver.init(problem, key=jax.random.key(seed))
        return solver.step(problem, data, everyone(data), state)[1].indices[0][0]

    drawn = np.bincount(quick(jax.vmap(run))(jnp.arange(20_000)), minlength=6)
    expected = np.exp(log_softmax(scores))
    assert expected.max() > 3 * expected.min()
    check_counts(drawn, expected)
    for factor in (2 / 3, 3 / 2):
        with pytest.raises(AssertionError, match="do not follow"):
            check_counts(drawn, expected**factor)


# The method.


def plain_frank_wolfe(vertices, gradient, start, steps):
    theta, path = start, []
    for t in range(steps):
        vertex = vertices[np.argmin(vertices @ gradient(theta))]
        theta = theta + 2 / (t + 2) * (vertex - theta)
        path.append(theta)
    return np.array(path)


DOMAINS = {
    "simplex": (Simplex(4), np.eye(4)),
    "l1 ball": (L1Ball(4, 0.7), 0.7 * np.concatenate([np.eye(4), -np.eye(4)])),
    "polytope": (Polytope(np.eye(6, 4) - 0.2), np.eye(6, 4) - 0.2),
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("simplex", "autodiff"),
        ("l1 ball", "linear"),
        pytest.param("l1 ball", "autodiff", marks=pytest.mark.slow),
        ("polytope", "linear"),
        pytest.param("polytope", "autodiff", marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("x64")
def test_without_noise_it_is_frank_wolfe(name, kind, rng):
    domain, vertices = DOMAINS[name]
    if name == "polytope":
        domain = Polytope(vertices)  # in double precision
    n, steps = 30, 300
    x = rng.uniform(-1, 1, (n, 4))
    y = x @ np.array([0.8, -0.3, 0.2, 0.0]) + 0.1 * rng.normal(size=n)
    if kind == "linear":
        problem = SimplexRisk.linear(squares, domain, grad_range=1e3)
    else:
        problem = SimplexRisk(
            lambda w, rec: squares(jnp.dot(rec["x"], w), rec["y"]), domain, grad_range=1e3
        )
    solver = FrankWolfe(FullBatch(steps), 1e12, 1e3, n, microbatch_size=7)
    data = {"x": jnp.asarray(x), "y": jnp.asarray(y)}

    def gradient(w):
        return x.T @ (x @ w - y) / n

    def risk(w):
        return np.mean((x @ w - y) ** 2) / 2

    solution = quick_run(solver, problem, data, 0)
    path = plain_frank_wolfe(vertices, gradient, vertices.mean(axis=0), steps)
    np.testing.assert_allclose(solution.params, path[-1], atol=1e-10)
    visited = vertices[np.asarray(solution.info.indices[0][:, 0])]
    weights = 2 * np.arange(1, steps + 1) / (steps * (steps + 1))
    np.testing.assert_allclose(weights @ visited, path[-1], atol=1e-10)

    m = len(vertices)
    found = optimize.minimize(
        lambda c: risk(c @ vertices),
        np.full(m, 1 / m),
        jac=lambda c: vertices @ gradient(c @ vertices),
        method="SLSQP",
        bounds=[(0, 1)] * m,
        constraints={"type": "eq", "fun": lambda c: c.sum() - 1},
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    excess = np.array([risk(theta) for theta in path]) - found.fun
    smoothness = np.abs(vertices @ x.T @ x @ vertices.T / n).max()
    assert (excess >= -1e-9).all()
    assert (excess <= 8 * smoothness / (np.arange(1, steps + 1) + 2)).all()
    assert excess[-1] <= 0.01 * (risk(path[0]) - found.fun)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["simplex", "l1 ball, linear", "polytope"])
def test_parts_absent_and_broken_records(name):
    problem = PROBLEMS[name]
    data = rows(11, problem.num_params, 2.0)
    mask = everyone(data).at[jnp.array([2, 7])].set(False)
    solver = FrankWolfe(FullBatch(2), 5.0, problem.grad_range, 9.0)
    start = solver.init(problem, key=jax.random.key(0))
    domain = coordinates(problem.domains[0])

    def logits(data, mask, **fields):
        made = dataclasses.replace(solver, **fields)
        return np.asarray(domain.logits(*quick(made.direction)(problem, data, mask, start)))

    want = logits(data, mask)
    for size in (1, 4):
        np.testing.assert_allclose(logits(data, mask, microbatch_size=size), want, atol=1e-5)
    broken = {
        "x": data["x"].at[2, 0].set(jnp.nan).at[7].set(jnp.inf),
        "y": data["y"].at[7].set(-jnp.inf),
    }
    got = logits(broken, everyone(data), microbatch_size=4)
    np.testing.assert_allclose(got, want, atol=1e-5)
    assert not logits(broken, jnp.zeros(11, bool)).any()

    gradients = quick(problem.per_example_gradients)(start.params, data)
    if hasattr(gradients, "materialize"):
        gradients = gradients.materialize()[..., 0]
    kept = np.asarray(gradients)[np.asarray(mask)]
    spread = np.asarray(quick(problem.domains[0].spread)(kept))
    assert (spread > problem.grad_range).any()
    scale = np.minimum(1, problem.grad_range / spread)

    def expected(total):
        return np.asarray(problem.domains[0].logits(jnp.asarray(-5 / 9 * total, jnp.float32)))

    def alike(first, second):  # up to a shift, and to what the weight is smaller by
        difference = (first - first.max()) - (second - second.max())
        np.testing.assert_allclose(difference, 0, atol=5e-4)

    alike(want, expected(scale @ kept))
    # nothing is left to cut where the caller is right
    wide = dataclasses.replace(solver, grad_range=float(spread.max()))
    found = domain.logits(*quick(wide.direction)(problem, data, mask, start))
    alike(logits(data, mask, grad_range=wide.grad_range, assume_bounded=True), np.asarray(found))


def test_the_first_draw_replaces_the_start():
    problem, data = PROBLEMS["polytope"], rows(9, 3)
    solver = FrankWolfe(FullBatch(1), 5.0, 1.2, 9.0)
    solution = dpjax.solve(solver, problem, data, key=jax.random.key(0), progress=False)
    index = int(solution.info.indices[0][0, 0])
    np.testing.assert_allclose(solution.params, CORNERS[index], rtol=1e-6)
    assert int(solution.state.count) == 1


@pytest.mark.slow  # of one field, the conformance suite shows it
def test_one_trace_for_all_seeds_and_sharpnesses():
    problem, data = PROBLEMS["l1 ball, linear"], rows(30, 3)
    solver = FrankWolfe(FullBatch(5), 1.0, 1.1, 30.0, microbatch_size=8)
    traces = []

    def run(sharpness, seed):
        traces.append(None)
        made = dataclasses.replace(solver, sharpness=sharpness)
        solution = dpjax.solve(made, problem, data, key=jax.random.key(seed))
        return solution.params, solution.info.indices[0]

    over_seeds = jax.vmap(run, (None, 0))
    grid = quick(jax.vmap(over_seeds, (0, None)))
    params, indices = grid(jnp.array([0.1, 30.0]), jnp.arange(4))
    grid(jnp.array([0.2, 40.0]), jnp.arange(4, 8))
    assert len(traces) == 1
    assert indices.shape == (2, 4, 5, 1)
    alone = quick(run)(30.0, 2)
    np.testing.assert_allclose(params[1, 2], alone[0], atol=1e-5)
    np.testing.assert_array_equal(indices[1, 2], alone[1])


@pytest.mark.slow
def test_packed_signs_are_signs(rng):
    n, p = 70, 41
    x = jnp.asarray(rng.choice([-1, 1], (n, p)), jnp.int8)
    y = jnp.asarray(rng.normal(size=n), jnp.float32)
    problem = SimplexRisk.linear(squares, L1Ball(p), grad_range=2.0)
    solver = FrankWolfe(FullBatch(6), 300.0, 2.0, n, microbatch_size=16)
    runs = [
        quick_run(solver, problem, {"x": features, "y": y}, 4)
        for features in (x, PackedSigns.pack(x))
    ]
    np.testing.assert_array_equal(*(run.info.indices[0] for run in runs))
    np.testing.assert_allclose(runs[0].params, runs[1].params, atol=1e-6)


@pytest.mark.parametrize("linear", [True, False])
def test_nothing_as_large_as_the_data_is_made(linear):
    n, p = 3000, 64
    data = {"x": jnp.ones((n, p), jnp.int8), "y": jnp.ones(n)}

    def loss(w, rec):
        return squares(jnp.dot(rec["x"].astype(w.dtype), w), rec["y"])

    problem = SimplexRisk.linear(squares, dim=p, grad_range=2.0)
    if not linear:
        problem = SimplexRisk(loss, dim=p, grad_range=2.0)
    # under add-or-remove-one rows are added, so that there are a public number of them
    solver = FrankWolfe(FullBatch(3), 1.0, 2.0, n, microbatch_size=100, relation="replace_one")

    def run(data, seed):
        solution = dpjax.solve(solver, problem, data, key=jax.random.key(seed))
        return solution.params

    assert f"f32[{n},{p}]" not in str(jax.make_jaxpr(run)(data, 0)).replace("f64", "f32")
    memory = quick(run).lower(data, 0).compile().memory_analysis()
    if memory is not None:
        assert memory.temp_size_in_bytes < n * p


@pytest.mark.slow
def test_the_default_number_of_steps_is_near_the_best():
    from benchmarks._saddle_instances import l1_regression

    n, seeds = 10_000, 4
    curves = []
    shapes = [(5, 0.35), (10, 0.2), (20, 0.08), (3, 0.5), (2, 0.51)]
    budget = dpjax.Budget(1.0, 1e-6)
    default = FrankWolfe.plan(REGRESSION, n, budget).steps
    grid = [default, *(round(default * 1.4**k) for k in (-4, -2, 2, 4))]
    instances = [
        l1_regression(100, n, sparsity=sparsity, energy=energy, seed=5)
        for sparsity, energy in shapes
    ]
    for steps in grid:
        solver = FrankWolfe.for_budget(REGRESSION, n, budget, steps=steps)

        def run(data, seed, solver=solver):
            return dpjax.solve(solver, REGRESSION, data, key=jax.random.key(seed)).params

        many = jax.jit(jax.vmap(run, (None, 0)))
        errors = []
        for instance in instances:
            data = jax.tree.map(jnp.asarray, instance.data)
            found = many(data, jnp.arange(seeds))
            errors.append(np.mean([float(instance.excess(theta)) for theta in found]))
        curves.append(np.mean(np.log(errors)))
    print({t: math.exp(c) for t, c in sorted(zip(grid, curves, strict=True))})
    assert math.exp(curves[0] - min(curves)) < 1.5

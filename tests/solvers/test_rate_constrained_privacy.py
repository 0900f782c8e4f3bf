"""What RateConstrainedSGDA claims: sensitivity, event, calibration; and what it refuses."""

import dataclasses

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import problems
from dpjax.papers.rate_constrained import rate_constrained_sgda
from dpjax.sampling import DisjointPartition, FullBatch, PoissonSampler
from dpjax.solvers import DPSGD, RateConstrainedSGDA
from dpjax.solvers.descent._rates import table_of
from dpjax.testing import count_false_alarm
from dpjax.transforms.noise._noisy_counts import noisy_counts_shortfall

BUDGET = dpjax.Budget(1.0, 1e-5)


def _problem(p=4, slack=0.05, classes=2, groups=2):
    con = problems.demographic_parity(groups, classes, slack)
    return problems.RateConstrained.linear(p, classes, con)


def _records(n=60, p=4, seed=0, classes=2, groups=2):
    rng = np.random.default_rng(seed)
    return {
        "x": jnp.asarray(rng.normal(size=(n, p)), jnp.float32),
        "y": jnp.asarray(rng.integers(classes, size=n)),
        "group": jnp.asarray(rng.integers(groups, size=n)),
    }


def _solver(**overrides):
    options = {"num_records": 2000, "budget": BUDGET, "steps": 20, "batch_size": 100}
    return RateConstrainedSGDA.for_budget(_problem(), **(options | overrides))


@pytest.mark.parametrize("histogram", ["gaussian", "laplace"])
@pytest.mark.parametrize("epsilon", [0.5, 3.0])
@pytest.mark.always  # the claim
def test_for_budget_meets_its_budget_and_wastes_little(histogram, epsilon):
    budget = dpjax.Budget(epsilon, 1e-5)
    solver = _solver(budget=budget, histogram=histogram)
    spent = solver.guarantee().epsilon(1e-5)
    assert 0.995 * epsilon <= spent <= epsilon


def test_gaussian_event_is_the_sampled_gaussian_of_sigma_eff():
    solver = _solver()
    z = dpjax.privacy.effective_noise_multiplier(
        solver.histogram_noise, solver.primal.noise_multiplier
    )
    rate, steps = solver.sampler.rate, solver.sampler.steps
    accountant = dp_accounting.pld.PLDAccountant()
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(z))
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, steps))
    np.testing.assert_allclose(
        solver.guarantee().epsilon(1e-5), accountant.get_epsilon(1e-5), rtol=1e-3
    )


@pytest.mark.slow
def test_noise_that_runs_is_the_noise_that_is_accounted():
    """At a zero gradient and an empty batch the step shows its noise; it must have std z C / m."""
    problem = _problem(p=400)
    solver = RateConstrainedSGDA.for_budget(
        problem, 2000, BUDGET, steps=20, batch_size=100, learning_rate=1.0, estimator="ratio"
    )
    batch = _records(p=400)
    state = solver.init(problem, key=jax.random.key(3))
    after, _ = jax.jit(solver.step)(problem, batch, jnp.zeros(60, bool), state)
    moved = jax.tree.map(jnp.subtract, state.primal.params, after.primal.params)["w"].ravel()
    claimed = solver.primal.noise_multiplier * solver.primal.clip_norm / solver.primal.batch_size
    dpjax_std = float(jnp.std(moved))
    count_false_alarm(1e-8)
    assert abs(dpjax_std / claimed - 1) < 0.15  # 800 draws: 6 standard errors
    assert abs(dpjax_std * 2 / claimed - 1) > 0.5

    def sizes(key):
        start = solver.init(problem, key=key)
        return solver.step(problem, batch, jnp.zeros(60, bool), start)[0].memory.sizes

    tables = jax.jit(jax.vmap(sizes))(jax.random.split(jax.random.key(0), 800))
    # the size of one group is a sum of K = 2 noisy cells
    count_false_alarm(1e-8)
    np.testing.assert_allclose(jnp.std(tables[:, 0]), solver.histogram_noise * 2**0.5, rtol=0.15)


@pytest.mark.parametrize("rates", ["hard", "soft"])
@pytest.mark.always  # the claim
def test_one_record_moves_table_and_sum_by_at_most_the_claim(rates):
    """Oracle 7, at a fixed noisy table: remove each record of a batch in turn."""
    problem, batch = _problem(p=4, classes=3, groups=3), _records(30, 4, 1, 3, 3)
    con = problem.constraints
    params = jax.tree.map(lambda a: 3 * jax.random.normal(jax.random.key(0), a.shape), problem.init)
    clip = dpjax.transforms.clip_by_norm(2.0)
    weights = 50 * jax.random.normal(jax.random.key(1), (con.part.num_parts, 3))

    @jax.jit
    def released(mask):
        logits = problem.logits(params, batch["x"])
        p = problem.rates(logits, temperature=3.0, hard=rates == "hard")
        table = con.tabulate(jnp.where(mask[:, None], p, 0), con.part(batch))
        cotangent = problem.cotangent(logits, batch, weights, 3.0)
        total, _ = clip.update(
            problem.pullback(params, batch, cotangent), clip.init(None), mask=mask
        )
        return table, total

    everyone = jnp.ones(30, bool)
    full = released(everyone)
    largest = 0.0
    for i in range(30):
        table, total = jax.tree.map(jnp.subtract, full, released(everyone.at[i].set(False)))
        np.testing.assert_allclose(jnp.sum(abs(table)), 1, rtol=1e-5)
        assert float(jnp.linalg.norm(table)) <= 1 + 1e-5
        norm = float(jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(total))))
        largest = max(largest, norm)
        assert norm <= 2 * (1 + 1e-4)
    assert largest > 2 * 0.99  # the bound is reached: the test has power


@pytest.mark.slow
def test_j_zero_is_dpsgd_exactly():
    data = _records(200)
    empty = problems.RateConstrained.linear(4, 2)
    options = {"num_records": 200, "budget": BUDGET, "steps": 15, "batch_size": 50}
    plain = DPSGD.for_budget(empty, **options)
    fair = RateConstrainedSGDA.for_budget(empty, **options)
    assert fair.histogram == "none"
    assert fair.primal == plain
    assert fair.guarantee() == plain.guarantee()
    key = jax.random.key(0)
    state = fair.init(empty, key=key)._replace(primal=plain.init(empty, key=key))
    mask, start = jnp.ones(200, bool), plain.init(empty, key=key)
    one, _ = jax.jit(fair.step)(empty, data, mask, state)
    two, _ = jax.jit(plain.step)(empty, data, mask, start)
    np.testing.assert_array_equal(one.primal.params["w"], two.params["w"])
    solution = dpjax.solve(fair, empty, data, key=jax.random.key(1))
    assert np.all(np.isfinite(solution.params["w"]))


def test_without_a_table_constraints_are_refused():
    solver = dataclasses.replace(_solver(), histogram="none")
    with pytest.raises(ValueError, match="got J = 4"):
        dpjax.solve(solver, _problem(), _records(), key=jax.random.key(0))


def test_fixed_denominators_account_for_the_counts():
    batch, fixed = _solver(), _solver(denominator="fixed", count_noise=50.0)
    loose = dataclasses.replace(batch, denominator="fixed", count_noise=50.0)
    assert fixed.guarantee().epsilon(1e-5) <= 1.0
    assert loose.guarantee().epsilon(1e-5) > batch.guarantee().epsilon(1e-5)
    public = dataclasses.replace(loose, part_counts=jnp.asarray([900.0, 1100.0]))
    assert public.guarantee().epsilon(1e-5) == batch.guarantee().epsilon(1e-5)


@pytest.mark.parametrize(("relation", "moved"), [("add_or_remove_one", 1), ("replace_one", 2)])
def test_the_sampler_of_the_counts_is_declared_and_paid_for(relation, moved):
    told = {"sampler": FullBatch(3), "batch_size": None, "steps": None}
    budget = dpjax.Budget(1.0, 1e-9, relation)
    solver = _solver(denominator="fixed", budget=budget, **told)
    failure = solver.guarantee().failure_probability
    # of the cells that it may be in, in three steps, and of the parts
    cells = moved * 3 * noisy_counts_shortfall(solver.histogram_noise)
    want = cells + moved * noisy_counts_shortfall(50.0)
    assert failure == pytest.approx(want, abs=0)  # 1e-15 is less than the usual tolerance
    assert 0.99 < solver.guarantee().epsilon(1e-9) <= 1
    others = dataclasses.replace(solver, denominator="ema")
    assert others.guarantee().failure_probability == pytest.approx(cells, abs=0)
    assert dataclasses.replace(others, rates="soft").guarantee().failure_probability == 0
    with pytest.raises(ValueError, match="failure_probability must be < delta / 2"):
        _solver(denominator="fixed", budget=dpjax.Budget(1.0, 1e-15, relation), **told)


def test_noisy_counts_of_parts_are_integers():
    problem, data = _problem(), _records(2000)
    solver = _solver(denominator="fixed", sampler=FullBatch(1), batch_size=None, steps=None)
    part = problem.constraints.part(data)
    exact = problem.constraints.membership @ jnp.bincount(part, length=2).astype(float)

    @jax.jit
    def noise(stddev, key):
        swept = dataclasses.replace(solver, count_noise=stddev)
        return swept.prologue(problem, data, swept.init(problem, key=key)).memory.sizes - exact

    keys = jax.random.split(jax.random.key(0), 2000)
    made = np.asarray(jax.vmap(noise, (None, 0))(3.0, keys))
    np.testing.assert_array_equal(made, np.round(made))
    # the first subset is one part: of deviation 3, and not of 2 or 4.5
    parts = np.sum(problem.constraints.membership, axis=1)
    count_false_alarm(1e-8)
    np.testing.assert_allclose(made.std(axis=0) / np.sqrt(parts), 3.0, rtol=0.12)


@pytest.mark.parametrize("overflow", ["declare", "truncate"])
def test_cells_of_hard_tables_have_integer_noise(overflow):
    """One constraint a cell, and public sizes: the constraint values are the cells over these."""
    masks = problems.from_masks(np.eye(2), np.eye(4).reshape(4, 2, 2), 0.0, field="group")
    problem, data = problems.RateConstrained.linear(4, 2, masks), _records()
    truncates = overflow == "truncate"
    sampler = PoissonSampler(0.5, 1, 60, 20 if truncates else None, overflow=overflow)
    solver = _solver(
        sampler=sampler,
        batch_size=None,
        steps=None,
        num_records=60,
        denominator="fixed",
        part_counts=jnp.array([64.0, 64.0]),
        dual_learning_rate=0.1,
        histogram_noise=2.0,
        noise_multiplier=4.0,
        size_floor=1.0,
        estimator="ratio",
    )
    drawn = sampler.batch(jax.tree.map(lambda a: a[0], sampler.plan(jax.random.key(3), 60)), 60)
    batch = jax.tree.map(lambda a: a[drawn[0]], data)

    @jax.jit
    @jax.vmap
    def cells(key):
        state = solver.prologue(problem, data, solver.init(problem, key=key))
        values = solver.step(problem, batch, drawn[1], state)[1].constraint_values
        return 32 * values[::2]  # of the class that all are in; others would be cut at 0

    made = np.asarray(cells(jax.random.split(jax.random.key(0), 2000)))
    np.testing.assert_array_equal(made, np.round(made))
    count_false_alarm(1e-8)
    np.testing.assert_allclose(made.std(axis=0), 2.0, rtol=0.1)
    assert np.sum(drawn[1]) == 20 or not truncates  # it was cut
    np.testing.assert_allclose(made.mean(axis=0).sum(), np.sum(drawn[1]), atol=0.4)
    moved = 2 if truncates else 1
    failure = solver.guarantee().failure_probability - sampler.failure_probability()
    assert failure == pytest.approx(moved * noisy_counts_shortfall(2.0), rel=0.1, abs=0)


def test_sums_of_soft_rates_are_exact_in_any_order():
    problem, batch = _problem(classes=3, groups=3), _records(700, 4, 1, 3, 3)
    solver = _solver(rates="soft", temperature=2.0)
    params = jax.tree.map(lambda a: jax.random.normal(jax.random.key(0), a.shape), problem.init)

    @jax.jit
    def table(order):
        there = jax.tree.map(lambda a: a[order], batch)
        return table_of(problem, params, there, order != 3, solver.rates, solver.temperature)

    rng, made = np.random.default_rng(0), []
    for _ in range(10):
        order = rng.permutation(700)
        logits, valid, cells = table(order)
        made.append(cells)
        rates = jax.nn.softmax(2.0 * np.asarray(logits, np.float64), axis=1)
    np.testing.assert_array_equal(made, made[:1] * 10)
    part = np.asarray(batch["group"])[order]
    for q in range(3):
        there = np.asarray(valid) & (part == q)
        short = rates[there].sum(axis=0) - np.asarray(made[-1][q], np.float64)
        assert np.all(short >= -1e-3)
        assert np.all(short <= there.sum() * 2.0**-14 + 1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_soft_row_counts_at_most_one(dtype):
    """In units of the noise that was paid for; logits are of the model's type."""
    rng = np.random.default_rng(0)
    con = problems.demographic_parity(2, 3, 0.05)
    logits = rng.normal(size=(40, 64, 3)) * np.repeat([0.01, 0.1, 1.0, 3.0], 10)[:, None, None]

    def norm(logits, rows):
        problem = problems.RateConstrained(lambda w, x: x * w, constraints=con, init=jnp.ones(()))
        one = {"x": logits[:rows], "y": jnp.zeros(rows, int), "group": jnp.zeros(rows, int)}
        params, alone = jnp.ones((), dtype), jnp.arange(rows) == 0
        return jnp.abs(table_of(problem, params, one, alone, "soft", 1.0)[2]).sum()

    given = jnp.asarray(logits, dtype)
    for rows in (1, 64):
        sums = jax.vmap(lambda each, rows=rows: norm(each, rows))(given)
        assert float(sums.max()) <= 1


def test_the_old_keyword_warns_and_makes_the_same_solver():
    with pytest.warns(DeprecationWarning, match="rate_constrained_sgda since 0.2"):
        old = _solver(as_published=True, noise_multiplier=1.0, histogram_noise=2.0)
    new = rate_constrained_sgda(
        _problem(),
        2000,
        BUDGET,
        steps=20,
        batch_size=100,
        noise_multiplier=1.0,
        histogram_noise=2.0,
    )
    assert jax.tree.structure(old) == jax.tree.structure(new)
    assert jax.tree.leaves(old) == jax.tree.leaves(new)
    assert new.swing_bound is None


@pytest.mark.slow
def test_as_published_still_reports_its_true_epsilon():
    solver = rate_constrained_sgda(_problem(), 2000, BUDGET, steps=20, batch_size=100)
    assert (solver.histogram, solver.rates, solver.multiplier_set) == ("laplace", "soft", "orthant")
    assert solver.primal.average == "last"
    spent = solver.guarantee().epsilon(1e-5)
    joint = dpjax.privacy.joint_poisson_epsilon(
        solver.sampler.rate,
        solver.sampler.steps,
        1e-5,
        gaussian=solver.primal.noise_multiplier,
        laplace_scale=solver.histogram_noise,
    )
    np.testing.assert_allclose(spent, joint, rtol=1e-3)
    solution = dpjax.solve(solver, _problem(), _records(1000), key=jax.random.key(0))
    assert np.all(np.isfinite(solution.params["w"]))


def test_replace_one_doubles_the_noise_and_laplace_is_refused():
    add_remove = _solver()
    replace = _solver(budget=dpjax.Budget(1.0, 1e-5, "replace_one"))
    assert replace.guarantee().epsilon(1e-5) <= 1.0
    ratio = replace.primal.noise_multiplier / add_remove.primal.noise_multiplier
    assert 1.2 < ratio < 2.0  # below 2: the shifts cancel in part on a sampled batch
    with pytest.raises(ValueError, match=r"[Ll]aplace"):
        _solver(budget=dpjax.Budget(1.0, 1e-5, "replace_one"), histogram="laplace")


@pytest.mark.slow
def test_truncated_batches_use_the_truncated_event():
    sampler = PoissonSampler(0.05, 20, 2000, capacity=120, overflow="truncate")
    options = {"sampler": sampler, "batch_size": None, "steps": None}
    solver = _solver(**options)  # replace-one is what such a sampler can give
    assert "TruncatedSubsampledGaussian" in repr(solver.guarantee().event)
    assert solver.primal.relation == "replace_one"
    assert solver.guarantee().epsilon(1e-5) <= 1.0
    untruncated = _solver(budget=dpjax.Budget(1.0, 1e-5, "replace_one"))
    assert solver.primal.noise_multiplier > untruncated.primal.noise_multiplier
    with pytest.raises(ValueError, match=r"[Ll]aplace"):
        _solver(**options, histogram="laplace")
    with pytest.raises(ValueError, match=r"must be replace_one.*got add_or_remove_one"):
        _solver(**options, budget=dpjax.Budget(1.0, 1e-5, "add_or_remove_one"))
    with pytest.raises(ValueError, match=r"1999 records.*exactly num_records = 2000"):
        dpjax.solve(solver, _problem(), _records(1999), key=jax.random.key(0))


@pytest.mark.parametrize(
    ("sampler", "relation"),
    [(FullBatch(5), None), (DisjointPartition(5, 100), None), (FullBatch(5), "replace_one")],
)
def test_other_samplers_are_accounted(sampler, relation):
    solver = _solver(
        sampler=sampler, batch_size=None, steps=None, budget=dpjax.Budget(1.0, 1e-5, relation)
    )
    assert 0.99 < solver.guarantee().epsilon(1e-5) <= 1.0
    solution = dpjax.solve(solver, _problem(), _records(600), key=jax.random.key(0))
    assert np.all(np.isfinite(solution.params["w"]))


def test_disjoint_batches_refuse_add_remove():
    with pytest.raises(ValueError, match="replace_one or replace_special"):
        _solver(
            sampler=DisjointPartition(5, 100),
            budget=dpjax.Budget(1.0, 1e-5, "add_or_remove_one"),
        )


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"batch_size": 3000}, ValueError, "batch_size must be <= num_records = 2000, got 3000"),
        ({"steps": 0}, ValueError, "steps must be >= 1, got 0"),
        ({"histogram_share": 1.0}, ValueError, r"histogram_share must lie in \(0, 1\), got 1.0"),
        ({"clip_norm": -1.0}, ValueError, "clip_norm must be >= 0, got -1.0"),
        ({"temperature": float("nan")}, ValueError, "temperature must be finite, got nan"),
        ({"multiplier_bound": 0.0}, ValueError, "multiplier_bound must be > 0, got 0.0"),
        ({"rates": "medium"}, ValueError, "rates must be one of"),
        ({"denominator": "none"}, ValueError, "denominator must be one of"),
        ({"decay": 1.5}, ValueError, r"decay must be in \[0, 1\], got 1.5"),
        ({"momentum": 0.9}, TypeError, "unknown field 'momentum'"),
        ({"num_records": 0}, ValueError, "num_records must be >= 1, got 0"),
    ],
)
def test_bad_fields_name_value_and_bound(change, error, message):
    with pytest.raises(error, match=message):
        _solver(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group": jnp.full(60, 7)}, r'data\["group"\] must lie in 0..1: 60 of 60 records'),
        ({"y": jnp.full(60, 2)}, r'data\["y"\] must lie in 0..1: 60 of 60 records'),
        ({"y": jnp.zeros(60)}, r'data\["y"\] must be integers'),
        ({"x": jnp.zeros((60, 5))}, r'data\["x"\] must have shape \[\?, 4\], got \[60, 5\]'),
        ({"x": jnp.zeros((59, 4))}, "must share one leading axis"),
        ({"x": jnp.zeros(60)}, r'data\["x"\] must have shape \[\?, 4\], got \[60\]'),
    ],
)
def test_bad_records_name_value_and_bound(change, message):
    with pytest.raises(ValueError, match=message):
        dpjax.solve(_solver(), _problem(), {**_records(), **change}, key=jax.random.key(0))


def test_missing_fields_and_keys():
    data = _records()
    with pytest.raises(ValueError, match='"group"'):
        dpjax.solve(_solver(), _problem(), {"x": data["x"], "y": data["y"]}, key=jax.random.key(0))
    with pytest.raises(TypeError, match="key"):
        dpjax.solve(_solver(), _problem(), data, key=None)
    with pytest.raises(ValueError, match="num_records"):
        dpjax.solve(_solver(), _problem(), _records(2001), key=jax.random.key(0))


@pytest.mark.parametrize("kind", [DPSGD, RateConstrainedSGDA])
def test_bad_records_in_a_batch_contribute_nothing(kind):
    """NaN, inf and labels out of range, met inside a step."""
    problem = _problem() if kind is RateConstrainedSGDA else problems.RateConstrained.linear(4, 2)
    solver = kind.for_budget(problem, 2000, BUDGET, steps=20, batch_size=100)
    batch = _records()
    bad = {
        **batch,
        "x": batch["x"].at[0, 1].set(jnp.nan).at[1, 0].set(jnp.inf),
        "y": batch["y"].at[2].set(-1).at[3].set(2),
    }
    everyone = jnp.ones(60, bool)
    step = jax.jit(solver.step)
    got, _ = step(problem, bad, everyone, solver.init(problem, key=jax.random.key(0)))
    want, _ = step(
        problem, batch, everyone.at[:4].set(False), solver.init(problem, key=jax.random.key(0))
    )
    for a, b in zip(jax.tree.leaves(_values(got)), jax.tree.leaves(_values(want)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def _values(state):
    return state.params if hasattr(state, "params") else (state.primal.params, state.multipliers)

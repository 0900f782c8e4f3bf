"""DPFTRL: descent as in DPSGD, noise of prefix sums as told, and what hides a record."""

import dataclasses
import functools

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from replays import assert_same, given, noise_matrix, replay, steps_of
from scipy import stats

import dpjax
import dpjax.testing as dpt
from dpjax.problems import Risk
from dpjax.sampling import (
    CyclicPoisson,
    DisjointPartition,
    FullBatch,
    IndependentPartition,
    PoissonSampler,
    RepeatedPartition,
    TaperedPartition,
)
from dpjax.solvers import DPFTRL, DPSGD, RateConstrainedSGDA
from dpjax.solvers._request import Request
from dpjax.solvers.descent._dpsgd_defaults import banded, chosen
from dpjax.testing._trees import QUICK
from dpjax.transforms import Banded, BinaryTree, BufferedToeplitz, SplitNoise
from dpjax.transforms.noise.correlated._banded import BandedState

SLOW = [pytest.mark.slow]
BUDGET = dpjax.Budget(1.0, 1e-5)
ADD = "add_or_remove_one"
ADAM, MOMENTUM = optax.adam(0.1), optax.sgd(0.3, momentum=0.9)
PASS, FULL = DisjointPartition(7, 2), FullBatch(4)
EPOCHS = RepeatedPartition(3, 3, 4)
FIELDS = {
    "noise_multiplier": 1.3,
    "clip_norm": 0.9,
    "learning_rate": 0.5,
    "batch_size": 2.0,
    "average": "last",
}


def _loss(w, rec):
    growth = 1 + rec["growth"] * (w @ w)
    return rec["size"] * growth * (rec["direction"] @ w)


PROBLEM = Risk(_loss, np.zeros(3), radius=1.0)


def _data(n=14, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "direction": jnp.asarray(rng.normal(size=(n, 3))),
        "size": jnp.asarray(rng.normal(size=n)),
        "growth": jnp.ones(n),
    }


def _solver(kind=DPFTRL, sampler=PASS, **fields):
    return kind(sampler, **(FIELDS | {"relation": "replace_one"} | fields))


def _path(solver, data, key, problem=PROBLEM):
    """Parameters after each step, `[T, p]`."""
    n = jax.tree.leaves(data)[0].shape[0]

    @functools.partial(jax.jit, compiler_options=QUICK)
    def run(problem, data, words):
        keys = jax.random.split(jax.random.wrap_key_data(words))

        def body(state, x):
            rows, mask = solver.sampler.batch(x, n)
            batch = data if rows is None else jax.tree.map(lambda a: a[rows], data)
            state, _ = solver.step(problem, batch, mask, state)
            return state, (state.params, solver.finalize(problem, state))

        xs = solver.sampler.plan(keys[0], n)
        return jax.lax.scan(body, solver.init(problem, key=keys[1]), xs)[1]

    problem = jax.tree.map(jnp.asarray, problem)
    return run(problem, data, jax.random.key_data(key))


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"optimizer": ADAM, "average": "ema", "decay": 0.5},
        {"optimizer": MOMENTUM, "sampler": FULL, "noise": SplitNoise(4), "average": "uniform"},
        {"microbatch_size": 1, "noise": BinaryTree(7), "sampler": IndependentPartition(7, 14)},
    ],
    ids=["buffered, adam", "split, momentum", "tree, microbatches"],
)
def test_without_noise_it_is_descent(fields, key, x64):
    fields = {"noise_multiplier": 0.0} | fields
    plain = {name: value for name, value in fields.items() if name != "noise"}
    got = _path(_solver(**fields), _data(), key)
    want = _path(_solver(DPSGD, **plain), _data(), key)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)
    assert np.ptp(got[0]) > 0.1


@pytest.mark.parametrize("strategy", [None, BinaryTree(7, variance_reduced=True)])
def test_the_path_of_descent_has_the_noise_of_prefix_sums(strategy, key):
    """Parameters far from where they started are as noisy as one gradient, not as their sum."""
    size, z, clip = 3000, 1.3, 0.9
    problem = Risk(lambda w, rec: rec["size"] * jnp.sum(w), np.zeros(size, np.float32))
    fields = {"learning_rate": 0.5, "batch_size": 2.0, "noise": strategy}
    solver = _solver(**fields)
    path, _ = _path(solver, _data() | {"size": jnp.zeros(14)}, key, problem)
    path = np.asarray(path, np.float64)
    unit = 0.5 * z * clip / 2
    sizes = unit * solver.noise.prefix_stddev()
    for t in (0, 3, 6):
        dpt.check_scale(path[t], lambda s: stats.norm(scale=s).cdf, sizes[t])
    assert sizes[-1] < 0.7 * unit * 7**0.5 * solver.noise.prefix_stddev()[0]
    if strategy is None:
        matrix = unit * noise_matrix(solver.noise, np.ones(7))
        off = np.abs(np.cov(path) - matrix @ matrix.T)
        dpt.count_false_alarm(1e-7)  # of all entries: of a variance, 9 / sqrt(n) is 6.4 deviations
        np.testing.assert_array_less(off, 9 / size**0.5 * np.outer(sizes, sizes))


REPLAYS = {
    "buffered, adam": ({"noise": BufferedToeplitz(7), "optimizer": ADAM}, 3, True),
    "tree": ({"noise": BinaryTree(7), "average": "ema", "decay": 0.5}, 0, True),
    "tree, pure": ({"noise": BinaryTree(7, distribution="l2")}, 0, True),
    "split, momentum": (
        {"noise": SplitNoise(4), "sampler": FULL, "optimizer": MOMENTUM},
        0,
        True,
    ),
    "buffered, independent, for more steps": (
        {"noise": BufferedToeplitz(9), "sampler": IndependentPartition(7, 14, capacity=14)},
        1,
        False,
    ),
    "buffered, epochs": (
        {"noise": BufferedToeplitz(9, (0.3, 0.2), (0.5, 0.9), 3), "sampler": EPOCHS},
        1,
        True,
    ),
    "buffered, epochs, independent, more": (
        {
            "noise": BufferedToeplitz(7, (0.3, 0.2), (0.5, 0.9), 3),
            "sampler": IndependentPartition(6, 14, capacity=14, epochs=2),
        },
        0,
        False,
    ),
    "banded, epochs": (
        {"noise": Banded(9, coefficients=(1, 0.8, -0.5)), "sampler": EPOCHS},
        0,
        True,
    ),
    "tree, late": ({"noise": BinaryTree(7)}, 5, False),
}


@pytest.mark.always  # noise as claimed
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=SLOW if "late" in n or "more" in n else []) for n in REPLAYS],
)
def test_noise_hides_a_record_at_the_declared_cost(name, x64):
    fields, step, reached = REPLAYS[name]
    strategy = given(fields["noise"])
    solver = _solver(**(fields | {"noise": strategy}))
    data = _data()
    record = next(i for i, steps in enumerate(steps_of(solver, 14)) if step in steps)

    def put(size):
        return data | {
            "size": data["size"].at[record].set(size),
            "growth": data["growth"].at[record].set(0.0),
        }

    nobody, worst, negative = put(np.nan), put(1e6), put(-1e6)
    draws = np.random.default_rng(1).normal(size=(solver.sampler.steps, 3))
    pure = fields["noise"] == BinaryTree(7, distribution="l2")
    twice = 2 if pure else 4
    times = getattr(solver.guarantee().event, "count", 1)  # Gaussians of this noise multiplier
    for first, second, bound in [
        (nobody, worst, times),
        (worst, negative, twice * times),
        (negative, data, twice * times),
    ]:
        a, b, draws, moved = replay(solver, PROBLEM, first, second, draws, record)
        assert_same(a, b)
        lengths = np.linalg.norm(moved, axis=1) * 1.3
        spent = np.sum(lengths) if pure else np.sum(lengths**2)
        assert 1e-3 * bound <= spent <= bound * (1 + 1e-6)
        assert spent >= 0.999 * bound or not reached or second is data


def test_noise_of_one_pass_over_epochs_costs_more_than_it_says(x64):
    """Not even three times as much: sums of columns that overlap are longer."""
    noise = given(BufferedToeplitz(9, (0.3, 0.2), (0.5, 0.9)))
    with pytest.raises(
        ValueError, match="at most 1 participations 9 steps apart, but RepeatedPart"
    ):
        _solver(noise=noise, sampler=EPOCHS)
    kind = type("Pretending", (type(noise),), {"participation": EPOCHS.participation})
    noise = jax.tree_util.register_static(kind)(9, (0.3, 0.2), (0.5, 0.9))
    solver = _solver(noise=noise, sampler=EPOCHS)
    data = _data()
    record = next(i for i, steps in enumerate(steps_of(solver, 14)) if 0 in steps)
    pair = [
        data | {"size": data["size"].at[record].set(v), "growth": jnp.zeros(14)}
        for v in (np.nan, 1e6)
    ]
    draws = np.random.default_rng(1).normal(size=(9, 3))
    a, b, _, moved = replay(solver, PROBLEM, *pair, draws, record)
    assert_same(a, b)
    assert np.sum(np.linalg.norm(moved, axis=1) ** 2) * 1.3**2 > 3.5


RELATIONS = ("add_or_remove_one", "replace_one", "replace_special")


@pytest.mark.parametrize("relation", [None, *RELATIONS])
@pytest.mark.parametrize("strategy", ["buffered", "tree", "variance_reduced_tree"])
def test_budgets_of_one_pass_are_spent(strategy, relation):
    budget = dpjax.Budget(1.0, 1e-5, relation)
    solver = DPFTRL.for_budget(PROBLEM, 3000, budget, noise=strategy, epochs=1)
    assert solver.relation == (relation or "replace_one")
    added = relation == "add_or_remove_one"
    assert isinstance(solver.sampler, IndependentPartition if added else DisjointPartition)
    assert solver.sampler.steps == solver.noise.num_steps == 54  # about the square root
    assert 0.999 <= solver.guarantee().epsilon(1e-5) <= 1
    assert solver.batch_size == pytest.approx(3000 / 54, abs=1)
    if not added:
        moves = 2 if solver.relation == "replace_one" else 1
        exact = dp_accounting.get_epsilon_gaussian(solver.noise_multiplier / moves, 1e-5)
        assert solver.guarantee().epsilon(1e-5) == pytest.approx(exact, rel=1e-4)


def test_the_event_is_of_one_gaussian_however_many_steps():
    for strategy in (BufferedToeplitz(7), BinaryTree(7), BinaryTree(9, 1.0), SplitNoise(7)):
        guarantee = _solver(noise=strategy).guarantee()
        assert guarantee.event == dp_accounting.GaussianDpEvent(1.3)
    pure = _solver(noise=BinaryTree(7, distribution="l2")).guarantee()
    assert pure.epsilon(1e-13) == pytest.approx(2 / 1.3, abs=1e-3)
    sampler = IndependentPartition(7, 14, capacity=5)
    guarantee = _solver(sampler=sampler, relation="add_or_remove_one").guarantee()
    assert guarantee.failure_probability == sampler.failure_probability() > 0


def test_what_comes_back_holds_no_buffers():
    data = jax.tree.map(lambda a: a.astype(jnp.float32), _data())
    solution = dpjax.solve(_solver(), PROBLEM, data, key=jax.random.key(0))
    assert solution.state.noise is None
    assert int(solution.state.count) == 7
    assert np.isfinite(solution.params).all()


def test_other_solvers_do_not_take_it_as_theirs():
    """They would account for other noise, and give its buffers back."""
    with pytest.raises(TypeError, match=r"primal must be a DPSGD .*got a DPFTRL"):
        RateConstrainedSGDA(_solver(), 0.1, 1.0)


def test_defaults_train():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 3)).astype(np.float32)
    data = {"x": jnp.asarray(x), "y": jnp.asarray(np.sign(x @ np.array([1.0, -1.0, 0.5])))}
    problem = Risk.linear(lambda m, y: jax.nn.softplus(-y * m), 3)
    solver = DPFTRL.for_budget(problem, 3000, dpjax.Budget(4.0, 1e-5))
    params = dpjax.solve(solver, problem, data, key=jax.random.key(0)).params
    assert np.mean(np.sign(x @ np.asarray(params)) == data["y"]) > 0.9


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"noise": "tree"}, TypeError, "noise must be a strategy .*got 'tree'"),
        ({"noise": BufferedToeplitz(6)}, ValueError, "num_steps must be >= .*= 7, got 6"),
        (
            {"sampler": FULL, "noise": BufferedToeplitz(4)},
            ValueError,
            "at most 1 participations 4 .*but FullBatch lets .*4 times 1",
        ),
        ({"sampler": PoissonSampler(0.1, 7, 14)}, ValueError, "no amplification .*PoissonSampler"),
        ({"sampler": TaperedPartition(4, 14)}, ValueError, "sampler must .*TaperedPartition"),
        (
            {
                "sampler": CyclicPoisson(0.5, 2, 6, 14),
                "relation": ADD,
                "noise": BufferedToeplitz(6),
            },
            ValueError,
            "no amplification is known for BufferedToeplitz: use RepeatedPartition or a Banded "
            "strategy with CyclicPoisson, got CyclicPoisson",
        ),
        (
            {
                "sampler": CyclicPoisson(0.5, 2, 6, 14),
                "relation": ADD,
                "noise": Banded(6, coefficients=(1, 0.8, -0.5)),
            },
            ValueError,
            "bands must be <= groups = 2 with CyclicPoisson, got 3",
        ),
        (
            {"sampler": EPOCHS, "noise": Banded(9, coefficients=(1, 0.8, -0.5, 0.1))},
            ValueError,
            "at most 3 participations 4 steps apart, but RepeatedPartition lets .* 3 times 3 apart",
        ),
        (
            {"sampler": EPOCHS, "noise": BufferedToeplitz(9, (), (), 2, 5)},
            ValueError,
            "at most 2 participations 5 steps apart, but RepeatedPartition lets .* 3 times 3 apart",
        ),
        ({"relation": "add_or_remove_one"}, ValueError, "relation must be .*DisjointPartition"),
        ({"clip_norm": -1.0}, ValueError, "clip_norm must be >= 0, got -1.0"),
        ({"noise_multiplier": -1.0}, ValueError, "noise_multiplier must be >= 0, got -1.0"),
    ],
    ids=lambda v: str(v)[:30],
)
def test_wrong_fields_are_named(wrong, error, message):
    with pytest.raises(error, match=message):
        _solver(**wrong)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"num_records": 0}, ValueError, "num_records must be >= 1, got 0"),
        ({"steps": 0}, ValueError, "steps must be >= 1, got 0"),
        (
            {"steps": 51, "noise": "tree"},
            ValueError,
            "steps must be <= num_records = 50, got 51",
        ),
        ({"epochs": 0}, ValueError, "epochs must be >= 1, got 0"),
        ({"epochs": 1.5}, TypeError, "epochs must be an integer, got 1.5"),
        ({"epochs": 2, "steps": 9}, ValueError, "steps or epochs, got steps=9 and epochs=2"),
        ({"epochs": 2, "noise": "tree"}, ValueError, "epochs must be 1 with noise='tree', got 2"),
        ({"bands": 2}, ValueError, "bands is for noise='banded', got bands=2 with noise=None"),
        ({"bands": 0, "noise": "banded"}, ValueError, "bands must be >= 1, got 0"),
        (
            {"bands": 4, "noise": "banded", "batch_size": 20},
            ValueError,
            r"batch_size \* groups must be <= num_records = 50, got 20 \* 4",
        ),
        ({"sampler": PASS, "epochs": 2}, ValueError, "epochs are the sampler's, got epochs=2"),
        ({"steps": 2.5}, TypeError, "steps must be an integer, got 2.5"),
        ({"batch_size": 0}, ValueError, "batch_size must be > 0, got 0"),
        ({"noise": "white"}, ValueError, "noise must be .*got 'white'"),
        ({"noise": BinaryTree(3), "steps": 4}, ValueError, "num_steps must be >= .*4, got 3"),
        ({"sampler": PoissonSampler(0.1, 3, 50)}, ValueError, "no amplification .*PoissonSampler"),
        ({"rate": 1.0}, TypeError, "unknown field 'rate'; DPFTRL has .*noise"),
    ],
    ids=lambda v: str(v)[:30],
)
def test_wrong_plans_are_named(wrong, error, message):
    with pytest.raises(error, match=message):
        DPFTRL.for_budget(PROBLEM, **({"num_records": 50, "budget": BUDGET} | wrong))


def test_batch_sizes_give_steps():
    solver = DPFTRL.for_budget(PROBLEM, 100, BUDGET, batch_size=30, noise="tree")
    assert solver.sampler == DisjointPartition(3, 33)
    solver = DPFTRL.for_budget(PROBLEM, 1, BUDGET, noise="tree")
    assert solver.sampler == DisjointPartition(1, 1)
    solver = DPFTRL.for_budget(PROBLEM, 3000, BUDGET, noise="buffered", batch_size=300, epochs=2)
    assert solver.sampler == RepeatedPartition(2, 10, 300)
    assert solver.noise.participation == solver.sampler.participation
    added = dpjax.Budget(1.0, 1e-5, ADD)
    solver = DPFTRL.for_budget(PROBLEM, 3000, added, noise="buffered", batch_size=300, epochs=2)
    assert solver.sampler == IndependentPartition(20, 3000, epochs=2)
    assert 0.999 <= solver.guarantee().epsilon(1e-5) <= 1
    solver = DPFTRL.for_budget(PROBLEM, 3000, BUDGET, noise="banded", batch_size=30, steps=11)
    assert solver.sampler == CyclicPoisson(0.04, 4, 11, 3000)
    assert solver.noise == Banded(11, 4)
    assert solver.guarantee().event == solver.sampler.event(
        dp_accounting.GaussianDpEvent(solver.noise_multiplier)
    )
    assert 0.999 <= solver.guarantee().epsilon(1e-5) <= 1


def test_a_sampler_that_is_given_has_noise_made_for_it():
    turns = CyclicPoisson(0.04, 6, 13, 3000)
    for noise, bands, want in ((None, None, 6), ("banded", None, 4), ("banded", 2, 2)):
        solver = DPFTRL.for_budget(PROBLEM, 3000, BUDGET, sampler=turns, noise=noise, bands=bands)
        assert (solver.noise.num_steps, len(solver.noise.coefficients)) == (13, want)
        assert solver.relation == ADD
        assert 0.999 <= solver.guarantee().epsilon(1e-5) <= 1
        assert solver.plan_report()["considered"] == {}
    with pytest.raises(ValueError, match="no amplification is known for BufferedToeplitz"):
        DPFTRL.for_budget(PROBLEM, 3000, BUDGET, sampler=turns, noise="buffered")
    for noise in (None, "buffered"):
        solver = DPFTRL.for_budget(PROBLEM, 3000, BUDGET, sampler=EPOCHS, noise=noise)
        assert solver.noise.participation == EPOCHS.participation
        assert solver.relation == "replace_one"


def test_a_pass_by_no_request_will_not_be_the_default_of_buffered_noise():
    with pytest.warns(FutureWarning, match="ask for epochs=1 for a single pass"):
        solver = DPFTRL.for_budget(PROBLEM, 3000, BUDGET, noise="buffered")
    assert solver.sampler == DisjointPartition(54, 55)


@pytest.mark.slow
def test_where_bands_gain_nothing_it_is_descent():
    """The members, the event, the noise, the rate and the path of DPSGD."""
    budget, sizes = dpjax.Budget(1.0, 1e-4), {"batch_size": 256, "steps": 105}
    plain = DPSGD.for_budget(PROBLEM, 1347, budget, **sizes)
    solver = DPFTRL.for_budget(PROBLEM, 1347, budget, **sizes)
    assert solver.plan_report()["chosen"] == "banded, 1"
    assert solver.sampler == plain.sampler
    assert solver.guarantee() == plain.guarantee()
    assert solver.noise_multiplier == plain.noise_multiplier
    measured = ("looks", "narrow_looks", "rate_power", "clip_floor")
    for name in ("learning_rate", "clip_norm", *measured):
        assert getattr(solver, name) == getattr(plain, name)
    assert solver.looks
    data = _data(1347)
    ran = [dpjax.solve(s, PROBLEM, data, key=jax.random.key(3)).params for s in (solver, plain)]
    np.testing.assert_array_equal(*ran)
    np.testing.assert_allclose(solver.noise.prefix_stddev() ** 2, np.arange(1, 106))
    report = solver.plan_report()
    z = plain.noise_multiplier
    assert report["equivalent_noise_multiplier"] == pytest.approx(z)
    assert report["noise_to_signal"] == pytest.approx(z * 3**0.5 / (256 * 105**0.5))
    with pytest.raises(ValueError, match="solvers as for_budget makes them"):
        dataclasses.replace(solver, learning_rate=1.0).plan_report()
    default = DPFTRL.for_budget(PROBLEM, 1347, budget)
    assert default.sampler == DPSGD.for_budget(PROBLEM, 1347, budget).sampler
    assert default.relation == ADD


def test_a_kind_of_banded_noise_of_ones_own_is_drawn_as_it_says(key):
    """Its event may be of other noise than that of one band."""

    class Own(Banded):
        pass

    sampler, fields = CyclicPoisson(0.04, 1, 11, 3000), {"relation": ADD}
    for noise, correlated in ((Banded(11, 1), False), (Own(11, 1), True)):
        solver = _solver(sampler=sampler, noise=noise, **fields)
        assert isinstance(solver.init(PROBLEM, key=key).noise, BandedState) == correlated
    with pytest.raises(ValueError, match="looks must be None"):
        dataclasses.replace(solver, looks=1)


# n, batch, epochs, delta, epsilon: best bands, and scores of some over that of one
CHOICES = [
    (1347, 64, 20, 1e-4, 3, 4, {2: 0.951, 4: 0.942, 8: 0.967}),
    (1347, 256, 20, 1e-4, 3, 1, {2: 1.006, 4: 1.052}),
    (1347, 64, 5, 1e-4, 1, 1, {2: 0.990, 4: 1.035}),
    (1347, 64, 5, 1e-4, 8, 21, {2: 0.834, 4: 0.740, 8: 0.709}),
    (36_632, 256, 5, 1e-5, 3, 16, {4: 0.676, 8: 0.604, 16: 0.579}),
    (36_632, 1024, 10, 1e-5, 8, 16, {2: 0.830, 4: 0.724, 8: 0.671, 16: 0.668}),
    (36_632, 1024, 50, 1e-5, 3, 1, {2: 0.967, 4: 0.956, 8: 0.965}),
    (1_000_000, 1024, 1, 1e-7, 1, 32, {16: 0.444, 32: 0.421, 64: 0.443}),
]


@pytest.mark.slow
@pytest.mark.parametrize("row", CHOICES, ids=lambda row: f"{row[0]}, {row[1]}, {row[2]}, {row[4]}")
def test_the_choice_is_the_best_of_the_known_scores(row):
    n, size, epochs, delta, epsilon, best, scores = row
    budget = dpjax.Budget(epsilon, delta)
    report = DPFTRL.for_budget(PROBLEM, n, budget, batch_size=size, epochs=epochs).plan_report()
    assert report["chosen"] == f"banded, {best}"
    for bands, score in scores.items():  # known ones have constant columns, and groups cut to size
        assert report["considered"][f"banded, {bands}"] == pytest.approx(score, rel=0.012)


@pytest.mark.slow
def test_no_other_number_of_bands_has_clearly_less_noise():
    """Of a full scan, on sizes that no rule was chosen on."""
    for n, size, steps, epsilon in ((5_000, 250, 150, 2.0), (20_000, 1000, 100, 6.0)):
        request = Request(n, dpjax.Budget(epsilon, 1e-6), ADD)
        best, _ = chosen(request, size, steps)
        scan = []
        for bands in range(1, n // size + 1):
            sampler, noise = banded(request, size, steps, bands)
            z = request.noise_multiplier(
                lambda z, s=sampler: s.event(dp_accounting.GaussianDpEvent(z)),
                sampler.failure_probability(),
            )
            errors = noise.prefix_stddev()
            scan.append(z * np.sqrt(np.mean(errors**2)) / size)
        # one band stays unless others have less by a twentieth
        assert best.score <= (1.02 if best.noise.bands > 1 else 1 / 0.95) * min(scan)


def test_descent_takes_any_noise_and_dp_ftrl_is_that(key):
    tree = BinaryTree(7)
    plain, named = _solver(DPSGD, noise=tree), _solver(noise=tree)
    for a, b in zip(_path(plain, _data(), key), _path(named, _data(), key), strict=True):
        np.testing.assert_array_equal(a, b)
    assert plain.guarantee() == named.guarantee()
    assert plain.redact(plain.init(PROBLEM, key=key)).noise is None
    assert _solver(DPSGD).redact(_solver(DPSGD).init(PROBLEM, key=key)).noise is not None
    made = DPSGD.for_budget(PROBLEM, 3000, BUDGET, noise="tree")
    assert made.guarantee().epsilon(1e-5) <= 1.0
    same = DPFTRL.for_budget(PROBLEM, 3000, BUDGET, noise="tree")
    assert made.noise_multiplier == same.noise_multiplier


def test_the_old_name_of_the_noise_warns():
    with pytest.warns(DeprecationWarning, match=r"DPFTRL\(strategy=\) is noise since 0.2"):
        solver = _solver(strategy=BinaryTree(7))
    assert solver == _solver(noise=BinaryTree(7))
    with pytest.warns(DeprecationWarning, match=r"DPFTRL\(strategy=\) is noise"):
        assert solver.strategy == BinaryTree(7)
    with pytest.warns(DeprecationWarning, match=r"DPFTRL\(strategy=\) is noise"):
        other = dataclasses.replace(solver, strategy=BinaryTree(9))
    assert other.noise == BinaryTree(9)
    with pytest.warns(DeprecationWarning, match=r"DPFTRL\(strategy=\) is noise"):
        made = DPFTRL.for_budget(PROBLEM, 3000, BUDGET, strategy="tree")
    assert made.noise == BinaryTree(54)

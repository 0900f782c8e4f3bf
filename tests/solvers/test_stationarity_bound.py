"""The bound of OnlineToNonconvex: its constants, what it bounds, and the sizes that minimise it."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import dp_event as dpe
from scipy import special

from dpjax.papers._stationarity_plan import (
    Moments,
    Setting,
    change_clip,
    direction_excess,
    first_clip,
    plan_full_batch,
    plan_single_pass,
    stationarity_bound,
)
from dpjax.papers.nonsmooth_nonconvex import by_bound, stationarity_plan
from dpjax.privacy import Budget, calibrate_noise
from dpjax.problems import Risk
from dpjax.sampling import FullBatch
from dpjax.solvers import OnlineToNonconvex
from dpjax.solvers.nonconvex._plan import first_share, mean_absolute_coordinate
from dpjax.testing import count_false_alarm
from dpjax.testing._trees import QUICK
from dpjax.transforms import SplitNoise


def test_constants_of_smoothing():
    got = [mean_absolute_coordinate(d) for d in (1, 10, 100)]
    np.testing.assert_allclose(got, [1.0, 2.587, 7.999], atol=6e-4)
    assert mean_absolute_coordinate(10**6) == pytest.approx(math.sqrt(2e6 / math.pi), rel=1e-5)
    assert all(mean_absolute_coordinate(d) <= d**0.5 for d in (1, 2, 3, 7, 50, 10**5))
    assert [direction_excess(d) for d in (1, 2, 5)] == [0.0, 4.0, 6.25]
    # of |u.x|: the smoothed slope is steepest at the kink, by this much
    for dim in (2, 8, 33):
        near = 1e-4  # the distance to the kink over the radius
        slope = special.betainc(0.5, (dim + 1) / 2, near**2)
        assert slope / near == pytest.approx(mean_absolute_coordinate(dim), rel=1e-4)


def test_bound_by_hand():
    moments = Moments(0.09, True, 2.0)
    assert moments.length == pytest.approx(math.sqrt(4.09))
    sizes = {"gap": 3.0, "moves": 400, "block": 25, "displacement": 0.05}
    plain = 3 / (0.05 * 400) + 2 * math.sqrt(4.09) / 5
    assert stationarity_bound(moments, **sizes) == pytest.approx(plain + 0.3 / 5)
    # errors that are the same over a period count twice, and not once as printed
    moments = moments._replace(unbiased=False)
    assert stationarity_bound(moments, **sizes) == pytest.approx(plain + 2 * 0.3)


def simulated(slopes, start, moments, deviation, plan, runs=200, bias=0.0):
    """Mean norm of the mean smoothed gradient over a block drawn uniformly, in NumPy."""
    rng = np.random.default_rng(0)
    moves, block, far = plan
    rate = 2 * far / (moments.length * math.sqrt(block))
    x = np.tile(start, (runs, 1))
    step, sums = np.zeros_like(x), []
    for t in range(moves):
        z = x + rng.uniform(size=(runs, 1)) * step
        x = x + step
        truth = slopes(z)
        sums = [*sums, truth] if t % block == 0 else [*sums[:-1], sums[-1] + truth]
        noise = deviation * rng.normal(size=x.shape) + bias
        step = step - rate * (truth + noise)
        sizes = np.linalg.norm(step, axis=1, keepdims=True)
        step = step * np.minimum(1, far / np.maximum(sizes, 1e-300))
    norms = np.linalg.norm(np.array(sums) / block, axis=2)
    return norms.mean(), norms.mean(axis=0).std() / math.sqrt(runs)


def _kink(dim, radius):
    """Slopes of the smoothed |x_1| in some dimensions."""

    def slopes(z):
        out = np.zeros_like(z)
        share = np.minimum(1.0, np.square(z[:, 0] / radius))
        out[:, 0] = np.sign(z[:, 0]) * special.betainc(0.5, (dim + 1) / 2, share)
        return out

    return slopes


def test_bound_is_one():
    """Of simulated runs, whatever the landscape, and near it where it can be."""
    shares = []
    for dim, deviation, moves, block, far in (
        (4, 0.0, 64, 16, 0.05),
        (4, 0.5, 256, 16, 0.02),
        (20, 0.3, 256, 64, 0.01),
        (1, 0.0, 40, 40, 0.02),
        (3, 0.2, 90, 1, 0.02),
    ):
        moments = Moments(dim * deviation**2, True, 1.0)
        sizes = {"moves": moves, "block": block, "displacement": far}
        start = np.eye(1, dim)[0]
        landscapes = {
            "kink": (_kink(dim, 0.1), 1.0 + 0.1),
            "slope": (lambda z: np.eye(1, z.shape[1]) + 0 * z, moves * far),
            "saw": (lambda z: np.sign(np.sin(9 * z[:, :1])) * np.eye(1, z.shape[1]), 2.0),
        }
        for slopes, gap in landscapes.values():
            mean, error = simulated(slopes, start, moments, deviation, (moves, block, far))
            bound = stationarity_bound(moments, gap=gap, **sizes)
            count_false_alarm(2e-9)
            assert mean <= bound + 6 * error
            shares.append(mean / bound)
    assert max(shares) > 0.5


def test_bound_of_errors_that_stay_is_one_and_the_printed_one_is_less():
    """A bias along a slope: its walk goes uphill for good."""
    moves, block, far, bias = 4000, 4000, 0.01, -1.5
    moments = Moments(bias**2, False, 1.0)
    mean, _ = simulated(
        lambda z: np.ones_like(z), np.zeros(1), moments, 0.0, (moves, block, far), 2, bias
    )
    # the loss falls by less than nothing: it rises by what is walked
    sizes = {"gap": -moves * far * 0.99, "moves": moves, "block": block, "displacement": far}
    bound = stationarity_bound(moments, **sizes)
    assert mean == 1.0
    assert mean <= bound
    assert bound - abs(bias) < mean  # with the error once, as printed, it would be none


def _setting(records, dim, epsilon, reach=0.05, **fields):
    z = calibrate_noise(dpe.GaussianDpEvent, Budget(epsilon, 1e-6), relation="replace_one")
    return Setting(records, dim, 1.0, 1.0, 0.1, reach, z, **fields)


PLANS = {  # single pass or not, d, epsilon, n, and the best bound known at half the reach
    "single, wide": (True, 256, 1.0, 10**7, 0.242),
    "single, narrow": (True, 16, 0.1, 10**9, 0.067),
    "single, much data": (True, 16, 1.0, 10**9, 0.033),
    "all records": (False, 256, 1.0, 10**5, 0.107),
    "all records, wide": (False, 4096, 0.1, 10**7, 0.053),
}


@pytest.mark.parametrize("name", PLANS)
def test_plans_are_the_best_known(name):
    single, dim, epsilon, records, want = PLANS[name]

    def plan(reach):
        setting = _setting(records, dim, epsilon, reach)
        return plan_single_pass(setting) if single else plan_full_batch(setting, (1,), 10**8)

    assert plan(0.05).bound == pytest.approx(want, rel=0.02)
    assert plan(0.1).bound < want  # with all of the radius that blocks may have


def _by_hand(setting, plan, single, exact=True):
    """The bound of a plan in periods of 1, from its sizes alone."""
    far = 2 * setting.reach / (plan.block + 1)
    directions = setting.directions
    spread = 0.0 if directions is None else setting.dim**2 / (setting.dim - 1) / directions
    clip = 1.0 if directions is None else 1.5 * math.sqrt(1 + setting.dim / directions)
    if single:
        size = setting.num_records // plan.moves
        error = (1 + spread) / size + setting.dim * (setting.multiplier * clip / size) ** 2
    else:
        n = setting.num_records
        sample = 1 / n if directions is None else 0.0
        error = sample + spread / n
        error += setting.dim * plan.moves * (setting.multiplier * clip / n) ** 2
    root = math.sqrt(plan.block)
    length = math.sqrt(1 + error)
    assert plan.learning_rate == pytest.approx(2 * far / (length * root)) or not exact
    gap = setting.gap + setting.smoothing
    return gap / (far * plan.moves) + 2 * length / root + math.sqrt(error) / root


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("directions", [None, 64])
def test_plans_fit_their_data_and_no_other_sizes_are_better(single, directions):
    setting = _setting(10**5, 40, 1.0, directions=directions)
    plan = plan_single_pass(setting) if single else plan_full_batch(setting, (1,), 10**5)
    assert plan.bound == pytest.approx(_by_hand(setting, plan, single), rel=1e-9)
    assert plan.displacement == 2 * setting.reach / (plan.block + 1)
    assert plan.moves % plan.block == 0
    assert plan.change_records == 0
    if single:
        assert plan.first_records * plan.moves <= setting.num_records
    for block in (plan.block // 2, int(0.8 * plan.block), int(1.3 * plan.block), 2 * plan.block):
        for moves in (plan.moves // 2, int(0.8 * plan.moves), plan.moves, 2 * plan.moves):
            block, moves = max(1, block), moves // max(1, block) * max(1, block)
            if not 0 < moves <= 10**5:
                continue
            other = plan._replace(block=block, moves=moves)
            assert plan.bound <= _by_hand(setting, other, single, exact=False) * 1.02


@pytest.mark.parametrize("single", [True, False])
def test_bounds_fall_with_data_as_they_should(single):
    """Where privacy is what costs: exponents of n, of the noise, of d and of the radius."""
    base = (
        {"n": 10**8, "d": 10**4, "z": 50.0, "radius": 0.01}
        if single
        else {"n": 10**5, "d": 10**4, "z": 50.0, "radius": 0.02}
    )

    def bound(n, d, z, radius):
        setting = Setting(n, d, 1.0, 1.0, radius, radius, z)
        plan = plan_single_pass(setting) if single else plan_full_batch(setting, (1,), 10**7)
        return plan.bound

    slopes = {}
    for name, factor in (("n", 4), ("d", 4), ("z", 0.25), ("radius", 0.5)):
        other = base | {name: type(base[name])(base[name] * factor)}
        slopes[name] = math.log(bound(**other) / bound(**base)) / math.log(factor)
    want = {"n": -1 / 3, "d": 1 / 6, "z": 1 / 3, "radius": -1 / 3}
    if not single:
        want = {"n": -2 / 3, "d": 1 / 3, "z": 2 / 3, "radius": -1 / 3}
    assert slopes == pytest.approx(want, abs=0.02)


@pytest.mark.slow
def test_plans_in_periods():
    """Changes are worth their noise in few cases, and never with all records."""
    for directions in (None, 10**9):  # with as many, changes are as small as can be
        setting = _setting(10**5, 256, 1.0, directions=directions)
        best = plan_full_batch(setting, (1, 4, 16, 64), 10**5)
        assert best.period == 1
        for period in (4, 16):
            other = plan_full_batch(setting, (period,), 10**5)
            assert other.bound > best.bound
            assert other.moves % period == 0
            assert (other.first_records, other.change_records) == (10**5, 10**5)
    setting = _setting(10**5, 16, 0.1, directions=10**9)
    plan = plan_single_pass(setting, (8,))
    count = plan.moves // 8
    used = count * plan.first_records + (plan.moves - count) * plan.change_records
    assert 0.9 * 10**5 < used <= 10**5
    assert plan.bound > plan_single_pass(setting).bound


def test_noise_is_split_between_first_and_changes_as_is_best():
    first, change, period = 1.0, 0.1, 20
    share = first_share(period, first, change)
    total = first + (period - 1) * change / math.sqrt(2)
    assert share == pytest.approx(first / total)
    scales = np.append(first, np.full(period - 1, change))

    def mean(p):
        return float(np.mean(SplitNoise(period, p, 0.0).prefix_stddev(scales) ** 2))

    # at a mean of 1, whatever the number of periods
    assert mean(share) == pytest.approx(total**2, rel=0.03)
    assert all(mean(share) <= mean(share * f) * 1.0005 for f in (0.7, 0.9, 1.1, 1.4))
    assert first_share(1, 1.0, 1.0) == 1.0


def test_clips_are_at_what_records_give():
    setting = _setting(1000, 50, 1.0, directions=50)
    assert first_clip(setting) == pytest.approx(1.5 * math.sqrt(2))
    assert first_clip(setting._replace(directions=None)) == 1.0
    kappa, ratio = mean_absolute_coordinate(50), 2 * 1e-3 / 0.1
    want = math.sqrt((kappa * ratio) ** 2 + (50 * ratio) ** 2 / 50)
    assert change_clip(setting, 1e-3) == pytest.approx(want)
    assert change_clip(setting, 10.0) == 2.0  # no change of L-Lipschitz gradients is larger
    # without gradients at common points a change of one gradient may be as large as two
    assert change_clip(setting._replace(directions=None), 1e-3) >= math.sqrt(2)


BUDGET = Budget(4.0, 1e-5)


@pytest.mark.parametrize(
    ("oracle", "passes", "period"),
    [
        ("first", "single", 4),
        ("zeroth", "single", 1),
        ("zeroth", "multi", 4),
        ("first", "multi", 1),
        pytest.param("first", "single", 1, marks=pytest.mark.slow),
        pytest.param("zeroth", "single", 4, marks=pytest.mark.slow),
        pytest.param("first", "multi", 4, marks=pytest.mark.slow),
        pytest.param("zeroth", "multi", 1, marks=pytest.mark.slow),
    ],
)
def test_solvers_have_the_sizes_and_the_noise_of_their_plan(oracle, passes, period):
    problem = Risk(lambda w, rec: jnp.abs(w @ rec), jnp.ones(9), lipschitz=2.0)
    solver = by_bound(
        problem,
        5000,
        BUDGET,
        radius=0.3,
        oracle=oracle,
        passes=passes,
        period=period,
        initial_gap=3.0,
        **({"steps": 200} if passes == "multi" else {}),
    )
    relation = "replace_one" if passes == "single" else "add_or_remove_one"
    z = calibrate_noise(dpe.GaussianDpEvent, BUDGET, relation=relation)
    directions = None if oracle == "first" else 9
    smoothed = 0.3 * (0.5 if period > 1 else {"first": 0.01, "zeroth": 0.1}[oracle])
    setting = Setting(5000, 9, 2.0, 3.0, smoothed, 0.3 - smoothed, z, directions)
    plan = (
        plan_single_pass(setting, (period,))
        if passes == "single"
        else plan_full_batch(setting, (period,), 200)
    )
    assert plan == stationarity_plan(
        problem,
        5000,
        BUDGET,
        radius=0.3,
        oracle=oracle,
        passes=passes,
        period=period,
        steps=200 if passes == "multi" else None,
        initial_gap=3.0,
    )
    assert solver.num_moves == plan.moves
    assert (solver.block_size, solver.max_displacement) == (plan.block, plan.displacement)
    assert (solver.learning_rate, solver.batch_size) == (plan.learning_rate, plan.first_records)
    assert (solver.schedule, solver.selection) == ("constant", "uniform")
    assert solver.directions == "record"
    assert solver.clip_norm == pytest.approx(first_clip(setting))
    assert solver.goldstein_radius() <= 0.3 + 1e-9
    if plan.block > 1:
        assert solver.goldstein_radius() == pytest.approx(0.3)
    releases = 1 if passes == "single" else plan.moves // period
    assert solver.noise_multiplier == pytest.approx(z * math.sqrt(releases), rel=1e-3)
    assert solver.guarantee().epsilon(1e-5) <= 4.0
    if period > 1:
        far = 2 * solver.max_displacement
        assert solver.smoothness * far == pytest.approx(change_clip(setting, plan.displacement))
        assert solver.noise.num_steps == period


@pytest.mark.slow
def test_runs_are_as_stationary_as_the_bound_says():
    """|u.x - b| in three dimensions: 0 within the radius of the kink, else 1."""
    dim, moves, block, far, size = 3, 256, 32, 0.1, 10
    unit = np.array([0.6, 0.0, 0.8])
    problem = Risk(lambda w, rec: jnp.abs(rec["u"] @ w - rec["b"]), jnp.zeros(dim), lipschitz=1.0)
    data = {"u": jnp.tile(jnp.asarray(unit, jnp.float32), (size, 1)), "b": jnp.full(size, 8.0)}
    noise = 1.0
    deviation = noise / size  # of the private mean, a coordinate
    moments = Moments(1 / size + dim * deviation**2, True, 1.0)
    rate = 2 * far / (moments.length * math.sqrt(block))
    solver = OnlineToNonconvex(
        FullBatch(moves),
        noise,
        1.0,
        rate,
        far,
        float(size),
        0.2,
        block_size=block,
        selection="uniform",
        schedule="constant",
        directions="record",
    )

    @functools.partial(jax.jit, compiler_options=QUICK)
    def results(words):
        def one(words):
            def body(state, x):
                return solver.step(problem, data, jnp.ones(size, bool), state)[0], None

            state = solver.init(problem, key=jax.random.wrap_key_data(words))
            return jax.lax.scan(body, state, None, moves)[0].blocks.result

        return jax.vmap(one)(words)

    words = jax.random.key_data(jax.random.split(jax.random.key(0), 100))
    ends = np.asarray(results(words), np.float64)
    radius = solver.goldstein_radius()
    assert radius == pytest.approx(0.2 + (block + 1) / 2 * far)
    distances = (np.abs(ends @ unit - 8.0) > radius).astype(float)
    bound = stationarity_bound(moments, gap=8.0 + 0.2, moves=moves, block=block, displacement=far)
    error = 6 * math.sqrt(0.25 / len(ends))
    count_false_alarm(3e-8)  # Hoeffding, on both sides
    assert 0 < distances.mean() <= bound + error  # the first block is none
    assert distances.mean() >= 1 / (moves / block) - error

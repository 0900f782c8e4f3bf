import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from dpjax import audit
from dpjax.audit import __main__ as command
from dpjax.audit._events import Level, best_event, bound_at, distance_of_scores
from dpjax.audit._registered import audit_registered
from dpjax.problems import Risk
from dpjax.sampling import FullBatch, PoissonSampler
from dpjax.solvers import DPSGD
from dpjax.testing import count_false_alarm, registry

DELTA = 1e-2


def _gradient_is_record(w, record):
    return w @ record


PROBLEM = Risk(_gradient_is_record, jnp.zeros(3))
DATA = np.float32(np.eye(4, 1) * np.ones(3))


def gaussian_epsilon(shift):
    """By bisection on the definition of the hockey-stick divergence."""
    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        far = middle / shift
        delta = special.ndtr(shift / 2 - far) - np.exp(middle) * special.ndtr(-shift / 2 - far)
        low, high = (middle, high) if delta > DELTA else (low, middle)
    return high


@pytest.mark.slow
@pytest.mark.parametrize("bound", ["clopper_pearson", "gdp"])
def test_bounds_hold_as_often_as_stated(bound, rng):
    shift, repeats, confidence, runs = 1.0, 300, 0.8, 400
    truth = gaussian_epsilon(shift)
    above, same_runs = 0, 0
    for _ in range(repeats):
        first, second = rng.normal([[0.0], [shift]], size=(2, runs))
        kwargs = {"delta": DELTA, "confidence": confidence, "bound": bound}
        above += audit.lower_bound_of_scores(first, second, **kwargs) > truth
        # the wrong thing: the event is chosen on the runs that judge it, at a level without caution
        event, _ = best_event(first, second, Level(DELTA, 1 - 20 * (1 - confidence) / 5, bound))
        same_runs += bound_at(event, first, second, Level(DELTA, 0.2, bound)) > truth
    count_false_alarm(1e-7)
    most = stats.binom.isf(1e-7, repeats, 1 - confidence)
    assert above <= most
    assert same_runs > most


def test_bound_comes_near_the_truth(rng):
    first, second = rng.normal([[0.0], [1.0]], size=(2, 50_000))
    truth = gaussian_epsilon(1.0)
    assert 0.75 * truth < audit.lower_bound_of_scores(first, second, delta=DELTA) < truth
    close = audit.lower_bound_of_scores(first, second, delta=DELTA, bound="gdp")
    assert 0.9 * truth < close < truth
    assert audit.lower_bound_of_scores(second, first, delta=DELTA) > 0.75 * truth
    assert audit.lower_bound_of_scores(first, first[::-1], delta=DELTA) < 0.05


def _solver(noise=1.0, **options):
    return DPSGD(FullBatch(2), noise, 1.0, 1.0, 4.0, **options)


def _shown(mechanism, runs=4000, **options):
    return audit.mechanism_lower_bound(
        mechanism,
        jnp.zeros(2),
        jnp.array([1.0, 0.0]),
        runs=runs,
        delta=DELTA,
        key=jax.random.key(0),
        **options,
    )


def test_leaks_of_every_kind_are_found():
    def noisy(data, key):
        return jax.random.normal(key, (2,)) + 0 * data

    leaks = {
        "a number": lambda data, key: (noisy(data, key), data[0]),
        "a difference of noisy numbers": lambda data, key: [
            draw + shift for draw in [noisy(data, key)] for shift in (0.0, data)
        ],
        "not a number": lambda data, key: noisy(data, key) / jnp.where(data[0] > 0, 0.0, 1.0),
        "the scale of noise": lambda data, key: noisy(data, key) * (1 + 9 * data[0]),
        "one of three categories": lambda data, key: jnp.where(
            data[0] > 0, 2 * jax.random.bernoulli(key), 1
        ),
    }
    for name, leak in leaks.items():
        assert _shown(leak, runs=1500) > 1.5, name
    assert _shown(noisy) < 0.1


def test_a_score_replaces_learning_and_one_function_compiles_once():
    traces = []

    def mechanism(data, key):
        traces.append(None)
        return data[0] + jax.random.normal(key)

    def score(released):
        return released

    assert 1.2 < _shown(mechanism, runs=6000, score=score) < gaussian_epsilon(1.0)
    first = len(traces)
    assert _shown(mechanism, runs=6000, score=score) > 1.2
    assert len(traces) - first < first  # shapes only


@pytest.mark.slow
def test_batches_drawn_on_the_host_are_audited_too():
    sampler = PoissonSampler(0.5, 2, 8, method="host")
    solver = DPSGD(sampler, 0.2, 1.0, 1.0, 4.0)
    shown = audit.lower_bound(
        solver, PROBLEM, DATA, 0 * DATA, runs=100, delta=DELTA, key=jax.random.key(1)
    )
    assert 0.5 < shown < solver.guarantee().epsilon(DELTA)


def test_one_run_with_many_canaries():
    problem = Risk(lambda w, record: -w @ record, jnp.zeros(300))
    for noise, caught in ((2.0, False), (0.1, True)):  # let the second claim what the first does
        solver = DPSGD(FullBatch(1), noise, 1.0, 1.0, 301.0, average="last")
        shown = audit.one_run_lower_bound(
            solver, problem, jnp.zeros((1, 300)), jnp.eye(300), delta=1e-5, key=jax.random.key(2)
        )
        claimed = DPSGD(FullBatch(1), 2.0, 1.0, 1.0, 1.0).guarantee().epsilon(1e-5)
        assert (shown > claimed) == caught
    with pytest.raises(TypeError, match="leaf of floats"):
        audit.one_run_lower_bound(
            solver,
            problem,
            jnp.zeros((1, 300)),
            jnp.ones((3, 300), int),
            delta=0.1,
            key=jax.random.key(2),
        )


ROWS = jnp.arange(12.0).reshape(4, 3)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"runs": 19}, ValueError, "runs must be >= 20, got 19"),
        ({"delta": 0.0}, ValueError, "delta must lie in"),
        ({"confidence": 1.0}, ValueError, "confidence must lie in"),
        ({"bound": "bootstrap"}, ValueError, "bound must be one of"),
        ({"key": None}, TypeError, "key is required"),
        ({"neighbour": ROWS[2:]}, ValueError, "one record more or less"),
        ({"neighbour": ROWS[::-1]}, ValueError, "differ from data in 1 record, got 4"),
        ({"neighbour": ROWS[::-1][:3]}, ValueError, "one record removed or added"),
        ({"neighbour": {"x": ROWS}}, ValueError, "one structure"),
        ({"runs": 10**8}, ValueError, "must be <= 134217728"),
    ],
)
def test_bad_arguments(options, error, words):
    kwargs = {"neighbour": ROWS[1:], "runs": 100, "delta": DELTA, "key": jax.random.key(0)}
    with pytest.raises(error, match=words):
        audit.lower_bound(_solver(), PROBLEM, ROWS, **(kwargs | options))


@pytest.mark.slow
def test_the_command_prints_a_table_and_fails_on_a_broken_claim(monkeypatch, capsys):
    name = "DPSGD(Risk, full batch, uniform average)"
    arguments = [name, "--entries", "tests.entries", "--runs", "2000", "--delta", "0.01"]
    assert command.main(arguments) == 0
    assert "all 1 stay below their claims" in capsys.readouterr().out
    # a third of the noise that is claimed
    right = DPSGD.make_noise
    monkeypatch.setattr(
        DPSGD,
        "make_noise",
        lambda self: right(
            DPSGD(self.sampler, self.noise_multiplier / 3, self.clip_norm, 1.0, 1.0)
        ),
    )
    jax.clear_caches()
    assert command.main(arguments) == 1
    assert f"ABOVE THE CLAIM: {name}" in capsys.readouterr().out
    jax.clear_caches()
    assert command.main(["--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed == [entry.name for entry in registry().values() if entry.kind == "solver"]
    assert command.main(["no such solver"]) == 2


def test_inputs_that_cannot_be_used_are_told_in_one_line(capsys):
    assert command.main(["--entries", "no_such_module"]) == 2
    told = "python -m dpjax.audit: error: --entries no_such_module: No module named"
    assert capsys.readouterr().err.startswith(told)
    assert command.main(["DPSGD(linear)", "--entries", "tests.entries", "--runs", "0"]) == 2
    assert capsys.readouterr().err == "python -m dpjax.audit: error: runs must be >= 1000, got 0\n"
    with pytest.raises(SystemExit, match="2"):
        command.main(["DPSGD", "--all"])
    assert "--all takes no names, got DPSGD" in capsys.readouterr().err


# what 4000 runs must show of claims near 4; of the others they show less, or nothing
SHOWN = {
    "DPSGD(linear)": 0.7,
    "DPSGD(Risk, full batch, uniform average)": 1.2,
    "OnlineToBatch(full batch)": 1.2,
    "OnlineToBatch(SimplexRisk, exponentiated)": 0.7,
    "OnlineToNonconvex(zeroth)": 0.5,
    "RateConstrainedSGDA(J = 0)": 0.4,
    "SaddleMirrorDescent(add or remove)": 0.4,
    "FrankWolfe(autodiff, microbatches)": 0.6,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [e.name for e in registry().values() if e.kind == "solver"])
def test_registered_solver_stays_below_its_claim(name):
    runs = 4000 if name in SHOWN else 1000
    (row,) = audit_registered(
        [registry()[name]], runs=runs, confidence=1 - 1e-7, key=jax.random.key(5)
    )
    count_false_alarm(1e-7)
    assert 3.5 < row.claimed < 4.5
    assert SHOWN.get(name, 0.0) <= row.shown <= row.claimed
    assert row.shown_distance <= row.claimed_distance
    assert row.holds


@pytest.mark.slow
@pytest.mark.parametrize(("share", "holds"), [(0.0, False), (0.4, False), (1.0, True)])
def test_a_thousand_runs_show_that_noise_is_missing(monkeypatch, share, holds):
    """By the distance, where no event is rare enough for epsilon to show it."""
    right = DPSGD.make_noise
    monkeypatch.setattr(
        DPSGD,
        "make_noise",
        lambda self: right(
            DPSGD(self.sampler, share * self.noise_multiplier, self.clip_norm, 1.0, 1.0)
        ),
    )
    entry = registry()["DPSGD(Risk, full batch, uniform average)"]
    jax.clear_caches()
    (row,) = audit_registered([entry], runs=1000, confidence=1 - 1e-7, key=jax.random.key(5))
    jax.clear_caches()
    count_false_alarm(1e-7)
    assert row.holds == holds
    assert row.shown <= row.claimed


def test_the_distance_of_two_normals(rng):
    first, second = rng.normal([[0.0], [1.0]], size=(2, 20_000))
    truth = 2 * special.ndtr(0.5) - 1
    for one, other in ((first, second), (second, first), (-first, -second)):
        assert 0.8 * truth < distance_of_scores(one, other, 1 - 1e-7) < truth
    count_false_alarm(3e-7)
    assert distance_of_scores(first, first[::-1], 0.999) == 0
    # of two points
    assert distance_of_scores(np.zeros(400), np.ones(400), 0.999) > 0.9

"""The theorem's curve against golden numbers, brute force and looser bounds."""

import math

import numpy as np
import pytest
from dp_accounting import dp_event as dpe
from dp_accounting.pld import privacy_loss_distribution as pld_lib
from dp_accounting.rdp import RdpAccountant
from scipy import special

from dpjax.privacy import Guarantee, RunsLaw
from dpjax.privacy._guarantee import least_epsilon
from dpjax.privacy.accounting._joint import Atoms
from dpjax.privacy.selection._curve import (
    atoms_of,
    cells_of,
    gaussian_cells,
    hockey_stick,
    selected,
    worst,
)
from tests.privacy.selection_brute import (
    atoms_of_pair,
    enumerated_delta,
    exact_delta,
    mutated_delta,
)

DELTA = 1e-5
EPSILONS = np.array([0.0, 0.25, 0.5, 1.0, 2.0])
# eta, E K, shift, one run, from below, theorem, simple bound, Rényi bound
GOLDEN = [
    (-0.5, 16, 0.3, 1.1318, 1.3203, 1.6845, 1.8048, 1.9536),
    (0, 8, 0.3, 1.1318, 1.2768, 1.6579, 1.8915, 2.1035),
    (0, 16, 0.15, 0.5299, 0.6279, 0.8671, 0.9977, 1.1023),
    (0, 16, 0.3, 1.1318, 1.3220, 1.7988, 2.0412, 2.2477),
    (0, 64, 0.3, 1.1318, 1.4086, 2.0512, 2.2945, 2.4940),
    (1, 16, 1.0, 4.3772, 4.9843, 7.0526, 8.0462, 9.0261),
]
CUT = [
    (1, 32, 2.1499),
    (1, 48, 2.0233),
    (1, 64, 1.9859),
    (1, 96, 1.9690),
    (0, 96, 1.8643),
    (0, 128, 1.8325),
]


def epsilon_of(cells, law):
    loss = selected(cells, law)
    return least_epsilon(lambda epsilon: hockey_stick(loss, epsilon), DELTA)


def close(found, golden):
    """Within the rounding of four decimals, and above by at most what cells cost."""
    return -6e-5 < found - golden < 1.1e-4


@pytest.mark.parametrize(
    ("shape", "mean", "shift", "one", "below", "theorem", "_", "renyi"), GOLDEN
)
def test_golden_epsilons(shape, mean, shift, one, below, theorem, _, renyi):
    found = epsilon_of(gaussian_cells(shift), RunsLaw(mean, shape))
    assert close(found, theorem)
    assert one < below < found < renyi
    assert abs(Guarantee(dpe.GaussianDpEvent(1 / shift)).epsilon(DELTA) - one) < 6e-5


@pytest.mark.parametrize(("shape", "max_runs", "golden"), CUT)
def test_golden_epsilons_of_the_cut_law(shape, max_runs, golden):
    assert close(epsilon_of(gaussian_cells(0.3), RunsLaw(16, shape, max_runs)), golden)


@pytest.mark.parametrize("row", [GOLDEN[1], GOLDEN[3], GOLDEN[5]])
def test_looser_bounds_are_never_below(row):
    shape, mean, shift, *_, theorem, simple, _ = row
    law = RunsLaw(mean, shape)

    def one(epsilon):  # the Gaussian's curve, at any real epsilon
        low, high = special.ndtr(
            np.array([-1, 1]) * shift / 2 - np.array(epsilon)[..., None] / shift
        ).T
        return high - np.exp(epsilon) * low

    def simple_delta(epsilon):
        hats = np.linspace(0, epsilon, 400)
        logs = np.log(np.exp(hats) + (1 / law.gamma - 1) * one(hats))
        return float(np.min(mean * one(epsilon - (1 + shape) * logs)))

    loss = selected(gaussian_cells(shift), law)
    assert abs(least_epsilon(simple_delta, DELTA) - simple) < 2e-3
    for epsilon in np.linspace(0.5, 1.5, 5) * theorem:
        assert hockey_stick(loss, epsilon) < simple_delta(epsilon)
    accountant = RdpAccountant(np.linspace(1.5, 12, 8))
    accountant.compose(dpe.RepeatAndSelectDpEvent(dpe.GaussianDpEvent(1 / shift), mean, shape))
    assert theorem < accountant.get_epsilon(DELTA)


def test_a_discretised_loss_gives_nearly_the_closed_form():
    law = RunsLaw(16.0)
    pld = pld_lib.from_gaussian_mechanism(1 / 0.3, value_discretization_interval=1e-3)
    found = epsilon_of(cells_of(atoms_of(pld._pmf_remove)), law)
    assert 1.7987 < found < 1.7989


def random_pairs(number):
    """Pairs of five atoms: far apart, near, with atoms of no P-mass and of no Q-mass."""
    rng = np.random.default_rng(0)
    for index in range(number):
        p = rng.dirichlet(np.full(5, 0.7))
        q = p * np.exp(rng.uniform(-0.6, 0.6, 5)) if index % 2 else rng.dirichlet(np.full(5, 0.7))
        if index % 5 == 0:
            q[0] = 0
        if index % 7 == 0:
            p[1] = 0
        yield p / p.sum(), q / q.sum()


@pytest.mark.parametrize(
    "law",
    [
        RunsLaw(4.0, -0.5),
        RunsLaw(8.0),
        RunsLaw(16.0, 1.0),
        RunsLaw(16.0, 2.0),
        RunsLaw(8.0, 1.0, max_runs=32),
        RunsLaw(4.0, 0.0, max_runs=16),
    ],
    ids=repr,
)
def test_no_order_of_outputs_exceeds_the_theorem(law):
    reached = 0.0
    for p, q in random_pairs(35):
        loss = selected(cells_of(atoms_of_pair(p, q)), law)
        bound = np.array([hockey_stick(loss, epsilon) for epsilon in EPSILONS])
        exact = exact_delta(p, q, law, EPSILONS)
        assert np.all(exact <= bound + 1e-9)
        reached = max(reached, float(np.max(exact / np.maximum(bound, 1e-9))))
    assert reached > 0.9  # the bound is not idle


@pytest.mark.parametrize("law", [RunsLaw(2.0, 1.0, max_runs=4), RunsLaw(8.0, 0.0)], ids=repr)
def test_candidates_of_other_curves_cost_the_worst(law):
    rng, violated = np.random.default_rng(1), 0
    for _ in range(12):
        pairs = [rng.dirichlet(np.ones(3), 2) for _ in range(2)]
        # one run draws a candidate, and shows which
        p, q = (np.concatenate([pair[side] for pair in pairs]) / 2 for side in (0, 1))
        exact = exact_delta(p, q, law, EPSILONS)
        each = [atoms_of_pair(*pair) for pair in pairs]
        both, *alone = (
            np.array([hockey_stick(selected(cells_of(a), law), e) for e in EPSILONS])
            for a in (worst(each, 1e-3), *each)
        )
        assert np.all(exact <= both + 1e-9)
        violated += np.sum([np.any(exact > 1.01 * one + 1e-6) for one in alone])
    assert violated  # a candidate's own curve does not stand for the other's


def test_the_worst_curve_is_at_no_epsilon_below_its_parts():
    one, two = (
        atoms_of(pld_lib.from_gaussian_mechanism(2.0)._pmf_remove),
        atoms_of(pld_lib.from_laplace_mechanism(1.4)._pmf_remove),
    )
    joint = worst([one, two], 1e-3)
    largest = [
        np.array([hockey_stick(atoms, e) for e in np.linspace(-3.0, 3.0, 41)])
        for atoms in (one, two, joint)
    ]
    assert np.any(largest[0] > largest[1] + 1e-3)
    assert np.any(largest[1] > largest[0] + 1e-3)
    over = largest[2] - np.maximum(largest[0], largest[1])
    assert np.all(over > -1e-12)
    assert np.all(over < 1e-5)


def test_every_number_of_runs_and_every_output_by_hand():
    law = RunsLaw(2.0, 0.5, max_runs=4)
    for p, q in list(random_pairs(4))[:3]:
        p, q = p[:3] / p[:3].sum(), q[:3] / q[:3].sum()
        listed = enumerated_delta(p, q, law, 0.3)
        assert math.isclose(listed, exact_delta(p, q, law, np.array([0.3]))[0], abs_tol=1e-12)
        bound = hockey_stick(selected(cells_of(atoms_of_pair(p, q)), law), 0.3)
        assert listed <= bound + 1e-12


def test_both_directions_are_needed():
    p, q = np.array([0.9, 0.1]), np.array([0.99, 0.01])
    law = RunsLaw(8.0)
    forth, back = (
        hockey_stick(selected(cells_of(atoms_of_pair(*pair)), law), 1.0)
        for pair in ((p, q), (q, p))
    )
    assert forth > 2 * back
    assert exact_delta(p, q, law, np.array([1.0]))[0] > back  # so one alone would be wrong


def test_finer_cells_help_whole_atoms():
    share = math.exp(0.5) / (1 + math.exp(0.5))
    loss = Atoms(np.array([-0.5, 0.5]), np.array([1 - share, share]), 0.0)
    coarse, fine = (hockey_stick(selected(cells_of(loss, n), RunsLaw(16.0)), 0.5) for n in (2, 64))
    assert fine < coarse - 0.1


def test_losses_at_infinity_and_none():
    law = RunsLaw(8.0)
    nothing = selected(cells_of(Atoms(np.zeros(1), np.ones(1), 0.0)), law)
    assert hockey_stick(nothing, 1e-3) == 0
    disjoint = selected(cells_of(Atoms(np.array([0.1]), np.array([0.99]), 0.01)), law)
    # all P-mass that Q lacks lies above in score: f(1) - f(0.99) of it is lost
    assert hockey_stick(disjoint, 30.0) >= 0.01 * law.derivative(np.array([0.01]))[0]


@pytest.mark.parametrize(
    ("mutant", "p", "q", "law", "epsilon"),
    [
        ("f'(1)", (0.3, 0.7), (0.6, 0.4), RunsLaw(8.0), 0.25),
        ("ends of atoms", (0.001, 0.999), (0.77, 0.23), RunsLaw(64.0, 1.0), 0.0),
        ("part outside", (0.038, 0.962), (0.352, 0.648), RunsLaw(4.0, -0.5), 1.0),
    ],
)
def test_mutated_formulas_fall_below_brute_force(mutant, p, q, law, epsilon):
    p, q = np.array(p), np.array(q)
    split = np.array([0.9, 0.08, 0.02])  # outputs of one likelihood ratio and different scores
    exact = exact_delta(np.kron(p, split), np.kron(q, split), law, np.array([epsilon]))[0]
    bound = hockey_stick(selected(cells_of(atoms_of_pair(p, q)), law), epsilon)
    assert 1e-3 < exact <= bound
    assert mutated_delta(p, q, law, epsilon, mutant) < 0.95 * exact
    assert abs(mutated_delta(p, q, law, epsilon, None) - bound) < 5e-3


def test_the_uncut_law_is_too_little_for_a_cut_sampler():
    law = RunsLaw(8.0, 1.0, max_runs=16)
    uncut = RunsLaw(8.0, 1.0)
    violated = 0
    for p, q in random_pairs(35):
        cells = cells_of(atoms_of_pair(p, q))
        exact = exact_delta(p, q, law, EPSILONS)
        claims, right = (
            np.array([hockey_stick(selected(cells, each), e) for e in EPSILONS])
            for each in (uncut, law)
        )
        violated += np.any(exact > 1.02 * claims + 1e-6)
        assert np.all(exact <= right + 1e-9)
    assert violated

"""Events no accountant composes: refused at construction, with a substitute named."""

import pytest
from dp_accounting import dp_event as dpe

from dpjax.privacy import Guarantee, UnsupportedEventError, joint_poisson_event

GAUSSIAN, LAPLACE = dpe.GaussianDpEvent(1.0), dpe.LaplaceDpEvent(1.0)
JOINT = joint_poisson_event(0.1, 5, gaussian=1.0, laplace_scale=1.0)

CASES = [
    (
        dpe.SampledWithoutReplacementDpEvent(100, 10, GAUSSIAN),
        "add_or_remove_one",
        r"SampledWithoutReplacement.*PoissonSampledDpEvent\(0\.1, GaussianDpEvent\).*replace_one",
    ),
    (
        dpe.SampledWithReplacementDpEvent(100, 10, GAUSSIAN),
        "replace_one",
        r"SampledWithReplacement.*PoissonSampledDpEvent\(0\.1",
    ),
    (
        dpe.PoissonSampledDpEvent(0.1, dpe.ComposedDpEvent([GAUSSIAN, dpe.ZCDpEvent(0.1)])),
        "add_or_remove_one",
        r"ZCDpEvent.*joint release of one batch",
    ),
    (
        dpe.PoissonSampledDpEvent(0.1, dpe.PoissonSampledDpEvent(0.1, GAUSSIAN)),
        "add_or_remove_one",
        r"joint release of one batch",
    ),
    (LAPLACE, "replace_one", r"Gaussian histogram.*group privacy"),
    (JOINT, "replace_one", r"Gaussian histogram.*group privacy"),
    (
        dpe.RepeatAndSelectDpEvent(LAPLACE, 5, 1),
        "replace_one",
        r"Gaussian histogram.*group privacy",
    ),
    (
        dpe.ComposedDpEvent([GAUSSIAN, dpe.SingleEpochTreeAggregationDpEvent(1.0, 8)]),
        "add_or_remove_one",
        r"SingleEpochTree.*replace_special",
    ),
    (dpe.RandomizedResponseDpEvent(0.5, 4), "add_or_remove_one", r"replace_one or replace_special"),
    (dpe.DiscreteLaplaceDpEvent(0.5, 1), "replace_one", r"add_or_remove_one, or GaussianDpEvent"),
    (dpe.UnsupportedDpEvent(), "add_or_remove_one", r"UnsupportedDpEvent.*ZCDpEvent\(eta"),
    (
        dpe.ComposedDpEvent([JOINT, dpe.ZCDpEvent(0.1)]),
        "add_or_remove_one",
        r"both ZCDpEvent.*RDP only.*PLD only.*a Gaussian in place of the Laplace",
    ),
    (
        dpe.ComposedDpEvent([dpe.PoissonSampledDpEvent(0.1, GAUSSIAN), dpe.ZCDpEvent(0.1)]),
        "replace_one",
        r"relation add_or_remove_one",
    ),
]


@pytest.mark.parametrize(("event", "relation", "message"), CASES, ids=lambda value: str(value)[:40])
def test_refused_with_a_substitute(event, relation, message):
    for nested in (event, dpe.SelfComposedDpEvent(dpe.ComposedDpEvent([event]), 3)):
        with pytest.raises(UnsupportedEventError, match=message):
            Guarantee(nested, relation)


def test_is_a_value_error():
    assert issubclass(UnsupportedEventError, ValueError)


def test_sampled_gaussian_with_zcdp_goes_by_rdp():
    sampled = joint_poisson_event(0.02, 100, gaussian=2.0, histogram_gaussian=4.0)
    event = dpe.ComposedDpEvent([sampled, dpe.ZCDpEvent(0.01)])
    both = Guarantee(event).epsilon(1e-5)
    assert max(Guarantee(e).epsilon(1e-5) for e in event.events) < both < 5

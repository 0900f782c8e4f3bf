"""Events of execution plans of jax_privacy, composed with ours."""

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant
from jax_privacy import batch_selection
from jax_privacy.experimental.execution_plan import BandMFExecutionPlanConfig

import dpjax

PARTITIONS = {
    "add_or_remove_one": batch_selection.PartitionType.INDEPENDENT,
    "replace_special": batch_selection.PartitionType.EQUAL_SPLIT,
    "replace_one": batch_selection.PartitionType.EQUAL_SPLIT,
}


def plan(relation, noise=2.0, bands=1):
    """A plan under a relation, with an accountant for it."""
    accountant = PLDAccountant(NeighboringRelation[relation.upper()])
    return BandMFExecutionPlanConfig(
        strategy=np.ones(bands) / np.sqrt(bands),
        iterations=100,
        sampling_prob=0.02 * bands,
        epsilon=None,
        delta=None,
        noise_multiplier=noise,
        accountant=accountant,
        partition_type=PARTITIONS[relation],
    ).plan


@pytest.mark.parametrize("relation", sorted(PARTITIONS))
@pytest.mark.parametrize("bands", [1, 4])
def test_a_plan_and_a_run_of_ours_compose_as_dp_accounting_composes_them(relation, bands):
    theirs = dpjax.Guarantee(plan(relation, bands=bands).dp_event, relation)
    event = dpjax.privacy.joint_poisson_event(0.05, 50, gaussian=2.5)
    ours = dpjax.Guarantee(event, relation)
    both = dpjax.privacy.compose_guarantees(theirs, ours)
    accountant = PLDAccountant(NeighboringRelation[relation.upper()])
    accountant.compose(theirs.event).compose(ours.event)
    expected = accountant.get_epsilon(1e-5)
    assert both.epsilon(1e-5) == pytest.approx(expected, rel=1e-3)
    alone = theirs.epsilon(1e-5), ours.epsilon(1e-5)
    assert max(alone) < both.epsilon(1e-5) < sum(alone)


def test_two_relations_do_not_compose():
    theirs = dpjax.Guarantee(plan("replace_special").dp_event, "replace_special")
    ours = dpjax.Guarantee(dpjax.privacy.joint_poisson_event(0.05, 50, gaussian=2.5))
    with pytest.raises(ValueError, match="one relation, got replace_special and add_or_remove_on"):
        dpjax.privacy.compose_guarantees(theirs, ours)


def test_a_ledger_takes_both_and_refuses_what_does_not_fit(tmp_path):
    theirs = dpjax.Guarantee(plan("add_or_remove_one").dp_event)
    ours = dpjax.Guarantee(dpjax.privacy.joint_poisson_event(0.05, 50, gaussian=2.5))
    both = dpjax.privacy.compose_guarantees(theirs, ours).epsilon(1e-5)
    budget = dpjax.Budget(1.001 * both, 1e-5)
    with dpjax.Ledger(tmp_path / "ledger.json", budget, adaptive=False) as ledger:
        ledger.spend(theirs, label="jax_privacy")
        ledger.spend(ours, label="dpjax")
        with pytest.raises(dpjax.BudgetExceeded):
            ledger.spend(theirs, label="again")
        assert ledger.spent() == pytest.approx(both, rel=1e-6)


def test_under_replace_one_a_plan_doubles_its_noise_and_so_do_accountants():
    """What the page calls loose: the noise is that of twice the multiplier of the event."""
    sensitivity = plan("replace_one").clipped_grad(lambda params: 0.0).sensitivity
    assert sensitivity(NeighboringRelation.REPLACE_ONE) == 2.0
    assert plan("replace_one").dp_event == plan("replace_special").dp_event
    loose = dpjax.Guarantee(plan("replace_one").dp_event, "replace_one").epsilon(1e-5)
    exact = dpjax.Guarantee(plan("replace_one", noise=4.0).dp_event, "replace_one").epsilon(1e-5)
    assert exact < loose

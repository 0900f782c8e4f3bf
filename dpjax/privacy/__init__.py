"""Budgets, events, accountants, calibration and the ledger, on the host."""

from dpjax.privacy._budget import Budget as Budget
from dpjax.privacy._budget import RelationLike as RelationLike
from dpjax.privacy._budget import check_budget as check_budget
from dpjax.privacy._budget import resolve_relation as resolve_relation
from dpjax.privacy._calibrate import calibrate_gaussian as calibrate_gaussian
from dpjax.privacy._calibrate import calibrate_noise as calibrate_noise
from dpjax.privacy._calibrate import max_steps as max_steps
from dpjax.privacy._calibrate import zcdp_budget as zcdp_budget
from dpjax.privacy._guarantee import Guarantee as Guarantee
from dpjax.privacy._guarantee import ParallelGuarantee as ParallelGuarantee
from dpjax.privacy._guarantee import compose_guarantees as compose_guarantees
from dpjax.privacy._guarantee import parallel_guarantee as parallel_guarantee
from dpjax.privacy._warnings import DeltaWarning as DeltaWarning
from dpjax.privacy._warnings import MultiplierWarning as MultiplierWarning
from dpjax.privacy._warnings import NoiseWarning as NoiseWarning
from dpjax.privacy._warnings import ResolutionWarning as ResolutionWarning
from dpjax.privacy.accounting._events import joint_poisson_epsilon as joint_poisson_epsilon
from dpjax.privacy.accounting._events import joint_poisson_event as joint_poisson_event
from dpjax.privacy.accounting._events import joint_release as joint_release
from dpjax.privacy.accounting._group import GroupGuarantee as GroupGuarantee
from dpjax.privacy.accounting._group import group_guarantee as group_guarantee
from dpjax.privacy.accounting._structure import PureZCDpEvent as PureZCDpEvent
from dpjax.privacy.accounting._structure import UnsupportedEventError as UnsupportedEventError
from dpjax.privacy.accounting._structure import (
    effective_noise_multiplier as effective_noise_multiplier,
)
from dpjax.privacy.accounting._structure import split_noise_multiplier as split_noise_multiplier
from dpjax.privacy.bounded_range._curve import bounded_range_delta as bounded_range_delta
from dpjax.privacy.bounded_range._curve import bounded_range_epsilon as bounded_range_epsilon
from dpjax.privacy.bounded_range._curve import bounded_range_eta as bounded_range_eta
from dpjax.privacy.bounded_range._curve import bounded_range_rho as bounded_range_rho
from dpjax.privacy.bounded_range._guarantee import BoundedRangeGuarantee as BoundedRangeGuarantee
from dpjax.privacy.bounded_range._guarantee import (
    calibrate_bounded_range as calibrate_bounded_range,
)
from dpjax.privacy.bounded_range._mixture import MixtureGuarantee as MixtureGuarantee
from dpjax.privacy.bounded_range._mixture import MixturePhase as MixturePhase
from dpjax.privacy.ledger._ledger import Ledger as Ledger
from dpjax.privacy.ledger._state import BudgetExceeded as BudgetExceeded
from dpjax.privacy.ledger._state import LedgerEntry as LedgerEntry
from dpjax.privacy.objective_perturbation._guarantee import (
    ObjectivePerturbationGuarantee as ObjectivePerturbationGuarantee,
)
from dpjax.privacy.objective_perturbation._guarantee import (
    calibrate_objective_perturbation as calibrate_objective_perturbation,
)
from dpjax.privacy.objective_perturbation._guarantee import (
    plan_objective_perturbation as plan_objective_perturbation,
)
from dpjax.privacy.objective_perturbation._slopes import SlopeBounds as SlopeBounds
from dpjax.privacy.objective_perturbation._slopes import huber_slopes as huber_slopes
from dpjax.privacy.objective_perturbation._slopes import logistic_change as logistic_change
from dpjax.privacy.objective_perturbation._slopes import logistic_slopes as logistic_slopes
from dpjax.privacy.objective_perturbation._slopes import squared_slopes as squared_slopes
from dpjax.privacy.selection._curve import RunsLaw as RunsLaw
from dpjax.privacy.selection._guarantee import SelectionGuarantee as SelectionGuarantee
from dpjax.privacy.selection._guarantee import calibrate_selection as calibrate_selection

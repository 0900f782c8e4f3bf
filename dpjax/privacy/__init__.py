"""Budgets, events, accountants and calibration, on the host."""

from dpjax.privacy._budget import Budget as Budget
from dpjax.privacy._calibrate import calibrate_gaussian as calibrate_gaussian
from dpjax.privacy._calibrate import calibrate_noise as calibrate_noise
from dpjax.privacy._calibrate import max_steps as max_steps
from dpjax.privacy._calibrate import zcdp_budget as zcdp_budget
from dpjax.privacy._events import joint_poisson_epsilon as joint_poisson_epsilon
from dpjax.privacy._events import joint_poisson_event as joint_poisson_event
from dpjax.privacy._guarantee import Guarantee as Guarantee
from dpjax.privacy._multipliers import effective_noise_multiplier as effective_noise_multiplier
from dpjax.privacy._multipliers import split_noise_multiplier as split_noise_multiplier
from dpjax.privacy._relations import RelationLike as RelationLike
from dpjax.privacy._relations import resolve_relation as resolve_relation
from dpjax.privacy._support import UnsupportedEventError as UnsupportedEventError

"""What is solved: losses, constraints and their public constants."""

from dpjax.problems._best_response import BestResponse as BestResponse
from dpjax.problems._best_response import best_response as best_response
from dpjax.problems._constraint_kinds import cross_rate as cross_rate
from dpjax.problems._constraint_kinds import demographic_parity as demographic_parity
from dpjax.problems._constraint_kinds import equality_of_odds as equality_of_odds
from dpjax.problems._constraint_kinds import false_negative_rate as false_negative_rate
from dpjax.problems._constraint_kinds import from_masks as from_masks
from dpjax.problems._constraints import RateConstraints as RateConstraints
from dpjax.problems._gaps import GapBounds as GapBounds
from dpjax.problems._gaps import duality_gap as duality_gap
from dpjax.problems._gaps import matrix_game_gap as matrix_game_gap
from dpjax.problems._gaps import max_loss_gap as max_loss_gap
from dpjax.problems._gaps import quadratic_saddle_centres as quadratic_saddle_centres
from dpjax.problems._gaps import quadratic_saddle_gap as quadratic_saddle_gap
from dpjax.problems._linear import LinearLogits as LinearLogits
from dpjax.problems._max_loss import group_risk as group_risk
from dpjax.problems._max_loss import max_loss as max_loss
from dpjax.problems._parts import ByField as ByField
from dpjax.problems._parts import ByLabelAndGroup as ByLabelAndGroup
from dpjax.problems._parts import ByTable as ByTable
from dpjax.problems._parts import PartRule as PartRule
from dpjax.problems._query_release import QueryRelease as QueryRelease
from dpjax.problems._rate_constrained import RateConstrained as RateConstrained
from dpjax.problems._risk import Risk as Risk
from dpjax.problems._saddle import Saddle as Saddle
from dpjax.problems._simplex_risk import SimplexRisk as SimplexRisk

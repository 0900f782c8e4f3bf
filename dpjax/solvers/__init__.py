"""How: one method a file; each wires problem, sampler, transforms and event together."""

from dpjax.core._moved import moved as _moved
from dpjax.solvers.descent._dp_ftrl import DPFTRL as DPFTRL
from dpjax.solvers.descent._dpsgd import DPSGD as DPSGD
from dpjax.solvers.descent._dpsgd import DPSGDInfo as DPSGDInfo
from dpjax.solvers.descent._dpsgd import DPSGDState as DPSGDState
from dpjax.solvers.descent._group_thresholds import GroupThresholds as GroupThresholds
from dpjax.solvers.descent._group_thresholds import ThresholdModel as ThresholdModel
from dpjax.solvers.descent._group_thresholds import ThresholdsState as ThresholdsState
from dpjax.solvers.descent._group_thresholds import TrainedModel as TrainedModel
from dpjax.solvers.descent._preconditioned_sgd import PreconditionedSGD as PreconditionedSGD
from dpjax.solvers.descent._preconditioned_sgd import (
    PreconditionedSGDState as PreconditionedSGDState,
)
from dpjax.solvers.descent._rate_constrained_sgda import RateConstrainedSGDA as RateConstrainedSGDA
from dpjax.solvers.descent._sgda_state import SGDAInfo as SGDAInfo
from dpjax.solvers.descent._sgda_state import SGDAState as SGDAState
from dpjax.solvers.erm._objective_perturbation import ObjectivePerturbation as ObjectivePerturbation
from dpjax.solvers.erm._objective_perturbation import (
    ObjectivePerturbationState as ObjectivePerturbationState,
)
from dpjax.solvers.erm._sufficient_statistics import SufficientStatistics as SufficientStatistics
from dpjax.solvers.erm._sufficient_statistics import (
    SufficientStatisticsState as SufficientStatisticsState,
)
from dpjax.solvers.erm._sufficient_statistics import linear_model_solver as linear_model_solver
from dpjax.solvers.games._double_oracle import DoubleOracle as DoubleOracle
from dpjax.solvers.games._double_oracle import DoubleOracleInfo as DoubleOracleInfo
from dpjax.solvers.games._double_oracle import solver_for_game as solver_for_game
from dpjax.solvers.games._nested import GameState as GameState
from dpjax.solvers.games._nested import NestedGame as NestedGame
from dpjax.solvers.nonconvex._online_to_nonconvex import OnlineToNonconvex as OnlineToNonconvex
from dpjax.solvers.nonconvex._online_to_nonconvex import (
    OnlineToNonconvexInfo as OnlineToNonconvexInfo,
)
from dpjax.solvers.nonconvex._online_to_nonconvex import (
    OnlineToNonconvexState as OnlineToNonconvexState,
)
from dpjax.solvers.queries._frank_wolfe_release import FrankWolfeRelease as FrankWolfeRelease
from dpjax.solvers.queries._gaussian_fit import GaussianFit as GaussianFit
from dpjax.solvers.queries._gaussian_fit import GaussianFitState as GaussianFitState
from dpjax.solvers.queries._histogram_release import HistogramRelease as HistogramRelease
from dpjax.solvers.queries._histogram_release import HistogramState as HistogramState
from dpjax.solvers.queries._rows_fit import ReleasedRows as ReleasedRows
from dpjax.solvers.queries._rows_fit import RowsFit as RowsFit
from dpjax.solvers.queries._selection import ReleasedDistribution as ReleasedDistribution
from dpjax.solvers.queries._selection import SelectionInfo as SelectionInfo
from dpjax.solvers.queries._selection import SelectionState as SelectionState
from dpjax.solvers.vertices._frank_wolfe import FrankWolfe as FrankWolfe
from dpjax.solvers.vertices._frank_wolfe import FrankWolfeState as FrankWolfeState
from dpjax.solvers.vertices._polished_frank_wolfe import PolishedFrankWolfe as PolishedFrankWolfe
from dpjax.solvers.vertices._polished_frank_wolfe import (
    PolishedFrankWolfeState as PolishedFrankWolfeState,
)
from dpjax.solvers.vertices._steps import VertexInfo as VertexInfo

_IN_PAPERS = (
    "AnytimeMirrorDescent AnytimeState MWEM MWEMInfo MWEMState MirrorDescentRelease MirrorState "
    "MultilevelSaddle MultilevelState OnlineToBatch OnlineToBatchInfo OnlineToBatchState Replay "
    "SaddleMirrorDescent SaddleRelease"
)
__getattr__ = _moved(
    __name__,
    {
        "release": "dpjax.release",
        "Release": "dpjax.Release",
        "optimal_histogram_share": "dpjax.papers.rate_constrained.optimal_histogram_share",
        "stationarity_plan": "dpjax.papers.nonsmooth_nonconvex.stationarity_plan",
    },
    kept={"dpjax.papers": _IN_PAPERS.split()},
)

"""How: one method a file; each wires problem, sampler, transforms and event together."""

from dpjax.solvers._anytime_mirror_descent import AnytimeMirrorDescent as AnytimeMirrorDescent
from dpjax.solvers._anytime_mirror_descent import AnytimeState as AnytimeState
from dpjax.solvers._dp_ftrl import DPFTRL as DPFTRL
from dpjax.solvers._dpsgd import DPSGD as DPSGD
from dpjax.solvers._dpsgd import DPSGDInfo as DPSGDInfo
from dpjax.solvers._dpsgd import DPSGDState as DPSGDState
from dpjax.solvers._frank_wolfe import FrankWolfe as FrankWolfe
from dpjax.solvers._frank_wolfe import FrankWolfeState as FrankWolfeState
from dpjax.solvers._histogram_share import optimal_histogram_share as optimal_histogram_share
from dpjax.solvers._multilevel_saddle import MultilevelSaddle as MultilevelSaddle
from dpjax.solvers._multilevel_saddle import MultilevelState as MultilevelState
from dpjax.solvers._online_to_batch import OnlineToBatch as OnlineToBatch
from dpjax.solvers._online_to_batch import OnlineToBatchInfo as OnlineToBatchInfo
from dpjax.solvers._online_to_batch import OnlineToBatchState as OnlineToBatchState
from dpjax.solvers._online_to_nonconvex import OnlineToNonconvex as OnlineToNonconvex
from dpjax.solvers._online_to_nonconvex import OnlineToNonconvexInfo as OnlineToNonconvexInfo
from dpjax.solvers._online_to_nonconvex import OnlineToNonconvexState as OnlineToNonconvexState
from dpjax.solvers._online_to_nonconvex_theory import stationarity_plan as stationarity_plan
from dpjax.solvers._rate_constrained_sgda import RateConstrainedSGDA as RateConstrainedSGDA
from dpjax.solvers._rate_constrained_sgda import SGDAInfo as SGDAInfo
from dpjax.solvers._rate_constrained_sgda import SGDAState as SGDAState
from dpjax.solvers._saddle_mirror_descent import MirrorState as MirrorState
from dpjax.solvers._saddle_mirror_descent import SaddleMirrorDescent as SaddleMirrorDescent
from dpjax.solvers._vertex_solver import Replay as Replay
from dpjax.solvers._vertex_solver import VertexInfo as VertexInfo

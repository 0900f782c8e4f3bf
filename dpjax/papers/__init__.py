"""Settings as printed, explicit bounds, and variants that lose to the defaults; a module a paper.

Functions return configured solvers with their true epsilon. No default of the library is made here.
"""

from dpjax.papers import query_release as query_release
from dpjax.papers._anytime_mirror_descent import AnytimeMirrorDescent as AnytimeMirrorDescent
from dpjax.papers._anytime_mirror_descent import AnytimeState as AnytimeState
from dpjax.papers._mirror_descent_release import MirrorDescentRelease as MirrorDescentRelease
from dpjax.papers._multilevel_saddle import MultilevelSaddle as MultilevelSaddle
from dpjax.papers._multilevel_saddle import MultilevelState as MultilevelState
from dpjax.papers._mwem import MWEM as MWEM
from dpjax.papers._mwem import MWEMInfo as MWEMInfo
from dpjax.papers._mwem import MWEMState as MWEMState
from dpjax.papers._saddle_mirror_descent import MirrorState as MirrorState
from dpjax.papers._saddle_mirror_descent import SaddleMirrorDescent as SaddleMirrorDescent
from dpjax.papers._saddle_release import SaddleRelease as SaddleRelease
from dpjax.papers._tapered import TaperedPartition as TaperedPartition
from dpjax.papers._tapered import tapered_sizes as tapered_sizes
from dpjax.papers._vertex_solver import Replay as Replay
from dpjax.papers.online._online_to_batch import OnlineToBatch as OnlineToBatch
from dpjax.papers.online._online_to_batch import OnlineToBatchInfo as OnlineToBatchInfo
from dpjax.papers.online._online_to_batch import OnlineToBatchState as OnlineToBatchState

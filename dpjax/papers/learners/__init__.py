"""Online learners that no default of a solver uses, as transformations."""

from dpjax.papers.learners._adagrad_norm import AdagradNormState as AdagradNormState
from dpjax.papers.learners._adagrad_norm import adagrad_norm as adagrad_norm
from dpjax.papers.learners._coin_betting import coin_betting as coin_betting
from dpjax.papers.learners._constraint_reduction import ReductionState as ReductionState
from dpjax.papers.learners._distance_adaptive import DistanceAdaptiveState as DistanceAdaptiveState
from dpjax.papers.learners._distance_adaptive import distance_adaptive as distance_adaptive
from dpjax.papers.learners._dual_averaging import dual_averaging as dual_averaging
from dpjax.papers.learners._mirrored import MirroredState as MirroredState
from dpjax.papers.learners._mirrored import mirrored as mirrored
from dpjax.papers.learners._optimistic_descent import (
    OptimisticDescentState as OptimisticDescentState,
)
from dpjax.papers.learners._optimistic_descent import optimistic_descent as optimistic_descent
from dpjax.papers.learners._parameter_free import parameter_free as parameter_free
from dpjax.papers.learners._strongly_convex import StronglyConvexState as StronglyConvexState
from dpjax.papers.learners._strongly_convex import (
    strongly_convex_descent as strongly_convex_descent,
)

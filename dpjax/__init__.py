"""dpjax: private optimisation in JAX, as pure gradient transformations and jitted solvers."""

from dpjax import audit as audit
from dpjax import datasets as datasets
from dpjax import geometry as geometry
from dpjax import privacy as privacy
from dpjax import problems as problems
from dpjax import queries as queries
from dpjax import sampling as sampling
from dpjax import solvers as solvers
from dpjax import transforms as transforms
from dpjax.api import Release as Release
from dpjax.api import Tuned as Tuned
from dpjax.api import release as release
from dpjax.api import tune as tune
from dpjax.core import Aggregator as Aggregator
from dpjax.core import Problem as Problem
from dpjax.core import Records as Records
from dpjax.core import Sampler as Sampler
from dpjax.core import Solution as Solution
from dpjax.core import Solver as Solver
from dpjax.core import Transform as Transform
from dpjax.core import chain as chain
from dpjax.core import seeded as seeded
from dpjax.core import shard_records as shard_records
from dpjax.privacy import Budget as Budget
from dpjax.privacy import BudgetExceeded as BudgetExceeded
from dpjax.privacy import Guarantee as Guarantee
from dpjax.privacy import Ledger as Ledger
from dpjax.runtime import solve as solve

__version__ = "0.1.0"

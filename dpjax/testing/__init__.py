"""A conformance suite and statistical checks for private optimisation, for anyone's tests.

Not imported by `import dpjax`: `import dpjax.testing as dpt`. A package that makes its own
transformations registers them (`dpt.register`) and runs `dpt.check_entry` over `dpt.registry()`.
"""

from dpjax.testing._cases import AggregatorCase as AggregatorCase
from dpjax.testing._cases import Entry as Entry
from dpjax.testing._cases import SamplerCase as SamplerCase
from dpjax.testing._cases import SolverCase as SolverCase
from dpjax.testing._cases import Statistic as Statistic
from dpjax.testing._cases import TransformCase as TransformCase
from dpjax.testing._cases import entries as entries
from dpjax.testing._cases import register as register
from dpjax.testing._cases import registry as registry
from dpjax.testing._conformance import check_entry as check_entry
from dpjax.testing._conformance_aggregators import check_aggregator as check_aggregator
from dpjax.testing._conformance_samplers import check_sampler as check_sampler
from dpjax.testing._conformance_solvers import check_solver as check_solver
from dpjax.testing._conformance_transforms import check_transform as check_transform
from dpjax.testing._draws import check_draws_differ as check_draws_differ
from dpjax.testing._draws import keys_drawn as keys_drawn
from dpjax.testing._neighbours import Neighbour as Neighbour
from dpjax.testing._neighbours import largest_change as largest_change
from dpjax.testing._statistics import check_counts as check_counts
from dpjax.testing._statistics import check_distribution as check_distribution
from dpjax.testing._statistics import check_scale as check_scale
from dpjax.testing._statistics import check_uncorrelated as check_uncorrelated
from dpjax.testing._statistics import count_false_alarm as count_false_alarm
from dpjax.testing._statistics import false_alarms as false_alarms

"""Samplers: which records enter each step (Poisson, full batch, partitions)."""

from dpjax.core._moved import moved as _moved
from dpjax.sampling._capacity import default_capacity as default_capacity
from dpjax.sampling._capacity import overflow_probability as overflow_probability
from dpjax.sampling._capacity import poisson_capacity as poisson_capacity
from dpjax.sampling._cyclic import CyclicPoisson as CyclicPoisson
from dpjax.sampling._full import FullBatch as FullBatch
from dpjax.sampling._independent import IndependentPartition as IndependentPartition
from dpjax.sampling._participation import Participation as Participation
from dpjax.sampling._partition import DisjointPartition as DisjointPartition
from dpjax.sampling._partition import RepeatedPartition as RepeatedPartition
from dpjax.sampling._poisson import PoissonSampler as PoissonSampler

__getattr__ = _moved(__name__, {}, kept={"dpjax.papers": ("TaperedPartition", "tapered_sizes")})

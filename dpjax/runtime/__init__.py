"""A run from data to solution; checkpoints and devices wrap it."""

from dpjax.runtime._solve import UnknownGuarantee as UnknownGuarantee
from dpjax.runtime._solve import solve as solve

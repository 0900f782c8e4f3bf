"""The vocabulary: transform, aggregator, solver and solution types, chain, checks, records."""

from dpjax.core._chain import SeededState as SeededState
from dpjax.core._chain import chain as chain
from dpjax.core._chain import seeded as seeded
from dpjax.core._checks import check_between as check_between
from dpjax.core._checks import check_choice as check_choice
from dpjax.core._checks import check_delta as check_delta
from dpjax.core._checks import check_finite as check_finite
from dpjax.core._checks import check_int as check_int
from dpjax.core._checks import check_key as check_key
from dpjax.core._checks import check_mask as check_mask
from dpjax.core._checks import check_nonnegative as check_nonnegative
from dpjax.core._checks import check_nonnegative_scalar as check_nonnegative_scalar
from dpjax.core._checks import check_positive as check_positive
from dpjax.core._checks import check_positive_scalar as check_positive_scalar
from dpjax.core._checks import check_probability as check_probability
from dpjax.core._checks import check_rate as check_rate
from dpjax.core._checks import check_scalar as check_scalar
from dpjax.core._checks import check_shape as check_shape
from dpjax.core._checks import check_type as check_type
from dpjax.core._checks import is_traced as is_traced
from dpjax.core._fields import check_fields as check_fields
from dpjax.core._fields import check_unstacked as check_unstacked
from dpjax.core._fields import derived as derived
from dpjax.core._fields import register_dataclass as register_dataclass
from dpjax.core._fields import static_field as static_field
from dpjax.core._moved import moved as _moved
from dpjax.core._pairs import wide as wide
from dpjax.core._records import Records as Records
from dpjax.core._records import many_devices as many_devices
from dpjax.core._records import shard_records as shard_records
from dpjax.core._types import Aggregator as Aggregator
from dpjax.core._types import GuaranteeLike as GuaranteeLike
from dpjax.core._types import Problem as Problem
from dpjax.core._types import PyTree as PyTree
from dpjax.core._types import Sampler as Sampler
from dpjax.core._types import Solution as Solution
from dpjax.core._types import Solver as Solver
from dpjax.core._types import Transform as Transform
from dpjax.core._types import check_sampler as check_sampler
from dpjax.core._types import optional as optional

__getattr__ = _moved(
    __name__, {"solve": "dpjax.solve", "UnknownGuarantee": "dpjax.runtime.UnknownGuarantee"}
)

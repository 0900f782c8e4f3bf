"""Public data sets that the benchmarks read, beside Adult of `dpjax.datasets`."""

from benchmarks.datasets._credit import credit_default as credit_default
from benchmarks.datasets._folktables import folktables as folktables
from benchmarks.datasets._heart import heart_indicators as heart_indicators
from benchmarks.datasets._parkinsons import parkinsons as parkinsons

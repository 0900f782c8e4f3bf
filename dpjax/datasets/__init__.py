"""Real data sets for tests, tutorials and benchmarks, with public preprocessing."""

from dpjax.datasets._adult import adult as adult
from dpjax.datasets._adult import adult_table as adult_table
from dpjax.datasets._adult_reduced import adult_reduced as adult_reduced
from dpjax.datasets._credit import credit_default as credit_default
from dpjax.datasets._dataset import Dataset as Dataset
from dpjax.datasets._folktables import folktables as folktables
from dpjax.datasets._heart import heart_indicators as heart_indicators
from dpjax.datasets._parkinsons import parkinsons as parkinsons

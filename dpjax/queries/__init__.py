"""Domains of tables, and families of linear queries over their cells as operators."""

from dpjax.core._moved import moved as _moved
from dpjax.queries._domain import Domain as Domain
from dpjax.queries._halfspace import Halfspace as Halfspace
from dpjax.queries._marginals import Hierarchy as Hierarchy
from dpjax.queries._marginals import Marginals as Marginals
from dpjax.queries._matrix import Dense as Dense
from dpjax.queries._matrix import Sparse as Sparse
from dpjax.queries._prefix import Prefix as Prefix
from dpjax.queries._prefix import Tree as Tree
from dpjax.queries._row_model import RowModel as RowModel
from dpjax.queries._workload import Concat as Concat
from dpjax.queries._workload import QuerySensitivity as QuerySensitivity
from dpjax.queries._workload import Workload as Workload
from dpjax.queries._workload import query_sensitivity as query_sensitivity
from dpjax.queries.tables._kinds import Categorical as Categorical
from dpjax.queries.tables._kinds import Column as Column
from dpjax.queries.tables._kinds import Date as Date
from dpjax.queries.tables._kinds import Numeric as Numeric

__getattr__ = _moved(__name__, {"CellRecords": "dpjax.queries.Workload"})

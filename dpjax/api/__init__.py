"""Front doors: what chooses a method and runs it."""

from dpjax.api._fit import Fitted as Fitted
from dpjax.api._fit import fit as fit
from dpjax.api._fit import load as load
from dpjax.api._person_records import PersonRecords as PersonRecords
from dpjax.api._plan import Plan as Plan
from dpjax.api._plan import plan as plan
from dpjax.api._private_edges import private_edges as private_edges
from dpjax.api._release import release as release
from dpjax.api._released import Release as Release
from dpjax.api._tune import Tuned as Tuned
from dpjax.api._tune import tune as tune

"""Non-private diagnostics on raw data: audits and distance from stationarity.

`python -m dpjax.audit --entries MODULE` compares the claim of every solver that the module
registers with what runs of it show.
"""

from dpjax.audit._events import lower_bound_of_scores as lower_bound_of_scores
from dpjax.audit._lower_bound import lower_bound as lower_bound
from dpjax.audit._lower_bound import mechanism_lower_bound as mechanism_lower_bound
from dpjax.audit._one_run import one_run_lower_bound as one_run_lower_bound
from dpjax.papers._goldstein import GoldsteinNorm as GoldsteinNorm
from dpjax.papers._goldstein import goldstein_norm as goldstein_norm

"""Problems that solvers are planned for by `for_budget`."""

from dpjax import problems
from dpjax.queries import Domain, Marginals

RISK = problems.Risk.linear(lambda margin, y: (margin - y) ** 2, 3, radius=1.0, lipschitz=1.0)
ON_SIMPLEX = problems.SimplexRisk(
    loss=lambda w, r: r["c"] @ w, dim=5, grad_range=1.0, third_order=0.0
)
GAME = problems.Saddle.matrix_game((5, 5))
TABLES = problems.QueryRelease(Marginals.all_kway(Domain({"a": 2, "b": 3}), 1))
RATES = problems.RateConstrained.linear(3, 2)
PARITY = problems.RateConstrained.linear(3, 2, problems.demographic_parity(2, 2, slack=0.1))

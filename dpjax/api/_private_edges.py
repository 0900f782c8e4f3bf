"""Bins of about equally many records, by private quantiles."""

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import dp_event as dpe

from dpjax.core import check_key, check_probability
from dpjax.geometry import sample_vertices
from dpjax.privacy import Budget, Guarantee, bounded_range_eta, check_budget
from dpjax.privacy._budget import relation_name
from dpjax.queries import Domain, Numeric
from dpjax.queries.tables._frames import container_of
from dpjax.solvers.queries._budget import drawn_event, drawn_rho
from dpjax.solvers.vertices._steps import shrunk

_GRID = 1024
_SCORE_RANGE = 2  # of the change of the scores by one record: see `private_edges`


def private_edges(
    domain: Domain,
    data: object,
    budget: Budget,
    *,
    key: jax.Array,
    columns: Iterable[str],
    share: float = 0.1,
) -> tuple[Domain, Guarantee]:
    r"""Replaces the edges of numeric columns by private quantiles of the data.

    For the quantile j of b bins the exponential mechanism draws t from a grid of at most 1024 equal
    cells of the column's public range,

    $$ P[t] \propto e^{\eta u_j(t) / 2}, \qquad u_j(t) = -|c(t) - j n / b|, $$

    c(t) the records below t and n those with a value. Quantiles are then put in order and apart,
    so that the numbers of bins stay as they were.

    Guarantee: each draw is of bounded range eta. A record that joins or leaves moves
    $c(t) - j n / b$ by $1 - j / b$ at some t and by $-j / b$ at the others; one that is replaced
    moves c(t) by at most 1, and n by nothing; one whose value goes missing leaves. So a score moves
    by at most 1 either way, and the largest change less the smallest is at most 2, whatever the
    relation. All draws together spend `share` of the zero-concentrated budget, of a pure one that
    share of epsilon. Scores are exact integers; the rounding of logits is paid for.

    Args:
      domain: With `Numeric` columns (*public*).
      data: Columns by name, or a data frame (*secret*).
      budget: That of everything together (*public*).
      key: Typed key, scalar (*secret*); another than that of the release.
      columns: Names of the columns (*public*).
      share: Of the budget, in (0, 1) (*public*).

    Returns:
      The domain of the new edges, of the same shape, and what it cost: pass it to
      `dpjax.release(domain, data, budget, key=..., spent=[cost])`, which meets the budget as a
      whole.

    Raises:
      TypeError: If the key is not typed, the budget none, or the data codes.
      ValueError: If a column is not numeric or too fine for the grid, or none is named.

    Example:
      >>> import dpjax, jax, numpy as np
      >>> from dpjax.queries import Domain, Numeric
      >>> domain = Domain.from_columns({"income": Numeric(0, 1000, bins=4)})
      >>> data = {"income": np.linspace(0, 30, 20_000) ** 2}
      >>> budget = dpjax.Budget(1.0, 1e-6)
      >>> finer, cost = private_edges(
      ...     domain, data, budget, key=jax.random.key(0), columns=["income"])
      >>> abs(finer.spec[0][1].edges[2] - 225) < 30, cost.epsilon(1e-6) < 0.4
      (True, True)

    Source: the quantile of Smith (2011), "Privacy-preserving statistical estimation with optimal
    convergence rates"; the range is shown above.
    """
    check_key("key", key)
    check_probability("share", share)
    relation = relation_name(check_budget(budget).relation_or("replace_one"))
    kinds = [(axis, *domain.spec[axis]) for axis in domain.axes(columns)]
    if not kinds:
        raise ValueError("columns must be >= 1 of them, got none")
    if container_of(data) is None:
        raise TypeError("data must have named columns of raw values, not codes")
    grids, kept = {}, {}
    for axis, name, kind in kinds:
        if not isinstance(kind, Numeric) or kind.bins < 2:
            raise ValueError(f"column {name!r} must be Numeric with >= 2 bins")
        cells = min(_GRID, int(kind.high - kind.low) + 1) if kind.integer else _GRID
        if kind.bins > cells:
            raise ValueError(f"column {name!r} must have <= {cells} bins, got {kind.bins}")
        kept[axis] = {name: getattr(kind, name) for name in ("scale", "integer", "missing")}
        grids[axis] = Numeric(kind.low, kind.high, cells, **kept[axis])
    draws = sum(kind.bins - 1 for _, _, kind in kinds)
    if budget.delta == 0:
        eta = share * budget.epsilon / draws
    else:
        eta = float(bounded_range_eta(share * drawn_rho(budget) / draws))
    guarantee = Guarantee(dpe.SelfComposedDpEvent(drawn_event(eta, 1.0), draws), relation)
    codes = Domain(tuple((name, grids[axis]) for axis, name, _ in kinds)).encode(data)
    spec = list(domain.spec)
    for place, (axis, name, kind) in enumerate(kinds):
        grid = grids[axis]
        counts = np.bincount(codes[:, place], minlength=grid.bins)[: grid.bins]
        drawn = [
            int(sample_vertices(jax.random.fold_in(jax.random.fold_in(key, axis), j), row, 1)[0])
            for j, row in enumerate(edge_logits(counts, kind.bins, eta))
        ]
        inner = [grid.edges[cell] for cell in apart(drawn, grid.bins)]
        edges = (kind.low, *inner, kind.high)
        spec[axis] = name, Numeric(edges=edges, **kept[axis])
    return Domain(tuple(spec)), guarantee


def edge_logits(counts: np.ndarray, bins: int, eta: float) -> jax.Array:
    """Logits of the inner edges 1, 2, ... of the grid for each quantile, `[bins - 1, cells - 1]`.

    Args:
      counts: Records in each cell of the grid, `[cells]` (*secret*).
      bins: Of equally many records (*public*).
      eta: The bounded range of each draw (*public*).
    """
    below = np.cumsum(counts, dtype=np.int64)[:-1]
    quantiles = np.arange(1, bins)[:, None]
    scores = -np.abs(bins * below - quantiles * np.sum(counts, dtype=np.int64))
    gaps = scores - scores.max(axis=1, keepdims=True)  # exact, in units of 1 / bins
    sharpness = shrunk(eta / _SCORE_RANGE, eta, jnp.zeros(0).dtype) / bins
    return jnp.asarray(gaps, float) * sharpness


def apart(drawn: list[int], cells: int) -> list[int]:
    """Inner edges of the grid, 0 for the first, as increasing places in 1 to cells - 1."""
    before = np.arange(len(drawn))
    least = np.maximum.accumulate(np.sort(drawn) + 1 - before)
    return (np.clip(least, 1, cells - len(drawn)) + before).tolist()

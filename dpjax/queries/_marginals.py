"""Marginal tables: how many records have each combination of values of some attributes."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.typing import ArrayLike

from dpjax.core import PyTree, many_devices, register_dataclass, static_field
from dpjax.core._checks import check_int, check_shape, check_type
from dpjax.queries import _workload as workloads
from dpjax.queries._domain import Domain, strides
from dpjax.queries._marginal_plan import Pass, passes
from dpjax.queries.tables._labels import check_distinct
from dpjax.queries.tables._table import some

_MOST_QUERIES = 2**31
# on an H100 64 cells take a seventh of the time with as many
_MOST_COPIES = 2**10
Clique = tuple[str, ...]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Marginals(workloads.Tables):
    r"""All cells of the marginal tables of some cliques of attributes.

    $$ \langle q_{C,c}, p\rangle = \sum_{z : z_C = c} p_z $$

    The answers are the tables one after another, in the order of the cliques, each in C order over
    its attributes. One pass reads the cube about once more than the largest clique has attributes,
    however many cliques there are: it sums runs of attributes out first, and the tables share these
    sums. Nothing of size `m` times `k` is formed. Records are counted by their codes, so the
    universe may have any number of cells; `answers` and `adjoint` need fewer than $2^{31}$.

    Guarantee: none by itself. A record counts in one cell of each of the N tables: replacing it
    moves two cells of each that has more than one, and n times the answers by at most $\sqrt{2N}$
    in the l2 norm; adding it by $\sqrt N$; a single one by 1 (`sensitivity`).

    | records | effect |
    | --- | --- |
    | none | a histogram of zeros; no mean, ValueError |
    | a code out of range | ValueError with its column; where traced, the nearest code counts |

    Args:
      domain: The attributes (*public*, static).
      cliques: For each table the names of its attributes, in any order; they are kept in the
        domain's (*public*, static).
      sharding: How vectors over the universe are spread over devices, a `NamedSharding` of one axis
        (static); first the values of the first attributes. None: as XLA sees fit.

    Raises:
      TypeError: If a clique is a text and not several names.
      ValueError: If there is no clique, one is empty or given twice, an attribute is unknown or
        twice in a clique, or there are $2^{31}$ queries or more.

    Example:
      >>> import jax.numpy as jnp
      >>> domain = Domain({"sex": 2, "race": 3, "age": 2})
      >>> pairs = Marginals.all_kway(domain, 2)
      >>> pairs.cliques, pairs.num_queries
      ((('sex', 'race'), ('sex', 'age'), ('race', 'age')), 16)
      >>> counts = pairs.histogram(domain.encode([[0, 2, 1], [1, 2, 1], [1, 0, 0]]))
      >>> pairs.table(pairs.answers(counts), ("race", "age")).tolist()
      [[1, 0], [0, 0], [0, 2]]
      >>> round(pairs.sensitivity("replace_one").l2_answers ** 2, 6)
      6.0
    """

    domain: Domain = dataclasses.field(metadata={"static": True})
    cliques: Sequence[tuple[str, ...]] = dataclasses.field(metadata={"static": True})
    sharding: NamedSharding | None = static_field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_type("domain", self.domain, Domain, "a Domain")
        if isinstance(self.cliques, str):
            raise TypeError(f"cliques must be a sequence of cliques, got {self.cliques!r}")
        axes = [self.domain.axes(clique) for clique in self.cliques]
        names = tuple(tuple(self.domain.attributes[a] for a in clique) for clique in axes)
        if not names:
            raise ValueError("cliques must be >= 1 of them, got none")
        if () in names:
            raise ValueError("a clique must have >= 1 attribute, got an empty one")
        check_distinct("cliques, as sets,", names)
        sharding = workloads.checked_sharding(self.sharding, self.universe_size)
        vars(self).update(cliques=names, sharding=sharding)
        if self.num_queries >= _MOST_QUERIES:
            raise ValueError(
                f"there must be < 2**31 queries, got {self.num_queries}: ask for fewer or smaller "
                "cliques"
            )

    @classmethod
    def all_kway(
        cls, domain: Domain, k: int, *, sharding: NamedSharding | None = None
    ) -> "Marginals":
        """All tables of k attributes, in lexicographic order of their positions.

        Args:
          domain: The attributes (*public*).
          k: Attributes a table, from 1 to all of them (*public*).
          sharding: As of the class.

        Returns:
          The workload.

        Raises:
          ValueError: If `k` is out of range.
          TypeError: If `k` is not an integer.

        Example:
          >>> Marginals.all_kway(Domain({"a": 2, "b": 2, "c": 3}), 1).num_queries
          7
        """
        check_int("k", k, minimum=1)
        if k > len(domain.attributes):
            raise ValueError(f"k must be <= {len(domain.attributes)} attributes, got {k}")
        return cls(domain, tuple(itertools.combinations(domain.attributes, k)), sharding=sharding)

    @functools.cached_property
    def sizes(self) -> tuple[int, ...]:
        """Cells of each clique's table."""
        return tuple(math.prod(self.domain.shape[a] for a in axes) for axes in self._axes)

    @functools.cached_property
    def universe_size(self) -> int:
        """Number of cells k."""
        return self.domain.universe_size

    @property
    def centre(self) -> ArrayLike:
        """Mid-range of the queries: 1/2; of a table of one cell, whose answer never varies, 1."""
        if 1 not in self.sizes:
            return 0.5
        return np.where(np.array(self.sizes) == 1, 1.0, 0.5)[self.clique_of]

    def answers(self, p: ArrayLike) -> jax.Array:
        """The tables of `p` `[k]`, `[m]`; counts give counts, exactly, in their integer type."""
        vector = workloads.checked_vector("p", p, self.universe_size)
        return self._passes[0](workloads.spread_cells(self, vector))

    def adjoint(self, v: ArrayLike) -> jax.Array:
        """For each cell `[k]` the sum of `v` `[m]` over the answers that count it."""
        vector = workloads.checked_vector("v", v, self.num_queries)
        return workloads.spread_cells(self, self._passes[1](vector))

    def counts(self, records: ArrayLike, mask: ArrayLike = True) -> jax.Array:
        """The tables of counts of records `[n, A]`, `[m]` int32 (*secret*), for any universe.

        Args:
          records: Codes.
          mask: Which of them count, bool, `[n]` or a scalar.
        """
        check_shape("records", records, (None, len(self.domain.shape)))
        codes = self.domain.record_codes(records)
        counted = jnp.broadcast_to(mask, codes.shape[:1]).astype(jnp.int32)

        columns, num = codes.T, self.num_queries

        def added(copies: int) -> jax.Array:
            lane = num * (jnp.arange(len(codes), dtype=jnp.int32) % copies)

            def add(tables: jax.Array, clique: PyTree) -> tuple[jax.Array, None]:
                offset, axes, steps = clique
                cells = jnp.sum(columns[axes] * steps[:, None], axis=0)
                return tables.at[lane + (offset + cells)].add(counted), None

            tables = jax.lax.scan(add, jnp.zeros(copies * num, jnp.int32), self._clique_columns)[0]
            return tables.reshape(copies, num).sum(axis=0, dtype=jnp.int32)

        # elsewhere records that meet in a cell wait for each other: neighbours add to other copies
        copies = max(1, min(_MOST_COPIES, 2 * len(codes) // max(num, 1)))
        if many_devices():  # which would exchange all copies
            copies = 1
        return jax.lax.platform_dependent(
            cpu=functools.partial(added, 1), default=functools.partial(added, copies)
        )

    def answers_of_records(self, records: ArrayLike) -> jax.Array:
        """The tables of shares of records `[n, A]`, `[m]` (*secret*), for any universe.

        Raises:
          TypeError: If the records are no array, or not integers.
          ValueError: If there are no records.
        """
        workloads.check_records(records)
        return self.counts(records).astype(float) / workloads.num_records(records)

    def answer_of_record(self, record: ArrayLike) -> jax.Array:
        """The tables of one record `[A]`, `[m]`: a single 1 in each (*secret*)."""
        check_shape("record", record, (len(self.domain.shape),))
        return self.counts(jnp.asarray(record)[None]).astype(float)

    def table(self, answers: ArrayLike, clique: Iterable[str]) -> jax.Array:
        """One clique's table out of all answers.

        Args:
          answers: `[m]`, or any vector of one number a query.
          clique: Its attributes, in any order.

        Returns:
          The table, its axes in the order of `clique`.

        Raises:
          ValueError: If the clique is none of these, or `answers` has another shape.
        """
        check_shape("answers", answers, (self.num_queries,))
        clique = tuple(clique)
        stored = self.domain.project(clique)
        if stored.attributes not in self.cliques:
            raise ValueError(
                f"clique must be one of {some(self.cliques, 5)}, got {stored.attributes}"
            )
        which = self.cliques.index(stored.attributes)
        block = jnp.asarray(answers)[self.offsets[which] :][: self.sizes[which]]
        axes = [stored.attributes.index(name) for name in clique]
        return jnp.transpose(block.reshape(stored.shape), axes)

    def __getstate__(self) -> dict[str, object]:
        return {name: held for name, held in vars(self).items() if name != "_passes"}  # functions

    @functools.cached_property
    def _axes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(self.domain.axes(clique) for clique in self.cliques)

    @functools.cached_property
    def _passes(self) -> tuple[Pass, Pass]:
        self.domain.check_enumerable()
        return passes(self.domain.shape, self._axes)

    @functools.cached_property
    def _clique_columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For each table its offset, and its attributes with their steps, `[N, width]` int32."""
        axes = np.zeros((len(self._axes), max(map(len, self._axes))), np.int32)
        steps = np.zeros_like(axes)  # 0 for what fills up
        for row, step, own in zip(axes, steps, self._axes, strict=True):
            row[: len(own)] = own
            step[: len(own)] = strides([self.domain.shape[a] for a in own])
        return np.asarray(self.offsets, np.int32), axes, steps


@dataclasses.dataclass(frozen=True)
class Hierarchy:
    """All marginals of subsets of the cliques of some marginals, and the way from these to them.

    Host-side tables of *public* facts; arrays enter traced functions as constants.

    Args:
      measured: Marginals of which noisy answers are at hand.

    Example:
      >>> from dpjax.queries import Domain
      >>> domain = Domain({"sex": 2, "age": 3})
      >>> Hierarchy(Marginals(domain, (("sex", "age"),))).closure.cliques
      (('sex',), ('age',), ('sex', 'age'))
    """

    measured: Marginals

    @functools.cached_property
    def closure(self) -> Marginals:
        """The marginals of all subsets but the empty one, by size, then position."""
        domain = self.measured.domain
        subsets = {part for clique in self.measured.cliques for part in _parts(clique)}
        ordered = sorted(subsets, key=lambda names: (len(names), domain.axes(names)))
        return Marginals(domain, tuple(ordered), sharding=self.measured.sharding)

    @functools.cached_property
    def order(self) -> np.ndarray:
        """How many attributes the clique of each query of the closure has, `[m']`."""
        return np.array([len(clique) for clique in self.closure.cliques])[self.closure.clique_of]

    @functools.cached_property
    def parents(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of each cell of a table of two attributes: its index, and those of its two margins."""
        triples = [np.zeros((3, 0), np.int32)]
        for clique in self.closure.cliques:
            if len(clique) == 2:
                margins = self._margins(clique)
                triples.append(np.stack([margins[p] for p in (clique, clique[:1], clique[1:])]))
        cells, first, second = np.concatenate(triples, axis=1)
        return cells, first, second

    @functools.cached_property
    def _links(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Each cell of a measured table, a cell of the closure that it is in, how many share it."""
        sources, targets, shares = [], [], []
        for clique, start in zip(self.measured.cliques, self.measured.offsets, strict=True):
            for part, cells in self._margins(clique).items():
                summed = cells.size / math.prod(self._sizes[name] for name in part)
                sources.append(start + np.arange(cells.size, dtype=np.int32))
                targets.append(cells)
                shares.append(np.full(cells.size, summed, np.float32))
        return np.concatenate(sources), np.concatenate(targets), np.concatenate(shares)

    @functools.cached_property
    def _starts(self) -> dict[Clique, int]:
        """Where each table of the closure begins among its answers."""
        return dict(zip(self.closure.cliques, self.closure.offsets, strict=True))

    @functools.cached_property
    def _sizes(self) -> dict[str, int]:
        domain = self.measured.domain
        return dict(zip(domain.attributes, domain.shape, strict=True))

    def _margins(self, clique: Clique) -> dict[Clique, np.ndarray]:
        """Of each cell of a table, by subset of its clique, the cell of the closure it is in."""
        sizes = [self._sizes[name] for name in clique]
        codes = dict(zip(clique, np.indices(sizes).reshape(len(sizes), -1), strict=True))
        margins = {}
        for part in _parts(clique):
            kept = tuple(codes[name] for name in part)
            cells = np.ravel_multi_index(kept, [self._sizes[name] for name in part])
            margins[part] = (self._starts[part] + cells).astype(np.int32)
        return margins

    def lift(self, values: jax.Array) -> jax.Array:
        """`values` `[m]` of measured queries at their places in the closure, else 0: `[m']`."""
        tables = zip(self.measured.cliques, self.measured.sizes, strict=True)
        places = [self._starts[clique] + np.arange(size) for clique, size in tables]
        zeros = jnp.zeros(self.closure.num_queries, values.dtype)
        return zeros.at[np.concatenate(places)].set(values, unique_indices=True)

    def combine(self, values: jax.Array, stddev: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The best unbiased estimate of each cell from sums of each measured table alone.

        Args:
          values: Noisy answers, `[m]`.
          stddev: Of their noise, `[m]`, equal within a table, > 0.

        Returns:
          Estimates `[m']` and the standard deviation of their noise, `[m']`.
        """
        source, target, share = self._links
        precision = 1 / (share * jnp.square(stddev)[source])
        size = self.closure.num_queries
        weighted = jax.ops.segment_sum(values[source] * precision, target, size)
        total = jax.ops.segment_sum(precision / share, target, size)
        return weighted / total, 1 / jnp.sqrt(total)

    def least_squares_stddev(self, stddev: np.ndarray) -> np.ndarray:
        r"""Noise in each table's cells after least squares over all measured tables (host).

        What a table says of the interaction of attributes A has independent noise in each table
        that holds A. So with precision $\pi_A = \sum_{C \supseteq A} 1 / (\sigma_C^2
        \prod_{i \in C - A} s_i)$ and sizes s a cell of table T has variance

        $$ \sum_{\emptyset \ne A \subseteq T} \frac{1}{\pi_A} \prod_{i \in A} (1 - 1 / s_i)
           \prod_{i \in T - A} s_i^{-2} $$

        the sum of a table being known.

        Args:
          stddev: sigma of the cells of each measured table, `[c]`, > 0.

        Returns:
          Standard deviations, one for each table of the closure, `[c']`.

        Source: the residual bases of Xiao, He, Zhang and Kifer 2023.
        """
        shape = self._sizes
        precision = dict.fromkeys(self.closure.cliques, 0.0)
        for clique, sigma in zip(self.measured.cliques, stddev, strict=True):
            for part in _parts(clique):
                summed = math.prod(shape[name] for name in clique if name not in part)
                precision[part] += 1 / (float(sigma) ** 2 * summed)
        variances = []
        for clique in self.closure.cliques:
            terms = (
                math.prod(1 - 1 / shape[name] for name in part)
                * math.prod(shape[name] ** -2.0 for name in clique if name not in part)
                / precision[part]
                for part in _parts(clique)
            )
            variances.append(math.fsum(terms))
        return np.sqrt(np.array(variances))


def _parts(clique: Clique) -> list[Clique]:
    """All subsets but the empty one."""
    sizes = range(1, len(clique) + 1)
    return [part for size in sizes for part in itertools.combinations(clique, size)]

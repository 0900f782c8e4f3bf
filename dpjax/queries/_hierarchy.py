"""The tables below given marginals, and how noisy tables add up to them."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.queries._marginals import Marginals

Clique = tuple[str, ...]


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
        place = {name: i for i, name in enumerate(domain.attributes)}
        ordered = sorted(subsets, key=lambda s: (len(s), [place[name] for name in s]))
        return Marginals(domain, tuple(ordered), sharding=self.measured.sharding)

    @functools.cached_property
    def order(self) -> np.ndarray:
        """How many attributes the clique of each query of the closure has, `[m']`."""
        sizes = np.array([len(clique) for clique in self.closure.cliques])
        return sizes[self.closure.clique_of]

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

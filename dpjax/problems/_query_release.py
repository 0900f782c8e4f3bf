"""Query release: the answers of a workload on records, to be matched by a distribution."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.core import PyTree, check_int, check_type, is_traced, static_field, wide
from dpjax.core._pairs import Pair, add_pairs, pair_of, scale_pair, times_whole
from dpjax.privacy import RelationLike, resolve_relation
from dpjax.queries import QuerySensitivity
from dpjax.queries._workload import Workload, check_counted, check_sums

_BYTES = 4 * 8  # float32 vectors over the universe that a solver may hold at once
_RELATIONS = ("replace_one", "add_or_remove_one")
_ARRAYS = (jax.Array, np.ndarray, np.generic)
_CARRIED = "_carried"


class _Sensitivities(NamedTuple):
    """Under each of `_RELATIONS`, and the number of axes of the workload's arrays they are for."""

    of: tuple[QuerySensitivity, ...]
    axes: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class QueryRelease:
    r"""Find a distribution p over the universe whose answers are those of the records.

    $$ \min_p \max_j |\langle q_j, P_n - p \rangle| $$

    with $P_n$ the distribution of the records, codes `[n, A]` or cells `[n]`, *secret*; all else is
    *public*.

    Guarantee: none of its own. `sensitivity(relation)` bounds how far one record moves sums of the
    queries, from the workload alone; solvers scale noise and event by it. Under replace-special a
    record goes missing, as under add-or-remove-one: no code stands for an empty record. In float32
    sums are exact below 2^24 records, from which on records are refused. Where `exact`, selections
    compare integers, else sums to the square of a float's precision: no score is rounded by what
    one record changes.

    Args:
      workload: The queries, a `dpjax.queries.Workload`. Built of a traced one a problem knows no
        sensitivities; built outside it keeps them through `jit` and `vmap`.
      max_bytes: Most memory that vectors over the universe may take, eight of them in float32
        (static). None: for `RowsFit`, which forms none; any other solver may run out of memory.

    Raises:
      TypeError: If the workload is none.
      ValueError: If the universe has one cell, or is too large for `max_bytes`.

    Example:
      >>> import dpjax
      >>> domain = dpjax.queries.Domain({"sex": 2, "age": 10})
      >>> problem = QueryRelease(dpjax.queries.Marginals.all_kway(domain, 2))
      >>> problem.sensitivity("replace_one").score_range
      2.0
    """

    workload: Workload
    max_bytes: int | None = static_field(default=16 * 2**30)

    def __post_init__(self) -> None:
        if self.max_bytes is not None:
            check_int("max_bytes", self.max_bytes, minimum=1)
        check_type("workload", self.workload, Workload, "of dpjax.queries")
        size = int(self.workload.universe_size)
        if size < 2:
            raise ValueError(f"the universe must have >= 2 cells, got {size}: nothing is unknown")
        if self.max_bytes is not None and size * _BYTES > self.max_bytes:
            raise ValueError(
                f"the universe has {size:,} cells, whose vectors take {size * _BYTES / 2**30:.3g} "
                f"GiB, above max_bytes = {self.max_bytes / 2**30:.3g} GiB: drop attributes, merge "
                "categories, or, of marginals, fit by RowsFit with max_bytes=None"
            )

    def sensitivity(self, relation: RelationLike) -> QuerySensitivity:
        """How far one record moves sums of the queries (host, static).

        Raises:
          ValueError: If the problem was built under a transformation, of a traced workload.
        """
        if self._sensitivities is None:
            raise ValueError(
                "sensitivities are unknown of a workload that was traced: build the problem "
                "outside jit and vmap"
            )
        return self._sensitivities.of[resolve_relation(relation).name != "REPLACE_ONE"]

    @functools.cached_property
    def _sensitivities(self) -> "_Sensitivities | None":
        """Of the workload, wherever its entries can be looked at: never those of another one.

        Else those that came with the tree whose leaves were traced or stacked.
        """
        carried: _Sensitivities | None = self.__dict__.get(_CARRIED)
        leaves = jax.tree.leaves(self.workload)
        if is_traced(leaves) or not all(isinstance(leaf, _ARRAYS) for leaf in leaves):
            return carried
        axes = tuple(map(np.ndim, leaves))
        if carried is not None and carried.axes != axes:
            return carried
        return _Sensitivities(tuple(map(self.workload.sensitivity, _RELATIONS)), axes)

    def check(self, records: PyTree) -> None:
        """Raises unless there are records, all of them in the universe, and they can be counted.

        Of traced records, unless there are some and they can be counted.
        """
        if np.shape(records)[:1] == (0,):
            raise ValueError("records must be n >= 1 of them, got none")
        domain = self.workload.domain
        if self.max_bytes is None and domain is not None:
            domain.record_codes(records)
        else:
            self.workload.record_cells(records)
        self.check_number(np.shape(records)[0])

    def check_number(self, number: int) -> None:
        """Raises ValueError if sums over so many records are rounded by what one changes.

        Args:
          number: Of records; static, so that it is known under a trace too.
        """
        check_counted(number)
        if self._sensitivities is None:
            return
        added = self.sensitivity("add_or_remove_one")
        check_sums(number, added)
        whole = jnp.issubdtype(self.workload.sums_dtype, jnp.integer)
        if whole and number * added.linf >= 2**31:
            raise ValueError(
                "sums over records must be < 2**31 in int32, and may be larger for so many: hold "
                "the queries as floats"
            )

    def answers(self, records: ArrayLike, num_records: ArrayLike) -> jax.Array:
        """Sums of the queries over the records by the *public* `num_records`, `[m]` (*secret*)."""
        return self.workload.answers(self.workload.histogram(records)).astype(float) / num_records

    @functools.cached_property
    def exact(self) -> bool:
        """Whether `targets` are integers: queries of integers, and of range at most 32.

        Raises:
          ValueError: If the problem was built under a transformation, of a traced workload.
        """
        told = self.sensitivity("add_or_remove_one")
        whole = jnp.issubdtype(self.workload.sums_dtype, jnp.integer)
        # so that int32 holds differences of targets, and float32 the centres
        return bool(whole and told.value_range <= 32 and told.linf <= 2**22)

    def targets(self, records: ArrayLike, *, centred: bool = True) -> jax.Array | Pair:
        r"""Twice the sums that selections compare with a distribution's, `[m]` (*secret*).

        $$ 2 \sum_i (q_j(z_i) - c_j) $$

        with $c_j$ the mid-range of $q_j$, which halves what a record that comes or goes can do, or
        0 if not `centred`. Twice, since mid-ranges of integers are halves: integers if `exact`,
        else pairs of floats.
        """
        number = jnp.shape(records)[0]
        sums = self.workload.sums(self.workload.histogram(records), number)
        if self.exact and not isinstance(sums, Pair):
            return 2 * sums.astype(int) - centred * number * self._doubled_centre().astype(int)
        doubled = scale_pair(pair_of(sums), 2.0)
        if not centred:
            return doubled
        return add_pairs(doubled, times_whole(-self._doubled_centre().astype(float), number))

    def no_targets(self) -> jax.Array | Pair:
        """What holds the place of `targets` before there are any."""
        zeros = jnp.zeros(self.workload.num_queries, int if self.exact else float)
        return zeros if self.exact else pair_of(zeros)

    def gaps(
        self,
        targets: jax.Array | Pair,
        answers: jax.Array,
        num_records: ArrayLike,
        *,
        centred: bool = True,
    ) -> tuple[jax.Array, jax.Array]:
        """`targets` less those of `num_records` records that answer so, as a sum of two parts.

        Only what is *public* is rounded, if `exact`: the parts are then an integer and a float in
        [-1/2, 1/2], which neighbours share. Else they are a float and what rounding it left over.

        Args:
          targets: As of `targets`, `[m]`.
          answers: Of a distribution, `[m]` (*public*).
          num_records: n (*public*).
          centred: As for the targets.

        Returns:
          Two vectors `[m]`, in units of half a record (*secret*).
        """
        dtype = answers.dtype
        centre = self._doubled_centre().astype(dtype) if centred else 0
        if isinstance(targets, Pair):
            theirs = jnp.asarray(num_records, dtype) * (2 * answers - centre)
            return add_pairs(targets, pair_of(-theirs))
        # no sum overflows, whatever the public number
        bits = jnp.iinfo(targets.dtype).bits
        number = jnp.minimum(jnp.asarray(num_records, dtype), 2.0 ** (bits - 4))
        theirs = number * (2 * answers - centre)
        whole = jnp.clip(jnp.round(theirs), -(2.0 ** (bits - 3)), 2.0 ** (bits - 3))
        return targets - whole.astype(targets.dtype), whole - theirs

    def _doubled_centre(self) -> jax.Array:
        return 2 * wide(self.workload.centre)


def _flatten(problem: QueryRelease) -> tuple[Any, Any]:
    """The workload, and as structure all else, the sensitivities among it."""
    key = jax.tree_util.GetAttrKey("workload")
    structure = type(problem), problem.max_bytes, problem._sensitivities
    return ((key, problem.workload),), structure


def _unflatten(structure: PyTree, leaves: PyTree) -> QueryRelease:
    """The inverse; leaves may be of any kind, so that nothing is checked."""
    made = object.__new__(QueryRelease)
    (workload,), (_, max_bytes, carried) = leaves, structure
    vars(made).update({"workload": workload, "max_bytes": max_bytes, _CARRIED: carried})
    return made


jax.tree_util.register_pytree_with_keys(QueryRelease, _flatten, _unflatten)

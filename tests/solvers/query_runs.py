"""Runs of query release with dictated draws: from neighbouring data to the laws they draw from."""

import contextlib
import dataclasses
import functools
import itertools
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.geometry import L1Ball
from dpjax.problems import QueryRelease
from dpjax.queries import Concat, Dense, Domain, Marginals, Prefix
from dpjax.sampling import FullBatch
from dpjax.solvers import FrankWolfeRelease, MirrorDescentRelease, SaddleRelease
from dpjax.solvers.queries import _selection as selection
from dpjax.solvers.queries._selection import select_marginal
from dpjax.testing._trees import QUICK

REPLACE, ADD, SPECIAL = "replace_one", "add_or_remove_one", "replace_special"
RECORDS = 3  # of the larger data sets; also the public number
ETA = 1.0  # of a draw

DOMAIN = Domain({"a": 2, "b": 2})
MARGINALS = Marginals(DOMAIN, (("a",), ("b",), ("a", "b")))
# ranges 10, 2, 4: far from 0 on both sides, and of both signs
UNUSUAL = Dense(np.array([[7.0, -3, 2, 2], [5, 6, 7, 5], [-4, -8, -5, -6]], np.float32))
SMALL = Marginals(Domain({"a": 2, "b": 1}), (("a",), ("b",)))  # a table of one cell
ONE = Prefix(2)
SHIFTED = Dense(np.array([[7.0, -3]], np.float32))
MIXED = Concat([Prefix(4), Dense(np.array([[1.0, 1, 1, 4]], np.float32))])


def data_sets(size, num_cells):
    """Every multiset of so many cells, `[*, size]`."""
    return np.array(list(itertools.combinations_with_replacement(range(num_cells), size)), np.int32)


def neighbours(workload, relation):
    """All data sets of one or two sizes, and all pairs of neighbours, as indices."""
    k = workload.universe_size
    if relation == REPLACE:
        sets = [list(map(tuple, data_sets(RECORDS, k)))]
    else:
        sets = [list(map(tuple, data_sets(size, k))) for size in (RECORDS, RECORDS - 1)]
    every = [cells for group in sets for cells in group]
    number = {cells: i for i, cells in enumerate(every)}
    pairs = set()
    for cells in sets[0]:
        for i in range(RECORDS):
            rest = cells[:i] + cells[i + 1 :]
            if relation != REPLACE:
                pairs.add((number[cells], number[rest]))
                continue
            others = (tuple(sorted((*rest, z))) for z in range(k))
            pairs |= {(number[cells], number[other]) for other in others if other != cells}
    return sets, np.array(sorted(pairs))


def records(workload, cells):
    """Data sets as the workload takes records."""
    return cells if workload.domain is None else np.asarray(workload.domain.codes(cells))


def targets(solver, problem, sets):
    """What the prologue computes of each data set: a state with leaves `[sets, ...]`."""
    state = solver.init(problem, key=jax.random.key(0))

    @functools.partial(jax.jit, compiler_options=QUICK)
    @jax.vmap
    def each(data):
        after = solver.prologue(problem, data, state)
        names = {"targets", "answers"} & set(state._fields)
        return {name: getattr(after, name) for name in names}

    made = [each(records(problem.workload, np.array(group))) for group in sets]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *made)


def vertices(solver, workload):
    """All that a step may draw: indices `[V]` and signs `[V, cells]`."""
    if getattr(solver, "vertices", "queries") == "queries":
        m = workload.num_queries
        return np.tile(np.arange(m), 2), np.repeat([1, -1], m)[:, None]
    largest, found = max(workload.sizes), []
    for clique, size in enumerate(workload.sizes):
        for signs in itertools.product((1, -1), repeat=size):
            found.append((clique, (*signs, *[0] * (largest - size))))
    index, signs = zip(*found, strict=True)
    return np.array(index), np.array(signs)


@contextlib.contextmanager
def drawing(sample):
    """Within, vertices are drawn by `sample(key, logits, k)`, also among queries of both signs."""

    @dataclasses.dataclass
    class Ball:
        dim: int
        radius: Any

        def sample(self, key, v, k, low):
            return sample(key, L1Ball(self.dim, self.radius).logits(v, low), k)

    with (
        mock.patch.object(selection, "sample_vertices", sample),
        mock.patch.object(selection, "L1Ball", Ball),
    ):
        yield


@contextlib.contextmanager
def dictated(solver, workload, index, signs, law):
    """Within, steps draw the given vertices; `law` fills with log probabilities of all vertices."""
    every_index, every_signs = vertices(solver, workload)
    size = len(every_index) // 2
    calls = []

    def sample(key, logits, k):
        assert k == 1
        t = len(calls)
        calls.append(logits)
        if getattr(solver, "vertices", "queries") == "queries":
            law.append(jax.nn.log_softmax(logits))
            drawn = jnp.where(signs[t, 0] > 0, index[t], index[t] + size)
        else:
            drawn = index[t]
        return drawn[None]

    def gumbel(key, shape, dtype, *, mode):
        assert mode == "high"
        return jnp.stack([1e6 * signs[len(calls) - 1], jnp.zeros(shape[1], dtype)]).astype(dtype)

    def marginal(key, workload, gaps, sharpness, rest):
        info = select_marginal(key, workload, gaps, sharpness, rest)
        # the law that the code's two stages imply
        tables = jax.nn.log_softmax(calls[-1])
        places = np.asarray(workload.offsets)[every_index][:, None] + np.arange(signs.shape[1])
        energy = ((gaps + rest) * sharpness)[np.minimum(places, gaps.shape[0] - 1)]
        each = jax.nn.log_sigmoid(2.0 * every_signs * energy)
        law.append(tables[every_index] + jnp.sum(jnp.where(every_signs != 0, each, 0), axis=1))
        return info

    def loudest(key, gaps, scale, rest):
        law.append(jnp.concatenate([gaps + rest, -gaps - rest]) / scale)
        return selection.SelectionInfo(index[len(law) - 1], signs[len(law) - 1])

    with (
        drawing(sample),
        mock.patch.object(selection, "select_marginal", marginal),
        mock.patch.object(selection, "loudest_query", loudest),
        mock.patch.object(jax.random, "gumbel", gumbel),
    ):
        yield


@contextlib.contextmanager
def noising(plus):
    """Gaussian noise of histograms and answers is `plus(key, values, stddev)` in its place."""

    def counted(key, counts, stddev, tables, group=None):
        del tables
        own = stddev if group is None else jnp.asarray(stddev)[group]
        return plus(key, counts.astype(float), own)

    def of_pairs(key, values, stddev):
        return plus(key, values.high + values.low, stddev)

    with contextlib.ExitStack() as stack:
        for name in ("solvers.queries._gaussian_fit", "papers._mwem"):
            stack.enter_context(mock.patch(f"dpjax.{name}.plus_gaussian", of_pairs))
        counts = "dpjax.transforms.noise._noisy_counts.noisy_counts"
        stack.enter_context(mock.patch(counts, counted))
        yield


@dataclasses.dataclass
class Case:
    """A method on a tiny workload."""

    solver: Any
    problem: QueryRelease
    relation: str

    @functools.cached_property
    def pairs(self):
        """`(sets, pairs)` of `neighbours`."""
        return neighbours(self.problem.workload, self.relation)

    @functools.cached_property
    def scripts(self):
        """Sequences of vertices, `[scripts, T]`: all, or some at random."""
        every = len(vertices(self.solver, self.problem.workload)[0])
        steps = self.solver.sampler.steps
        if every**steps <= 600:
            return np.array(list(itertools.product(range(every), repeat=steps)))
        return np.random.default_rng(0).integers(0, every, (200, steps))

    def laws(self):
        """Log probabilities of every vertex in every step, `[sets, scripts, T, V]`.

        With Laplace noise, the scores in units of its scale.
        """
        solver, problem = self.solver, self.problem
        secret = targets(solver, problem, self.pairs[0])
        index, signs = (jnp.asarray(a) for a in vertices(solver, problem.workload))

        def run(secret, script):
            state, law = solver.init(problem, key=jax.random.key(0))._replace(**secret), []
            drawn = index[script], signs[script].astype(jnp.int8)
            with dictated(solver, problem.workload, *drawn, law):
                for _ in range(solver.sampler.steps):
                    state, _ = solver.step(problem, None, None, state)
            return jnp.stack(law)

        every = jax.vmap(jax.vmap(run, (None, 0)), (0, None))
        laws = jax.jit(every, compiler_options=QUICK)(secret, jnp.asarray(self.scripts))
        assert np.isfinite(laws).all()
        return np.asarray(laws, float)


def case(kind, workload, relation, steps=2, **fields):
    """A case whose draws are of bounded range `ETA`; of a saddle's, the last."""
    problem = QueryRelease(workload)
    bound = problem.sensitivity(relation).score_range
    bound *= 1 + (fields.get("vertices") == "marginals")
    defaults = {"num_records": float(RECORDS), "score_range": bound, "relation": relation}
    scale = bound / (RECORDS * ETA)
    if kind is SaddleRelease:
        defaults |= {"dual_step_size": 1 / scale / (steps - 1), "step_size": 0.7}
    else:
        defaults["noise_scale"] = scale
    if kind is FrankWolfeRelease:
        defaults["step_size"] = 0.5
    if kind is MirrorDescentRelease:
        defaults |= {"alpha": 0.4, "offset": 1.0}
    return Case(kind(FullBatch(steps), **(defaults | fields)), problem, relation)

"""The conformance suite for samplers."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting import dp_event as dpe
from scipy import special

from dpjax.core import PyTree, Sampler
from dpjax.core import check_sampler as check_is_sampler
from dpjax.privacy import Guarantee, resolve_relation
from dpjax.sampling._participation import participation_of
from dpjax.testing import _asserts as asserts
from dpjax.testing import _trees as trees
from dpjax.testing._cases import Entry, SamplerCase

_RUNS = 64  # from which participation is counted
_DELTA = 0.05  # at which the event is compared with what those runs show


def check_sampler(entry: Entry) -> None:
    """Runs the conformance suite on a registered sampler.

    Batches of one static shape, indices in range, no record twice in a batch; one trace for all
    keys; vmap over keys equals a loop; the same key gives the same batches, another key others; no
    two steps share a draw; a probability of failure; a static, hashable pytree; a missing key is a
    TypeError. `slots` is the number of rows of a batch; an accountant takes `event` under
    `default_relation`; over 64 runs, records take part no more often than `participation_rate`
    says, and in no other steps than `participation` allows where it is stated; and an adversary who
    adds up the noisy steps learns no more than `event` says, which finds events of too few
    participations, though not every event that claims too much amplification.

    Args:
      entry: Of kind `"sampler"`; its `make` gives a `SamplerCase`.

    Raises:
      AssertionError: Naming the entry and what it does not hold to.
      TypeError: If its sampler lacks a member of `dpjax.core.Sampler`; the message names it.
    """
    case: SamplerCase = entry.make()
    name, sampler, n = entry.name, case.sampler, case.num_records
    check_is_sampler(sampler)
    same = copy.deepcopy(sampler)
    if jax.tree.leaves(sampler) or sampler != same or hash(sampler) != hash(same):
        raise AssertionError(
            f"{name} must be a static pytree without leaves, and a copy of it equal, of equal hash"
        )
    failure = sampler.failure_probability()
    if not 0 <= failure <= 1:
        raise AssertionError(f"{name}: failure_probability must lie in [0, 1], got {failure}")

    def batches(xs: PyTree) -> PyTree:
        def body(carry: None, x: PyTree) -> PyTree:
            indices, mask = sampler.batch(x, n)
            return carry, (jnp.arange(n) if indices is None else indices, mask)

        return jax.lax.scan(body, None, xs)[1]

    run = asserts.Program(batches)
    plans = [sampler.plan(jax.random.key(seed), n) for seed in (0, 0, 1)]
    for leaf in jax.tree.leaves(plans[0]):
        if leaf.shape[0] != sampler.steps:
            raise AssertionError(f"{name}: plan has leading axis {leaf.shape[0]}, want the steps")
    results = [run(plan) for plan in plans]
    run.assert_one_trace(name)
    trees.assert_identical(results[1], results[0], f"{name}: batches of the same key")
    other = not all(map(np.array_equal, results[0], results[2]))
    if other != case.random:
        raise AssertionError(f"{name}: another key gives {'other' if other else 'equal'} batches")
    for indices, mask in results:
        _check_batches(np.asarray(indices), np.asarray(mask), n, name)

    everyone = sampler.batch(jax.tree.map(lambda leaf: leaf[0], plans[0]), n)[0] is None
    rows = None if everyone else results[0][1].shape[1]
    if sampler.slots != rows:
        raise AssertionError(f"{name}: slots is {sampler.slots}, but a batch has {rows} rows")

    def plan(key: jax.Array) -> PyTree:
        return sampler.plan(key, n)

    made = plan if case.concrete_key else jax.jit(plan)
    taken = [_participations(run(made(jax.random.key(s))), n) for s in range(_RUNS)]
    _check_participation(sampler, np.stack(taken), name)
    _check_event(sampler, np.stack(taken), n, case.random, name)

    def whole(data: jax.Array) -> PyTree:
        return batches(sampler.plan(jax.random.wrap_key_data(data), n))

    if not case.concrete_key:
        several = [(data,) for data in asserts.key_data(2, 3, 4)]
        looped = [run(sampler.plan(jax.random.wrap_key_data(data), n)) for (data,) in several]
        asserts.assert_vmap_equals_loop(whole, several, looped, name)
        if case.random:
            # gaps are drawn from words in streams of their own
            asserts.assert_draws_differ(whole, name, seen=False)
    if case.random:
        no_key: PyTree = None
        asserts.assert_needs_key(lambda: sampler.plan(no_key, n), f"{name}: plan")


def _participations(result: tuple[jax.Array, jax.Array], num_records: int) -> np.ndarray:
    """Which records are in which step's batch, `[num_records, steps]`."""
    indices, mask = map(np.asarray, result)
    taken = np.zeros((num_records, mask.shape[0]))
    taken[indices[mask], np.nonzero(mask)[0]] = 1
    return taken


def _check_participation(sampler: Sampler, taken: np.ndarray, name: str) -> None:
    """Compares what is stated with participations `[runs, num_records, steps]`."""
    stated = participation_of(sampler)
    if stated is None:
        return
    records = taken.reshape(-1, taken.shape[2])
    for steps in (np.flatnonzero(row) for row in np.unique(records, axis=0)):
        gaps = np.diff(steps)
        apart = gaps % stated.separation == 0 if stated.kind != "min_separation" else True
        if steps.size > stated.most or not np.all(apart & (gaps >= stated.separation)):
            raise AssertionError(
                f"{name}: participation is {stated}, but a record is in the steps {steps.tolist()}"
            )
    if stated.kind == "cyclic":  # two in a row are no more likely than if drawn independently
        b, steps = stated.separation, taken.shape[2]
        pairs = (taken[:, :, b:] * taken[:, :, :-b]).sum(axis=(1, 2))
        expected = stated.rate**2 * max(0, steps - b) / b * taken.shape[1]
        if pairs.mean() > expected + 6 * pairs.std() / taken.shape[0] ** 0.5 + 1e-9:
            raise AssertionError(
                f"{name}: participation is {stated}, but records are in {pairs.mean():.3g} pairs "
                f"of steps {b} apart, where {expected:.3g} are expected"
            )


def _check_event(sampler: Sampler, taken: np.ndarray, n: int, random: bool, name: str) -> None:
    """Compares rate and event with participations `[runs, num_records, steps]`."""
    rate, seen = sampler.participation_rate(n), taken.mean()
    error = 6 * (taken.mean(axis=(1, 2)).std() / taken.shape[0] ** 0.5) + 1e-9
    if not seen <= rate + error or not 0 < rate <= 1:
        raise AssertionError(
            f"{name}: participation_rate is {rate:.3g}, but records are in {seen:.3g} of batches"
        )
    relation = resolve_relation(sampler.default_relation)
    sampler.check_relation(relation)
    # how far a record moves the sum of the steps' noisy sums, in units of its noise
    count = taken.sum(axis=2)
    noise = taken.shape[2] ** 0.5
    # where its steps are known the others are left out
    shift = count / noise / noise if random else count[0].max() ** 0.5 / noise
    event = sampler.event(dpe.GaussianDpEvent(noise))
    epsilon = Guarantee(event, relation, sampler.failure_probability()).epsilon(_DELTA)
    shown = _hockey_stick(shift, relation == NeighboringRelation.REPLACE_ONE, epsilon)
    if not shown <= 2 * _DELTA:
        raise AssertionError(
            f"{name}: event claims delta {_DELTA} at epsilon {epsilon:.3g}, but the noisy sum of "
            f"the steps alone shows {shown:.3g}: it counts too few participations"
        )


def _hockey_stick(shift: np.ndarray | float, replaced: bool, epsilon: float) -> float:
    """Delta at epsilon between the mixture of N(shift, 1) and N(0, 1), or that of N(-shift, 1)."""
    edges = np.linspace(-40.0, 40.0, 4001)  # cells, which show no more than the points do
    values, counts = np.unique(shift, return_counts=True)
    here = np.diff(special.ndtr(edges[:, None] - values), axis=0) @ (counts / counts.sum())
    there = here[::-1] if replaced else np.diff(special.ndtr(edges))
    return float(np.maximum(here - np.exp(epsilon) * there, 0).sum())


def _check_batches(indices: np.ndarray, mask: np.ndarray, num_records: int, name: str) -> None:
    if mask.dtype != bool or not np.issubdtype(indices.dtype, np.integer):
        raise AssertionError(
            f"{name}: batch must give integers and bools, got {indices.dtype} and {mask.dtype}"
        )
    if indices.shape != mask.shape:
        raise AssertionError(f"{name}: indices {indices.shape} and mask {mask.shape} differ")
    if indices.size and not (indices.min() >= 0 and indices.max() < num_records):
        raise AssertionError(
            f"{name}: indices must lie in 0..{num_records - 1}, padding too, got "
            f"{indices.min()}..{indices.max()}"
        )
    for row, here in zip(indices, mask, strict=True):
        members = row[here]
        if len(set(members.tolist())) != members.size:
            raise AssertionError(f"{name}: a record takes part twice in one batch: {members}")

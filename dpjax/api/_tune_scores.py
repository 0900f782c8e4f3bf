"""Private scores of `dpjax.tune`: counts over records, with noise, and what is read from them."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from dp_accounting import dp_event as dpe

from dpjax.core import PyTree
from dpjax.privacy import Guarantee
from dpjax.privacy._budget import relation_factor
from dpjax.problems import LinearModel, RateConstrained, Risk
from dpjax.problems._constraints import violation
from dpjax.solvers.descent._rates import default_size_floor
from dpjax.transforms import add_rounded_gaussian, rounded_gaussian_shortfall
from dpjax.transforms.clipping._microbatch import in_equal_parts

Correct = Callable[[PyTree, PyTree], jax.Array]
Counts = dict[str, jax.Array]

_LEVELS = 256
_LARGEST_SUM = 2**30


@dataclasses.dataclass(frozen=True)
class Scores:
    r"""Scores of the `number` iterates of one run, by one Gaussian release of counts.

    Of each iterate right less wrong predictions are counted and, where there are constraints, hard
    predictions by part. Under add-or-remove-one a record moves the first by 1, and one cell of the
    table by 1; under replace-one by at most twice that. With c counts in the l2 sense (1 or 2 for
    each iterate) each number has noise $\sqrt c\, z$, so that all are `GaussianDpEvent(z)`. Grades
    in [0, 1] are rounded to `levels` steps; counts and noise are then in units of a step.

    Attributes:
      problem: What is solved.
      correct: `correct(params, records) -> [n]`, bool or grades in [0, 1].
      size: Expected number of records that are scored (*public*).
      weight: Of the excess over the slack.
      number: Iterates of a run.
      relation: Of the guarantee.
      levels: Steps of a grade; 1 for bool.
    """

    problem: PyTree
    correct: Correct
    size: float
    weight: float
    number: int
    relation: str
    levels: int = 1

    @property
    def _constrained(self) -> bool:
        return isinstance(self.problem, RateConstrained) and self.problem.num_constraints > 0

    def _stddev(self, noise: float) -> float:
        return noise * math.sqrt(self.number * (2 if self._constrained else 1))

    def guarantee(self, noise: float) -> Guarantee:
        """Of all iterates' counts together."""
        cells = relation_factor(self.relation) if self._constrained else 0
        stddev = self._stddev(noise)
        each = max(map(rounded_gaussian_shortfall, (stddev, self.levels * stddev)))
        failure = self.number * (1 + cells) * each
        return Guarantee(dpe.GaussianDpEvent(noise), self.relation, failure)

    def __call__(
        self, params: PyTree, records: PyTree, noise: float, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The best of the iterates, `[number, *p]`, by its noisy score: its place and score."""
        counts = jax.vmap(self._counts, in_axes=(0, None))(params, records)
        if noise > 0:
            counts = self._noisy(counts, self._stddev(noise), key)
        scores = jax.vmap(lambda one: self._score(one, noise))(counts)
        place = jnp.argmax(scores)
        return place, scores[place]

    def _noisy(self, counts: Counts, stddev: float, key: jax.Array) -> Counts:
        def noisy(part: Counts, stddev: float, key: jax.Array) -> Any:
            transform = add_rounded_gaussian(stddev)
            return transform.update(part, transform.init(part), key=key)[0]

        if self.levels == 1:
            return noisy(counts, stddev, key)
        first, second = jax.random.split(key)
        graded = {"margin": counts["margin"]}
        rest = {name: count for name, count in counts.items() if name != "margin"}
        return noisy(graded, self.levels * stddev, first) | noisy(rest, stddev, second)

    def _counts(self, params: PyTree, records: PyTree) -> Counts:
        def of(part: PyTree, here: jax.Array) -> Counts:
            right = jnp.asarray(self.correct(params, part))
            _check_shape(right, part)
            if self.levels == 1:
                steps = right.astype(bool).astype(jnp.int32)
            else:
                graded = jnp.clip(jnp.where(jnp.isfinite(right), right, 0), 0, 1)
                steps = jnp.round(self.levels * graded).astype(jnp.int32)
            found = {"margin": 2 * steps - self.levels}
            if self._constrained:
                logits = self.problem.class_logits(params, part["x"])
                constraints = self.problem.constraints
                predicted = jnp.argmax(logits, axis=-1)
                found["class"] = jax.nn.one_hot(predicted, logits.shape[-1], dtype=int)
                found["group"] = constraints.one_hot_parts(constraints.part(part), int)
            return found

        everyone = jnp.ones(len(jax.tree.leaves(records)[0]), bool)
        found = in_equal_parts(of, records, everyone)
        counts = {"margin": jnp.sum(found["margin"], dtype=jnp.int32)}
        if self._constrained:
            counts["table"] = jnp.matmul(found["group"].T, found["class"])
        return counts

    def _score(self, counts: Counts, noise: float) -> jax.Array:
        accuracy = 0.5 + counts["margin"].astype(float) / (2 * self.size * self.levels)
        if not self._constrained:
            return accuracy
        constraints, cells = self.problem.constraints, counts["table"].astype(float)
        floor = default_size_floor(self._stddev(noise), constraints)
        sizes = jnp.maximum(constraints.counts(cells), floor)
        excess = violation(constraints.values(cells, sizes), constraints.slack)
        return accuracy - self.weight * excess


def levels_of(correct: Correct, problem: PyTree, data: PyTree, num_records: int) -> int:
    """Steps of a grade, from *public* sizes, so that sums fit in 32 bits; 1 for bool."""
    right = jax.eval_shape(correct, problem.init, data)
    _check_shape(right, data)
    if not jnp.issubdtype(right.dtype, jnp.floating):
        return 1
    return max(2, min(_LEVELS, _LARGEST_SUM // num_records))


def _check_shape(right: Any, records: PyTree) -> None:
    """Raises ValueError unless each record has one grade, which is all that it may move."""
    rows = len(jax.tree.leaves(records)[0])
    shape = getattr(right, "shape", None)
    if shape != (rows,):
        raise ValueError(
            f"correct must return an array [n], a grade for each of the {rows} records, got "
            f"{'another type' if shape is None else f'shape {shape}'}: labels of shape [n, 1] "
            "broadcast to [n, n]; drop their last axis"
        )


def default_correct(problem: PyTree) -> Correct:
    """Whether a prediction is right, for the problems that say what a prediction is."""
    if isinstance(problem, RateConstrained):
        return lambda w, held: jnp.argmax(problem.class_logits(w, held["x"]), axis=-1) == held["y"]
    if isinstance(problem, Risk) and problem.factored:
        return lambda w, held: (held["x"] @ w) * held["y"] > 0
    if isinstance(problem, LinearModel):

        def correct(params: PyTree, records: PyTree) -> jax.Array:
            """Right signs, or grades of 0 to 1 that fall with the root of the residual."""
            inputs, labels = problem.prepare(records)
            margins = inputs @ params
            if problem.link == "logistic":
                return margins * labels > 0
            return 1 - jnp.sqrt(jnp.abs(margins - labels) / problem.label_bound)

        return correct
    raise ValueError(
        f"correct is required for {type(problem).__name__}: correct(params, records) -> [n] bool, "
        "or score(params) on public data"
    )

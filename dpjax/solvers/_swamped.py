"""Warnings, from public numbers, of runs whose noise swamps any signal; solvers pass through."""

import contextlib
import contextvars
import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.typing import ArrayLike

from dpjax.core import Problem, is_traced
from dpjax.privacy._warnings import warn_of_noise
from dpjax.problems import QueryRelease
from dpjax.transforms import is_every_step

_Solver = TypeVar("_Solver")
_MOST_NOISE = 4.0
_comparing = contextvars.ContextVar("_comparing", default=False)
_REMEDY = "ask for a larger epsilon, or use more records"


@contextlib.contextmanager
def candidates() -> Iterator[None]:
    """Within it nothing is warned of: solvers are compared, and may not be chosen."""
    token = _comparing.set(True)
    try:
        yield
    finally:
        _comparing.reset(token)


def checked_gradients(
    solver: _Solver, problem: Problem, num_records: int, gain: float | None = None
) -> _Solver:
    r"""Warns where the mean of all noisy gradients is far more noise than it can be signal.

    A mean of b clipped gradients is at most C long, and so is the mean of T of these, wherever they
    are taken. Independent noise makes that of norm about

    $$ r\,C, \qquad r = \frac{z \sqrt{d}}{b \sqrt{T}} $$

    longer; of correlated noise, $\sqrt T$ is $T / \sigma_T$ with $\sigma_T$ the deviation of the
    sum's noise, and where changes of gradients of all records are released it is 1. From r = 1 on
    noise is more than any signal; then only directions that many records share are learned, in each
    of which the noise is $r / \sqrt d$. The warning is for $r \ge 4$. There, of logistic regression
    on 10 to 1000 features, 300 and 3000 records and epsilon 0.01 to 3, the loss fell by 5% or less
    of what it can where labels follow from all features or from 5 directions, and 49 to 58% of the
    labels were right; classes that one direction sets apart are learned still.

    Guarantee: none is given; nothing is released.

    Args:
      solver: Of clipped gradients in the l2 norm, or with a `primal` that is.
      problem: Its number of parameters d is used (*public*).
      num_records: *Public* number of records; b is its expected share.
      gain: What stands for $\sqrt T$; None for that of the noise.

    Returns:
      The solver.

    Warns:
      NoiseWarning: If r >= 4.
    """
    descent: Any = getattr(solver, "primal", solver)
    z, sampler = descent.noise_multiplier, descent.sampler
    if is_traced(z, num_records) or np.shape(z) != () or getattr(descent, "norm", "l2") != "l2":
        return solver
    strategy, steps = getattr(descent, "noise", None), sampler.steps
    if gain is None:
        gain = math.sqrt(steps)
        if strategy is not None:
            gain = 1.0 if is_every_step(strategy) else steps / float(strategy.prefix_stddev()[-1])
    batch = num_records * sampler.participation_rate(num_records)
    ratio = float(z) * math.sqrt(problem.num_params) / (batch * gain)
    if ratio >= _MOST_NOISE:
        warn_of_noise(
            f"the noise in the mean of all gradients of the run is {ratio:.2g} times as long as "
            f"that mean can be, with {problem.num_params} parameters and num_records = "
            f"{num_records}: but for what nearly all records have in common, nothing is learned; "
            f"{_REMEDY} or fewer parameters"
        )
    return solver


def checked_answers(solver: _Solver, noise: ArrayLike, problem: QueryRelease) -> _Solver:
    """Warns where the noise in every answer is as large as the range of answers.

    Args:
      solver: Of answers to queries.
      noise: Standard deviation, or scale, of the noise in answers or cells (*public*).
      problem: `QueryRelease`.

    Returns:
      The solver.

    Warns:
      NoiseWarning: If the least noise is at least the range of answers.
    """
    if is_traced(noise, problem):
        return solver
    # from 0.7 on no method was closer to the truth than the uniform distribution: marginals of two
    # attributes, 100 and 1000 records, epsilon 0.01 to 1
    least, largest = float(np.min(noise)), problem.sensitivity("replace_one").value_range
    # where all answers are one number there is nothing to learn
    if least >= largest > 0 and not _comparing.get():
        warn_of_noise(
            f"the noise in each answer is at least {least:.2g}, and answers range over "
            f"{largest:.2g}, so that hardly anything can be learned: {_REMEDY}"
        )
    return solver


def drawn_noise(scale: ArrayLike, problem: QueryRelease, draws: int) -> ArrayLike:
    r"""Noise in an answer, $\tau \sqrt{m / T}$ or tau, of T draws whose scores have noise of tau.

    Where tau is large, each of m queries is in T gap / (m tau) more of T draws than by chance, give
    or take $\sqrt{T / m}$.
    """
    return scale * math.sqrt(min(1.0, problem.workload.num_queries / draws))


def checked_draws(solver: _Solver, logit_ranges: Sequence[float | jax.Array]) -> _Solver:
    r"""Warns where all vertices are drawn about equally, whatever the data say.

    A softmax of logits of range R gives no vertex more than $e^R$ times the probability of another,
    and on average at most R / 4 of the range of the scores more than a uniform draw would.

    Args:
      solver: That draws vertices.
      logit_ranges: Bound on the range of the logits of each block, at the end (*public*).

    Returns:
      The solver.

    Warns:
      NoiseWarning: If all are below 1.
    """
    if is_traced(logit_ranges) or any(np.shape(each) for each in logit_ranges):
        return solver
    widest = max(map(float, logit_ranges))
    if widest < 1:
        warn_of_noise(
            f"the logits of a draw range over at most {widest:.2g}, so that all vertices are drawn "
            f"about equally and hardly anything can be learned: {_REMEDY}"
        )
    return solver

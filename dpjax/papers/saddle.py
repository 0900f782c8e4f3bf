"""González, Guzmán and Paquette, "Mirror descent algorithms with nearly dimension-independent rates
for differentially-private stochastic saddle-point problems", 2024: as printed.

Constants that are printed as "up to constants" are 1. Sizes are rounded down. The map to code is in
`docs/papers.md`.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

from dpjax.core import check_choice, check_int, check_positive
from dpjax.papers._anytime_mirror_descent import AnytimeMirrorDescent
from dpjax.papers._log_delta import log_inverse_delta
from dpjax.papers._multilevel_saddle import MultilevelSaddle
from dpjax.papers._saddle_mirror_descent import SaddleMirrorDescent
from dpjax.papers._vertex_plan import BlockProblem, Constants, constants_of
from dpjax.papers.estimators import Multilevel, draw_levels
from dpjax.privacy import Budget, check_budget
from dpjax.problems import Saddle, SimplexRisk
from dpjax.sampling import DisjointPartition
from dpjax.solvers._summary import register_solver

Smooth = Literal["quadratic", "second", "first"]
"""Which derivatives are bounded: third ones are 0, bounded, or unknown."""


class _PrintedLevels(Multilevel):
    """Algorithm 2 with $2^N$ units of records for level N."""

    def records(self, level: int) -> int:
        """$2^N$."""
        self._check(level)
        return 2**level


@register_solver
@dataclass(frozen=True)
class PublishedMultilevelSaddle(MultilevelSaddle):
    """`MultilevelSaddle` with the printed batches, $2^N$ units for level N.

    Levels then differ in sensitivity, by `factor(N) / 2^N`: up to 9 half-ranges at level 1, 6 at 0.

    Guarantee: as `MultilevelSaddle`, with the largest of these.

    Source: González, Guzmán and Paquette, 2024, algorithm 3.
    """

    @classmethod
    def for_budget(  # type: ignore[override]
        cls,
        problem: BlockProblem,
        num_records: int,
        budget: Budget,
        *,
        order: str = "random",
        **choices: Any,
    ) -> MultilevelSaddle:
        """The library's defaults, a `MultilevelSaddle`; `multilevel` has the printed ones."""
        return MultilevelSaddle.for_budget(problem, num_records, budget, order=order, **choices)

    @property
    def _estimator(self) -> Multilevel:
        return _PrintedLevels(self.max_level, self.antithetic)


def mirror_descent(
    problem: Saddle | SimplexRisk, num_records: int, budget: Budget, *, smooth: Smooth = "second"
) -> SaddleMirrorDescent:
    r"""Algorithm 1: T iterates, K vertices for each and a fresh one for the output.

    With $\ell$ the sum of the logs of the numbers of vertices, $L = \log(1/\delta)$, $L_0$ half the
    largest gradient range and $B = \lfloor n / T \rfloor$,

    $$ \tau = \min\Bigl\{\frac{\sqrt{\ell / T}}{L_0}, \frac{B\epsilon}{8 L_0\sqrt{2T(K+1)L}}
       \Bigr\}, $$

    and T, at most n, and K by what is bounded: $n\epsilon / \sqrt{\ell L}$ and 1 (`"quadratic"`);
    $(n\epsilon / (\ell^{1/4}\sqrt L))^{4/5}$ and $\sqrt{T / \ell}$ (`"second"`, theorem 4.1);
    $(n\epsilon)^{2/3} / L^{1/3}$ and $T / \ell$ (`"first"`, theorem 4.2).

    Guarantee: that of `SaddleMirrorDescent`: $\epsilon^2 / (32 L)$ zCDP at most, a true epsilon of
    0.282 for (1, 1e-6).

    Args:
      problem: `Saddle`, or `SimplexRisk` for one player; only public constants are used.
      num_records: n (*public*), at least 2.
      budget: epsilon, delta > 0, and replace-one.
      smooth: What is known of third derivatives.

    Returns:
      The solver, of T - 1 steps.

    Raises:
      ValueError: If a value is outside its bound.
    """
    constants = constants_of(problem)
    size, log_delta = _printed_size(num_records, budget), log_inverse_delta(budget)
    check_choice("smooth", smooth, ("quadratic", "second", "first"))
    log_m, half = sum(constants.log_vertices), max(constants.half_ranges)
    wanted = {
        "quadratic": size / math.sqrt(log_m * log_delta),
        "second": (size / (log_m**0.25 * math.sqrt(log_delta))) ** 0.8,
        "first": size ** (2 / 3) / log_delta ** (1 / 3),
    }[smooth]
    iterates = max(2, int(min(num_records, wanted)))
    draws = {"quadratic": 1.0, "second": math.sqrt(iterates / log_m), "first": iterates / log_m}
    count = max(1, int(draws[smooth]))
    batch = num_records // iterates
    private = (
        batch * budget.epsilon / (8 * half * math.sqrt(2 * iterates * (count + 1) * log_delta))
    )
    step = min(math.sqrt(log_m / iterates) / half, private)
    return SaddleMirrorDescent(
        DisjointPartition(iterates - 1, batch),
        tuple(step for _ in constants.half_ranges),
        tuple(problem.ranges),
        num_draws=count,
        output="fresh",
        relation=_relation(budget),
    )


def multilevel(
    problem: Saddle | SimplexRisk, num_records: int, budget: Budget, *, seed: int = 0
) -> PublishedMultilevelSaddle:
    r"""Algorithm 3 with the sizes of theorem 4.3, and the gradients of algorithm 2.

    With $G^2 = L_0^2 + L_2^2 + \ell L_1^2$ and the letters of `mirror_descent`,

    $$ U = \min\Bigl\{\frac{n\epsilon G}{L_0\sqrt{4\cdot48\cdot81\,\ell L}}, \frac n2\Bigr\}, \quad
       M = \log_2\sqrt U, \quad \tau = \sqrt{\frac{\ell}{G^2U}}, \quad
       \alpha = \Bigl(\frac{2\epsilon^2}{48\cdot81\,L(\tau L_0)^2n}\Bigr)^{1/3}, $$

    an estimate of level N has $2^N \lceil 1/\alpha \rceil$ records, and estimates end once $2^N$ of
    those before add up to more than $U - 2^M$. The output has a vertex of each executed step;
    printed are two more, from iterates that the proof does not count.

    Guarantee: that of `PublishedMultilevelSaddle`: at most $\epsilon^2 / (16 L)$ zCDP, a true
    epsilon of at most 0.408 for (1, 1e-6). The printed proof fails by constants.

    Args:
      problem: As in `mirror_descent`.
      num_records: n (*public*).
      budget: epsilon, delta > 0, and replace-one.
      seed: For the levels, which are *public*.

    Returns:
      The solver.

    Raises:
      ValueError: If a value is outside its bound, or U below 4.
    """
    constants = constants_of(problem)
    size, log_delta = _printed_size(num_records, budget), log_inverse_delta(budget)
    log_m, half = sum(constants.log_vertices), max(constants.half_ranges)
    moment = math.sqrt(
        half**2 + _third_order(constants) ** 2 + log_m * constants.joint_smoothness**2
    )
    total = size * moment / (half * math.sqrt(4 * 48 * 81 * log_m * log_delta))
    total = min(total, num_records / 2)
    if total < 4:
        raise ValueError(f"num_records must be larger as published, got {num_records}: U < 4")
    top = int(math.log2(math.sqrt(total)))
    step = math.sqrt(log_m / total) / moment
    alpha = (2 * budget.epsilon**2 / (48 * 81 * log_delta * (step * half) ** 2 * num_records)) ** (
        1 / 3
    )
    levels: list[int] = []
    spent = 0
    for level in draw_levels(seed, top, math.ceil(total)).tolist():
        if spent > total - 2**top:
            break
        levels.append(level)
        spent += 2**level
    return PublishedMultilevelSaddle(
        DisjointPartition(spent, max(1, math.ceil(1 / alpha))),
        tuple(step for _ in constants.half_ranges),
        tuple(problem.ranges),
        tuple(levels),
        top,
        relation=_relation(budget),
    )


def anytime(
    problem: SimplexRisk, num_records: int, budget: Budget, *, smooth: Smooth = "second"
) -> AnytimeMirrorDescent:
    r"""Algorithm 4, for convex risks: gradients at vertices drawn from the average.

    With d vertices, and the letters of `mirror_descent`,

    $$ \tau = \min\Bigl\{\sqrt{\frac{\log d}{HT}}, \frac{1}{L_0 q},
       \frac{B\epsilon}{8 L_0\sqrt{2(TK/q + qK)L}}\Bigr\}, \qquad
       q = \sqrt T / \log d, $$

    $T = (n\epsilon)^{4/5} / (L \log d)^{2/5}$, $K = T / \log d$ (`"first"`), or
    $T = n\epsilon / (\log d\sqrt L)$, $K = \sqrt{T \log d}$, $q = \sqrt{T / \log d}$ (`"second"`),
    T at most n, and H as in theorem 5.1.

    Guarantee: that of `AnytimeMirrorDescent`: $\epsilon^2 / (64 L)$ zCDP at most, a true epsilon of
    0.195 for (1, 1e-6).

    Args:
      problem: `SimplexRisk`; only public constants are used.
      num_records: n (*public*), at least 2.
      budget: epsilon, delta > 0, and replace-one.
      smooth: `"first"` or `"second"`; `"quadratic"` is `"second"`.

    Returns:
      The solver, of T - 1 steps.

    Raises:
      ValueError: If a value is outside its bound.
    """
    check_choice("smooth", smooth, ("quadratic", "second", "first"))
    constants = constants_of(problem, one_block=True)
    size, log_delta = _printed_size(num_records, budget), log_inverse_delta(budget)
    (log_m,), (half,), slope = (
        constants.log_vertices,
        constants.half_ranges,
        constants.joint_smoothness,
    )
    if smooth == "first":
        iterates = max(2, int(min(num_records, size**0.8 / (log_delta * log_m) ** 0.4)))
        q, count = math.sqrt(iterates) / log_m, max(1, int(iterates / log_m))
    else:
        iterates = max(2, int(min(num_records, size / (log_m * math.sqrt(log_delta)))))
        q, count = math.sqrt(iterates / log_m), max(1, int(math.sqrt(iterates * log_m)))
    refresh = max(1, int(q))
    if smooth == "first":
        moment = (half**2 + slope**2) * refresh * math.sqrt(log_m / count)
        moment += slope**2 * refresh / (math.sqrt(log_m) * count**1.5)
    else:
        moment = slope**2 * refresh * log_m / count
        moment += _third_order(constants) ** 2 * refresh / count**2
    batch = num_records // iterates
    drawn = iterates * count / refresh + refresh * count
    step = min(
        math.sqrt(log_m / ((half**2 + moment) * iterates)),
        1 / (half * refresh),
        batch * budget.epsilon / (8 * half * math.sqrt(2 * drawn * log_delta)),
    )
    return AnytimeMirrorDescent(
        DisjointPartition(iterates - 1, batch),
        (step,),
        tuple(problem.ranges),
        num_draws=count,
        refresh=refresh,
        relation=_relation(budget),
    )


def gap_bound(
    problem: Saddle, iterates: int, num_draws: int, step_size: float, output: str = "fresh"
) -> float:
    r"""Bound on the mean duality gap of algorithm 1, with its constants.

    $$ \frac{2\ell}{\tau T} + 5\tau L_0^2 + \min\Bigl\{\frac{16 L_2}{K},
       \frac{16\sqrt2 L_1}{\sqrt K}\Bigr\} + \frac{4 L_1}{T} + 4 L_1\sqrt{\frac\ell T}
       \ \text{(fresh)}, \qquad
       \frac{2\ell}{\tau T} + 5\tau L_0^2 + \frac{8 L_1}{K} \ \text{(played)} $$

    It holds for independent records, a loss that is convex in x and concave in y, derivatives
    bounded as the problem states, and one step size for both players. Derived, since the paper
    leaves constants out.

    Args:
      problem: A `Saddle`; only public constants are used.
      iterates: T.
      num_draws: K.
      step_size: tau.
      output: `"fresh"` or `"played"`.

    Returns:
      The bound.

    Raises:
      ValueError: If a value is outside its bound.

    Theory: docs/theory/accuracy.md, A5.
    """
    check_int("iterates", iterates, minimum=1)
    check_int("num_draws", num_draws, minimum=1)
    check_positive("step_size", step_size)
    check_choice("output", output, ("fresh", "played"))
    constants = constants_of(problem)
    log_m, slope = sum(constants.log_vertices), constants.joint_smoothness
    regret = 2 * log_m / (step_size * iterates) + 5 * step_size * max(constants.half_ranges) ** 2
    if output == "played":
        return regret + 8 * slope / num_draws
    bias = min(16 * constants.third_order / num_draws, 16 * slope * math.sqrt(2 / num_draws))
    return regret + bias + 4 * slope / iterates + 4 * slope * math.sqrt(log_m / iterates)


def _printed_size(num_records: int, budget: Budget) -> float:
    """n epsilon."""
    check_int("num_records", num_records, minimum=2)
    return num_records * check_budget(budget, num_records).epsilon


def _third_order(constants: Constants) -> float:
    if math.isinf(constants.third_order):
        raise ValueError("third_order must be stated in the problem (0 for quadratics), got None")
    return constants.third_order


def _relation(budget: Budget) -> str:
    return budget.relation_or("replace_one").name.lower()

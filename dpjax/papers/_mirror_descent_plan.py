"""Plans of mirror descent on sampled vertices, from explicit bounds."""

import math

import numpy as np

from dpjax.papers._vertex_plan import BlockProblem, Constants, Setting, VertexPlan
from dpjax.papers.estimators import polar_interval
from dpjax.problems._max_loss import WeightedLosses

OUTPUTS = ("played", "fresh")

_FEW_DRAWS = np.array([2, 3, 4, 6, 8, 12, 16, 24, 32])
_TYPICAL_BIAS = (
    0.02  # of the bound on the bias of polar estimates where losses may be no quadratics
)

_Planned = tuple[float, VertexPlan]  # its objective, and a plan


def curved_losses(problem: BlockProblem) -> WeightedLosses | None:
    """The losses of which the largest is minimised, if they are that and not affine."""
    loss = getattr(problem, "loss", None)
    return loss if isinstance(loss, WeightedLosses) and problem.smoothness != (0, 0) else None


def least_plan(
    setting: Setting,
    losses: WeightedLosses | None,
    outputs: tuple[str, ...],
    polar: bool | None,
    steps: np.ndarray,
    draws: np.ndarray,
) -> VertexPlan:
    """The plan of the least objective; `polar` None for either, where there are such losses."""
    plans = []
    if polar is not True:
        plans += [_played_plan(setting, output, steps, draws) for output in outputs]
    if polar is not False and losses is not None and losses.quadratic:
        count = int(draws[0]) if draws.size == 1 else 2
        found = [_polar_plan(setting, output, steps, count, True) for output in outputs]
        plans.append(min(found, key=lambda planned: planned[1].bound))
    elif polar is not False and losses is not None and "played" in outputs:
        counts = draws if draws.size == 1 else _FEW_DRAWS
        plans += [_polar_plan(setting, "played", steps, int(count), False) for count in counts]
    return min(plans, key=lambda planned: planned[0])[1]


def _played_plan(setting: Setting, output: str, steps: np.ndarray, draws: np.ndarray) -> _Planned:
    """The least objective over numbers of steps and of draws, and its plan."""
    steps, draws = steps[:, None], draws[None, :]
    fresh = output == "fresh"
    sampling = _sampling_error(setting.constants, steps + 1, draws, output)
    room = setting.about_room(steps, draws + fresh)
    _, objective = _step_sizes(_terms(setting, steps + 1), room)
    objective = objective + setting.typical[0] * sampling
    at = np.unravel_index(int(np.argmin(objective)), objective.shape)
    chosen, count = int(steps[at[0], 0]), int(draws[0, at[1]])
    room = setting.room((count + fresh) * np.arange(chosen, 0, -1))
    iterates = np.array(chosen + 1)
    sizes, _ = _step_sizes(_terms(setting, iterates), room)
    bound = float(_regret(_terms(_certified(setting), iterates), sizes) + sampling[at])
    ranges = setting.constants.half_ranges
    step_size = tuple(float(s / r) for s, r in zip(sizes, ranges, strict=True))
    return float(objective[at]), VertexPlan(chosen, count, 1, step_size, output, bound)


def _polar_plan(
    setting: Setting, output: str, steps: np.ndarray, count: int, quadratic: bool
) -> _Planned:
    """The least objective over numbers of steps with polar estimates, and its plan."""
    constants = setting.constants
    values, smooth = 2 * constants.half_ranges[1], constants.smoothness[0]
    low, high = polar_interval(0.0, values, smooth if quadratic or count == 2 else None, count)
    # as if every draw of x were one draw of a block of so much less room
    weights = (math.sqrt(count + (output == "fresh")), 1.0)
    sampling = _polar_sampling_error(constants, steps + 1, count, output)
    typical = setting.typical[0] * sampling
    if not quadratic:
        # points at which gradients are taken have at least the loss of their average; a gradient
        # is off by 2 L1 / K along a draw, values by less than 2 L1 / (K - 1)
        sampling = 2 * smooth * (1 / count + 1 / (count - 1)) + 0 * sampling
        typical = sampling if setting.certified else typical + _TYPICAL_BIAS * sampling

    def terms(setting: Setting, iterates: np.ndarray) -> list[_Term]:
        plain = _polar_terms(setting, iterates, high - low)
        return [(a * w, c / w) for (a, c), w in zip(plain, weights, strict=True)]

    _, objective = _step_sizes(terms(setting, steps + 1), setting.about_room(steps, np.array(1)))
    objective = objective + typical
    at = int(np.argmin(objective))
    chosen, iterates = int(steps[at]), np.array(steps[at] + 1)
    sizes, _ = _step_sizes(terms(setting, iterates), setting.room(np.arange(chosen, 0, -1)))
    bound = float(_regret(terms(_certified(setting), iterates), sizes) + sampling[at])
    halves = (constants.half_ranges[0], (high - low) / 2)
    step_size = tuple(
        float(s / w / half) for s, w, half in zip(sizes, weights, halves, strict=True)
    )
    ranges = tuple(2 * half for half in halves)
    average = "uniform" if setting.certified else "linear"
    plan = VertexPlan(chosen, count, 1, step_size, output, bound, None, True, average, ranges)
    return float(objective[at]), plan


_Term = tuple[np.ndarray, float]  # (a, c) of a block, with regret a / s + c s at s = tau L


def _certified(setting: Setting) -> Setting:
    return setting._replace(certified=True)


def _terms(setting: Setting, iterates: np.ndarray) -> list[_Term]:
    constants = setting.constants
    # a saddle point's comparator depends on the run: a second copy of the regret, and a deviation
    # of up to 2 L, pay for that
    far, slope = (2.0, 2.5) if setting.certified else (1.0, 0.5)
    if len(constants.half_ranges) == 1:
        far, slope = 1.0, 0.5 * setting.typical[1]
    pairs = zip(constants.log_vertices, constants.half_ranges, strict=True)
    return [(far * log_m * half / iterates, slope * half) for log_m, half in pairs]


def _polar_terms(setting: Setting, iterates: np.ndarray, width: float) -> list[_Term]:
    """The same where values are estimates of range `width`, for the largest loss."""
    (log_x, log_y), (half, half_values) = setting.constants[:2]
    # weights on the losses depend on the run; x is compared with a fixed minimiser
    far, spread = (2.0, width**2 + (2 * half_values + width) ** 2)
    if not setting.certified:
        far, spread = 1.0, width**2
    return [
        (log_x * half / iterates, half / 2),
        (far * log_y * width / 2 / iterates, spread / 8 / (width / 2)),
    ]


def _polar_sampling_error(
    constants: Constants, iterates: np.ndarray, count: int, output: str
) -> np.ndarray:
    """What the mean of the draws adds to the largest of quadratic losses."""
    (log_x, log_y), half, smooth = (
        constants.log_vertices,
        constants.half_ranges[0],
        constants.smoothness[0],
    )
    if output == "fresh":
        return 2 * smooth / iterates + half * np.sqrt(2 * log_y / iterates)
    two = math.log(2)
    drawn = count * iterates
    return half * np.sqrt(2 * (two + log_y) / drawn) + 2 * smooth * np.sqrt(
        2 * (two + log_y + log_x) / drawn
    )


def _regret(terms: list[_Term], sizes: list[np.ndarray]) -> np.ndarray:
    return np.asarray(sum(a / s + c * s for s, (a, c) in zip(sizes, terms, strict=True)))


def _step_sizes(terms: list[_Term], room: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Sizes with sum of squares <= room^2 that make the regret small, and that regret."""
    # where privacy binds, sum a_b / s_b is least at s_b ~ a_b^(1/3); what one block leaves over
    # goes to the other
    norm = np.sqrt(sum(a ** (2 / 3) for a, _ in terms))
    free = [np.sqrt(a / c) for a, c in terms]
    sizes = [
        np.minimum(s, room * a ** (1 / 3) / norm) for s, (a, _) in zip(free, terms, strict=True)
    ]
    for b in range(len(sizes)):
        others = sum(s**2 for i, s in enumerate(sizes) if i != b)
        sizes[b] = np.minimum(free[b], np.sqrt(np.maximum(room**2 - others, sizes[b] ** 2)))
    return sizes, _regret(terms, sizes)


def _sampling_error(
    constants: Constants, iterates: np.ndarray, draws: np.ndarray, output: str
) -> np.ndarray:
    """What standing for an iterate by K of its vertices adds to the bound."""
    smooth, third = constants.joint_smoothness, constants.third_order
    saddle = len(constants.half_ranges) > 1
    if output == "fresh":
        factor = 4 if saddle else 1
        bias = np.minimum(
            4 * factor * third / draws,
            (16 * math.sqrt(2) if saddle else 8.0) * smooth / np.sqrt(draws),
        )
        if not saddle:
            return bias + 2 * smooth / iterates
        log_total = sum(constants.log_vertices)
        return bias + 4 * smooth / iterates + 4 * smooth * np.sqrt(log_total / iterates)
    # gradients at the points that are played; nothing if the loss is linear in each block
    played = 4 * sum(constants.smoothness) / draws
    if third > 0:
        return played + 0 * iterates
    # no third derivative: gradients at sampled points are unbiased, and the average of the points
    # is near that of the iterates in the directions of the m_b columns of the Hessian
    spreads = [np.sqrt(2 * (math.log(2) + m) / (iterates * draws)) for m in constants.log_vertices]
    near = 2 * sum(w * s for w, s in zip(constants.smoothness, spreads, strict=True))
    if saddle:
        near = near + constants.coupling * sum(spreads)
    return np.minimum(played, near)

"""Matrix games of many strategies by private best responses."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.core import PyTree, check_unstacked, static_field
from dpjax.privacy import Budget, MixtureGuarantee, MixturePhase, zcdp_budget
from dpjax.privacy._budget import relation_factor
from dpjax.problems import Saddle
from dpjax.sampling import FullBatch
from dpjax.solvers._request import candidates, checked_payoffs
from dpjax.solvers._summary import register_solver
from dpjax.solvers.games._nested import (
    Game,
    GameState,
    Interval,
    NestedGame,
    all_sums,
    larger,
    line_sum,
    nested_measurement,
    placed,
    present,
    unmeasured,
)
from dpjax.solvers.games._oracle import (
    Lines,
    Supports,
    best_responses,
    double_oracle,
    first_supports,
    mixtures,
    noisy_gap,
    small_sums,
)

LARGEST_ARRAY = 4e6  # payoffs that are held at once
_FALLBACKS = ("nested", "rounds")
_LONGER = 16  # rounds after a check that fails
# Largest gap, of payoffs in [-1, 1], with which a check passes. Longer rounds cost little: chosen
# on cores, low rank, sines and prices (2,500 strategies; n = 10,000 to 300,000; epsilon 1 and 4).
# The second check passes with up to twice the predicted gap of the first. Chosen on the same games
# and on dense ones (600 to 1,800 strategies). The noisier all payoffs would be, the larger a gap is
# still better than what they give: chosen on eight kinds of games (150 to 300 strategies).
_WORST = {"nested": 0.1, "rounds": 0.03}
_OF_ALL, _WORST_OF_ALL = 0.3, 0.2
# The rule, in units of half the interval of payoffs: noise of a single release of all of them
_MOST_NOISE = 0.15  # up to which these are good in any game
_NOISE_OF_FALLBACK = 2.5  # up to which they are worth the time, after both checks failed
_NOISE_OF_NO_USE = 4.0  # from which play by them is nearly uniform
# and in a single payoff; that of a check is 20 times as large
_MOST_NOISE_OF_ONE = 0.005  # up to which the check has less noise than its limit
_MOST_NOISE_OF_DRAWS = 0.016  # up to which draws are of use in games of few that matter
_FEW_PAYOFFS = 125**2  # with so few, a game is not worth the price of the checks


class _Shares(NamedTuple):
    """Of rho: for draws, for payoffs of new strategies, and for the last block."""

    draws: Any
    entries: Any
    block: Any


_FIRST, _CHECK = _Shares(0.06, 0.06, 0.0), 0.03
_PASSED = _Shares(0.20, 0.05, 0.60)
# a second check of the same share comes before the block, or the measurement of all payoffs
_FAILED = {"rounds": _Shares(0.40, 0.15, 0.30), "nested": _Shares(0.15, 0.05, 0.62)}
_REST = 0.85  # what either branch has


class DoubleOracleInfo(NamedTuple):
    """What `DoubleOracle` releases beside its strategies.

    Attributes:
      gap: Noisy gain of the two best responses against the strategies after the first rounds, in
        units of the payoffs, `[]`.
      passed: Whether that was small enough to go on with a few more rounds, `[]` bool.
      again: The same gain after the longer rounds, by which all payoffs were measured or not; `gap`
        where there is no second check, `[]`.
    """

    gap: jax.Array
    passed: jax.Array
    again: jax.Array


@register_solver
@dataclasses.dataclass(frozen=True)
class DoubleOracle(Game):
    r"""A matrix game of many strategies, by private best responses over all of them.

    From one random strategy each, a round measures the new payoffs of the small game between the
    strategies found, solves it, and draws for each player

    $$ j \sim \mathrm{softmax}(\lambda\, x^\top \bar A), \qquad
       i \sim \mathrm{softmax}(-\lambda\, \bar A y) $$

    After `rounds` of these, two more draws and one noisy number check the gap. Where it is small,
    four more rounds follow, else 16. After the last round the small game is measured once more, as
    `NestedGame` would. With `fallback="nested"` a second check follows the 16 rounds; where the gap
    is still large, `NestedGame`'s measurement of all payoffs takes the place of the last one. Works
    with problems as that does. Only rows and columns of strategies that were found are formed, K of
    each: nothing of the size of all payoffs, but by the fallback `"nested"`.

    That a few rounds are enough is an assumption on the game, which the check tests: it holds where
    few strategies matter.

    Guarantee: `MixtureGuarantee`, the curve of draws and Gaussian noise and of the larger of the
    two branches, whichever ran; as an event, `ZCDpEvent` of at most rho. Payoffs are clipped to the
    interval. A record moves the scores of a draw by a vector of range $2c / n$ in units of half of
    it, c = 2 under replace-one and 1 under add-or-remove-one, all m payoffs that a phase measures
    by at most $c \sqrt m / n$ in the l2 norm, and the number that is checked by $2 c / n$. What is
    measured next follows from what was released. Shares of rho: draws .06, payoffs .06 and check
    .03; then .85 on either branch, with the second check. Branches are chosen by the numbers that
    are released, and the claim does not depend on them. Sums are exact; noise is larger by
    `rounding_allowance`, and $\lambda$ smaller by what rounding may add to a range.

    | input | effect |
    | --- | --- |
    | no record | the game of noise alone |
    | NaN or inf in a record | it contributes nothing |
    | a payoff of NaN | counts as the middle of the interval |
    | `num_records` off | payoffs shrink or grow from the middle, which keeps equilibria |

    Attributes (data may be swept under `vmap`; static ones shape the program; all *public*):
      sampler: `FullBatch(1)` (static).
      rho: Zero-concentrated budget of the whole run, scalar, which sets noise and draws (data).
      num_records: n, by which sums are divided, scalar (data).
      interval: (low, high), where payoffs are clipped to (data).
      rounds: Before the check (static).
      more_rounds: After a check that was passed (static).
      fallback: What follows checks that were not passed, `"nested"` or `"rounds"` (static).
      relation: Neighbouring relation of the guarantee (static).

    Raises:
      ValueError: If a value is outside its bound.
      TypeError: If the sampler is of another kind, or a number of rounds no integer.

    Source: McMahan, Gordon and Blum 2003 (double oracle, without privacy); draws by the exponential
    mechanism of McSherry and Talwar 2007.
    """

    sampler: FullBatch = dataclasses.field(metadata={"static": True})
    rho: ArrayLike
    num_records: ArrayLike
    interval: Interval = (-1.0, 1.0)
    rounds: int = static_field(default=8)
    more_rounds: int = static_field(default=4)
    fallback: str = static_field(default="rounds")
    relation: str = static_field(default="replace_one")

    def __post_init__(self) -> None:
        self._check("rho", counts=("rounds", "more_rounds"), fallback=_FALLBACKS)

    @classmethod
    def for_budget(
        cls, problem: Saddle, num_records: int, budget: Budget, **overrides: Any
    ) -> "DoubleOracle":
        """The solver that spends the budget; its fallback follows from public sizes.

        Args:
          problem: `Saddle` of a loss affine in each block, with `payoff_interval`.
          num_records: *Public* number of records (or near it, under add-or-remove-one).
          budget: epsilon, delta > 0 and relation to meet; the relation defaults to replace-one.
          **overrides: Other fields, `rho` at the caller's own risk of the budget.

        Returns:
          A solver whose `guarantee().epsilon(budget.delta) <= budget.epsilon`.

        Raises:
          ValueError: If a value is outside its bound, the loss is not affine in each block, or the
            budget cannot be met.
          TypeError: If the problem is no `Saddle`, `num_records` no integer, or an override no
            field.

        Example:
          >>> import dpjax
          >>> game = dpjax.problems.Saddle.game(
          ...     lambda record, i, j: record[i] * record[j], (10_000, 10_000))
          >>> DoubleOracle.for_budget(game, 30_000, dpjax.Budget(1.0, 1e-6)).fallback
          'rounds'
        """
        fields = cls._public_fields(problem, num_records, budget, overrides)
        relation = fields["relation"]
        rho = (1 - 1e-6) * zcdp_budget(budget, relation=relation)
        payoffs = math.prod(domain.num_vertices for domain in problem.domains)
        noise = relation_factor(relation) * math.sqrt(payoffs / (2 * rho)) / num_records
        small = payoffs <= LARGEST_ARRAY and noise <= _NOISE_OF_FALLBACK
        fields |= {"rho": rho, "fallback": "nested" if small else "rounds"}
        solver = cls(FullBatch(1), **(fields | overrides))
        return solver if "rho" in overrides else _with_largest_rho(solver, budget)

    def step(
        self, problem: Saddle, batch: PyTree, mask: jax.Array, state: GameState
    ) -> tuple[GameState, DoubleOracleInfo]:
        """All rounds, the check and one of the branches."""
        key, draw = jax.random.split(state.key)
        mask = present(batch, mask)

        def sums(of: Any) -> Any:
            return lambda at: line_sum(lambda record: of(record, at), batch, mask, self.interval)

        first, second = (domain.num_vertices for domain in problem.domains)
        row, column = sums(problem.payoffs.row), sums(problem.payoffs.column)
        lines = Lines(row, column, (first, second), self.num_records)
        allowed = larger(mask.shape[0])

        def nested(key: jax.Array, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
            sums = all_sums(problem, batch, mask, self.interval)
            known = unmeasured(lines.shape, sums.high.dtype)
            return nested_measurement(key, sums, self.num_records, scale, known, limit=1.0)

        x, y, gap, passed, again = self.play(draw, lines, nested, allowed)
        low, high = self.interval
        half = (jnp.asarray(high, float) - low) / 2
        info = DoubleOracleInfo(gap * half, passed, again * half)
        return GameState(placed(problem, x, y, state.params), key), info

    def play(
        self, key: jax.Array, lines: Lines, nested: Any, larger: float
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
        """Strategies `[dx]` and `[dy]`, a gap, whether it passed and the second one, from any sums.

        Args:
          key: For noise and draws.
          lines: The payoffs, in units of half their interval.
          nested: From a key and the noise of one payoff to the strategies that a measurement of all
            payoffs gives.
          larger: Factor on noise.
        """
        start, one, check, rest = jax.random.split(key, 4)
        slots = self.rounds + 1
        passing, failing = slots + self.more_rounds, slots + _LONGER
        at = first_supports(start, lines, max(passing, failing))
        stddev = self._stddev(_FIRST.entries, slots**2) * larger
        drawing = self._drawing(_FIRST.draws, 2 * self.rounds)
        at = double_oracle(one, at, lines, (0, self.rounds), stddev, *drawing)

        def checked(key: jax.Array, at: Supports, limit: jax.Array) -> tuple[jax.Array, jax.Array]:
            draw, noise = jax.random.split(key)
            i, j = best_responses(draw, at, *self._drawing(2 * _CHECK / 3, 2))
            gap = noisy_gap(noise, at, i, j, lines, 2 * self._stddev(_CHECK / 3) * larger)
            return gap, gap <= limit

        predicted = self._predicted(lines.shape)
        limit = jnp.minimum(predicted / 2, _WORST[self.fallback])
        gap, passed = checked(check, at, limit)
        more, second, last = jax.random.split(rest, 3)
        shares = jax.tree.map(
            lambda *both: jnp.where(passed, *both), _PASSED, _FAILED[self.fallback]
        )
        until = jnp.where(passed, passing, failing)
        added = until.astype(float) ** 2 - slots**2
        stddev = self._stddev(shares.entries, added) * larger
        drawing = self._drawing(shares.draws, 2 * (until - slots))
        at = double_oracle(more, at, lines, (self.rounds, until - 1), stddev, *drawing)

        stddev = self._stddev(shares.block) * larger
        # a key in both branches would count as used twice under vmap
        words, kind = jax.random.key_data(last), jax.random.key_impl(last)

        def of_block() -> tuple[jax.Array, jax.Array]:
            key = jax.random.wrap_key_data(words, impl=kind)
            x, y = nested_measurement(key, small_sums(at), lines.num_records, stddev, at.known)
            return mixtures(at, x, y, lines.shape)

        if self.fallback == "rounds":
            return *of_block(), gap, passed, gap
        of_all = self._stddev(_REST, math.prod(lines.shape))
        worst = jnp.clip(_OF_ALL * of_all, _WORST[self.fallback], _WORST_OF_ALL)
        again, good = checked(second, at, jnp.minimum(predicted, worst))
        x, y = jax.lax.cond(
            passed | good,
            of_block,
            lambda: nested(jax.random.wrap_key_data(words, impl=kind), stddev),
        )
        return x, y, gap, passed, jnp.where(passed, gap, again)

    def guarantee(self) -> MixtureGuarantee:
        """The guarantee of the whole run, on every branch (host); ValueError for stacked fields."""
        check_unstacked(self, "rho")
        rho = np.asarray(self.rho).item()

        def phase(noise: float, *draws: tuple[float, int]) -> MixturePhase:
            ranges = ((math.sqrt(8 * rho * share / count), count) for share, count in draws)
            return MixturePhase(math.sqrt(2 * rho * noise), tuple(ranges))

        first = phase(
            _FIRST.entries + _CHECK / 3, (_FIRST.draws, 2 * self.rounds), (2 * _CHECK / 3, 2)
        )
        passed = phase(_PASSED.entries + _PASSED.block, (_PASSED.draws, 2 * self.more_rounds))
        shares, draws = _FAILED[self.fallback], []
        noise = shares.entries + shares.block
        if self.fallback == "nested":
            noise, draws = noise + _CHECK / 3, [(2 * _CHECK / 3, 2)]
        failed = phase(noise, (shares.draws, 2 * _LONGER), *draws)
        failure = self.sampler.failure_probability()
        return MixtureGuarantee(first, (passed, failed), self.relation, failure)

    def _stddev(self, share: ArrayLike, payoffs: ArrayLike = 1) -> jax.Array:
        """Of the noise in means of so many payoffs that spend a share of rho together."""
        rho = jnp.asarray(self.rho, float) * share
        change = relation_factor(self.relation) * jnp.sqrt(jnp.asarray(payoffs, float))
        return change / (self.num_records * jnp.sqrt(2 * rho))

    def _drawing(self, share: ArrayLike, draws: ArrayLike) -> tuple[jax.Array, jax.Array]:
        """Sharpness of so many draws that spend a share of rho, and the range of each."""
        eta = jnp.sqrt(8 * jnp.asarray(self.rho, float) * share / draws)
        return eta / (2 * relation_factor(self.relation)), eta

    def _predicted(self, shape: tuple[int, int]) -> jax.Array:
        """The gap of multiplicative weights with the rest of the budget, 1 at most."""
        noise = self._stddev(_REST, sum(shape))
        return jnp.minimum(2 * noise * math.sqrt(2 * math.log(max(*shape, 2))), 1)


def _with_largest_rho(solver: DoubleOracle, budget: Budget) -> DoubleOracle:
    """With more of rho, as far as the curve is below that of zCDP; a curve takes half a second."""
    log_rho = math.log(np.asarray(solver.rho).item())
    power = 1.8  # of epsilon that rho grows with, about
    for _ in range(2):
        epsilon = solver.guarantee().epsilon(budget.delta)
        if epsilon >= budget.epsilon * (1 - 1e-4):
            break
        gain = power * math.log(budget.epsilon * (1 - 2e-5) / epsilon)
        larger = dataclasses.replace(solver, rho=math.exp(log_rho + gain))
        found = larger.guarantee().epsilon(budget.delta)
        power = 0.999 * gain / math.log(found / epsilon)
        if found <= budget.epsilon:
            solver, log_rho = larger, log_rho + gain
    return solver


def solver_for_game(problem: Saddle, num_records: int, budget: Budget) -> NestedGame | DoubleOracle:
    r"""The solver of a matrix game that should do best, by public numbers.

    - `NestedGame` where all payoffs can be held, at most 4e6, and one of these holds: a single
      release of all has noise of at most .15 of half their interval,
      $c \sqrt{d_x d_y} / (n \mu) \le .15$; there are at most 15,625 payoffs; noise on a single one,
      $c / (n \mu)$, is above .005, with which the check of an oracle has more noise than its limit
      (above .016 where that on all is above 4, with which `NestedGame` plays nearly uniformly).
    - `DoubleOracle` otherwise. Its check finds out whether few strategies matter, and its fallback
      is the nested measurement where all payoffs can be held and noise on all is at most 2.5.

    Guarantee: none of its own; that of the solver. The choice looks at no data.

    Args:
      problem: `Saddle` of a loss affine in each block, with `payoff_interval` (*public*).
      num_records: *Public* number of records (or near it, under add-or-remove-one).
      budget: epsilon, delta > 0 and relation to meet; the relation defaults to replace-one
        (*public*).

    Returns:
      The solver, made by its `for_budget`.

    Raises:
      ValueError: If a value is outside its bound, the loss is not affine in each block, or the
        budget cannot be met.
      TypeError: If the problem is no `Saddle`, or `num_records` no integer.

    Warns:
      NoiseWarning: As `NestedGame.for_budget`, where that is chosen.

    Example:
      >>> import dpjax
      >>> game = dpjax.problems.Saddle.matrix_game((1000, 1000))
      >>> type(solver_for_game(game, 30_000, dpjax.Budget(1.0, 1e-6))).__name__
      'DoubleOracle'
    """
    with candidates():
        nested = NestedGame.for_budget(problem, num_records, budget)
    payoffs = math.prod(domain.num_vertices for domain in problem.domains)
    # the multiplier has c / mu already
    of_one = np.asarray(nested.noise_multiplier).item() / num_records
    of_all = math.sqrt(payoffs) * of_one
    most = _MOST_NOISE_OF_ONE if of_all <= _NOISE_OF_NO_USE else _MOST_NOISE_OF_DRAWS
    if payoffs <= LARGEST_ARRAY and (
        of_all <= _MOST_NOISE or payoffs <= _FEW_PAYOFFS or of_one > most
    ):
        return checked_payoffs(nested, of_all)
    return DoubleOracle.for_budget(problem, num_records, budget)

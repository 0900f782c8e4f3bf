"""Solvers of matrix games."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from dpjax.problems import Saddle
from dpjax.sampling import FullBatch
from dpjax.solvers import DoubleOracle, NestedGame
from dpjax.solvers.games._nested import all_sums, present
from dpjax.testing import SolverCase, Statistic, register
from tests.entries.planned import GAME
from tests.entries.rows import SWEPT_POSITIVE, Choice, Count, row

_N, _SHAPE = 24, (3, 4)
_GAME = Saddle.matrix_game(_SHAPE, value_range=1.0)


def _data() -> dict[str, Any]:
    rng = np.random.default_rng(7)
    return {"A": jnp.asarray(rng.normal(size=(_N, *_SHAPE)), jnp.float32)}


def _nested() -> SolverCase:
    def build(value: Any) -> NestedGame:
        return NestedGame(FullBatch(1), value, float(_N), (-0.5, 0.5))

    def sums(batch: Any, mask: Any) -> Any:
        return all_sums(_GAME, batch, present(batch, mask), (-0.5, 0.5)).high

    bound = float(np.sqrt(np.prod(_SHAPE)))
    statistics = [Statistic("sums of payoffs", sums, "l2", bound)]
    return SolverCase(build, _GAME, _data(), statistics=statistics)


register(
    "NestedGame",
    "solver",
    _nested,
    arguments=row(
        NestedGame,
        {"sampler": FullBatch(1)},
        noise_multiplier=SWEPT_POSITIVE,
        num_records=SWEPT_POSITIVE,
        relation=("replace_one", Choice()),
    ),
    planned=GAME,
    spread="no: a game",
)


def _oracle(**options: Any) -> SolverCase:
    def build(value: Any) -> DoubleOracle:
        fields = {"rounds": 2, "more_rounds": 1} | options
        return DoubleOracle(FullBatch(1), value, float(_N), (-0.5, 0.5), **fields)

    return SolverCase(build, _GAME, _data())


register(
    "DoubleOracle(rounds)",
    "solver",
    _oracle,
    slow=True,
    arguments=row(
        DoubleOracle,
        {"sampler": FullBatch(1)},
        rho=SWEPT_POSITIVE,
        num_records=SWEPT_POSITIVE,
        rounds=(2, Count()),
        more_rounds=(1, Count()),
        fallback=("nested", Choice()),
        relation=("replace_one", Choice()),
    ),
    planned=GAME,
    spread="no: a game",
)
register(
    "DoubleOracle(nested, add or remove)",
    "solver",
    lambda: _oracle(fallback="nested", relation="add_or_remove_one"),
    slow=True,
)

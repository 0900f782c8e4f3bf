"""Equilibria of small games against a linear program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from dpjax.solvers.games import _equilibrium
from dpjax.solvers.games._equilibrium import equilibrium

_GAMES = 5
_all = jax.jit(jax.vmap(equilibrium))


def _value(payoffs):
    """Of the row player's linear program: least v with x'H <= v."""
    rows, columns = payoffs.shape
    cost = np.append(np.zeros(rows), 1.0)
    above = np.hstack([payoffs.T, -np.ones((columns, 1))])
    whole = np.append(np.ones(rows), 0.0)[None, :]
    bounds = [(0, None)] * rows + [(None, None)]
    found = optimize.linprog(cost, above, np.zeros(columns), whole, [1.0], bounds)
    return found.fun


def _made(kind, rng, rows, columns):
    shape = (_GAMES, rows, columns)
    if kind == "ties":
        return rng.integers(-1, 2, shape).astype(np.float32)
    if kind == "clipped":
        return np.clip(2 * rng.normal(size=shape), -1, 1).astype(np.float32)
    return rng.uniform(-3, 5, shape).astype(np.float32)


@pytest.mark.parametrize("kind", ["uniform", "clipped", "ties"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 5), (9, 9), (33, 20)])
def test_agrees_with_a_linear_program_whatever_is_absent(kind, rows, columns):
    rng = np.random.default_rng([rows, columns])
    payoffs = _made(kind, rng, rows, columns)
    here, there = rng.random((_GAMES, rows)) < 0.7, rng.random((_GAMES, columns)) < 0.7
    here[:, 0] = there[:, 0] = True
    here[0] = there[0] = True
    found = _all(payoffs, here, there)
    assert np.all(found.solved)
    for game, x, y, value, left, right in zip(
        payoffs, found.x, found.y, found.value, here, there, strict=True
    ):
        inside = game[np.ix_(left, right)].astype(float)
        assert np.all(np.asarray(x)[~left] == 0)
        assert np.all(np.asarray(y)[~right] == 0)
        x, y = np.asarray(x, float)[left], np.asarray(y, float)[right]
        assert abs(x.sum() - 1) < 1e-6
        assert abs(y.sum() - 1) < 1e-6
        gap = np.max(x @ inside) - np.min(inside @ y)
        assert -1e-6 < gap < 1e-5
        assert abs(value - _value(inside)) < 1e-5


def test_one_at_a_time_is_the_same():
    payoffs = _made("ties", np.random.default_rng(1), 6, 4)
    mask = np.ones((_GAMES, 6), bool), np.ones((_GAMES, 4), bool)
    together = _all(payoffs, *mask)
    alone = equilibrium(jnp.asarray(payoffs[2]))
    assert float(alone.value) == pytest.approx(float(together.value[2]), abs=1e-6)


def test_says_so_where_it_stops_at_its_cap(monkeypatch):
    monkeypatch.setattr(_equilibrium, "_PIVOTS", 0)
    found = equilibrium(jnp.asarray([[0.0, 1.0], [1.0, 0.0]]))
    assert not found.solved
    assert float(jnp.sum(found.x)) == 1.0


def test_a_constant_game_has_its_value():
    assert float(equilibrium(jnp.full((3, 2), 0.25)).value) == pytest.approx(0.25)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="rows"):
        equilibrium(jnp.zeros((2, 3)), rows=jnp.ones(3, bool))

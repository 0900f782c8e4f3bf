# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Saddle points and many dimensions
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/)
#
# A game, a convex risk over a simplex, and the reason for both: methods that release *vertices*
# drawn by the exponential mechanism, whose error grows with the logarithm of the dimension. And
# where plain methods do better. About a minute on a CPU; on Colab, upload this file, and the next
# cell installs the library.

# %%
import os
import sys

if "google.colab" in sys.modules:
    from IPython import get_ipython

    get_ipython().run_line_magic("pip", "install -q dpjax[plot]")

FAST = os.environ.get("DPJAX_FAST", "0") != "0"  # fewer steps and runs, for tests

# %%
import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting import dp_event
from matplotlib import pyplot as plt

import dpjax

# replace-one: the number of records is public
budget = dpjax.Budget(epsilon=1.0, delta=1e-6, relation="replace_one")

# %% [markdown]
# ## 1. A matrix game
#
# Two players mix 50 strategies each, x to pay little and y to get much: $\min_x \max_y x^\top A y$.
# The payoffs A are the mean of matrices of signs, one a record. Row 0 pays less than the others on
# average, whatever the column.

# %%
n = 4_000 if FAST else 20_000
game = dpjax.problems.Saddle.matrix_game((50, 50))
flips = jax.random.bernoulli(jax.random.key(0), 0.7, (n, 50, 50))
payoffs = {"A": jnp.where(flips, 1, -1).astype(jnp.int8).at[:, 0, :].multiply(-1)}
mean = payoffs["A"].mean(axis=0)  # not private: to see how good a solution is

# %% [markdown]
# `SaddleMirrorDescent` reads each record once, in disjoint batches. At each step it sees a few
# columns and rows of the matrices of one batch, those that were drawn from the players' softmaxes,
# and these draws are all that is released: the event counts them. The steps, draws and step sizes
# of `for_budget` come from bounds that contain public constants alone.

# %%
solver = dpjax.solvers.SaddleMirrorDescent.for_budget(game, n, budget)
solution = dpjax.solve(solver, game, payoffs, key=jax.random.key(1), progress=False)
x, y = solution.params
print(f"{solver.sampler.steps} steps, {solver.num_draws} draws of each player a step")
print(f"epsilon {solution.guarantee.epsilon(budget.delta):.4f}")
print(f"weight of row 0: {x[0]:.3f}")
print(f"duality gap: {dpjax.problems.matrix_game_gap(mean, x, y):.4f}")

# %% [markdown]
# The duality gap is what the two players could still gain, 0 at the solution. Is this the best
# method at 50 strategies? No. Where the whole matrix of a record can be read, noisy gradient
# descent-ascent on both players at once is better, by a lot. `DPSGD` takes the same problem:

# %%
descent = dpjax.solvers.DPSGD.for_budget(
    game, n, budget, average="uniform", steps=50 if FAST else 300
)
uniform = jnp.full(50, 1 / 50)
pairs = {
    "uniform strategies": (uniform, uniform),
    "SaddleMirrorDescent": solution.params,
    "DPSGD on both": dpjax.solve(
        descent, game, payoffs, key=jax.random.key(2), progress=False
    ).params,
}
for name, pair in pairs.items():
    print(f"{name}: gap {dpjax.problems.matrix_game_gap(mean, *pair):.4f}")

# %% [markdown]
# ## 2. A convex risk over a simplex
#
# With one player it is stochastic convex optimisation. Here 30 forecasters give probabilities of
# an event, and a mixture of them is sought with least logarithmic loss. A record holds their
# forecasts and the outcome. `grad_range` bounds largest less smallest coordinate of a record's
# gradient; it is enforced by clipping, so that a wrong one costs accuracy and never privacy. With
# forecasts between 0.1 and 0.9 it is at most 8, and for sensible mixtures rarely above 3.

# %%
num_forecasters, num_events = 30, 10_000 if FAST else 50_000
keys = jax.random.split(jax.random.key(3), 3)
truth = jax.random.uniform(keys[0], (num_events,), minval=0.1, maxval=0.9)
skill = jnp.linspace(0.0, 1.0, num_forecasters) ** 3  # the last ones know most
guess = jax.random.uniform(keys[1], (num_events, num_forecasters), minval=0.1, maxval=0.9)
forecasts = {
    "p": skill * truth[:, None] + (1 - skill) * guess,
    "outcome": jax.random.bernoulli(keys[2], truth),
}


def log_loss(w, record):
    probability = record["p"] @ w
    return -jnp.log(jnp.where(record["outcome"], probability, 1 - probability))


risk = dpjax.problems.SimplexRisk(loss=log_loss, dim=num_forecasters, grad_range=3.0)
anytime = dpjax.solvers.AnytimeMirrorDescent.for_budget(risk, num_events, budget)
all_data = dpjax.solvers.FrankWolfe.for_budget(risk, num_events, budget)
for name, solver in {"AnytimeMirrorDescent": anytime, "FrankWolfe": all_data}.items():
    w = dpjax.solve(solver, risk, forecasts, key=jax.random.key(4), progress=False).params
    best = float(w[-5:].sum())
    print(f"{name}: loss {risk.mean_loss(w, forecasts):.4f}, {best:.0%} on the five best")
print(f"equal weights: loss {risk.mean_loss(risk.init, forecasts):.4f}")
print(f"the best one: loss {risk.mean_loss(jnp.eye(num_forecasters)[-1], forecasts):.4f}")

# %% [markdown]
# `AnytimeMirrorDescent` reads the data once, `FrankWolfe` all of them at every step.
#
# ## 3. Error against dimension
#
# Least squares on an l1 ball of radius 1, in d dimensions: features are signs, and five coordinates
# matter. The number of records stays the same. Then the excess risk of w is half its squared
# distance from the truth, 0.16 at w = 0. Two plain methods at the same budget:
#
# - `DPSGD` with projection on the ball. Its noise has norm $\sqrt d$.
# - One-shot Gaussian: the matrix of all second moments, with noise, is released once, and least
#   squares solved on it. A record's matrix has norm about d.

# %%
num_records = 2_000 if FAST else 20_000
dims = [30, 100] if FAST else [30, 100, 300, 1_000, 3_000]
one_shot_limit = 300  # above, the noise is all there is
NOISE = 0.1  # in the targets


def make_records(dim, seed):
    """Signs, and targets of which five coordinates tell all but a little noise."""
    rng = np.random.default_rng(seed)
    bits = np.unpackbits(
        rng.integers(256, size=(num_records, -(-dim // 8)), dtype=np.uint8), axis=1
    )
    signs = 2 * bits[:, :dim].view(np.int8) - 1
    optimum = np.zeros(dim, np.float32)
    optimum[rng.choice(dim, 5, replace=False)] = [0.5, -0.2, 0.1, -0.1, 0.1]
    targets = signs @ optimum + NOISE * rng.uniform(-1, 1, num_records)
    return {"x": signs, "y": targets.astype(np.float32)}, optimum


def squared(margin, target):
    return 0.5 * (margin - target) ** 2


def make_problem(dim):
    ball = dpjax.geometry.L1Ball(dim, radius=1.0)
    return dpjax.problems.SimplexRisk.linear(  # |margin - target| is at most 2 + NOISE
        squared, ball, grad_range=2 * (2 + NOISE), smoothness=1.0, third_order=0.0
    )


# %% [markdown]
# The one-shot release is made of transformations: clip a record's matrix, sum, add noise. It is one
# Gaussian event, whose noise is calibrated to the budget.


# %%
def one_shot(data, key):
    """Least squares on the ball from noisy second moments."""
    z = jnp.concatenate([jnp.asarray(data["x"], jnp.float32), data["y"][:, None]], axis=1)
    bound = z.shape[1] - 1 + (1 + NOISE) ** 2  # squared norm of a record: public
    z = z * jnp.minimum(1, jnp.sqrt(bound) / jnp.linalg.norm(z, axis=1, keepdims=True))
    noise = dpjax.privacy.calibrate_noise(dp_event.GaussianDpEvent, budget, relation="replace_one")
    add = dpjax.transforms.add_gaussian(noise * bound)
    moments = add.update(z.T @ z, add.init(None), key=key)[0] / len(z)
    moments = (moments + moments.T) / 2
    values, vectors = jnp.linalg.eigh(moments[:-1, :-1])
    gram = (vectors * jnp.maximum(values, 0)) @ vectors.T

    def step(w, _):
        w = w - (gram @ w - moments[:-1, -1]) / jnp.maximum(values[-1], 1e-6)
        return optax.projections.projection_l1_ball(w, 1.0), None

    return jax.lax.scan(step, jnp.zeros(len(gram)), None, length=300)[0]


def make_methods(dim):
    problem = make_problem(dim)
    steps = 50 if FAST else 200
    solvers = {
        "AnytimeMirrorDescent": dpjax.solvers.AnytimeMirrorDescent,
        "FrankWolfe": dpjax.solvers.FrankWolfe,
    }
    solvers = {
        name: kind.for_budget(problem, num_records, budget) for name, kind in solvers.items()
    }
    solvers["DPSGD"] = dpjax.solvers.DPSGD.for_budget(problem, num_records, budget, steps=steps)
    methods = {
        name: lambda data, key, solver=solver: dpjax.solve(solver, problem, data, key=key).params
        for name, solver in solvers.items()
    }
    if dim <= one_shot_limit:
        methods["one-shot Gaussian"] = one_shot
    return methods


seeds = 2 if FAST else 4
errors = {}
for dim in dims:
    data, optimum = make_records(dim, seed=dim)
    keys = jax.random.split(jax.random.key(dim), seeds)
    for name, method in make_methods(dim).items():
        compiled = jax.jit(method)
        found = jnp.stack([compiled(data, key) for key in keys])
        errors[name, dim] = 0.5 * jnp.sum((found - optimum) ** 2, axis=1)
        print(f"d = {dim}, {name}: {errors[name, dim].mean():.4f}")

# %% [markdown]
# On a log axis the vertex methods rise slowly, the others like a power of d. In the legend is the
# power of log d that fits best; with so few points it is no more than a rough guide.


# %%
def power_of_log(name):
    means = [float(errors[name, dim].mean()) for dim in dims]
    return np.polyfit(np.log(np.log(dims)), np.log(means), 1)[0]


figure, axes = plt.subplots(figsize=(6.5, 4.3), layout="constrained")
for name in dict.fromkeys(name for name, _ in errors):
    at = [dim for dim in dims if (name, dim) in errors]
    label = name
    if name in ("AnytimeMirrorDescent", "FrankWolfe"):
        label += f", (log d)^{power_of_log(name):.1f}"
    axes.errorbar(
        at,
        [errors[name, dim].mean() for dim in at],
        yerr=[errors[name, dim].std() for dim in at],
        fmt="o-",
        capsize=3,
        label=label,
    )
axes.axhline(0.16, ls=":", color="grey", label="w = 0")
axes.set(
    xscale="log",
    yscale="log",
    xlabel="dimension d",
    ylabel="excess risk",
    title=f"{num_records:,} records, epsilon 1: mean and sd of {seeds} seeds",
)
axes.legend(fontsize=8)
plt.show()

# %% [markdown]
# ## 4. Which method, then
#
# What this plot shows, and what the longer runs of the repository say
# (`benchmarks/results/dimension.json`: 30,000 records, up to $10^6$ dimensions and strategies):
#
# - In few dimensions plain methods win: the one-shot release at d = 30, and `DPSGD` over
#   methods of one pass up to about a thousand dimensions. So they do in games: at 100 strategies
#   the gap of `DPSGD` on both players was 0.008, and that of `SaddleMirrorDescent` 0.144.
# - In many dimensions they fail. At d = 10,000 `DPSGD` left all of the excess risk, 0.16, and the
#   one-shot release had lost most of its use at d = 1,000, with 0.088.
# - The vertex methods go on. From d = 100 to $10^6$ the error of `AnytimeMirrorDescent` grew from
#   0.013 to 0.037, about as $(\log d)^{0.7}$, and the gap of the game from 0.14 to 0.29, about as
#   $(\log d)^{0.65}$.
# - Where all the data can be read at every step, `FrankWolfe` is the best of them: 0.005 at
#   d = 100,000. `AnytimeMirrorDescent` and `SaddleMirrorDescent` need one pass.
#
# The default plans of the vertex methods were tuned on instances made in this way, which favours
# them a little here; `certified=True` plans by the proved bounds alone.
#
# ## Where next
#
# - `00_quickstart`: what epsilon means, a loop of your own, and sweeps.
# - `02_query_release`: many counts of a table and synthetic records.
# - The documentation: the pages on saddle points and on polytopes have other domains (any set of
#   vertices) and the largest of several losses; the page on choosing a method has the whole map.

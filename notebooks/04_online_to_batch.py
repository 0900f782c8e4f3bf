# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Correlated noise, and convex problems on a ball
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/)
#
# Noise that takes part of itself back: what it does to sums, in a training loop of your own, and in
# solvers for convex losses on a ball, against DP-SGD over the number of records and epsilon. About
# a minute on a CPU; on Colab, upload this file, and the next cell installs the library.

# %%
import os
import sys

if "google.colab" in sys.modules:
    from IPython import get_ipython

    get_ipython().run_line_magic("pip", "install -q dpjax[plot]")

FAST = os.environ.get("DPJAX_FAST", "0") != "0"  # fewer steps and runs, for tests

# %%
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib import pyplot as plt

import dpjax

# %% [markdown]
# ## 1. The noise of a sum
#
# Descent walks along sums of gradients. If each record takes part in one step only, the sums of all
# steps together can be released at the price of a single Gaussian. With fresh noise in each step
# the sum of t steps has deviation $\sqrt t$; a binary tree, in which each step reads a few shared
# draws, has about $\log_2 t$; a Toeplitz matrix with three buffers has less still. All three have
# the same event.
#
# A strategy knows the deviation of each sum. Below, lines are what it says, and dots what 1,000
# simulated coordinates show.

# %%
length = 64 if FAST else 256
strategies = {
    "independent": None,
    "binary tree": dpjax.transforms.BinaryTree(length),
    "tree, variance reduced": dpjax.transforms.BinaryTree(length, variance_reduced=True),
    "buffered Toeplitz": dpjax.transforms.BufferedToeplitz(length),
}


def make_noise(strategy, stddev):
    if strategy is None:
        return dpjax.transforms.add_gaussian(stddev)
    return dpjax.transforms.correlated_noise(strategy, stddev)


@functools.partial(jax.jit, static_argnums=0)
def simulate(name, key):
    sums = dpjax.chain(make_noise(strategies[name], 1.0), optax.trace(decay=1.0))  # adds steps up

    def step(state, _):
        # one key for all steps: the state counts them
        total, state = sums.update(jnp.zeros(1000), state, key=key)
        return state, total.std()

    return jax.lax.scan(step, sums.init(jnp.zeros(1000)), length=length)[1]


steps_so_far = np.arange(1, length + 1)
shown = np.unique(np.geomspace(1, length, 14).astype(int))
figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
for index, (name, strategy) in enumerate(strategies.items()):
    stated = np.sqrt(steps_so_far) if strategy is None else strategy.prefix_stddev()
    seen = np.asarray(simulate(name, jax.random.key(index)))[shown - 1]
    # a deviation from 1,000 draws is known to 1 / sqrt(2000) of itself
    axes.plot(steps_so_far, stated, color=f"C{index}", lw=1, label=name)
    axes.errorbar(shown, seen, 2 * seen / 2000**0.5, fmt=".", color=f"C{index}", capsize=2)
    print(f"{name:23s} stated: mean {stated.mean():5.2f}, largest {stated.max():5.2f}")
axes.set(xlabel="steps added up", ylabel="standard deviation of the noise", xscale="log")
axes.set_title("Noise of a sum, at noise multiplier 1")
axes.legend()
plt.show()

# %% [markdown]
# ## 2. In an optax loop of your own
#
# Logistic regression on UCI Adult in one pass: 100 disjoint batches, each record in one of them, by
# its place in the file. `correlated_noise` goes where `add_gaussian` would; the rest of the chain
# is optax. The relation is replace-one, as the batches are of fixed size.

# %%
train, test = dpjax.datasets.adult().split(test=0.25, seed=0)  # UCI Adult comes with the library
rows = {"x": train.x / train.norm_bound, "y": 2.0 * train.y - 1}  # rows of norm 1; labels -1, 1
n, steps = len(train), 100
size = n // steps
batches = jax.tree.map(lambda a: jnp.reshape(a[: steps * size], (steps, size, *a.shape[1:])), rows)

budget = dpjax.Budget(epsilon=1.0, delta=1e-5, relation="replace_one")
toeplitz = dpjax.transforms.BufferedToeplitz(steps)
z = dpjax.privacy.calibrate_noise(toeplitz.event, budget)  # the same for every strategy here
guarantee = dpjax.Guarantee(toeplitz.event(z), "replace_one")
print(f"noise multiplier {z:.2f}, epsilon {guarantee.epsilon(1e-5):.4f}")


def logistic(margin, label):
    return jax.nn.softplus(-label * margin)


adult = dpjax.problems.Risk.linear(
    logistic, train.num_features, radius=20.0, lipschitz=1.0, smoothness=0.25
)


def descend(strategy, batches, rate, key):
    clip = dpjax.transforms.clip_by_norm(1.0)
    private = dpjax.chain(
        clip,
        make_noise(strategy, z * clip.sensitivity("add_or_remove_one")),
        optax.scale(1 / size),  # a public constant
        optax.sgd(rate, momentum=0.9),
    )

    def step(carry, batch):
        params, state = carry
        gradients = jax.vmap(jax.grad(adult.loss), (None, 0))(params, batch)
        updates, state = private.update(gradients, state, key=key, mask=jnp.ones(size, bool))
        return (optax.apply_updates(params, updates), state), None

    start = adult.init, private.init(adult.init)
    return jax.lax.scan(step, start, batches)[0][0]


# %% [markdown]
# Rates x seeds are one compiled call for each kind of noise. Larger steps learn more and add up
# more noise; with correlated noise one can afford larger ones.

# %%
rates = jnp.geomspace(0.1, 10.0, 4 if FAST else 7)
keys = jax.random.split(jax.random.key(10), 2 if FAST else 8)
held_out = jax.tree.map(jnp.asarray, {"x": test.x / test.norm_bound, "y": 2.0 * test.y - 1})
loops = {
    "independent": None,
    "binary tree": dpjax.transforms.BinaryTree(steps),
    "buffered Toeplitz": toeplitz,
}
if FAST:
    del loops["binary tree"]

figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
for name, strategy in loops.items():
    run = functools.partial(descend, strategy)
    over_seeds = jax.vmap(run, in_axes=(None, None, 0))
    params = jax.jit(jax.vmap(over_seeds, in_axes=(None, 0, None)))(batches, rates, keys)
    losses = jax.vmap(jax.vmap(adult.mean_loss, (0, None)), (0, None))(params, held_out)
    mean, error = losses.mean(axis=1), losses.std(axis=1, ddof=1) / len(keys) ** 0.5
    axes.errorbar(rates, mean, error, fmt="o-", capsize=3, label=name)
    print(f"{name:18s} least mean loss {mean.min():.4f} at rate {rates[mean.argmin()]:.2f}")
axes.axhline(np.log(2), color="grey", ls="--", label="the start")
axes.set(xlabel="learning rate", ylabel="mean loss on test records", xscale="log", yscale="log")
axes.set_title("Adult in one pass, epsilon 1")
axes.legend()
plt.show()

# %% [markdown]
# The best rate of such a plot is chosen with test records, which are not protected here. On private
# data that choice has to be paid for.

# %% [markdown]
# ## 3. Solvers for a ball
#
# `OnlineToBatch` runs an online learner at weighted averages of its points. Averages move slowly,
# so gradients change little from step to step, and a change costs less than a gradient. By default
# it reads all records in every step; with `single_pass=True` each record is in one step, and the
# noise is a buffered Toeplitz. `DPFTRL` is descent with correlated noise in one pass, `DPSGD` clips
# gradients of Poisson batches.
#
# Two problems of known optimum, with unit vectors x and labels from a logistic model. In one the
# true parameters have norm 6 and the ball radius 2, so that the optimum is on its boundary, in
# their direction; in the other norm 3 and radius 4, and the optimum is the truth. The population is
# a sample that is symmetric about the truth, so that these are its optima, up to rounding.

# %%
dim = 10
direction = jnp.ones(dim) / dim**0.5
places = {"boundary": (6.0, 2.0), "inside": (3.0, 4.0)}  # norm of the truth, radius


def draw_inputs(key, n):
    x = jax.random.normal(key, (n, dim))
    return x / jnp.linalg.norm(x, axis=1, keepdims=True)


def draw_records(key, n, norm):
    input_key, label_key = jax.random.split(key)
    x = draw_inputs(input_key, n)
    positive = jax.random.bernoulli(label_key, jax.nn.sigmoid(norm * x @ direction))
    return {"x": x, "y": jnp.where(positive, 1.0, -1.0)}


half = draw_inputs(jax.random.key(20), 10_000)
mirrored = 2 * jnp.outer(half @ direction, direction) - half
population = jnp.concatenate([half, mirrored])


@jax.jit
def excess(params, norm, radius, x):
    """Excess risk in units of that of the start."""
    chance = jax.nn.sigmoid(norm * x @ direction)

    def risk(params):
        return jnp.mean(
            chance * logistic(x @ params, 1.0) + (1 - chance) * logistic(x @ params, -1.0)
        )

    best = risk(jnp.minimum(norm, radius) * direction)
    return (risk(params) - best) / (risk(jnp.zeros(dim)) - best)


# %% [markdown]
# Every method with its own defaults, all at the same epsilon, delta and relation. Seeds draw the
# records and the noise; all seeds of a method are one compiled call.

# %%
solvers = dpjax.solvers
single_pass = functools.partial(solvers.OnlineToBatch.for_budget, single_pass=True)
methods = {
    "OnlineToBatch": solvers.OnlineToBatch.for_budget,
    "OnlineToBatch, one pass": single_pass,
    "DPSGD": solvers.DPSGD.for_budget,
    "DPFTRL (one pass)": functools.partial(solvers.DPFTRL.for_budget, noise="buffered", epochs=1),
}
if FAST:
    methods = {name: methods[name] for name in ("OnlineToBatch", "DPSGD")}
whole = functools.partial(single_pass, clip="whole")
inside_methods = methods if FAST else methods | {"one pass, whole": whole}
seeds = 2 if FAST else 8


@jax.jit
def fit(solver, problem, records, keys):
    def run(records, key):
        return dpjax.solve(solver, problem, records, key=key).params

    return jax.vmap(run)(records, keys)


@functools.cache
def scores(method, place, n, epsilon):
    """Excess risk of each seed."""
    norm, radius = places[place]
    problem = dpjax.problems.Risk.linear(logistic, dim, radius, lipschitz=1.0, smoothness=0.25)
    solver = inside_methods[method](problem, n, dpjax.Budget(epsilon, 1e-5, "replace_one"))
    assert solver.guarantee().epsilon(1e-5) <= epsilon
    data_keys, run_keys = jax.random.split(jax.random.key(30), (2, seeds))
    records = jax.vmap(lambda key: draw_records(key, n, norm))(data_keys)
    params = fit(solver, problem, records, run_keys)
    return np.array([excess(w, norm, radius, population) for w in params])


sizes = [5000] if FAST else [1000, 5000, 25_000]
epsilons = [1.0] if FAST else [0.3, 1.0, 3.0]
panels = {
    "boundary, epsilon 1": [("boundary", records, 1.0) for records in sizes],
    "boundary, 5,000 records": [("boundary", 5000, epsilon) for epsilon in epsilons],
    "inside, epsilon 1": [("inside", records, 1.0) for records in sizes[-2:]],
}
figure, axes = plt.subplots(1, 3, figsize=(11, 4), layout="constrained", sharey=True)
for panel, (title, cases) in zip(axes, panels.items(), strict=True):
    over_records = title.endswith("epsilon 1")
    ticks = [n if over_records else epsilon for _, n, epsilon in cases]
    print(title)
    for method in inside_methods if title.startswith("inside") else methods:
        found = np.array([scores(method, *case) for case in cases])
        mean, error = found.mean(axis=1), found.std(axis=1, ddof=1) / seeds**0.5
        panel.errorbar(ticks, mean, error, fmt="o-", capsize=3, label=method)
        cells = "  ".join(f"{m:.4f} +- {e:.4f}" for m, e in zip(mean, error, strict=True))
        print(f"  {method:24s} {cells}")
    panel.set(title=title, xscale="log", yscale="log")
    panel.set_xlabel("records" if over_records else "epsilon")
    panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks], minor=False)
    panel.minorticks_off()
axes[0].set_ylabel("excess risk over that of the start")
axes[2].legend(fontsize="small")
plt.show()

# %% [markdown]
# On the boundary `OnlineToBatch` is ahead, by most with the full batch. Inside it is about level
# with `DPSGD`. With few records one pass clips the whole of a record's increment, at about half of
# what the stated bound allows: that halves the noise, and where labels contradict their inputs it
# moves the optimum. From some 1,500 records a dimension on, the shift would be more than the noise,
# and the default clips changes around their middle, `clip="centred"`. With `clip="whole"`, on the
# right, one pass gets *worse* with more records; on the boundary the shift does no harm.
#
# Where the ball is small, changes of gradients are too: radius times smoothness is 1/2 on the left
# and 1 on the right, against a bound of 1 on gradients. On Adult, with radius 20, it is 5:

# %%
labels = jnp.asarray(test.y)
print("test accuracy on Adult at epsilon 1, mean and standard error over seeds")
for name, make in methods.items():
    solver = make(adult, n, dpjax.Budget(1.0, 1e-5, "replace_one"))
    found = [
        dpjax.solve(solver, adult, rows, key=key, progress=False).params
        for key in keys[: 2 if FAST else 3]
    ]
    right = np.array([jnp.mean((held_out["x"] @ w > 0) == labels) for w in found])
    print(f"{name:24s} {right.mean():.4f} +- {right.std(ddof=1) / len(right) ** 0.5:.4f}")

# %% [markdown]
# There `DPSGD` is best, and one pass of `OnlineToBatch` better than several. Where a plain method
# may do, try it on public data of the same kind first.
#
# ## Where next
#
# The documentation's pages on correlated noise and on online-to-batch have the guarantee of each
# strategy, other learners (any optax optimiser among them), and strategies made by `jax_privacy`;
# the results page has more dimensions, sizes and data sets. For losses with kinks, or none that
# JAX can differentiate, see the notebook on nonsmooth problems.

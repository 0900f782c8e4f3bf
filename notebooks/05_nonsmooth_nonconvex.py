# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Losses without gradients: nonsmooth, nonconvex, or a black box
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/)
#
# Private training on the number of mistakes itself, on a loss that NumPy computes outside JAX, and
# on losses with kinks; how stationary the result is; and what DP-SGD does on the same problems.
# About a minute on a CPU; on Colab, upload this file, and the next cell installs the library.

# %%
import os
import sys

if "google.colab" in sys.modules:
    from IPython import get_ipython

    get_ipython().run_line_magic("pip", "install -q dpjax[plot]")

FAST = os.environ.get("DPJAX_FAST", "0") != "0"  # fewer steps and runs, for tests

# %%
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib import pyplot as plt

import dpjax

# %% [markdown]
# ## 1. Mistakes
#
# UCI Adult, rows of norm at most 1 by a public bound, labels -1 and 1. The loss of a record is 1 if
# a linear score has the wrong sign and 0 otherwise. Its gradient is 0 wherever it exists, so that
# descent along gradients never moves.

# %%
train, test = dpjax.datasets.adult().split(test=0.25, seed=0)  # UCI Adult comes with the library
n = len(train)
rows, held_out = (
    {"x": jnp.asarray(part.x / train.norm_bound), "y": jnp.asarray(2.0 * part.y - 1)}
    for part in (train, test)
)


def accuracy(params):
    return jnp.mean(held_out["y"] * (held_out["x"] @ params) > 0)


def mistake(margin, label):
    return (label * margin <= 0).astype(jnp.float32)


mistakes = dpjax.problems.Risk.linear(mistake, train.num_features)
somewhere = jax.random.normal(jax.random.key(9), (train.num_features,))
print("largest gradient:", jnp.abs(jax.grad(mistakes.mean_loss)(somewhere, rows)).max())

# %% [markdown]
# `OnlineToNonconvex` with `oracle="zeroth"` uses values alone. It smooths the loss over a ball,
# here of half the `radius`, and estimates the gradient of what comes out from values at pairs of
# opposite points. A loss that jumps wants a ball larger than a step, hence the radius of 2. What a
# record adds is clipped, so the guarantee needs nothing of the loss.
#
# For comparison: DP-SGD on the logistic loss, which is made for gradients. A solver is an argument
# of the compiled function, and seeds are `vmap`ped.

# %%
budget = dpjax.Budget(epsilon=1.0, delta=1e-5)
steps = 100 if FAST else 1000
keys = jax.random.split(jax.random.key(0), 2 if FAST else 5)


@jax.jit
def fit(solver, problem, data, keys):
    return jax.vmap(lambda key: dpjax.solve(solver, problem, data, key=key).params)(keys)


def report(name, values):
    values = np.asarray(values)
    print(f"{name:28s} {values.mean():.4f} +- {values.std(ddof=1) / len(values) ** 0.5:.4f}")


by_values = dpjax.solvers.OnlineToNonconvex.for_budget(
    mistakes, n, budget, oracle="zeroth", radius=2.0, steps=steps
)
found = fit(by_values, mistakes, rows, keys)


def logistic(margin, label):
    return jax.nn.softplus(-label * margin)


logits = dpjax.problems.Risk.linear(logistic, train.num_features, lipschitz=1.0, smoothness=0.25)
descent = dpjax.solvers.DPSGD.for_budget(logits, n, budget, steps=steps)
by_gradients = fit(descent, logits, rows, keys)

for solver in (by_values, descent):
    assert solver.guarantee().epsilon(1e-5) <= 1.0
print("test accuracy at epsilon 1, mean and standard error over seeds")
report("mistakes, values alone", jax.vmap(accuracy)(found))
report("logistic loss, DP-SGD", jax.vmap(accuracy)(by_gradients))

# %% [markdown]
# ## 2. A loss outside JAX
#
# Any function of one record and the parameters will do: a simulator, a scoring service, a table of
# costs in a spreadsheet. `jax.pure_callback` calls it from the compiled loop. Here NumPy charges 3
# for a high income that is missed and 1 for a false alarm. The function must look at the record and
# the point alone: what it keeps from other records would not be accounted.

# %%


def cost_in_numpy(params, x, label):
    score = np.einsum("...d,...d->...", np.asarray(x), np.asarray(params))
    label = np.asarray(label)
    missed, alarm = (label > 0) & (score <= 0), (label < 0) & (score > 0)
    return (3.0 * missed + 1.0 * alarm).astype(np.float32)


def cost(params, record):
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    return jax.pure_callback(
        cost_in_numpy, shape, params, record["x"], record["y"], vmap_method="expand_dims"
    )


outside = dpjax.problems.Risk(cost, jnp.zeros(train.num_features))
callback_solver = dpjax.solvers.OnlineToNonconvex.for_budget(
    outside,
    n,
    budget,
    oracle="zeroth",
    radius=2.0,
    clip_norm=3.0,  # the largest cost
    num_directions=16,
    steps=20 if FAST else 1000,
)
few = keys[: 2 if FAST else 3]
by_costs = jnp.stack(  # the callback takes one run at a time
    [dpjax.solve(callback_solver, outside, rows, key=key, progress=False).params for key in few]
)
print(f"epsilon {callback_solver.guarantee().epsilon(1e-5):.4f}")

# %% [markdown]
# For comparison, what the runs of section 1 cost, which knew nothing of the table, and DP-SGD on a
# differentiable stand-in, the logistic loss with these weights. Where there is a stand-in as good
# as this one, take it: it wins. A black box is for where there is none.


# %%
def weighted(margin, label):
    return jnp.where(label > 0, 3.0, 1.0) * logistic(margin, label)


stand_in = dpjax.problems.Risk.linear(weighted, train.num_features, lipschitz=3.0, smoothness=0.75)
weighted_descent = dpjax.solvers.DPSGD.for_budget(stand_in, n, budget, steps=steps)
models = {
    "cost in NumPy": by_costs,
    "mistakes": found,
    "logistic loss": by_gradients,
    "weighted logistic loss": fit(weighted_descent, stand_in, rows, keys),
}
print("mean cost on test records, by what was trained on")
for name, params in models.items():
    report(name, [cost_in_numpy(w, held_out["x"], held_out["y"]).mean() for w in params])

# %% [markdown]
# ## 3. Kinks
#
# The ramp loss counts mistakes with a slope between 0 and 1: it is neither convex nor smooth, but
# it has gradients almost everywhere. `oracle="first"`, the default, takes them at random points of
# a small ball. Over epsilon, the noise changes and the program does not, so that all budgets of a
# method share one compilation.


# %%
def ramp(margin, label):
    return jnp.clip(0.5 - label * margin, 0.0, 1.0)


ramps = dpjax.problems.Risk.linear(ramp, train.num_features, lipschitz=1.0)
epsilons = [1.0] if FAST else [0.3, 1.0, 3.0]
kinds = {
    "DPSGD": dpjax.solvers.DPSGD.for_budget,
    "OnlineToNonconvex": dpjax.solvers.OnlineToNonconvex.for_budget,
}
if FAST:
    del kinds["DPSGD"]
loss_of = jax.jit(jax.vmap(ramps.mean_loss, (0, None)))
figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
for name, make in kinds.items():
    runs = []
    for epsilon in epsilons:
        solver = make(ramps, n, dpjax.Budget(epsilon, 1e-5), steps=steps)
        runs.append(loss_of(fit(solver, ramps, rows, keys), rows))
        report(f"{name}, epsilon {epsilon}", runs[-1])
    runs = np.array(runs)
    error = runs.std(axis=1, ddof=1) / len(keys) ** 0.5
    axes.errorbar(epsilons, runs.mean(axis=1), error, fmt="o-", capsize=3, label=name)
axes.set(xlabel="epsilon", ylabel="ramp loss on training records", xscale="log")
axes.set_xticks(epsilons, [str(epsilon) for epsilon in epsilons])
axes.minorticks_off()
axes.set_title("Adult, both by default")
axes.legend()
plt.show()

# %% [markdown]
# ## 4. How stationary?
#
# At a kink no gradient is small, so a small gradient is the wrong question. Goldstein's asks for a
# convex combination of gradients from a ball around the point that is near 0.
# `dpjax.audit.goldstein_norm` searches for one and gives the norm it found, an upper bound on the
# distance. It reads the data raw: a tool for public data or research, never for a private release.
#
# The problem: a two-layer ReLU network under absolute loss, with answers from a network of the same
# shape.

# %%
inputs, hidden, size = 10, 8, 10_000
shapes = {"inner": (inputs, hidden), "outer": (hidden,)}


def draw(key):
    pairs = zip(shapes, jax.random.split(key), strict=True)
    return {name: jax.random.normal(k, shapes[name]) / shapes[name][0] ** 0.5 for name, k in pairs}


def predict(params, x):
    return jnp.maximum(x @ params["inner"], 0) @ params["outer"]


input_key, teacher_key, start_key = jax.random.split(jax.random.key(2), 3)
x = jax.random.normal(input_key, (size, inputs))
x *= inputs**0.5 / jnp.linalg.norm(x, axis=1, keepdims=True)
records = {"x": x, "y": predict(draw(teacher_key), x)}

network = dpjax.problems.Risk(
    lambda params, record: jnp.abs(predict(params, record["x"]) - record["y"]),
    draw(start_key),
    lipschitz=2.0,  # a guide: gradients grow with the weights, and longer ones are clipped
)

# %% [markdown]
# Both solvers at a range of learning rates around their defaults, with seeds as before. Rates x
# seeds are one compiled call. To pick the best rate by such a plot is no private choice.

# %%
factors = jnp.array([1.0, 3.0] if FAST else [0.1, 0.3, 1.0, 3.0, 10.0])


@jax.jit
def over_rates(solver, data, rates, keys):
    def run(rate, key):
        changed = dataclasses.replace(solver, learning_rate=rate)
        params = dpjax.solve(changed, network, data, key=key).params
        return params, network.mean_loss(params, data)

    of_each = jax.vmap(lambda key: jax.random.split(key, len(rates)), out_axes=1)(keys)
    return jax.vmap(jax.vmap(run, (None, 0)))(rates, of_each)


results = {}
for name, make in kinds.items():
    solver = make(network, size, budget, steps=steps)
    assert solver.guarantee().epsilon(1e-5) <= 1.0
    params, losses = over_rates(solver, records, factors * solver.learning_rate, few)
    default = int(np.flatnonzero(np.asarray(factors) == 1.0)[0])
    results[name] = losses, jax.tree.map(lambda leaf, at=default: leaf[at], params)

# %%
radii = jnp.geomspace(0.01, 1.0, 2 if FAST else 7)
measured = jax.tree.map(lambda leaf: leaf[:2000], records)
samples = 8 if FAST else 32


@jax.jit
def norms(params, key, data):
    def at(radius, key):
        return dpjax.audit.goldstein_norm(
            network.mean_loss,
            params,
            radius,
            key=key,
            args=(data,),
            num_samples=samples,
            num_enriched=samples,
        ).upper

    return jax.vmap(at)(radii, jax.random.split(key, len(radii)))


figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
for name, (losses, params) in results.items():
    mean, error = losses.mean(axis=1), losses.std(axis=1, ddof=1) / len(few) ** 0.5
    left.errorbar(factors, mean, error, fmt="o-", capsize=3, label=name)
    print(
        f"{name:18s} loss by default {mean[list(factors).index(1.0)]:.4f}, least {mean.min():.4f}"
    )
    each = [
        norms(jax.tree.map(lambda leaf, i=i: leaf[i], params), jax.random.key(3), measured)
        for i in range(len(few))
    ]
    each = np.array(each)
    right.errorbar(
        radii,
        each.mean(axis=0),
        each.std(axis=0, ddof=1) / len(few) ** 0.5,
        fmt="o-",
        capsize=3,
        label=f"{name}, by default",
    )
right.plot(
    radii, norms(network.init, jax.random.key(3), measured), "--", color="grey", label="the start"
)
left.set(xlabel="learning rate / default", ylabel="mean loss", xscale="log", yscale="log")
left.set_xticks(factors, [f"{factor:g}" for factor in factors])
left.set_yticks([0.02, 0.05, 0.1, 0.2], ["0.02", "0.05", "0.1", "0.2"])
left.minorticks_off()
right.set(xlabel="radius", ylabel="Goldstein norm, at most", xscale="log", yscale="log")
left.set_title("ReLU network, epsilon 1")
right.set_title("how stationary")
left.legend()
right.set_ylim(top=4.0)  # room for the legend
right.legend(loc="upper right")
plt.show()

# %% [markdown]
# By default `OnlineToNonconvex` ends at a lower loss than `DPSGD`, and is less sensitive to the
# learning rate. It is not always the better method: with the best rate of this plot `DPSGD` reaches
# as low a loss or a lower one. Smaller norms at larger radii are no achievement, as larger balls
# hold more gradients; compare methods at one radius.
#
# ## Where next
#
# The documentation's page on nonsmooth losses has the solver's other modes: a single pass, longer
# periods with private changes of gradients, sizes from the proved bound; and the results page has
# all of this on five problems, with the cases where DP-SGD is as good. The steps work in an optax
# loop of your own, as `dpjax.transforms.clipped_displacement`. The accounting notebook says what an
# epsilon covers.

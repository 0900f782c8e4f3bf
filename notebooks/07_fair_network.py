# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # A private neural network under a fairness constraint
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/)
#
# A network with 64 hidden units that predicts income on UCI Adult, trained with a bound on how much
# more often men than women are predicted to be above the threshold, and with a formal bound on any
# one record's influence. Then the alternative where a prediction may use the group: one threshold
# for each group. About two minutes on a CPU; on Colab, upload this file, and the next cell installs
# the library.

# %%
import os
import sys

if "google.colab" in sys.modules:
    from IPython import get_ipython

    get_ipython().run_line_magic("pip", "install -q dpjax[plot]")

FAST = os.environ.get("DPJAX_FAST", "0") != "0"  # fewer steps, for tests

# %%
import jax
import jax.numpy as jnp

import dpjax

train, test = dpjax.datasets.adult().split(test=0.25, seed=0)
data, held_out = train.as_dict(), test.as_dict()
steps = 40 if FAST else 500

# %% [markdown]
# ## 1. A network is a function of one record
#
# `logits(params, x)` sees the features of **one** record and gives one number a class. The library
# maps it over batches, so that nothing of another record can leak in: the guarantee needs that, and
# a layer that normalises over the batch would break it.


# %%
def logits(params, x):
    hidden = jnp.tanh(x @ params["hidden"]["w"] + params["hidden"]["b"])
    return hidden @ params["out"]["w"] + params["out"]["b"]


def start(key, width=64, classes=2):
    first, second = jax.random.split(key)
    inputs = train.num_features
    return {
        "hidden": {
            "w": jax.random.normal(first, (inputs, width)) / inputs**0.5,
            "b": jnp.zeros(width),
        },
        "out": {
            "w": jax.random.normal(second, (width, classes)) / width**0.5,
            "b": jnp.zeros(classes),
        },
    }


# %% [markdown]
# Modules of equinox and `flax.nnx` go in as they come, without `init`:
#
# ```python
# model = eqx.nn.MLP(train.num_features, 2, 64, 1, key=jax.random.key(0))
# problem = dpjax.problems.RateConstrained(model, constraints=parity)
# trained = problem.logits.with_params(solution.params)  # a module again
# ```
#
# ## 2. The constraint, the budget and a run
#
# All defaults (steps, clip norm, step size, the share of the budget for the table of predictions)
# follow from public numbers.

# %%
parity = dpjax.problems.demographic_parity(num_groups=2, num_classes=2, slack=0.05)
problem = dpjax.problems.RateConstrained(logits, constraints=parity, init=start(jax.random.key(0)))
budget = dpjax.Budget(epsilon=1.0, delta=1e-5)
print(f"{problem.num_params:,} parameters")

solver = dpjax.solvers.RateConstrainedSGDA.for_budget(problem, len(train), budget, steps=steps)
print(solver)
constrained = dpjax.solve(solver, problem, data, key=jax.random.key(1), progress=False)

# %% [markdown]
# The same network without the constraint, at the same budget:

# %%
plain = dpjax.solvers.DPSGD.for_budget(problem, len(train), budget, steps=steps)
unconstrained = dpjax.solve(plain, problem, data, key=jax.random.key(2), progress=False)
for name, solution in (("unconstrained", unconstrained), ("constrained", constrained)):
    print(
        f"{name:14} error {problem.error(solution.params, held_out):.3f}, disparity "
        f"{problem.disparity(solution.params, held_out):.3f}, "
        f"epsilon {solution.guarantee.epsilon(1e-5):.3f}"
    )

# %% [markdown]
# Multipliers and smoothed rates of each step were released and may be looked at. A run whose
# multipliers end at their bound did not enforce its constraints, and warns of it.

# %%
multipliers = constrained.info.multipliers
print("multipliers at the end:", [round(float(value), 2) for value in multipliers[-1]])

# %% [markdown]
# ## 3. Where the group may be used
#
# If a prediction may look at the group of a record, train without the constraint and choose one
# threshold a group from one noisy histogram of scores. The histogram takes a tenth of the
# precision, training the rest, and both together meet the budget. On large data that costs less
# accuracy than a constraint on a model that must not know the group.

# %%
thresholds = dpjax.solvers.GroupThresholds.for_budget(problem, len(train), budget)
training = thresholds.training(problem, len(train), budget, steps=steps)
first = dpjax.solve(training, problem, data, key=jax.random.key(3), progress=False)
model = dpjax.solvers.TrainedModel(problem, first.params)
second = dpjax.solve(thresholds, model, data, key=jax.random.key(4), progress=False)
total = dpjax.privacy.compose_guarantees(first.guarantee, second.guarantee)

predicted = thresholds.predict(problem, second.params, held_out["x"], held_out["group"])
rates = [predicted[held_out["group"] == group].mean() for group in (0, 1)]
error = (predicted != held_out["y"]).mean()
print(f"error {error:.3f}, disparity {abs(rates[1] - rates[0]):.3f}")
print(f"thresholds {second.params.thresholds.tolist()}, epsilon {total.epsilon(1e-5):.3f}")

# %% [markdown]
# ## Where next
#
# - `01_fair_training`: a linear model, sweeps over slacks and the frontier of error and disparity.
# - The documentation: the page on fair training says which of the two to take when.

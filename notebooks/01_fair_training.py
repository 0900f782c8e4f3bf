# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Private and fair: training under rate constraints
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/)
#
# A model of income, trained such that men and women are predicted to be above the threshold about
# equally often, and such that no single record of the training data can be told from the result.
# Five steps, about a minute on a CPU; on Colab, upload this file, and the next cell installs the
# library.

# %%
import math
import os
import sys

if "google.colab" in sys.modules:
    from IPython import get_ipython

    get_ipython().run_line_magic("pip", "install -q dpjax[plot]")

FAST = os.environ.get("DPJAX_FAST", "0") != "0"  # fewer steps and runs, for tests

# %%
import jax
import jax.numpy as jnp
from matplotlib import pyplot as plt

import dpjax

# %% [markdown]
# ## 1. The data
#
# UCI Adult comes with the library. Its encoding uses public constants only, so that using it costs
# no privacy. Sex is the group; it is not among the features.

# %%
train, test = dpjax.datasets.adult().split(test=0.25, seed=0)
for name, group in zip(train.group_names, (0, 1), strict=True):
    share = train.y[train.group == group].mean()
    print(f"{name}: {share:.1%} have more than 50,000 dollars a year")

# %% [markdown]
# ## 2. The constraint
#
# Demographic parity bounds the gap between the two groups' rates of each prediction. The slack is
# the bound; a slack of 1 asks for nothing.


# %%
def make_problem(slack):
    parity = dpjax.problems.demographic_parity(num_groups=2, num_classes=2, slack=slack)
    return dpjax.problems.RateConstrained.linear(
        num_features=train.num_features, num_classes=2, constraints=parity
    )


problem = make_problem(slack=0.05)

# %% [markdown]
# ## 3. A private solution
#
# `for_budget` sets every default from public numbers and calibrates the noise to the budget. Each
# step releases two things from one batch, a noisy table of predictions by group and a noisy
# gradient; the guarantee accounts for both together.

# %%
steps = 100 if FAST else 1000
budget = dpjax.Budget(epsilon=1.0, delta=1e-5)
solver = dpjax.solvers.RateConstrainedSGDA.for_budget(problem, len(train), budget, steps=steps)
solution = dpjax.solve(solver, problem, train.as_dict(), key=jax.random.key(0), progress=False)

print(f"epsilon   {solution.guarantee.epsilon(1e-5):.4f} at delta 1e-5")
print(f"error     {problem.error(solution.params, test.as_dict()):.3f}")
print(f"disparity {problem.disparity(solution.params, test.as_dict()):.3f}")

# %% [markdown]
# ## 4. A sweep in one compilation
#
# Slacks are data of the problem, and keys are arguments: stack the problems, and `jax.vmap` runs
# slacks x seeds as one compiled program.

# %%
slacks = jnp.array([0.0, 0.1] if FAST else [0.0, 0.02, 0.05, 0.1, 0.2])
problems = jax.tree.map(lambda *a: jnp.stack(a), *[make_problem(float(s)) for s in slacks])
keys = jax.random.split(jax.random.key(1), (len(slacks), 2 if FAST else 5))


@jax.jit
def sweep(solver, problems, keys, data, test):
    def run(problem, key):
        params = dpjax.solve(solver, problem, data, key=key).params
        return problem.error(params, test), problem.disparity(params, test)

    return jax.vmap(jax.vmap(run, in_axes=(None, 0)))(problems, keys)


sweep_solver = dpjax.solvers.RateConstrainedSGDA.for_budget(
    problem, len(train), budget, steps=100 if FAST else 300
)
error, disparity = sweep(sweep_solver, problems, keys, train.as_dict(), test.as_dict())
print("slacks x seeds:", error.shape)

# %% [markdown]
# The same descent without privacy, for comparison: the full batch, no noise, no clipping. It is no
# private release, so the number of records is no secret either, as under replace-one.

# %%
no_budget = dpjax.Budget(epsilon=math.inf, delta=1e-5, relation="replace_one")
non_private_solver = dpjax.solvers.RateConstrainedSGDA.for_budget(
    problem, len(train), no_budget, steps=50 if FAST else 300
)
plain_error, plain_disparity = sweep(
    non_private_solver, problems, keys[:, :1], train.as_dict(), test.as_dict()
)

# %% [markdown]
# ## 5. The frontier
#
# Mean and standard deviation over seeds, on the test set. The seeds show how much the noise and the
# sampling move the result. Each point is the cost of one run: to publish them all, or only the best
# of them, costs more.

# %%
figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
axes.errorbar(
    disparity.mean(axis=1),
    error.mean(axis=1),
    xerr=disparity.std(axis=1),
    yerr=error.std(axis=1),
    fmt="o-",
    capsize=3,
    label=f"epsilon {sweep_solver.guarantee().epsilon(1e-5):.2f}, delta 1e-5",
)
axes.plot(plain_disparity[:, 0], plain_error[:, 0], "s--", color="grey", label="not private")
axes.set(xlabel="disparity (test)", ylabel="error (test)", title="Adult: error against disparity")
axes.legend()
plt.show()

# %% [markdown]
# The slack bounds the disparity of the training data; that of the test set differs a little. A
# slack of 0 gained nothing over one of 0.02 here, with noise or without.
#
# ## Where next
#
# - `00_quickstart`: what epsilon means, a loop of your own, and sweeps over budgets.
# - `02_query_release`: many counts of a table at once, and synthetic records.
# - The documentation: the page on fair training has other constraints (false negative rates, equal
#   odds, more than two groups) and the results on other data sets; the one on pitfalls says how a
#   guarantee is lost.

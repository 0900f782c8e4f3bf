# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Quickstart: three ways to use dpjax
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/)
#
# One private classifier, made three times: by a training loop of your own, by a solver, and as a
# sweep over seeds and privacy budgets in one compiled call. About a minute on a CPU; on Colab,
# upload this file, and the next cell installs the library.

# %%
import dataclasses
import os
import sys

if "google.colab" in sys.modules:
    from IPython import get_ipython

    get_ipython().run_line_magic("pip", "install -q dpjax[plot]")

FAST = os.environ.get("DPJAX_FAST", "0") != "0"  # fewer steps and runs, for tests

# %%
import jax
import jax.numpy as jnp
import optax
from matplotlib import pyplot as plt

import dpjax

# %% [markdown]
# ## What is promised
#
# A release is (epsilon, delta)-private if one record more or less in the training data changes the
# probability of any outcome by at most the factor $e^\epsilon$, and delta beyond that. "One record
# more or less" is the neighbouring relation `add_or_remove_one`; the other, `replace_one`,
# exchanges a record for another, and asks for more noise at the same epsilon.
#
# Public, and free to use, are the encoding of the records, all settings of the run, and a bound on
# the number of records. Secret are the records and the random key. The budget:

# %%
budget = dpjax.Budget(epsilon=1.0, delta=1e-5)

train, test = dpjax.datasets.adult().split(test=0.25, seed=0)  # UCI Adult comes with the library
n = len(train)
print(train)


def accuracy(params):
    return jnp.mean((test.x @ params > 0) == test.y)  # on test records, which are not protected


# %% [markdown]
# ## 1. A loop of your own
#
# Transformations are optax's, but for the key, which is always an argument. `clip_by_norm` bounds
# what one record can add to the sum of gradients, and says by how much (`sensitivity`);
# `add_gaussian` adds noise in proportion. `PoissonSampler` draws each batch inside the compiled
# loop: every record joins it by a coin flip of its own, which is the sampling that the accounting
# is about.

# %%
steps = 100 if FAST else 500
rate = 0.02  # with which a record joins a batch
sampler = dpjax.sampling.PoissonSampler(rate, steps, num_records=n)
failure = sampler.failure_probability()  # that a batch had to be cut; it costs a little delta
z = dpjax.privacy.calibrate_gaussian(rate, steps, budget, failure_probability=failure)

clip = dpjax.transforms.clip_by_norm(train.norm_bound)
sensitivity = clip.sensitivity("add_or_remove_one", rows=sampler.slots)  # rounding included
noise = dpjax.transforms.add_gaussian(z * sensitivity)
private_sum = dpjax.chain(clip, noise)
optimizer = optax.sgd(1.0, momentum=0.8)  # chosen on these records, which happen to be public


def loss(params, x, y):
    return optax.losses.sigmoid_binary_cross_entropy(x @ params, y)


@jax.jit
def fit(x, y, key):
    batch_key, noise_key = jax.random.split(key)

    def step(carry, plan):
        params, noise_state, opt_state = carry
        rows, mask = sampler.batch(plan, n)
        per_example = jax.vmap(jax.grad(loss), (None, 0, 0))(params, x[rows], y[rows])
        total, noise_state = private_sum.update(per_example, noise_state, key=noise_key, mask=mask)
        mean = total / (rate * n)  # a public constant, never the size of this batch
        updates, opt_state = optimizer.update(mean, opt_state)
        return (optax.apply_updates(params, updates), noise_state, opt_state), None

    start = jnp.zeros(x.shape[1])
    carry = (start, private_sum.init(start), optimizer.init(start))
    return jax.lax.scan(step, carry, sampler.plan(batch_key, n))[0][0]


params = fit(train.x, train.y, jax.random.key(0))
print(f"noise multiplier {z:.2f}, accuracy {accuracy(params):.3f}")

# %% [markdown]
# The event says what the loop did: so many steps, each a Gaussian release of a Poisson batch. What
# it costs is worked out from it by an accountant. The optimizer appears nowhere, since it sees
# nothing but noisy sums.

# %%
event = dpjax.privacy.joint_poisson_event(rate, steps, gaussian=z)
guarantee = dpjax.Guarantee(event, failure_probability=failure)
print(event)
print(f"epsilon {guarantee.epsilon(budget.delta):.4f} at delta {budget.delta}")

# %% [markdown]
# ## 2. A solver
#
# The same in three lines. `for_budget` sets every default from public numbers and calibrates the
# noise; the guarantee comes from the very fields that scale the noise and draw the batches. Any
# optax optimizer will do.

# %%
problem = dpjax.problems.Risk.linear(
    optax.losses.sigmoid_binary_cross_entropy, train.num_features, lipschitz=train.norm_bound
)
solver = dpjax.solvers.DPSGD.for_budget(
    problem, n, budget, steps=steps, optimizer=optimizer, learning_rate=1.0
)
solution = dpjax.solve(solver, problem, train.as_dict(), key=jax.random.key(1), progress=False)
print(f"epsilon  {solution.guarantee.epsilon(budget.delta):.4f}")
print(f"accuracy {accuracy(solution.params):.3f}")

# %% [markdown]
# ## 3. A sweep in one compiled call
#
# Solvers are pytrees: noise, clipping and step sizes are leaves, steps and batch sizes are
# structure. So a stack of solvers for several budgets and a stack of keys go through `jax.vmap`,
# and all of it compiles once.

# %%
epsilons = [0.1, 1.0, 8.0] if FAST else [0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0]


def make_solver(epsilon):
    # with a rate made for its noise; an optimizer that is given here would be used as given
    solver = dpjax.solvers.DPSGD.for_budget(
        problem, n, dpjax.Budget(epsilon, budget.delta), steps=50 if FAST else 500
    )
    return dataclasses.replace(solver, optimizer=optimizer)


solvers = [make_solver(epsilon) for epsilon in epsilons]
stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *solvers)
keys = jax.random.split(jax.random.key(2), (len(solvers), 2 if FAST else 8))  # no noise twice


@jax.jit
def sweep(solvers, keys, data):
    def run(solver, key):
        return accuracy(dpjax.solve(solver, problem, data, key=key).params)

    return jax.vmap(jax.vmap(run, in_axes=(None, 0)))(solvers, keys)


accuracies = sweep(stacked, keys, train.as_dict())
for solver, row in zip(solvers, accuracies, strict=True):
    epsilon = solver.guarantee().epsilon(budget.delta)
    print(f"epsilon {epsilon:.3f}: accuracy {row.mean():.3f}, sd {row.std():.3f}")

# %% [markdown]
# For comparison, the same descent without privacy: all records at every step, no noise, no
# clipping. And the accuracy of always predicting the more common answer.

# %%
plain = dpjax.solvers.DPSGD.for_budget(
    problem,
    n,
    budget,
    sampler=dpjax.sampling.FullBatch(50 if FAST else 500),
    optimizer=optimizer,
    learning_rate=1.0,
    noise_multiplier=0.0,
    clip_norm=1e6,
)
found = dpjax.solve(plain, problem, train.as_dict(), key=jax.random.key(3), progress=False).params
not_private = float(accuracy(found))
constant = float((test.y == 0).mean())
print(f"not private {not_private:.3f}, constant {constant:.3f}")

# %%
figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
axes.errorbar(
    epsilons,
    accuracies.mean(axis=1),
    yerr=accuracies.std(axis=1),
    fmt="o-",
    capsize=3,
    label=f"private, delta {budget.delta}: mean and sd of {keys.shape[1]} seeds",
)
axes.axhline(not_private, ls="--", color="grey", label="not private")
axes.axhline(constant, ls=":", color="grey", label="constant prediction")
axes.set(xscale="log", xlabel="epsilon", ylabel="accuracy (test)", title="Adult: price of privacy")
axes.legend(loc="lower right")
plt.show()

# %% [markdown]
# Each point is the cost of one run. Who publishes several runs on the same private data pays for
# all of them together, and who publishes the best pays for the choice; `dpjax.Ledger` keeps one
# budget for everything that a data set sees.
#
# ## Where next
#
# - `01_fair_training`: a model whose predictions are bound to be alike for two groups.
# - `02_query_release`: thousands of counts of a table at once, and synthetic records.
# - `03_saddle_points`: games, and convex problems in many dimensions.
# - The documentation: the page on choosing a method says which solver is for which problem, the one
#   on pitfalls how a guarantee is lost, and the one on tuning what to set and what to leave.

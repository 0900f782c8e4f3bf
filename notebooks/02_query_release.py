# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Query release: many counts of a table, and synthetic records
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/)
#
# All three-way marginals of a census table are released at once, with error bars, together with a
# distribution that agrees with them, from which one may draw as many synthetic records as one
# likes. About a minute on a CPU; on Colab, upload this file, and the next cell installs the
# library.

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
from matplotlib import pyplot as plt

import dpjax

# %% [markdown]
# ## 1. A table and its domain
#
# A domain names the attributes and the values that each may take. It is public and must not be read
# off the data: here it follows from the documentation of UCI Adult, which comes with the library.
# A quarter of the records is held out for the test in section 6.

# %%
codes, domain = dpjax.datasets.adult_reduced()
if FAST:  # five of the seven attributes
    keep = [1, 3, 4, 5, 6]
    labels = {domain.attributes[a]: domain.labels[a] for a in keep}
    codes, domain = codes[:, keep], dpjax.queries.Domain(labels)
order = np.random.default_rng(0).permutation(len(codes))
test, train = np.split(codes[order], [len(codes) // 4])
for name, size in zip(domain.attributes, domain.shape, strict=True):
    print(f"{name}: {size} values")
print(f"{len(train):,} records in {domain.universe_size:,} cells")

axis = domain.attributes.index  # the column of an attribute

# %% [markdown]
# With a table of your own:
# `domain = dpjax.queries.Domain({"sex": ["F", "M"], "age": 10})`, and data as columns by name, a
# data frame or codes.
#
# ## 2. Release
#
# A workload is what is asked: here every table of three attributes. The guarantee is for replacing
# a record by any other, so that the number of records is public.

# %%
workload = dpjax.queries.Marginals.all_kway(domain, 3)
budget = dpjax.Budget(epsilon=1.0, delta=1e-9, relation="replace_one")
released = dpjax.release(workload, train, budget, key=jax.random.key(0), progress=False)

print(f"{workload.num_queries:,} answers in {len(workload.cliques)} tables")
print(f"epsilon {released.guarantee.epsilon(budget.delta):.4f} at delta {budget.delta}")
print(f"chosen: {released.method}; {released.reason}")

# %% [markdown]
# ### What was chosen, and why
#
# `release` compares two ways to spend the budget before it looks at the data: noise on every answer
# that is asked, and noise on every cell of the domain, of which answers are sums. Then a log-linear
# distribution is fitted to noisy answers. With little budget, where three-way tables would be
# mostly noise, it measures the tables below them; of many queries over few cells, the cells.

# %%
poor = dpjax.release(
    workload, train, dpjax.Budget(0.01, 1e-9), key=jax.random.key(1), progress=False
)
print(f"epsilon 0.01: {poor.method}; {poor.reason}")

subsets = dpjax.queries.Dense(np.arange(256)[:, None] >> np.arange(8) & 1)
men, rich = train[:, axis("sex")], train[:, axis("income>50K")]
married = (train[:, axis("marital-status")] == 2).astype(int)
cells = 4 * men + 2 * rich + married
few = dpjax.release(subsets, cells, budget, key=jax.random.key(2), progress=False)
print(f"all 256 subsets of 8 cells: {few.method}; {few.reason}")

# %% [markdown]
# ## 3. Error bars, and the truth
#
# `stddev` is the noise in the best unbiased estimate of each answer, and part of the release. The
# fit smooths, so that errors are mostly smaller. The true answers are used here to check that, and
# are not private.

# %%
true = workload.answers_of_records(train)
error = jnp.abs(released.answers - true)
print(f"largest error {error.max():.4f}, mean {error.mean():.5f}")
for width in (1, 2):
    print(f"within {width} stddev: {(error < width * released.stddev).mean():.1%} of the answers")

# %%
shown = workload.table(jnp.arange(workload.num_queries), ("marital-status", "sex", "income>50K"))
shown = np.asarray(shown).ravel()
labels = [
    f"{marital}, {sex}, {income}"
    for marital in domain.labels[axis("marital-status")]
    for sex in domain.labels[axis("sex")]
    for income in domain.labels[axis("income>50K")]
]
figure, axes = plt.subplots(figsize=(7, 6), layout="constrained")
positions = np.arange(len(shown))
axes.errorbar(
    released.answers[shown],
    positions,
    xerr=2 * released.stddev[shown],
    fmt="o",
    ms=4,
    capsize=3,
    label="released, 2 stddev",
)
axes.plot(true[shown], positions, "x", color="black", label="true")
axes.set(xlabel="share of the records", title="One of the tables, epsilon 1")
axes.set_xscale("symlog", linthresh=3e-3)
axes.set_yticks(positions, labels, fontsize=7)
axes.invert_yaxis()
axes.legend()
plt.show()

# %% [markdown]
# ## 4. Error against epsilon
#
# The method behind `release` is a solver like any other: its noise is a leaf, so that budgets x
# seeds run as one compiled program. Beside the fit, the answers as measured, with noise and nothing
# else. The dashed line is how far the held-out records are from the others: where the error is
# below it, privacy costs less than having another sample of people.

# %%
problem = dpjax.problems.QueryRelease(workload)
epsilons = [0.25, 1.0] if FAST else [0.1, 0.25, 0.5, 1.0, 2.0]
fits = [
    dpjax.solvers.GaussianFit.for_budget(
        problem, len(train), dpjax.Budget(epsilon, budget.delta), fit_steps=20 if FAST else 100
    )
    for epsilon in epsilons
]
stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(x) for x in leaves]), *fits)
keys = jax.random.split(jax.random.key(3), (len(fits), 2 if FAST else 4))


@jax.jit
def sweep(fits, keys, records):
    def run(fit, key):
        solution = dpjax.solve(fit, problem, records, key=key)
        fitted, measured = solution.params.answers, solution.state.measured
        return jnp.max(jnp.abs(fitted - true)), jnp.max(jnp.abs(measured - true))

    return jax.vmap(jax.vmap(run, in_axes=(None, 0)))(fits, keys)


fitted, measured = sweep(stacked, keys, train)
apart = float(jnp.max(jnp.abs(workload.answers_of_records(test) - true)))
for epsilon, row, raw in zip(epsilons, fitted, measured, strict=True):
    print(f"epsilon {epsilon}: fit {row.mean():.4f}, noise alone {raw.mean():.4f}")
print(f"held-out records: {apart:.4f}")

# %%
figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
for errors, label in ((measured, "noise alone"), (fitted, "noise and fit (GaussianFit)")):
    axes.errorbar(
        epsilons, errors.mean(axis=1), yerr=errors.std(axis=1), fmt="o-", capsize=3, label=label
    )
axes.axhline(apart, ls="--", color="grey", label="held-out records")
axes.set(
    xscale="log",
    yscale="log",
    xlabel="epsilon",
    ylabel="largest error of an answer",
    title=f"{workload.num_queries:,} answers, mean and sd of {keys.shape[1]} seeds",
)
axes.legend()
plt.show()

# %% [markdown]
# ## 5. Synthetic records
#
# Drawing records is post-processing: it costs nothing, however many there are.

# %%
synthetic = np.asarray(released.sample(jax.random.key(4), len(train), systematic=True))
table = released.decode(synthetic)
for row in range(3):
    print({name: str(column[row]) for name, column in table.items()})

# %% [markdown]
# A table of two attributes, from the real and from the synthetic records.

# %%
look = dpjax.queries.Marginals(domain, [("marital-status", "age")])
real_table, synthetic_table = (
    np.asarray(look.table(look.answers_of_records(records), ("marital-status", "age")))
    for records in (train, synthetic)
)
figure, panels = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained", sharey=True)
scale = {"vmin": 0, "vmax": real_table.max(), "cmap": "viridis"}
span = abs(synthetic_table - real_table).max()
for axes, values, title, options in (
    (panels[0], real_table, "real", scale),
    (panels[1], synthetic_table, "synthetic, epsilon 1", scale),
    (panels[2], synthetic_table - real_table, "difference", {"cmap": "RdBu"}),
):
    if title == "difference":
        options = options | {"vmin": -span, "vmax": span}
    image = axes.imshow(values, aspect="auto", **options)
    figure.colorbar(image, ax=axes)
    axes.set_xticks(range(10), domain.labels[axis("age")], rotation=90, fontsize=8)
    axes.set_yticks(range(7), domain.labels[axis("marital-status")], fontsize=8)
    axes.set_title(title)
plt.show()
print(f"largest difference {span:.5f} of the records")

# %% [markdown]
# ## 6. Are they good to learn from?
#
# A logistic regression of income on the other attributes, trained on real records and on
# synthetic ones, and tested on real records that were held out. Beside it `DPSGD` at the same
# budget, which spends all of it on the one classifier.

# %%
income = axis("income>50K")


def one_hot(records):
    sizes = enumerate(domain.shape)
    parts = [np.eye(k, dtype=np.float32)[records[:, a]] for a, k in sizes if a != income]
    return {"x": np.concatenate(parts, axis=1), "y": records[:, income]}


real, held_out = one_hot(train), one_hot(test)
risk = dpjax.problems.Risk.linear(
    optax.losses.sigmoid_binary_cross_entropy,
    real["x"].shape[1],
    lipschitz=float(np.sqrt(len(domain.shape) - 1)),  # a record has so many ones
)


@jax.jit
def train_classifier(data):
    optimizer = optax.adam(0.1)

    def step(carry, _):
        params, state = carry
        gradient = jax.grad(risk.mean_loss)(params, data)
        updates, state = optimizer.update(gradient, state)
        return (optax.apply_updates(params, updates), state), None

    carry = risk.init, optimizer.init(risk.init)
    return jax.lax.scan(step, carry, None, length=50 if FAST else 300)[0][0]


def accuracy(params):
    return float(((held_out["x"] @ params > 0) == held_out["y"]).mean())


direct = dpjax.solvers.DPSGD.for_budget(risk, len(train), budget, steps=100 if FAST else 1000)
low = np.asarray(poor.sample(jax.random.key(5), len(train), systematic=True))
classifiers = {
    "real records, not private": train_classifier(real),
    "DPSGD on real records, epsilon 1": dpjax.solve(
        direct, risk, real, key=jax.random.key(6), progress=False
    ).params,
    "synthetic records, epsilon 1": train_classifier(one_hot(synthetic)),
    "synthetic records, epsilon 0.01": train_classifier(one_hot(low)),
}
for name, params in classifiers.items():
    print(f"{name}: {accuracy(params):.3f}")
print(f"constant prediction: {(held_out['y'] == 0).mean():.3f}")

# %% [markdown]
# Synthetic records keep what the workload asked for. What depends on four attributes at once is
# only as good as the fit's guess, and error bars say nothing of it. Ask for what you will use:
# `release(..., target="income>50K")` gives tables with that attribute more of the budget.
#
# ## Where next
#
# - `00_quickstart`: what epsilon means, a loop of your own, and sweeps.
# - `03_saddle_points`: the games behind some methods of query release.
# - The documentation: the page on query release has the other methods, workloads of ranges and
#   halfspaces, and when they are of use; the results compare all methods on two data sets.

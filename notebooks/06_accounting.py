# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Accounting: what an epsilon covers, whether it is true, and one budget for all
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/)
#
# Guarantees and their curves, two releases from one batch, calibration, composition, an audit that
# finds a planted bug, a ledger that says no, and what it costs to choose hyperparameters. About two
# minutes on a CPU; on Colab, upload this file, and the next cell installs the library.

# %%
import os
import sys

if "google.colab" in sys.modules:
    from IPython import get_ipython

    get_ipython().run_line_magic("pip", "install -q dpjax[plot]")

FAST = os.environ.get("DPJAX_FAST", "0") != "0"  # fewer steps and runs, for tests

# %%
import dataclasses
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import dp_event as dpe
from matplotlib import pyplot as plt

import dpjax

# %% [markdown]
# ## 1. A guarantee is a curve
#
# A solver describes what it runs as a `dp_accounting` event: here 1,000 Poisson batches, each
# released as a sum with Gaussian noise. From the event follows an epsilon for every delta. There is
# nothing to copy: sampler and noise that run are those that are accounted.

# %%
problem = dpjax.problems.RateConstrained.linear(num_features=98, num_classes=2)
solver = dpjax.solvers.DPSGD.for_budget(
    problem, num_records=36_000, budget=dpjax.Budget(epsilon=1.0, delta=1e-5), steps=1000
)
guarantee = solver.guarantee()
print(guarantee.event)
print(f"{guarantee.relation.name}, failure probability {guarantee.failure_probability:.1e}")
for delta in (1e-4, 1e-5, 1e-6):
    print(f"delta {delta:.0e}: epsilon {guarantee.epsilon(delta):.4f}")

# %% [markdown]
# The failure probability is that of a batch too large for the memory set aside for it, which is
# cut. It is part of delta, so that no delta below it has a finite epsilon. The relation is part of
# the guarantee too: with the same noise, a record replaced by another shows more than a record
# removed.
#
# ## 2. Two releases from one batch
#
# Fair training releases a table of counts and a gradient in every step, both from the same batch.
# It is tempting to compose them as two sampled releases, each with its own amplification. That
# claims too little: a record that is in the batch is in it for both.

# %%
rate, noise = 0.02, 1.0
one = dpe.PoissonSampledDpEvent(rate, dpe.GaussianDpEvent(noise))


def independent(steps):
    """What two batches would cost: wrong for one batch."""
    return dpjax.Guarantee(dpe.SelfComposedDpEvent(one, 2 * steps))


def same_batch(steps):
    event = dpjax.privacy.joint_poisson_event(rate, steps, gaussian=noise, histogram_gaussian=noise)
    return dpjax.Guarantee(event)


kinds = {"same batch": same_batch, "as if independent (wrong)": independent}
counts = [1, 10, 100, 1000] if FAST else [1, 3, 10, 30, 100, 300, 1000, 3000]
deltas = np.logspace(-8, -2, 7)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained", sharey=True)
for (name, make), style in zip(kinds.items(), ("o-", "s--"), strict=True):
    left.plot(counts, [make(steps).epsilon(1e-5) for steps in counts], style, label=name)
    right.plot(deltas, [make(1000).epsilon(delta) for delta in deltas], style, label=name)
    print(f"{name:26s} 1,000 steps: epsilon {make(1000).epsilon(1e-5):.2f} at delta 1e-5")
left.set(xlabel="steps", ylabel="epsilon", title="delta 1e-5", xscale="log", yscale="log")
right.set(xlabel="delta", title="1,000 steps", xscale="log")
left.legend()
plt.show()

# %% [markdown]
# ## 3. Calibration
#
# The other way round: the least noise that meets a budget. A hundred times as many steps ask for
# less than three times the noise in each. `calibrate_noise` takes any function from a noise
# multiplier to an event, so also the two releases of section 2 together.

# %%
budget = dpjax.Budget(epsilon=1.0, delta=1e-5)
for steps in (10, 100, 1000):
    z = dpjax.privacy.calibrate_gaussian(rate, steps, budget)
    print(f"{steps:5d} steps at rate {rate}: noise multiplier {z:.3f}")


def table_and_gradient(z):
    return dpjax.privacy.joint_poisson_event(rate, 1000, gaussian=z, histogram_gaussian=3 * z)


z = dpjax.privacy.calibrate_noise(table_and_gradient, budget)
joint = dpjax.Guarantee(table_and_gradient(z)).epsilon(1e-5)
print(f" 1000 steps with a table of noise {3 * z:.3f}: {z:.3f}, epsilon {joint:.4f}")

# %% [markdown]
# ## 4. Composition
#
# Guarantees compose with each other, and with any event of `dp_accounting`, so also with what
# `jax_privacy` reports. Releases of disjoint sets of records cost as much as the worst of them, and
# groups of k records have a guarantee of their own.

# %%
survey = dpjax.Guarantee(dpe.GaussianDpEvent(8.0))  # made elsewhere, on the same records
both = dpjax.privacy.compose_guarantees(guarantee, survey)
parts = dpjax.privacy.parallel_guarantee(guarantee, survey)
print(f"training {guarantee.epsilon(1e-5):.3f}, survey {survey.epsilon(1e-5):.3f} at delta 1e-5")
apart = guarantee.epsilon(1e-5) + survey.epsilon(1e-5)
print(f"together, same records      {both.epsilon(1e-5):.3f}, not {apart:.3f}")
print(f"on disjoint records         {parts.epsilon(1e-5):.3f}")
pair = dpjax.privacy.group_guarantee(survey, 2)
print(f"the survey for two records  {pair.epsilon(1e-5):.3f}")

# %% [markdown]
# ## 5. Is it true?
#
# An audit does not look at formulas. It runs a solver thousands of times on two data sets that
# differ in one record, learns what tells the runs apart, and says which epsilon that shows, at
# confidence 95%. A correct solver lies below its claim. Planted beside it is a solver whose noise
# is half of what it claims; there the audit must lie above.


# %%
@dpjax.core.register_dataclass
@dataclasses.dataclass(frozen=True)
class HalvedNoise(dpjax.solvers.DPSGD):
    """The bug: half the noise, and the same guarantee."""

    def make_noise(self):
        return dpjax.transforms.add_gaussian(0.5 * self.noise_multiplier * self.clip_norm)


audited = dpjax.problems.Risk(lambda w, record: w @ record, jnp.zeros(2))  # gradient: the record
records = jnp.zeros((4, 2)).at[0].set(1.0)  # one record among three that add nothing
runs, delta = (4000, 1e-2) if FAST else (20_000, 1e-2)


def make(kind, z):
    sampler = dpjax.sampling.FullBatch(1)
    return kind(sampler, noise_multiplier=z, clip_norm=1.0, learning_rate=1.0, batch_size=4.0)


def shown(kind, z, key):
    return dpjax.audit.lower_bound(
        make(kind, z), audited, records, records[1:], runs=runs, delta=delta, key=key
    )


noises = [1.0] if FAST else [0.7, 1.0, 1.5, 2.0, 3.0]
keys = jax.random.split(jax.random.key(0), 2 if FAST else 4)
figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
dense = np.geomspace(0.6, 3.4, 8 if FAST else 20)
claims = [make(dpjax.solvers.DPSGD, z).guarantee().epsilon(delta) for z in dense]
axes.plot(dense, claims, color="black", label="the claim of both")
for kind, style in ((dpjax.solvers.DPSGD, "o"), (HalvedNoise, "^")):
    for index, z in enumerate(noises):
        seen = np.array([shown(kind, z, key) for key in keys])
        claim = make(kind, z).guarantee().epsilon(delta)
        axes.plot(
            [z] * len(seen),
            seen,
            style,
            color="C0" if style == "o" else "C3",
            label=f"shown of {kind.__name__}" if index == 0 else None,
        )
        found = "BUG" if seen.min() > claim else "above by chance" if seen.max() > claim else "ok"
        print(f"{kind.__name__:12s} z {z}: claim {claim:.3f}, shown {seen.mean():.3f}, {found}")
axes.set(xlabel="noise multiplier", ylabel="epsilon at delta 0.01", xscale="log", yscale="log")
axes.set_xticks(noises, [str(z) for z in noises])
axes.set_yticks([0.5, 1, 2, 5], ["0.5", "1", "2", "5"])
axes.minorticks_off()
axes.set_title(f"Claims and lower bounds from {runs:,} runs")
axes.legend()
plt.show()

# %% [markdown]
# The wrong sum of section 2 is found in the same way: `mechanism_lower_bound` audits any function,
# here a single step that releases twice from one batch of at most one record.

# %%
rate, noise = 0.1, 0.5


def release_twice(data, key):
    batch_key, first, second = jax.random.split(key, 3)
    present = jax.random.bernoulli(batch_key, rate) * data  # one draw for both
    return present + noise * jnp.stack([jax.random.normal(first), jax.random.normal(second)])


seen = dpjax.audit.mechanism_lower_bound(
    release_twice,
    jnp.zeros(()),
    jnp.ones(()),
    runs=50_000 if FAST else 200_000,
    delta=delta,
    key=jax.random.key(1),
    score=jnp.sum,
)
one = dpe.PoissonSampledDpEvent(rate, dpe.GaussianDpEvent(noise))
wrong = dpjax.Guarantee(dpe.ComposedDpEvent([one, one])).epsilon(delta)
right = dpjax.privacy.joint_poisson_epsilon(
    rate, 1, delta, gaussian=noise, histogram_gaussian=noise
)
print(f"as if independent {wrong:.3f} < shown {seen:.3f} < same batch {right:.3f}")

# %% [markdown]
# A bound far below a claim shows nothing by itself: other neighbours, or more runs, may show more.
#
# ## 6. One budget for everything
#
# A data set sees many releases. `dpjax.Ledger` keeps one budget for all of them, in a file that
# survives crashes and that processes can share. First spend, then release. What comes next may
# depend on what came out so far.
#
# Here: histograms of the attributes of Adult, one after the other and round again, until the ledger
# refuses.

# %%
codes, domain = dpjax.datasets.adult_reduced()  # comes with the library
names = list(domain.attributes)
histogram = dpjax.Guarantee(dpe.GaussianDpEvent(10.0))  # one record changes one count by 1
noisy = dpjax.transforms.add_gaussian(10.0)


def release(column, key):
    counts = jnp.bincount(codes[:, column], length=domain.shape[column]).astype(jnp.float32)
    return noisy.update(counts, noisy.init(counts), key=key)[0]


folder = tempfile.TemporaryDirectory()
released, spent, odometer = [], [], []
with dpjax.Ledger(Path(folder.name) / "ledger.json", dpjax.Budget(2.0, 1e-6)) as ledger:
    try:
        while True:
            column = len(released) % len(names)
            ledger.spend(histogram, label=names[column])
            released.append(release(column, jax.random.fold_in(jax.random.key(2), len(released))))
            spent.append(ledger.spent())
            odometer.append(ledger.odometer())
    except dpjax.BudgetExceeded as refusal:
        print("refused:", refusal)
    print(ledger.table())

# %% [markdown]
# `spent` composes exactly what was spent, as if it had all been fixed in advance. `odometer` is an
# epsilon that holds wherever one decides to stop after looking at outputs; it moves in coarse
# steps. The ledger itself is a filter: it guarantees the budget, whatever was decided on the way,
# and keeps some room for that. With `adaptive=False` all is fixed beforehand, and more fits.

# %%
figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
number = np.arange(1, len(spent) + 1)
axes.plot(number, odometer, "s-", drawstyle="steps-post", label="odometer: stop when you like")
axes.plot(number, spent, "o-", label="spent: fixed in advance")
axes.axhline(2.0, color="grey", ls="--", label="the budget")
axes.set(xlabel="histograms released", ylabel="epsilon at delta 1e-6")
axes.set_title("One budget for all releases")
axes.legend()
plt.show()

fixed = dpjax.Ledger(dpjax.Budget(2.0, 1e-6), adaptive=False)  # in memory
most = fixed.largest(
    lambda k: dpjax.Guarantee(dpe.SelfComposedDpEvent(histogram.event, k)), 1, 1000
)
print(f"adaptive: {len(released)} histograms; all fixed beforehand: {most}")

# %% [markdown]
# Records in disjoint parts pay only for what looks at them. The part of a record must follow from
# that record alone. A run that is resumed from a checkpoint is charged once, by its name.

# %%
with dpjax.Ledger(dpjax.Budget(2.0, 1e-6)) as ledger:
    for part in ("north", "south"):
        ledger.spend(dpjax.Guarantee(dpe.GaussianDpEvent(4.0)), label="a model", part=part)
    ledger.spend(dpjax.Guarantee(dpe.GaussianDpEvent(8.0)), label="a table of all", run="table-1")
    ledger.spend(dpjax.Guarantee(dpe.GaussianDpEvent(8.0)), label="again", run="table-1")  # free
    print(ledger.table())
    print(f"the worst part: {ledger.spent():.3f}; pairs of records: {ledger.spent(group=2):.3f}")
folder.cleanup()

# %% [markdown]
# ## A choice of hyperparameters is a release too
#
# Trying k settings on private data and keeping the best costs k runs, about $\sqrt k$ in noise.
# `dpjax.tune` runs a *random, secret* number of them and keeps the best alone. That costs much
# less, and here is how much: the noise of one run, over that of a run without tuning.

# %%
total = dpjax.Budget(1.0, 1e-5)


def one_run(noise):
    return dpjax.Guarantee(dpe.GaussianDpEvent(noise))


alone = dpjax.privacy.calibrate_noise(dpe.GaussianDpEvent, total)
for trials in (4,) if FAST else (4, 16, 64):
    law = dpjax.privacy.RunsLaw(trials, 1.0, max_runs=4 * trials)
    factor = dpjax.privacy.calibrate_selection(one_run, law, total) / alone
    print(f"{trials:3} trials: noise x {factor:.2f}, by composition x {trials**0.5:.2f}")

# %% [markdown]
# Is it worth it? Below the features are a thousand times smaller than the default clip norm
# expects, and the default learns little. Where features are scaled by public bounds the defaults
# are the better buy: a candidate must gain more than that noise, and the records that are held out
# for scores, cost.

# %%
features = jax.random.normal(jax.random.key(3), (4_000, 5)) / 5**0.5
sides = jnp.sign(features @ jnp.array([1.0, -1.0, 0.5, 2.0, 0.0]))
small = {"x": features / 1000, "y": sides}
linear = dpjax.problems.Risk.linear(lambda margin, y: jax.nn.softplus(-margin * y), 5)


def accuracy(params):
    return float(jnp.mean((small["x"] @ params) * small["y"] > 0))


steps = 20 if FAST else 100
default = dpjax.solvers.DPSGD.for_budget(linear, 4_000, total, steps=steps)
plain = dpjax.solve(default, linear, small, key=jax.random.key(4))
tuned = dpjax.tune(
    {"clip_norm": [0.001, 0.01], "learning_rate": [100.0, 1000.0], "steps": [steps]},
    dpjax.solvers.DPSGD,
    linear,
    small,
    total,
    key=jax.random.key(5),
    num_records=4_000,
    trials=4 if FAST else 8,
)
print(tuned)
print(f"accuracy {accuracy(plain.params):.3f} by default, {accuracy(tuned.params):.3f} tuned")
print(f"epsilon {plain.guarantee.epsilon(1e-5):.3f} and {tuned.guarantee.epsilon(1e-5):.3f}")

# %% [markdown]
# ## Runs that survive being killed
#
# With the extra `checkpoint`, `dpjax.solve(..., checkpoint="run-1", every=100)` saves a long run,
# and the same call made again goes on from there, to the same bits. Another key, data set, problem
# or solver is refused: one noise on two data sets gives both away. The folder is as secret as the
# data and the key. Spend such a run with `run="run-1"`, so that resuming it is charged once.
#
# ## Where next
#
# The documentation's page on accounting has what a ledger does not cover, and that on pitfalls what
# else makes an epsilon wrong. In a checkout, `python -m dpjax.audit --entries tests.entries` audits
# every solver. The page on numerics says where floating point departs from theory. The fair
# training notebook uses the joint accounting of section 2.

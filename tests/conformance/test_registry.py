import sys
import types

import pytest

import dpjax.testing as dpt

ENTRIES = dpt.registry()


# near relatives of entries that always run, or long to compile
SLOW = {
    "DPSGD(shards)",
    "FrankWolfe(autodiff, microbatches)",
    "OnlineToNonconvex(zeroth)",
    "RateConstrainedSGDA(fixed, orthant)",
    "RateConstrainedSGDA(J = 0)",
    "DPSGD(Risk, full batch, uniform average)",
    "SaddleMirrorDescent(add or remove)",
    "OnlineToNonconvex(first, periods)",
    "chain(add_gaussian, add_laplace)",
    "restarted_sums(RestartNoise)",
    "clip_by_norm(l1, OuterProduct)",
    "RateConstrainedSGDA(laplace, soft, l1)",
    "RateConstrainedSGDA(ema)",
    "DPSGD(host, truncate)",
    "seeded(add_gaussian)",
    "clip_by_norm(l1)",
    "clip_by_norm(linf)",
    "clip_by_norm(linf, OuterProduct)",
    "SaddleMirrorDescent(SimplexRisk, fresh)",
    "AnytimeMirrorDescent(q = 1)",
    "correlated_noise(BinaryTree, l2)",
    "correlated_noise(BinaryTree, linf)",
    "OnlineToBatch(buffered)",
    "OnlineToBatch(tree, whole, microbatches)",
    "OnlineToBatch(SimplexRisk, exponentiated)",
    "OnlineToBatch(add or remove)",
    "DPFTRL(buffered, adam)",
    "OnlineToNonconvex(zeroth, periods)",
    "OnlineToNonconvex(as published)",
    "OnlineToNonconvex(add or remove)",
    "restarted_sums(SplitNoise)",
    "FrankWolfeRelease(queries)",
    "FrankWolfeRelease(alpha, last)",
    "FrankWolfeRelease(marginals, average, add or remove)",
    "MirrorDescentRelease(gumbel)",
    "MirrorDescentRelease(histogram-once)",
    "HistogramRelease(add or remove, no projection)",
    "GaussianFit(one noise)",
    "GaussianFit(dense)",
}


# what solvers give back, rather than solvers
_RECORDS = ("Info", "State", "Replay", "ReleasedDistribution")


# public functions of dpjax.transforms that are no transformations
HELPERS = {
    "clip_scale",
    "per_example_norm",
    "microbatched_sum",
    "draw_levels",
    "weighted_sum",
    "rounding_allowance",
    "fit_buffered_toeplitz",
    "from_jax_privacy",
    "is_every_step",
    "discrete_gaussian_shortfall",
    "rounded_gaussian_shortfall",
    "smooth_first_order",
    "smooth_zeroth_order",
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in ENTRIES],
)
def test_conforms(name):
    dpt.check_entry(ENTRIES[name])


def test_everything_public_is_registered():
    import dpjax

    names = " ".join(ENTRIES)
    for package in (dpjax.solvers, dpjax.sampling):
        public = [n for n in dir(package) if n[0].isupper() and not n.endswith(_RECORDS)]
        assert public
        for name in public:
            assert name in names, f"{name} has no entry in the registry"
    for name in dir(dpjax.transforms):
        value = getattr(dpjax.transforms, name)
        if isinstance(value, types.FunctionType) and name not in HELPERS:
            assert name in names, f"{name} has no entry in the registry"
    for name in ("chain", "seeded"):
        assert name in names


def test_register_refuses_what_is_taken_or_unknown():
    with pytest.raises(ValueError, match="add_gaussian"):
        dpt.register("add_gaussian", "transform", lambda: None)
    with pytest.raises(ValueError, match="gadget"):
        dpt.register("new", "gadget", lambda: None)
    with pytest.raises(ValueError, match="gadget"):
        dpt.entries("gadget")
    assert {entry.kind for entry in dpt.entries("solver")} == {"solver"}
    assert set(ENTRIES) >= SLOW


@pytest.mark.slow
def test_importing_dpjax_does_not_import_the_suite():
    import subprocess

    code = "import sys, dpjax; sys.exit('dpjax.testing' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

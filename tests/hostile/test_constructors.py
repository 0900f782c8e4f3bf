"""Every bad value of every numeric argument is refused, by an error that names the argument."""

import importlib
import inspect

import pytest

import dpjax

from .constructors import ROWS

_PACKAGES = (
    "core",
    "transforms",
    "papers.estimators",
    "papers.learners",
    "papers.mirror",
    "sampling",
    "geometry",
    "problems",
    "queries",
    "solvers",
    "datasets",
    "privacy",
    "audit",
    "testing",
)
# why a public name has no row in the table of constructors; a whole package by its own name
_NO_ROW = {
    "chain, seeded": "take transformations and a key: test_keys",
    "solve": "takes data: test_hostile_input, test_data",
    "check_between, check_choice, check_finite, check_int, check_key, check_mask": "checks",
    "check_nonnegative, check_positive, check_probability, check_rate": "checks",
    "check_nonnegative_scalar, check_positive_scalar": "checks",
    "check_delta, check_scalar, check_shape, check_type": "checks",
    "check_budget, check_fields, check_sampler, check_unstacked": "checks",
    "many_devices": "takes nothing",
    "is_traced, static_field, derived, register_dataclass, wide": "take no number",
    "PyTree, RelationLike, Transform, Aggregator": "types",
    "anytime_average, from_jax_privacy, is_every_step, mirrored, projected": "take no number",
    "clip_scale, per_example_norm, weighted_sum, OuterProduct": "take examples: test_fuzz",
    "rounding_allowance": "a formula: test_rounding",
    "PackedSigns, Multilevel, ZerothOrder": "made by functions in the table, or hold arrays",
    "RestartNoise": "takes a strategy",
    "entropic, product, log_normalize": "take no number but coordinates",
    "euclidean_box": "bounds may be infinite: tests/geometry",
    "cross_rate, from_masks": "slack is checked as that of demographic_parity",
    "duality_gap, matrix_game_gap, max_loss_gap": "diagnostics of points, not private",
    "quadratic_saddle_centres, quadratic_saddle_gap": "diagnostics of points, not private",
    "group_risk, max_loss": "build a Saddle from one: its row",
    "RateConstraints, RateConstrained": "hold arrays: tests/problems/test_constraint_kinds",
    "datasets": "files and names: tests/datasets",
    "testing": "serves tests: tests/testing",
    "audit": "reads data raw, promises no privacy: tests/audit",
    "calibrate_noise, max_steps, zcdp_budget": "take events and a Budget, which has a row",
    "effective_noise_multiplier, split_noise_multiplier": "test_fuzz",
    "ParallelGuarantee, compose_guarantees, parallel_guarantee": "take guarantees: tests/privacy",
    "GroupGuarantee, group_guarantee, Ledger, LedgerEntry": "take guarantees: tests/privacy",
    "PureZCDpEvent": "an event, checked by Guarantee: tests/privacy/test_pure",
    "joint_poisson_epsilon": "joint_poisson_event, composed",
    "Concat, Hierarchy, Workload": "take workloads: tests/queries",
    "Release": "given by release",
    "optional": "looks a member up",
    "tune, Tuned": "tests/api/test_tune",
    "RunsLaw, SelectionGuarantee, calibrate_selection": "tests/privacy/test_selection_law",
    "ObjectivePerturbationGuarantee, logistic_slopes": "tests/privacy/test_objective_perturbation",
    "calibrate_objective_perturbation": "tests/privacy/test_objective_perturbation",
    "plan_objective_perturbation, logistic_change": "tests/privacy/test_objective_perturbation",
    "LinearModel, linear_model_solver": "tests/solvers/test_linear_models",
    "polar_estimate, polar_interval": "take a function and draws: tests/transforms/test_polar",
    "MixtureGuarantee": "takes phases: tests/privacy/test_mixture",
    "solver_for_game": "tests/solvers/test_matrix_games_rule",
    "Domain": "takes numbers of codes or labels: tests/queries/test_domain",
    "Categorical, Column, Date, Numeric": "kinds of columns: tests/queries/test_raw_columns",
    "PersonLoss": "takes a loss",
    "Network": "takes a module: tests/interop",
    "TrainedModel": "a problem and parameters: tests/solvers/test_group_thresholds",
    "RowModel": "given by RowsFit: tests/queries/test_row_model",
    "Tree": "takes numbers of blocks: tests/queries/test_tree",
    "PersonRecords, private_edges": "take tables: tests/api/test_release_of_tables",
}
_EXPLAINED = {name for names in _NO_ROW for name in names.split(", ")}


def holds_values(thing):
    """Results, states and protocols, which nobody builds from numbers, and errors."""
    return inspect.isclass(thing) and (
        hasattr(thing, "_fields")
        or getattr(thing, "_is_protocol", False)
        or issubclass(thing, Exception)
    )


def test_every_public_name_has_a_row_or_a_reason():
    missing, public = [], {*_PACKAGES, *dir(dpjax)}
    for package in _PACKAGES:
        module = importlib.import_module(f"dpjax.{package}")
        public |= set(vars(module))
        for name, thing in vars(module).items():
            if name.startswith("_") or inspect.ismodule(thing) or package in _EXPLAINED:
                continue
            if name not in ROWS and name not in _EXPLAINED and not holds_values(thing):
                missing.append(f"{package}.{name}")
    assert not missing, f"no row in the table and no reason for {missing}"
    assert public >= _EXPLAINED, f"reasons for what there is not: {_EXPLAINED - public}"


@pytest.mark.parametrize("name", ROWS)
def test_bad_values_are_refused_by_name(name):
    row = ROWS[name]
    row.make(**row.given, **row.good)
    wrong = []
    for argument, (_, kind) in row.attacked.items():
        for bad in kind.bad():
            said = f"{argument}={str(bad)[:20]!r}"
            try:
                row.make(**{**row.given, **row.good, argument: bad})
            except (TypeError, ValueError) as error:
                if argument.rstrip("s") not in str(error):
                    wrong.append(f"{said}: {type(error).__name__}: {str(error)[:99]}")
            else:
                wrong.append(f"{said} accepted")
    assert not wrong, "\n".join(wrong)

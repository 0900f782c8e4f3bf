import inspect
import sys
import typing

import pytest

import dpjax
import dpjax.testing as dpt
from dpjax.core import Aggregator, Transform
from dpjax.testing._conformance_solvers import check_guarantee

ENTRIES = dpt.registry()


# what solvers give back, rather than solvers
_RECORDS = (
    "Info",
    "State",
    "Participation",
    "Replay",
    "ReleasedDistribution",
    "ReleasedRows",
    "Model",
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(e.name, marks=[pytest.mark.slow] if e.slow else []) for e in ENTRIES.values()],
)
def test_conforms(name):
    dpt.check_entry(ENTRIES[name])


@pytest.mark.parametrize("name", [e.name for e in dpt.entries("solver")])
def test_guarantees_are_finite_and_declare_what_may_fail(name):
    """The part of conformance that compiles nothing, of every entry."""
    case = ENTRIES[name].make()
    check_guarantee(case.build(case.values[0]), name)


def test_everything_public_is_registered():
    names = " ".join(ENTRIES)
    for package in (dpjax.solvers, dpjax.sampling):
        public = [n for n in dir(package) if n[0].isupper() and not n.endswith(_RECORDS)]
        assert public
        for name in public:
            assert name in names, f"{name} has no entry in the registry"
    argued = {entry.facts["arguments"].make for entry in dpt.entries("solver") if entry.facts}
    made = vars(dpjax.solvers) | vars(dpjax.papers)
    made = {v for v in made.values() if hasattr(v, "for_budget")}
    assert argued == made, "the first entry of each solver has arguments= and planned="
    public = {n: v for n, v in vars(dpjax.transforms).items() if n[0] != "_"}
    for name, value in public.items():
        given = typing.get_type_hints(value).get("return") if inspect.isfunction(value) else None
        if given in (Transform, Aggregator):
            assert name in names, f"{name} has no entry in the registry"
    told = "chain seeded multilevel maurey_sample mirror_step anytime_average TaperedPartition"
    for name in told.split():
        assert name in names


def test_register_refuses_what_is_taken_or_unknown():
    with pytest.raises(ValueError, match="add_gaussian"):
        dpt.register("add_gaussian", "transform", lambda: None)
    with pytest.raises(ValueError, match="gadget"):
        dpt.register("new", "gadget", lambda: None)
    with pytest.raises(ValueError, match="relative_of must be registered, got 'nobody'"):
        dpt.register("new", "transform", lambda: None, relative_of="nobody")
    with pytest.raises(ValueError, match="gadget"):
        dpt.entries("gadget")
    assert {entry.kind for entry in dpt.entries("solver")} == {"solver"}


@pytest.mark.slow
def test_importing_dpjax_does_not_import_the_suite():
    import subprocess

    code = "import sys, dpjax; sys.exit('dpjax.testing' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

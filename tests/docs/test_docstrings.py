"""Every public name says what it takes and raises and, where it matters, what it guarantees."""

import functools
import importlib.util
import inspect
import re
import runpy
from pathlib import Path

import jax
import pytest

import dpjax
from tests.docs import docstrings

ROOT = Path(__file__).resolve().parents[2]
symbols = runpy.run_path(str(ROOT / "scripts" / "site_symbols.py"))["symbols"]
PACKAGES = [
    *sorted(
        f"dpjax.{path.parent.name}"
        for path in (ROOT / "dpjax").glob("*/__init__.py")
        if symbols(f"dpjax.{path.parent.name}")
        and (path.parent.name != "sklearn" or importlib.util.find_spec("sklearn"))
    ),
    "dpjax.papers.estimators",
    "dpjax.papers.learners",
    "dpjax.papers.mirror",
]

# Of names that touch privacy by the rule below, those with nothing to guarantee.
EXEMPT = {
    "dpjax.core.check_key": "a check of an argument",
    "dpjax.privacy.Budget": "what is asked for",
    "dpjax.privacy.BudgetExceeded": "an error",
    "dpjax.privacy.UnsupportedEventError": "an error",
    "dpjax.privacy.resolve_relation": "looks a name up",
    "dpjax.privacy.group_guarantee": "makes a GroupGuarantee, which says it",
    "dpjax.privacy.parallel_guarantee": "makes a ParallelGuarantee, which says it",
    "dpjax.testing.largest_change": "its data are made up",
    "dpjax.transforms.clip_scale": "part of clip_by_norm, which says it",
    "dpjax.transforms.per_example_norm": "part of clip_by_norm, which says it",
    "dpjax.transforms.weighted_sum": "bounds nothing by itself",
    "dpjax.transforms.rounding_allowance": "a number",
    "dpjax.transforms.discrete_gaussian_shortfall": "a number for add_discrete_gaussian",
    "dpjax.transforms.rounded_gaussian_shortfall": "a number for add_rounded_gaussian",
    "dpjax.papers.estimators.draw_levels": "draws what is public",
    "dpjax.transforms.is_every_step": "asks a strategy",
    "dpjax.papers.estimators.Multilevel": "made by multilevel, which says it",
    "dpjax.transforms.ZerothOrder": "made by smooth_zeroth_order, which says it",
    "dpjax.transforms.OuterProduct": "a form of values",
    "dpjax.transforms.PackedSigns": "a form of values",
}
# What only a sum, a draw or an account of records has.
PRIVATE_METHODS = ("fit", "for_budget", "plan", "per_example_gradients", "sensitivity")


def public(package):
    """Its names and their objects, but for those that stand for a type."""
    module = importlib.import_module(package)
    found = [(s.name, getattr(module, s.name)) for s in symbols(package) if s.kind != "types"]
    assert found
    return found


def touches_privacy(package, name, obj):
    """Whether it aggregates, draws or releases, so that its docstring owes a Guarantee."""
    if f"{package}.{name}" in EXEMPT or (inspect.isclass(obj) and issubclass(obj, tuple)):
        return False
    if package in ("dpjax.privacy", "dpjax.transforms", "dpjax.papers.estimators"):
        return True
    if name in ("mirror_step", "anytime_average"):
        return True
    if inspect.isclass(obj):
        return any(callable(getattr(obj, method, None)) for method in PRIVATE_METHODS)
    return package == "dpjax.solvers" or "key" in inspect.signature(obj).parameters


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_described(package):
    missing = {
        name: found
        for name, obj in public(package)
        if (found := docstrings.complaints(obj, obj.__doc__, touches_privacy(package, name, obj)))
    }
    assert not missing


@pytest.mark.parametrize("package", PACKAGES)
def test_every_type_is_described(package):
    assert not [s.name for s in symbols(package) if not s.summary]


def test_exemptions_are_of_names_that_there_are():
    names = {f"{package}.{name}" for package in PACKAGES for name, _ in public(package)}
    assert set(EXEMPT) <= names


@functools.cache
def glossary():
    """The arguments of methods that docs/api/index.md describes once for all."""
    text = (ROOT / "docs" / "api" / "index.md").read_text(encoding="utf-8")
    return set(re.findall(r"^\| `(\w+)` \| ", text.partition("## Arguments")[2], re.MULTILINE))


@functools.cache
def protocols():
    """Public protocols, which describe the methods of all that have them."""
    found = {}
    for package in PACKAGES:
        for symbol in symbols(package):
            obj = getattr(importlib.import_module(package), symbol.name)
            for name, method in vars(obj).items() if getattr(obj, "_is_protocol", False) else ():
                if inspect.isfunction(method) and name[0] != "_":
                    found.setdefault(name, []).append(method.__doc__ or "")
    return found


def complaints_of_methods(obj, known, shared):
    """By method; those that construct are held to what functions are."""
    for name, function, constructs in docstrings.methods(obj):
        if constructs:
            yield name, docstrings.complaints(function, function.__doc__, False)
        else:
            about = "\n".join([obj.__doc__ or "", *shared.get(name, [])])
            yield name, docstrings.complaints_of_method(function, about, known)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_method_is_described(package):
    known, shared = glossary(), protocols()
    assert "mask" in known
    assert "next" in shared
    missing = {
        f"{name}.{method}": found
        for name, obj in public(package)
        for method, found in complaints_of_methods(obj, known, shared)
        if found
    }
    assert not missing


DESCRIBED = """
Does something to arrays.

Guarantee: sensitivity 1 under add-or-remove-one, enforced here.

Args:
  x: `[B, d]` (*secret*).
  steps: How many.

Returns:
  `[d]`.

Raises:
  TypeError: If `steps` is no integer.
  ValueError: If `steps < 1`, or `x` is empty.
"""


def subject(x: jax.Array, steps: int) -> jax.Array:
    """Stands for a public function."""
    _check_steps(steps)
    if not len(x):
        raise ValueError("x must not be empty")
    return x[0]


def _check_steps(steps):
    if not isinstance(steps, int):
        raise TypeError(f"steps must be an integer, got {steps}")


def test_a_full_description_passes():
    assert not docstrings.complaints(subject, DESCRIBED, True)


@pytest.mark.parametrize(
    ("taken", "complaint"),
    [
        (DESCRIBED, "no docstring"),
        ("Guarantee: sensitivity 1 under add-or-remove-one, enforced here.\n", "no Guarantee"),
        ("  steps: How many.\n", "steps is not in Args or Attributes"),
        ("`[B, d]` ", "x has no shape"),
        ("Returns:\n  `[d]`.\n", "no Returns"),
        ("  TypeError: If `steps` is no integer.\n", "TypeError is not in Raises"),
        ("  ValueError: If `steps < 1`, or `x` is empty.\n", "ValueError is not in Raises"),
    ],
)
def test_what_is_taken_away_is_missed(taken, complaint):
    assert taken in DESCRIBED
    assert docstrings.complaints(subject, DESCRIBED.replace(taken, ""), True) == [complaint]


@pytest.mark.parametrize("block", ["Guarantee", "Args", "Returns", "Raises", "Attributes"])
def test_real_descriptions_are_missed_too(block):
    real = dpjax.solvers.DPSGD if block == "Attributes" else dpjax.transforms.clip_by_norm
    doc = inspect.cleandoc(real.__doc__)
    without = re.sub(rf"^{block}\b.*?(?=\n\n|\Z)", "", doc, flags=re.MULTILINE | re.DOTALL)
    assert without != doc
    assert not docstrings.complaints(real, doc, True)
    assert docstrings.complaints(real, without, True)


@pytest.mark.parametrize(("kind", "other"), [("static", "data"), ("data", "static")])
def test_fields_are_what_they_are_said_to_be(kind, other):
    real = dpjax.solvers.DPSGD
    doc = real.__doc__.replace(f"({kind})", f"({other})")
    assert doc != real.__doc__
    assert f"is said to be {other}" in str(docstrings.complaints(real, doc, True))


def test_methods_are_missed_too():
    def step(self, batch, size):
        """One step on a batch."""

    complaints = docstrings.complaints_of_method
    assert complaints(step, "", set()) == ["size is not described"]
    assert not complaints(step, "`size` is that of a batch", set())
    assert not complaints(step, "", {"size"})
    step.__doc__ = ""
    assert complaints(step, "", {"batch", "size"}) == ["no docstring"]

"""`python -m dpjax`: what it prints and draws."""

import argparse
import contextlib
import importlib
import json

import pytest

import dpjax.__main__ as job
from dpjax.__main__ import main

FAST = ["--fast", "--steps", "10"]


@pytest.fixture(scope="module", autouse=True)
def _trained_once():
    """A point of the frontier is trained once for all tests: to show it they need no other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "_point", _once_a_slack(job._point))
        yield


def _once_a_slack(train):
    points = {}

    def point(train_set, test_set, slack, args, *, private):
        if (slack, private) not in points:
            points[slack, private] = train(train_set, test_set, slack, args, private=private)
        return points[slack, private]

    return point


def test_json_is_one_object_with_the_promised_fields(capsys):
    assert main([*FAST, "--json", "--plot", ""]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [run["slack"] for run in result["runs"]] == [0.02, 0.05]
    for run in result["runs"]:
        assert {"slack", "error", "disparity", "epsilon", "delta", "seconds"} <= run.keys()
        assert 0.99 < run["epsilon"] <= 1.0
        assert run["delta"] == 1e-5
        assert 0 < run["error"] < 0.5
        assert run["seconds"] > 0
    assert result["num_train"] + result["num_test"] == 48_842


def test_table_and_plot(capsys, tmp_path):
    path = tmp_path / "frontier.png"
    assert main([*FAST, "--slacks", "0.3", "0.05", "0.02", "--plot", str(path)]) == 0
    out = capsys.readouterr().out
    assert "sigma_eff" in out
    assert "not private" in out
    table, legend = out.partition("\n\nerror ")[::2]
    header = next(line for line in table.splitlines() if "slack |" in line)
    assert header.count("disparity") == 2
    rows = table.splitlines()[table.splitlines().index(header) :]
    assert [s for row in rows for s in row.split()[:1] if s[0] == "0"] == ["0.050", "0.020"]
    for column in ("disparity", "epsilon", "sigma_eff", "seconds"):
        assert column in header
        assert f"\n{column} " in legend
    assert "rate on the test records" in legend
    assert str(path) in out
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--seeds", "0"], "--seeds must be >= 1, got 0"),
        (["--steps", "0"], "--steps must be >= 1, got 0"),
        (["--plot", "/nowhere/a.png"], "--plot must name a file in an existing folder"),
    ],
)
def test_bad_arguments_end_before_the_run(argv, told, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(argv)
    assert told in capsys.readouterr().err.splitlines()[-1]


def test_a_budget_that_cannot_be_is_told_in_one_line(capsys):
    assert main(["--epsilon", "-1"]) == 2
    assert capsys.readouterr().err == "python -m dpjax: error: epsilon must be > 0, got -1.0\n"
    assert main(["--epsilon", "inf"]) == 2
    assert "epsilon must be finite, got inf" in capsys.readouterr().err
    assert main(["publish", "--help"]) == 2
    said = capsys.readouterr().err
    assert "unknown command 'publish': commands are fit, predict and release" in said


@pytest.mark.parametrize(
    "module",
    [
        "dpjax.__main__",
        "dpjax._fit_command",
        "dpjax._release_command",
        "dpjax.audit.__main__",
        "benchmarks.__main__",
    ],
)
def test_help_says_what_every_option_is_and_its_default(module):
    """Of the parser: each option has a help text, and a default that is a number is shown in it."""
    found = importlib.import_module(module)
    parsers = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            argparse.ArgumentParser, "parse_args", lambda self, argv: parsers.append(self)
        )
        with contextlib.suppress(AttributeError):  # of what was not parsed
            getattr(found, "_parse", lambda argv: found._parser().parse_args(argv))([])
    actions = [action for action in parsers[0]._actions if action.option_strings]
    assert actions
    for action in actions:
        assert action.help, action.option_strings
        if isinstance(action.default, int | float) and not isinstance(action.default, bool):
            shown = parsers[0]._get_formatter()._expand_help(action)
            assert "default" in shown, action.option_strings

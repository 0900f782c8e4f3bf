"""Results on saddle points and convex problems over vertices."""

from benchmarks import _runner, dimension, group_risk, vertex_reference
from benchmarks._text import text as _text


def blocks() -> list[str]:
    """Error against dimension, reference instances, a million features, groups."""
    reference, wide = _runner.load("vertex_reference"), _runner.load("dimension")
    million, groups = _runner.load("million_features"), _runner.load("group_risk")
    seconds = million["seconds"]
    powers = {
        name: dimension.growth(wide, *name)
        for name in (("game", "played"), ("regression", "anytime"), ("regression", "played"))
    }
    return [
        "## Saddle points, and convex problems over vertices",
        _text("""
            Methods over vertices pay for the logarithm of the dimension. Take them where the
            dimension is large against the number of records times epsilon, or where data can be
            read only once. In small dimensions plain methods win, by a lot. `MultilevelSaddle` and
            `output="fresh"` were never the best in these runs.
        """),
        _text(f"""
            Error against dimension d (study `dimension`) with {wide["num_records"]:,} records at
            epsilon {wide["epsilon"]:g}: duality gap of a matrix game and excess risk of least
            squares on an l1 ball (0.16 at 0). Blank: too slow or too large for two cores. From
            d = 100 to 10^6 the error grows as
            (log d)^{powers["game", "played"]:.2f} in the game, and in the regression as
            (log d)^{powers["regression", "anytime"]:.2f} (anytime) and
            (log d)^{powers["regression", "played"]:.2f} (played):
        """),
        dimension.readme(wide),
        "![dimension](../benchmarks/results/dimension.png)",
        _text(f"""
            A matrix game of {vertex_reference.GAME_DIM} strategies (duality gap at epsilon 1;
            study `vertex_reference`):
        """),
        vertex_reference.readme(reference, "game"),
        _text(f"""
            Least squares on an l1 ball in {vertex_reference.BALL_DIM} dimensions (excess risk):
        """),
        vertex_reference.readme(reference, "regression"),
        _text("Logistic regression on an l1 ball in 100 dimensions (excess risk):"),
        vertex_reference.readme(reference, "logistic"),
        _text(f"""
            Least squares with {million["dim"]:,} features and {million["num_records"]:,} records
            ({million["data_gigabytes"]:.1f} GB of signs; study `million_features`) takes
            {seconds["run"]:.0f} s on {million["environment"]["cores"]} cores,
            {million["ratio"]:.2f} times what reading the data once
            ({seconds["pass over the data"]:.1f} s) and updating and drawing alone
            ({seconds["updates alone"]:.1f} s) take; peak memory
            {million["peak_gigabytes"]:.1f} GB.
        """),
        _text("""
            The error of the worst of ten groups (sex and race) on Adult (study `group_risk`). No
            method is better than plain DP-SGD by twice the standard error of the difference. Even
            without privacy minimax training gains nothing that these test records could show
            ([why](methods/saddle_points.md#the-worst-of-several-groups)). Mirror descent-ascent
            over vertices of an l1 ball comes nowhere near:
        """),
        group_risk.readme(groups),
    ]

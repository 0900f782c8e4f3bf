"""Members that problems, solvers and samplers may lack, with the value that stands for each."""

from typing import Any

_DEFAULTS = {
    # of a problem
    "init": None,
    "check": None,
    "lipschitz": None,
    "smoothness": None,
    "radius": None,
    "factored": False,
    "domains": (),
    # of a solver
    "prologue": None,
    "diagnose": None,
    "redact": None,
    "ordered_batches": False,
    # of a sampler
    "shards": 1,
}


def optional(part: object, name: str) -> Any:
    """An optional member of a problem, a solver or a sampler.

    Of problems: `check`, and the public constants `lipschitz`, `smoothness`, `radius`, `factored`
    and `domains`; of solvers: `prologue`, `diagnose`, `redact` and `ordered_batches`; of samplers:
    `shards`.

    Args:
      part: What may have it.
      name: Its name.

    Returns:
      The member, or what stands for it where there is none: None, `False`, `()` or 1 shard.

    Raises:
      KeyError: If no part has an optional member of this name.

    Example:
      >>> import dpjax, jax.numpy as jnp
      >>> problem = dpjax.problems.Risk(lambda w, x: w @ x, jnp.zeros(2), lipschitz=1.0)
      >>> optional(problem, "lipschitz"), optional(problem, "radius"), optional(problem, "domains")
      (1.0, None, ())
    """
    return getattr(part, name, _DEFAULTS[name])

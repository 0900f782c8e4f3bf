"""Everybody takes part in every step."""

import dataclasses

import jax
import jax.numpy as jnp
from dp_accounting import dp_event as dpe

from dpjax.core import check_int, register_dataclass
from dpjax.sampling._participation import Participation, Planned, every_step


@register_dataclass
@dataclasses.dataclass(frozen=True)
class FullBatch(Planned):
    """All records, in order, in every step.

        batch_t = {0, ..., n - 1}

    Guarantee: no randomness and no amplification: the event of a step is the event of its
    mechanism, composed `steps` times. Under add-or-remove-one `dpjax.solve` pads data to a public
    number of rows, since that of the records would show in the last bits of sums and noise.

    Args:
      steps: number of batches (public, static).

    Raises:
      ValueError: `steps` < 1.
      TypeError: `steps` is not an integer.

    Example:
      >>> import jax
      >>> sampler = FullBatch(steps=3)
      >>> xs = sampler.plan(jax.random.key(0), 4)
      >>> indices, mask = sampler.batch(xs[0], 4)
      >>> indices is None, mask.tolist()
      (True, [True, True, True, True])
    """

    steps: int = dataclasses.field(metadata={"static": True})

    def __post_init__(self) -> None:
        check_int("steps", self.steps, minimum=1)

    @property
    def participation(self) -> Participation:
        """A record is in every step."""
        return every_step(self.steps)

    @property
    def slots(self) -> None:  # type: ignore[override]
        """None: a batch is all records."""

    def event(self, step: dpe.DpEvent) -> dpe.DpEvent:
        """The event of a step, composed `steps` times."""
        return dpe.SelfComposedDpEvent(step, int(self.steps))

    def participation_rate(self, num_records: int) -> float:
        """1: all records are in every batch."""
        return 1.0

    def plan(self, key: jax.Array, num_records: int) -> jax.Array:
        """What a scan iterates over: the step numbers, `[steps]` int32 (the key is not used)."""
        check_int("num_records", num_records, minimum=1)
        return jnp.arange(self.steps, dtype=jnp.int32)

    def batch(  # type: ignore[override]
        self, x: jax.Array, num_records: int
    ) -> tuple[None, jax.Array]:
        """Members of one step: `(None, mask)`, all records in order, mask `[num_records]` True."""
        check_int("num_records", num_records, minimum=1)
        return None, jnp.ones((num_records,), dtype=bool)

"""Which accountant composes which part of an event, and what to use instead of what none does."""

from dp_accounting import NeighboringRelation
from dp_accounting import dp_event as dpe
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from dpjax.privacy.accounting._structure import Parts, contains

_REPLACE_ONE = NeighboringRelation.REPLACE_ONE
_SAMPLED = (dpe.SampledWithoutReplacementDpEvent, dpe.SampledWithReplacementDpEvent)


class UnsupportedEventError(ValueError):
    """An event that no accountant can compose under the relation asked for."""


def route(parts: Parts, relation: NeighboringRelation) -> str:
    """The accountant for these parts (from `flatten`): "pld" where it takes them all, else "rdp".

    Raises:
        UnsupportedEventError: If neither takes them all; it names one part and a substitute.
    """
    checks = {"pld": _pld_supports, "rdp": _rdp_supports}
    refused = {
        name: [part for part, _ in parts if not supports(part, relation)]
        for name, supports in checks.items()
    }
    for name, events in refused.items():
        if not events:
            return name
    nowhere = [event for event in refused["pld"] if event in refused["rdp"]]
    if nowhere:
        raise UnsupportedEventError(
            f"no accountant composes {nowhere[0]} under {relation.name.lower()}; "
            f"nearest supported: {_substitute(nowhere[0], relation)}"
        )
    raise UnsupportedEventError(
        f"no single accountant composes both {refused['pld'][0]} (RDP only) and "
        f"{refused['rdp'][0]} (PLD only) under {relation.name.lower()}; nearest supported: "
        f"{_companion(refused['rdp'][0], relation)}"
    )


def batch_releases(event: dpe.DpEvent) -> tuple[tuple[float, ...], float] | None:
    """The (Laplace scales, Gaussian multiplier) of what is released from one Poisson batch.

    None for anything else; the multiplier is infinite where there is no Gaussian. The event is a
    part from `flatten`, so that several Gaussians are one already.
    """
    if not isinstance(event, dpe.PoissonSampledDpEvent):
        return None
    joint = isinstance(event.event, dpe.ComposedDpEvent)
    scales, multiplier = [], float("inf")
    for inner in event.event.events if joint else [event.event]:
        if isinstance(inner, dpe.LaplaceDpEvent):
            scales.append(inner.noise_multiplier)
        elif isinstance(inner, dpe.GaussianDpEvent):
            multiplier = inner.noise_multiplier
        else:
            return None
    return tuple(scales), multiplier


def is_joint(event: dpe.DpEvent) -> bool:
    """Whether several releases come from one Poisson batch, all Laplace or Gaussian."""
    return batch_releases(event) is not None and isinstance(event.event, dpe.ComposedDpEvent)


def _pld_supports(event: dpe.DpEvent, relation: NeighboringRelation) -> bool:
    if is_joint(event):
        return relation != _REPLACE_ONE
    return PLDAccountant(relation).supports(event)


def _rdp_supports(event: dpe.DpEvent, relation: NeighboringRelation) -> bool:
    if contains(event, dpe.LaplaceDpEvent) and relation == _REPLACE_ONE:
        return False  # the library takes it at the add-or-remove sensitivity: half of what is due
    return RdpAccountant(neighboring_relation=relation).supports(event)


def _companion(event: dpe.DpEvent, relation: NeighboringRelation) -> str:
    """What to put for a PLD-only part so that the RDP accountant takes it."""
    if isinstance(event, dpe.PoissonSampledDpEvent):
        if relation == _REPLACE_ONE:
            return "relation add_or_remove_one, or the releases without Poisson sampling"
        return "a Gaussian in place of the Laplace: PoissonSampledDpEvent(rate, GaussianDpEvent)"
    return "GaussianDpEvent(noise_multiplier) in its place"


def _substitute(event: dpe.DpEvent, relation: NeighboringRelation) -> str:
    if isinstance(event, _SAMPLED):
        rate = event.sample_size / event.source_dataset_size
        poisson = f"PoissonSampledDpEvent({rate:.6g}, GaussianDpEvent) with Poisson batches"
        if isinstance(event, _SAMPLED[0]) and relation != _REPLACE_ONE:
            return f"{poisson}, or relation replace_one with Gaussians inside"
        return poisson
    if relation == _REPLACE_ONE and contains(event, dpe.LaplaceDpEvent):
        return (
            "a Gaussian histogram (GaussianDpEvent), or the add_or_remove_one guarantee by group "
            "privacy: 2 epsilon, (1 + e^epsilon) delta"
        )
    if isinstance(event, dpe.PoissonSampledDpEvent):
        return (
            "PoissonSampledDpEvent(rate, ComposedDpEvent([LaplaceDpEvent, GaussianDpEvent])), the "
            "joint release of one batch (joint_poisson_event makes it)"
        )
    if isinstance(event, dpe.SingleEpochTreeAggregationDpEvent):
        return "relation replace_special, or GaussianDpEvent(noise_multiplier / sqrt(tree height))"
    if isinstance(event, dpe.RandomizedResponseDpEvent):
        return "relation replace_one or replace_special"
    if isinstance(event, dpe.DiscreteLaplaceDpEvent | dpe.MixtureOfGaussiansDpEvent):
        return "relation add_or_remove_one, or GaussianDpEvent"
    return (
        "GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent of these, or "
        "ZCDpEvent(eta**2 / 8) for a draw of bounded range eta"
    )

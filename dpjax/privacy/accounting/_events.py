"""Events of a histogram and a gradient released from one Poisson batch."""

from dp_accounting import dp_event as dpe

from dpjax.core._checks import check_int, check_nonnegative_scalar, check_probability, check_rate
from dpjax.privacy._guarantee import Guarantee
from dpjax.privacy.accounting._structure import effective_noise_multiplier


def joint_release(
    *, gaussian: float, laplace_scale: float | None = None, histogram_gaussian: float | None = None
) -> dpe.DpEvent:
    r"""The event of a gradient and a histogram released together from one batch.

    Gaussian histogram: Gaussian($(z_h^{-2} + z_g^{-2})^{-1/2}$), exact. Laplace histogram:
    [Laplace(scale), Gaussian($z_g$)]. It is what `Sampler.event` takes.

    Guarantee: that of `joint_poisson_event` at rate 1 and one step.

    Args:
        gaussian: Gradient noise standard deviation / clip norm, >= 0 (0: no privacy). *Public*.
        laplace_scale: Scale of the Laplace noise on each histogram cell. *Public*.
        histogram_gaussian: Standard deviation of the Gaussian noise on each histogram cell, in
            place of Laplace. *Public*. With neither there is no histogram.

    Returns:
        A `dp_accounting.DpEvent`.

    Raises:
        TypeError: If a value is no number.
        ValueError: If it is outside its bound, or both kinds of histogram are given.

    Example:
        >>> joint_release(gaussian=3.0, histogram_gaussian=4.0)
        GaussianDpEvent(noise_multiplier=2.4)
    """
    histogram = {"laplace_scale": laplace_scale, "histogram_gaussian": histogram_gaussian}
    given = {name: noise for name, noise in histogram.items() if noise is not None}
    for name, noise in ({"gaussian": gaussian} | given).items():
        check_nonnegative_scalar(name, noise)
    if len(given) == 2:
        raise ValueError(
            "give laplace_scale or histogram_gaussian, not both: got "
            f"{laplace_scale!r} and {histogram_gaussian!r}"
        )
    multipliers = [float(m) for m in (histogram_gaussian, gaussian) if m is not None]
    noise = dpe.GaussianDpEvent(effective_noise_multiplier(*multipliers))
    if laplace_scale is None:
        return noise
    return dpe.ComposedDpEvent([dpe.LaplaceDpEvent(float(laplace_scale)), noise])


def joint_poisson_event(
    rate: float,
    steps: int,
    *,
    gaussian: float,
    laplace_scale: float | None = None,
    histogram_gaussian: float | None = None,
    truncated_batch_size: int | None = None,
    num_records: int | None = None,
) -> dpe.DpEvent:
    r"""The event of `steps` steps, each releasing a gradient and a histogram of one Poisson batch.

    Gaussian histogram: Poisson(rate, Gaussian($(z_h^{-2} + z_g^{-2})^{-1/2}$)), exact. Laplace
    histogram: Poisson(rate, [Laplace(scale), Gaussian($z_g$)]). Two separately sampled events
    would describe two batches, and claim too small an epsilon.

    Guarantee: gradient sum of l2 sensitivity 1 (in units of the clip norm), histogram of l2
    sensitivity 1 (Gaussian) or l1 sensitivity 1 (Laplace), add or remove one record. Under
    replace_one (Gaussian only) the same event holds, its sensitivities doubled by the accountant.

    Args:
        rate: Poisson sampling rate in (0, 1]. *Public*.
        steps: Number of steps, >= 1. *Public*.
        gaussian: Gradient noise standard deviation / clip norm, >= 0 (0: no privacy). *Public*.
        laplace_scale: Scale of the Laplace noise on each histogram cell. *Public*.
        histogram_gaussian: Standard deviation of the Gaussian noise on each histogram cell, in
            place of Laplace. *Public*. With neither there is no histogram.
        truncated_batch_size: Largest batch that is processed, if a larger one is cut down to it
            *uniformly at random* (dropping the highest indices is not). *Public*.
        num_records: Exact number of records, for the truncation: for fewer the event claims too
            little, so use it under replace_one, where the number is public.

    Returns:
        A `dp_accounting.DpEvent` for `Guarantee`.

    Raises:
        ValueError: If a value is outside its bound, both kinds of histogram are given, or
            truncation is asked for with Laplace noise or without `num_records`.
        TypeError: If `rate` is not a number, or `steps` not an integer.

    Example:
        >>> joint_poisson_event(0.1, 10, gaussian=3.0, laplace_scale=2.0).event.event.events
        [LaplaceDpEvent(noise_multiplier=2.0), GaussianDpEvent(noise_multiplier=3.0)]

    Source: truncated batches: arXiv 2508.15089.

    Theory: docs/theory/privacy.md, P8.
    """
    check_rate("rate", rate)
    check_int("steps", steps, minimum=1)
    release = joint_release(
        gaussian=gaussian, laplace_scale=laplace_scale, histogram_gaussian=histogram_gaussian
    )
    step = dpe.PoissonSampledDpEvent(float(rate), release)
    if truncated_batch_size is not None or num_records is not None:
        if laplace_scale is not None:
            raise ValueError(
                f"truncated_batch_size={truncated_batch_size} has no accountant with "
                f"laplace_scale={laplace_scale!r}: use histogram_gaussian, or the probability of "
                "a cut as the guarantee's failure_probability"
            )
        if truncated_batch_size is None or num_records is None:
            raise ValueError(
                "truncated_batch_size and num_records go together, got "
                f"truncated_batch_size={truncated_batch_size} and num_records={num_records}"
            )
        check_int("truncated_batch_size", truncated_batch_size, minimum=1)
        check_int("num_records", num_records, minimum=1)
        step = dpe.TruncatedSubsampledGaussianDpEvent(
            int(num_records), float(rate), int(truncated_batch_size), release.noise_multiplier
        )
    return dpe.SelfComposedDpEvent(step, int(steps))


def joint_poisson_epsilon(
    rate: float,
    steps: int,
    delta: float,
    *,
    gaussian: float,
    laplace_scale: float | None = None,
    histogram_gaussian: float | None = None,
) -> float:
    r"""Epsilon of `steps` steps, each releasing a gradient and a histogram of one Poisson batch.

    $\epsilon(\delta)$ of `joint_poisson_event` with the same arguments.

    Guarantee: an upper bound, add or remove one record; see `joint_poisson_event`.

    Args:
        rate: Poisson sampling rate in (0, 1]. *Public*.
        steps: Number of steps, >= 1. *Public*.
        delta: In (0, 1). *Public*.
        gaussian: Gradient noise standard deviation / clip norm, >= 0. *Public*.
        laplace_scale: Scale of the Laplace noise on each histogram cell. *Public*.
        histogram_gaussian: Standard deviation of the Gaussian noise on each cell instead. *Public*.

    Returns:
        Epsilon; infinity where a noise is 0.

    Raises:
        ValueError: If a value is outside its bound, or both kinds of histogram are given.
        TypeError: If `rate` or `delta` is not a number, or `steps` not an integer.

    Example:
        >>> round(joint_poisson_epsilon(0.02, 1000, 1e-5, gaussian=1.0, histogram_gaussian=1.0), 2)
        8.83
    """
    check_probability("delta", delta)
    event = joint_poisson_event(
        rate,
        steps,
        gaussian=gaussian,
        laplace_scale=laplace_scale,
        histogram_gaussian=histogram_gaussian,
    )
    return Guarantee(event).epsilon(delta)

"""Noise multipliers of several Gaussian releases of the same records."""

import math

from dpjax.core._checks import check_nonnegative, check_probability


def effective_noise_multiplier(*multipliers: float) -> float:
    r"""The one Gaussian equal to several Gaussians on the same records.

    $z = (\sum_i z_i^{-2})^{-1/2}$

    Guarantee: exact, under any relation: stacking the releases, each divided by its noise,
    gives one Gaussian release of sensitivity $(\sum_i z_i^{-2})^{1/2}$.

    Args:
        multipliers: Noise multipliers (noise standard deviation / l2 sensitivity), each >= 0. One
            that is 0 gives 0 (no privacy); infinity stands for nothing released. *Public*.

    Returns:
        The effective noise multiplier.

    Raises:
        ValueError: If none is given, or one is negative or NaN.

    Example:
        >>> effective_noise_multiplier(1.0, 1.0)
        0.7071067811865475
    """
    if not multipliers:
        raise ValueError("effective_noise_multiplier needs at least 1 multiplier, got 0")
    for value in map(float, multipliers):
        if not value >= 0:
            raise ValueError(f"noise multiplier must be >= 0, got {value!r}")
    least = float(min(multipliers))
    if least == 0 or math.isinf(least):
        return least
    return least / math.sqrt(math.fsum((least / value) ** 2 for value in map(float, multipliers)))


def split_noise_multiplier(effective: float, histogram_share: float) -> tuple[float, float]:
    r"""The noise multipliers of two Gaussian releases of one batch that together cost `effective`.

    $z_h = z / \sqrt{\phi}, \quad z_g = z / \sqrt{1 - \phi}$

    Guarantee: $(z_h^{-2} + z_g^{-2})^{-1/2} = z$, exactly the cost of one release at z.

    Args:
        effective: Effective noise multiplier z >= 0. *Public*.
        histogram_share: Share phi in (0, 1) of the precision that the histogram gets. *Public*.

    Returns:
        The multipliers of the histogram and of the gradient.

    Raises:
        ValueError: If a value is outside its bound.
        TypeError: If one is no number.

    Example:
        >>> split_noise_multiplier(3.0, 0.5) == (3.0 * 2**0.5, 3.0 * 2**0.5)
        True
    """
    check_nonnegative("effective", effective)
    check_probability("histogram_share", histogram_share)
    histogram = effective / math.sqrt(histogram_share)
    gradient = effective / math.sqrt(1 - histogram_share)
    if effective > 0:  # rounding must not cost privacy
        shortfall = effective / effective_noise_multiplier(histogram, gradient)
        if shortfall > 1:
            return histogram * shortfall, gradient * shortfall
    return histogram, gradient

"""Theorem 1's two bounds on how far the agents' subnetworks are apart, and the form of the second that is true.

With ε = ε_1 + ε_2 and α_l <= ‖f_1(x) - f_2(x)‖_max <= α_u for every x, the triangle inequality gives

    sup ‖g_m1 - g_m2‖_max <= ε + α_u                                                (25)
    inf ‖g_m1 - g_m2‖_max >= max(0, α_l - ε)                                        (26, the valid form)

The paper prints min{|ε - α_l|, |ε - α_u|, |α_l|} for the latter. Where ε <= α_l that is the same number. Where
ε > α_l it claims a distance that nothing guarantees; `counterexample.py` builds a case in which it fails.
"""

from __future__ import annotations

from dataclasses import dataclass

SLACK = 1e-12  # rounding: the bounds hold exactly for real numbers


@dataclass(frozen=True)
class Distances:
    """What the theorem speaks of, over one set of inputs 𝒳."""

    where: str
    inputs: int
    eps1: float  # sup ‖f_1 - g_m1‖_max     (23)
    eps2: float  # sup ‖f_2 - g_m2‖_max     (24)
    alpha_l: float  # inf ‖f_1 - f_2‖_max   Assumption 3
    alpha_u: float  # sup ‖f_1 - f_2‖_max
    inf: float  # inf ‖g_m1 - g_m2‖_max
    sup: float  # sup ‖g_m1 - g_m2‖_max

    @property
    def eps(self) -> float:
        return self.eps1 + self.eps2

    @property
    def upper(self) -> float:
        """Equation (25)."""
        return self.eps + self.alpha_u

    @property
    def lower(self) -> float:
        """Equation (26) in the form the triangle inequality gives."""
        return max(0.0, self.alpha_l - self.eps)

    @property
    def lower_printed(self) -> float:
        """Equation (26) as printed; implied only where `printed_is_implied`."""
        return min(abs(self.eps - self.alpha_l), abs(self.eps - self.alpha_u), abs(self.alpha_l))

    @property
    def printed_is_implied(self) -> bool:
        return self.eps <= self.alpha_l

    @property
    def upper_holds(self) -> bool:
        return self.sup <= self.upper + SLACK

    @property
    def lower_holds(self) -> bool:
        return self.inf >= self.lower - SLACK

    @property
    def printed_holds(self) -> bool:
        return self.inf >= self.lower_printed - SLACK

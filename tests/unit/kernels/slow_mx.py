"""MX formats over exact fractions, one number at a time: the second opinion of the format tests.

Shares nothing with the code under test: codes are read field by field, and encoding searches all codes for the nearest.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property


@dataclass(frozen=True)
class Slow:
    """An element type as its bit fields."""

    exponent_bits: int
    mantissa_bits: int
    bias: int
    codes_lost_to_nan: int
    amax_floor: Fraction

    def magnitude(self, code: int) -> Fraction:
        """Value of a magnitude code (sign bit clear)."""
        field, fraction = divmod(code, 2**self.mantissa_bits)
        if field == 0:
            return Fraction(fraction, 2**self.mantissa_bits) * _power(1 - self.bias)
        return (1 + Fraction(fraction, 2**self.mantissa_bits)) * _power(field - self.bias)

    @property
    def finite(self) -> range:
        """Magnitude codes that are numbers."""
        return range(2 ** (self.exponent_bits + self.mantissa_bits) - self.codes_lost_to_nan)

    @cached_property
    def magnitudes(self) -> list[Fraction]:
        """Value of every finite code, in order."""
        return [self.magnitude(code) for code in self.finite]

    @property
    def largest(self) -> Fraction:
        """Largest finite magnitude."""
        return self.magnitudes[-1]

    def nearest(self, magnitude: Fraction) -> int:
        """Magnitude code nearest to a magnitude, an even code when two are equally near."""
        return min(self.finite, key=lambda code: (abs(self.magnitudes[code] - magnitude), code % 2))

    def scale_exponent(self, amax: Fraction) -> int:
        """Smallest e in -127..127 such that amax <= largest * 2**e."""
        wanted = max(amax, self.amax_floor)
        return next((e for e in range(-127, 127) if wanted <= self.largest * _power(e)), 127)


def _power(exponent: int) -> Fraction:
    return Fraction(2) ** exponent


E4M3 = Slow(exponent_bits=4, mantissa_bits=3, bias=7, codes_lost_to_nan=1, amax_floor=Fraction(1e-4))
E2M1 = Slow(exponent_bits=2, mantissa_bits=1, bias=1, codes_lost_to_nan=0, amax_floor=6 * _power(-126))

"""Functions for kernels that LLVM can compute for many values at once, which it cannot do with those of the C library.

Written with additions, multiplications and divisions of float32 only, each rounded by itself: a value's bits are the same
wherever it stands.
"""

from __future__ import annotations

import numpy as np

from aphrodited.layers.kernels import compile_kernel

_LOWEST, _HIGHEST = np.float32(-87.0), np.float32(88.0)  # exponents of float32 numbers with all their digits
_LOG2_E = np.float32(1.44269504)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_E2, _E3, _E4, _E5, _E6, _E7 = (
    np.float32(c)
    for c in (5.0000001201e-1, 1.6666665459e-1, 4.1665795894e-2, 8.3334519073e-3, 1.3981999507e-3, 1.9875691500e-4)
)
_ONE, _HALF = np.float32(1.0), np.float32(0.5)
_EXPONENT_BIAS, _MANTISSA_BITS = np.int32(127), np.int32(23)


def _exponential(x: np.float32) -> np.float32:
    """e^x to 2 units of the last place, for x cut to the range in which that is a number; of NaN anything.

    Source of the coefficients: Cephes, expf.c, https://www.netlib.org/cephes/
    """
    x = min(max(x, _LOWEST), _HIGHEST)
    power = np.float32(np.rint(x * _LOG2_E))
    rest = (x - power * _LN2_HIGH) - power * _LN2_LOW
    series = ((((_E7 * rest + _E6) * rest + _E5) * rest + _E4) * rest + _E3) * rest + _E2
    bits = np.int32((np.int32(power) + _EXPONENT_BIAS) << _MANTISSA_BITS)
    return np.float32((series * rest * rest + rest + _ONE) * bits.view(np.float32))


exponential = compile_kernel(_exponential, set())


def _silu(x: np.float32) -> np.float32:
    return np.float32(x / (_ONE + exponential(-x)))


_T0, _T1, _T2, _T3, _T4, _T5 = (
    np.float32(c) for c in (0.3275911, 0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
)
_ROOT_HALF = np.float32(0.70710678)


def _gelu(x: np.float32) -> np.float32:
    """x times the share of a normal distribution below x, to 2e-7.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
    """
    z = abs(x) * _ROOT_HALF
    t = _ONE / (_ONE + _T0 * z)
    series = ((((_T5 * t + _T4) * t + _T3) * t + _T2) * t + _T1) * t
    tail = _HALF * series * exponential(-z * z)
    return np.float32(x * (_ONE - tail if x > 0 else tail))


_G1, _G3 = np.float32(2.0 * 0.79788456), np.float32(2.0 * 0.79788456 * 0.044715)


def _gelu_tanh(x: np.float32) -> np.float32:
    """x (1 + tanh(u)) / 2 for u = sqrt(2 / pi) (x + 0.044715 x³)."""
    return np.float32(x / (_ONE + exponential(-(_G1 * x + _G3 * x * x * x))))


silu = compile_kernel(_silu, set())
gelu = compile_kernel(_gelu, set())
gelu_tanh = compile_kernel(_gelu_tanh, set())

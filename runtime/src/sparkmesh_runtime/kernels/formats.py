"""MXFP8 and MXFP4: the block-scaled number formats of the checkpoint, encoded and decoded exactly.

Sources: "OCP Microscaling Formats (MX) Specification v1.0" (element types in section 5.3, scale type in 5.4, block
size in table 1 of 5.2, conversion in 6.3) and "OCP 8-bit Floating Point Specification (OFP8) v1.0" for saturation.

Everything is computed in float64, which holds every input and every power of two met here exactly, so the only
rounding is the one the format asks for: to nearest, ties to the even code.

Rules where the specifications leave a choice:

* A value beyond the largest code saturates to it, infinities included (OFP8 saturating mode). -0.0 keeps its sign.
* NaN becomes the NaN code of E4M3 and keeps its sign bit; E2M1 has no NaN, so it is refused.
* A block with a NaN or an infinity has no meaningful scale, so the block encoders refuse it.
* Decoding a block whose scale byte is NaN gives NaN in all its elements (MX section 5.1).
* The scale is the smallest power of two with which the block's largest magnitude does not saturate. Section 6.3 of the
  MX specification rounds the exponent down instead and saturates; the checkpoint's kernels round it up.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

Bytes = NDArray[np.uint8]
Doubles = NDArray[np.float64]

BLOCK: Final = 32
"""Elements that share one scale (MX v1.0 table 1, all MXFP8 and MXFP4 formats)."""

E8M0_BIAS: Final = 127
"""A scale byte b stands for 2**(b - 127) (MX v1.0 section 5.4.1)."""

E8M0_NAN: Final = 0xFF
"""The one scale byte that is not a power of two (MX v1.0 section 5.4.1)."""


@dataclass(frozen=True)
class ElementFormat:
    """A sign-magnitude element type. ``largest`` and ``amax_floor`` are in the units of the values."""

    name: str
    mantissa_bits: int
    min_exponent: int
    """Exponent of the smallest normal number; subnormals share it."""
    largest_code: int
    """Magnitude code of the largest finite value."""
    sign_bit: int
    largest: float
    nan_code: int | None
    amax_floor: float
    """A block is scaled as if its largest magnitude were at least this."""


E4M3: Final = ElementFormat(
    name="E4M3", mantissa_bits=3, min_exponent=-6, largest_code=0x7E, sign_bit=0x80, largest=448.0, nan_code=0x7F,
    amax_floor=1e-4,
)  # fmt: skip
"""MX v1.0 section 5.3.1: bias 7, largest 448, smallest normal 2**-6, no infinity, NaN is S.1111.111.

The floor of 1e-4 is the one of the checkpoint's activation quantiser (DeepSeek TileKernels, per-token cast).
"""

E2M1: Final = ElementFormat(
    name="E2M1", mantissa_bits=1, min_exponent=0, largest_code=0x7, sign_bit=0x8, largest=6.0, nan_code=None,
    amax_floor=6.0 * 2.0**-126,
)  # fmt: skip
"""MX v1.0 section 5.3.3: bias 1, magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6, neither infinity nor NaN.

The floor of 6 * 2**-126 (same source as E4M3's) keeps the scale a normal float32.
"""


@dataclass(frozen=True)
class Blocks:
    """A block-scaled array: values[..., k] = element[..., k] * 2**(scales[..., k // 32] - 127)."""

    codes: Bytes
    """MXFP8: (..., K) one code a byte. MXFP4: (..., K/2) two codes a byte, even k in the low nibble."""
    scales: Bytes
    """(..., K/32) E8M0 bytes."""


def encode_elements(values: ArrayLike, fmt: ElementFormat) -> Bytes:
    """Round each value (any shape) to the nearest code of ``fmt``, ties to even, saturating; one code a byte.

    Raises ValueError for a NaN when the format has none.
    """
    exact = np.asarray(values, dtype=np.float64)
    nan = np.isnan(exact)
    if fmt.nan_code is None and nan.any():
        raise ValueError(
            f"{fmt.name}: value at {_first(nan)} is NaN, which {fmt.name} cannot hold: give numbers, or use E4M3"
        )
    magnitude = np.minimum(np.abs(np.where(nan, 0.0, exact)), fmt.largest)
    exponent = np.maximum(np.frexp(magnitude)[1] - 1, fmt.min_exponent)
    exponent = np.where(magnitude > 0, exponent, fmt.min_exponent)
    steps = np.rint(np.ldexp(magnitude, fmt.mantissa_bits - exponent)).astype(np.int64)
    # Codes are consecutive across binades, so a round-up to the next power of two carries into the exponent by itself.
    code = ((exponent - fmt.min_exponent) << fmt.mantissa_bits) + steps
    if fmt.nan_code is not None:
        code = np.where(nan, fmt.nan_code, code)
    signed: Bytes = np.where(np.signbit(exact), code | fmt.sign_bit, code).astype(np.uint8)
    return signed


def decode_elements(codes: ArrayLike, fmt: ElementFormat) -> Doubles:
    """The value of each code (any shape). Raises ValueError for a number that is not a code of ``fmt``."""
    code = _as_bytes(codes, fmt.name).astype(np.int64)
    too_big = code >= 2 * fmt.sign_bit
    if too_big.any():
        at = _first(too_big)
        raise ValueError(
            f"{fmt.name}: code at {at} is {int(code[at])}, wanted 0..{2 * fmt.sign_bit - 1}: unpack the bytes first"
        )
    magnitude = code & (fmt.sign_bit - 1)
    field = magnitude >> fmt.mantissa_bits
    fraction = magnitude & ((1 << fmt.mantissa_bits) - 1)
    significand = np.where(field > 0, fraction + (1 << fmt.mantissa_bits), fraction)
    exponent = np.maximum(field, 1) - 1 + fmt.min_exponent - fmt.mantissa_bits
    value = np.ldexp(significand.astype(np.float64), exponent)
    if fmt.nan_code is not None:
        value = np.where(magnitude == fmt.nan_code, np.nan, value)
    signed: Doubles = np.where(code & fmt.sign_bit, -value, value)
    return signed


def select_scale(amax: ArrayLike, fmt: ElementFormat) -> Bytes:
    """E8M0 byte for blocks whose largest magnitudes are ``amax`` (finite, >= 0, any shape).

    The smallest e with max(amax, fmt.amax_floor) <= fmt.largest * 2**e, as byte e + 127. Magnitudes past float32 end at
    byte 254 and then saturate. Raises ValueError for a negative or non-finite amax.
    """
    exact = np.asarray(amax, dtype=np.float64)
    wrong = ~(np.isfinite(exact) & (exact >= 0))
    if wrong.any():
        at = _first(wrong)
        raise ValueError(f"scale: amax at {at} is {exact[at]}, wanted a finite number >= 0: look for NaN or overflow")
    mantissa, exponent = np.frexp(np.maximum(exact, fmt.amax_floor))
    limit, limit_exponent = np.frexp(fmt.largest)
    needed = exponent - limit_exponent + (mantissa > limit)
    byte: Bytes = np.minimum(needed + E8M0_BIAS, E8M0_NAN - 1).astype(np.uint8)
    return byte


def decode_scale(scales: ArrayLike) -> Doubles:
    """2**(b - 127) for each E8M0 byte, NaN for byte 255."""
    byte = _as_bytes(scales, "E8M0").astype(np.int64)
    factor: Doubles = np.where(byte == E8M0_NAN, np.nan, np.ldexp(1.0, byte - E8M0_BIAS))
    return factor


def pack_nibbles(codes: ArrayLike) -> Bytes:
    """(..., K) E2M1 codes to (..., K/2) bytes: even k in the low nibble. Raises ValueError for odd K or a code > 15."""
    code = _as_bytes(codes, "E2M1")
    if code.ndim == 0 or code.shape[-1] % 2:
        raise ValueError(f"E2M1: shape {code.shape} cannot be packed, wanted an even last dimension: pad K")
    if (code > 0xF).any():
        at = _first(code > 0xF)
        raise ValueError(f"E2M1: code at {at} is {int(code[at])}, wanted 0..15: these bytes are packed already")
    packed: Bytes = code[..., 0::2] | (code[..., 1::2] << np.uint8(4))
    return packed


def unpack_nibbles(packed: ArrayLike) -> Bytes:
    """(..., K/2) bytes to (..., K) E2M1 codes; inverse of :func:`pack_nibbles`."""
    byte = _as_bytes(packed, "E2M1")
    if byte.ndim == 0:
        raise ValueError("E2M1: a single byte has no last dimension to unpack: give an array")
    return np.stack((byte & 0xF, byte >> 4), axis=-1).reshape(*byte.shape[:-1], 2 * byte.shape[-1])


def encode_mxfp8(values: ArrayLike) -> Blocks:
    """(..., K) finite values, K a multiple of 32, to E4M3 codes (..., K) and scales (..., K/32).

    Raises ValueError for another K or for a value that is not finite.
    """
    codes, scales = _encode_blocks(values, E4M3)
    return Blocks(codes, scales)


def decode_mxfp8(blocks: Blocks) -> Doubles:
    """(..., K) values, exact in float64. Raises ValueError when codes and scales do not fit together."""
    return _decode_blocks(_as_bytes(blocks.codes, "MXFP8"), blocks.scales, E4M3)


def encode_mxfp4(values: ArrayLike) -> Blocks:
    """(..., K) finite values, K a multiple of 32, to packed E2M1 codes (..., K/2) and scales (..., K/32).

    Raises ValueError for another K or for a value that is not finite.
    """
    codes, scales = _encode_blocks(values, E2M1)
    return Blocks(pack_nibbles(codes), scales)


def decode_mxfp4(blocks: Blocks) -> Doubles:
    """(..., K) values, exact in float64. Raises ValueError when codes and scales do not fit together."""
    return _decode_blocks(unpack_nibbles(blocks.codes), blocks.scales, E2M1)


def _encode_blocks(values: ArrayLike, fmt: ElementFormat) -> tuple[Bytes, Bytes]:
    exact = np.asarray(values, dtype=np.float64)
    if exact.ndim == 0 or exact.shape[-1] % BLOCK:
        raise ValueError(f"MX{fmt.name}: shape {exact.shape}, wanted a last dimension that {BLOCK} divides: pad K")
    strange = ~np.isfinite(exact)
    if strange.any():
        at = _first(strange)
        raise ValueError(f"MX{fmt.name}: value at {at} is {exact[at]}, wanted finite numbers: look for it upstream")
    grouped = exact.reshape(*exact.shape[:-1], exact.shape[-1] // BLOCK, BLOCK)
    scales = select_scale(np.abs(grouped).max(axis=-1), fmt)
    scaled = np.ldexp(grouped, E8M0_BIAS - scales.astype(np.int64)[..., np.newaxis])
    return encode_elements(scaled, fmt).reshape(exact.shape), scales


def _decode_blocks(codes: Bytes, scales: ArrayLike, fmt: ElementFormat) -> Doubles:
    factor = decode_scale(scales)
    wanted = (*codes.shape[:-1], codes.shape[-1] // BLOCK) if codes.ndim else ()
    if codes.ndim == 0 or codes.shape[-1] % BLOCK or factor.shape != wanted:
        raise ValueError(
            f"MX{fmt.name}: codes {codes.shape} and scales {factor.shape} do not fit, "
            f"wanted (..., K) and (..., K/{BLOCK}): check which tensor the scales belong to"
        )
    return decode_elements(codes, fmt) * np.repeat(factor, BLOCK, axis=-1)


def _as_bytes(numbers: ArrayLike, name: str) -> Bytes:
    array: NDArray[Any] = np.asarray(numbers)
    if array.dtype == np.uint8:
        return array
    if not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"{name}: codes have type {array.dtype}, wanted uint8: view the raw bytes, do not convert")
    outside = (array < 0) | (array > 0xFF)
    if outside.any():
        at = _first(outside)
        raise ValueError(f"{name}: code at {at} is {int(array[at])}, wanted 0..255: view the raw bytes as uint8")
    return array.astype(np.uint8)


def _first(mask: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(mask)[0])

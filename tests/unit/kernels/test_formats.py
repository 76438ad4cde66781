"""The MX formats agree bit for bit with exact fractions, and refuse what they cannot hold."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sparkmesh_runtime.kernels import formats as fast

from tests.unit.kernels import slow_mx

PAIRS = [pytest.param(fast.E4M3, slow_mx.E4M3, id="E4M3"), pytest.param(fast.E2M1, slow_mx.E2M1, id="E2M1")]
FINITE64 = st.floats(allow_nan=False, allow_infinity=False, width=64)
FINITE32 = st.floats(allow_nan=False, allow_infinity=False, width=32)
# Most random floats saturate or vanish; these land where the codes are.
NEAR = st.builds(lambda m, e: m * 2.0**e, st.integers(-(2**12), 2**12), st.integers(-22, 2))


def _slow_code(value: float, fmt: fast.ElementFormat, slow: slow_mx.Slow) -> int:
    sign = fmt.sign_bit if np.signbit(value) else 0
    return slow.nearest(abs(Fraction(value))) | sign


@pytest.mark.parametrize(("fmt", "slow"), PAIRS)
def test_every_code_decodes_to_its_fields_and_encodes_back(fmt: fast.ElementFormat, slow: slow_mx.Slow) -> None:
    codes = np.arange(2 * fmt.sign_bit)
    values = fast.decode_elements(codes, fmt)
    for code, value in zip(codes.tolist(), values.tolist(), strict=True):
        magnitude = code & (fmt.sign_bit - 1)
        if magnitude in slow.finite:
            assert Fraction(value) == slow.magnitude(magnitude) * (-1 if code & fmt.sign_bit else 1)
            assert bool(np.signbit(value)) == bool(code & fmt.sign_bit)
        else:
            assert np.isnan(value)
    numbers = ~np.isnan(values)
    assert (fast.encode_elements(values[numbers], fmt) == codes[numbers]).all()


@pytest.mark.parametrize(("fmt", "slow"), PAIRS)
def test_ties_go_to_the_even_code_and_their_neighbours_do_not(fmt: fast.ElementFormat, slow: slow_mx.Slow) -> None:
    for code in slow.finite[:-1]:
        tie = float((slow.magnitude(code) + slow.magnitude(code + 1)) / 2)
        below, above = np.nextafter(tie, -np.inf), np.nextafter(tie, np.inf)
        assert fast.encode_elements([below, tie, above], fmt).tolist() == [code, code + code % 2, code + 1]
        assert fast.encode_elements(-tie, fmt) == (code + code % 2) | fmt.sign_bit


@pytest.mark.parametrize(("fmt", "slow"), PAIRS)
@given(data=st.data())
def test_elements_agree_with_fractions(fmt: fast.ElementFormat, slow: slow_mx.Slow, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.one_of(FINITE64, NEAR), min_size=1, max_size=16))
    assert fast.encode_elements(values, fmt).tolist() == [_slow_code(v, fmt, slow) for v in values]


@pytest.mark.parametrize(("fmt", "slow"), PAIRS)
@given(amax=st.one_of(FINITE64, FINITE32, NEAR).map(abs))
def test_scale_agrees_with_fractions(fmt: fast.ElementFormat, slow: slow_mx.Slow, amax: float) -> None:
    assert int(fast.select_scale(amax, fmt)) - 127 == slow.scale_exponent(Fraction(amax))


@pytest.mark.parametrize(("fmt", "slow"), PAIRS)
def test_scale_steps_exactly_where_a_value_would_saturate(fmt: fast.ElementFormat, slow: slow_mx.Slow) -> None:
    for exponent in range(-20, 121):
        edge = fmt.largest * 2.0**exponent
        got = fast.select_scale([edge, np.nextafter(edge, np.inf)], fmt)
        assert got.tolist() == [exponent + 127, exponent + 128]
        assert slow.scale_exponent(Fraction(edge)) == exponent


@pytest.mark.parametrize("fmt", [fast.E4M3, fast.E2M1], ids=lambda fmt: fmt.name)
def test_scale_equals_the_float32_bit_trick_for_every_mantissa(fmt: fast.ElementFormat) -> None:
    """Kernels multiply by float32(1/largest) and bump the exponent if a mantissa bit is set; that may never differ."""
    mantissas = np.arange(2**23, dtype=np.uint32)
    for binade in (127, 100, 200):
        amax = (mantissas | np.uint32(binade << 23)).view(np.float32)
        amax = np.maximum(amax, np.float32(fmt.amax_floor))
        bits = (amax * np.float32(1.0 / fmt.largest)).view(np.uint32)
        trick = (bits >> 23) + ((bits & 0x7FFFFF) != 0)
        assert (trick == fast.select_scale(amax, fmt)).all()


@pytest.mark.parametrize(
    ("encode", "decode", "fmt", "slow"),
    [
        pytest.param(fast.encode_mxfp8, fast.decode_mxfp8, fast.E4M3, slow_mx.E4M3, id="MXFP8"),
        pytest.param(fast.encode_mxfp4, fast.decode_mxfp4, fast.E2M1, slow_mx.E2M1, id="MXFP4"),
    ],
)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_blocks_agree_with_fractions(encode, decode, fmt, slow, data) -> None:  # type: ignore[no-untyped-def]
    block = st.one_of(
        st.lists(st.one_of(FINITE32, st.just(-0.0)), min_size=32, max_size=32),
        st.lists(NEAR, min_size=32, max_size=32),
    )
    values = data.draw(st.lists(block, min_size=1, max_size=2))
    got = encode(np.array(values).reshape(1, -1))
    codes = got.codes if fmt is fast.E4M3 else fast.unpack_nibbles(got.codes)
    decoded = decode(got).reshape(-1, 32)
    for row, scale, row_codes, row_decoded in zip(values, got.scales[0], codes.reshape(-1, 32), decoded, strict=True):
        exponent = slow.scale_exponent(max(abs(Fraction(v)) for v in row))
        assert int(scale) == exponent + 127
        for value, code, back in zip(row, row_codes.tolist(), row_decoded.tolist(), strict=True):
            magnitude = slow.nearest(abs(Fraction(value)) / Fraction(2) ** exponent)
            assert code == magnitude | (fmt.sign_bit if np.signbit(value) else 0)
            assert abs(Fraction(back)) == slow.magnitude(magnitude) * Fraction(2) ** exponent


def test_even_k_is_the_low_nibble_and_packing_inverts() -> None:
    assert fast.pack_nibbles([0x1, 0xA]).tolist() == [0xA1]
    every = np.arange(256, dtype=np.uint8)
    assert (fast.pack_nibbles(fast.unpack_nibbles(every)) == every).all()
    one_hot = np.zeros(32)
    one_hot[2] = 6.0
    assert fast.encode_mxfp4(one_hot).codes.tolist() == [0, 0x07] + [0] * 14


def test_saturation_zero_and_nan_policy() -> None:
    assert fast.encode_elements([448, 464, 1e300, np.inf, -np.inf], fast.E4M3).tolist() == [0x7E] * 4 + [0xFE]
    assert fast.encode_elements([6, 7, np.inf, -np.inf], fast.E2M1).tolist() == [7, 7, 7, 15]
    assert fast.encode_elements([0.0, -0.0], fast.E4M3).tolist() == [0, 0x80]
    assert fast.encode_elements([np.nan, -np.nan], fast.E4M3).tolist() == [0x7F, 0xFF]
    with pytest.raises(ValueError, match=r"E2M1: value at \(1,\) is NaN"):
        fast.encode_elements([1.0, np.nan], fast.E2M1)
    for encode in (fast.encode_mxfp8, fast.encode_mxfp4):
        for strange in (np.nan, np.inf, -np.inf):
            with pytest.raises(ValueError, match=r"value at \(3,\)"):
                encode([0.0] * 3 + [strange] + [0.0] * 28)


def test_nan_scale_poisons_its_block_only() -> None:
    got = fast.decode_mxfp8(fast.Blocks(np.full(64, 0x38, np.uint8), np.array([255, 127], np.uint8)))
    assert np.isnan(got[:32]).all()
    assert (got[32:] == 1.0).all()
    assert fast.decode_scale([0, 127, 254]).tolist() == [2.0**-127, 1.0, 2.0**127]


def test_zero_blocks_get_the_floor_scale() -> None:
    zeros = np.zeros((2, 64))
    assert fast.encode_mxfp8(zeros).scales.tolist() == [[127 - 22] * 2] * 2
    assert fast.encode_mxfp4(zeros).scales.tolist() == [[1] * 2] * 2
    assert not fast.decode_mxfp4(fast.encode_mxfp4(zeros)).any()


def test_refusals_name_what_was_seen() -> None:
    with pytest.raises(ValueError, match=r"shape \(33,\)"):
        fast.encode_mxfp8(np.zeros(33))
    with pytest.raises(ValueError, match=r"codes \(64,\) and scales \(1,\)"):
        fast.decode_mxfp8(fast.Blocks(np.zeros(64, np.uint8), np.zeros(1, np.uint8)))
    with pytest.raises(ValueError, match="even last dimension"):
        fast.pack_nibbles([1, 2, 3])
    with pytest.raises(ValueError, match=r"is 16, wanted 0\.\.15"):
        fast.pack_nibbles([16, 0])
    with pytest.raises(ValueError, match=r"is 16, wanted 0\.\.15"):
        fast.decode_elements([16], fast.E2M1)
    with pytest.raises(ValueError, match=r"is 256, wanted 0\.\.255"):
        fast.decode_elements([256], fast.E4M3)
    with pytest.raises(ValueError, match="type float64"):
        fast.decode_scale([1.5])
    with pytest.raises(ValueError, match="amax"):
        fast.select_scale(-1.0, fast.E4M3)

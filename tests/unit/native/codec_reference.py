"""The codecs in NumPy, operation by operation; formats as in native/codec_kernels.hpp."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
BLOCK, LANES, ELEMENTS_PER_SENT = 1024, 16, 100


def encoded(name: str, values: Floats) -> tuple[bytes, Floats]:
    """The message of `values`, and what it leaves out."""
    with np.errstate(all="ignore"):
        message, kept = _ENCODERS[name](values)
    return message + bytes(-len(message) % 4), np.where(np.isfinite(kept), kept, np.float32(0)).astype(np.float32)


def decoded(name: str, message: bytes, count: int) -> Floats:
    with np.errstate(all="ignore"):
        return _DECODERS[name](message, count)


def _bf16(values: Floats) -> tuple[bytes, Floats]:
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    halves = np.where(np.isnan(values), (bits >> 16) | 0x40, rounded & 0xFFFF).astype("<u2")
    return halves.tobytes(), values - _from_bf16(halves.tobytes(), len(values))


def _from_bf16(message: bytes, count: int) -> Floats:
    return (np.frombuffer(message, "<u2", count).astype(np.uint32) << 16).view(np.float32)


def _blocks(values: Floats) -> list[Floats]:
    return [values[start : start + BLOCK] for start in range(0, len(values), BLOCK)]


def _levels(values: Floats, most: int) -> tuple[Floats, npt.NDArray[np.int8], Floats]:
    """Scales, whole numbers from -most to most, and what they leave out."""
    scales, levels, kept = [np.zeros(0)], [np.zeros(0)], [np.zeros(0, np.float32)]
    for block in _blocks(values):
        scale = np.float32(np.abs(block).max()) / np.float32(most)
        if not np.isfinite(block).all():
            scale, level, left = np.float32(np.nan), np.zeros(len(block)), np.zeros_like(block)
        elif scale < np.finfo(np.float32).tiny:
            scale, level, left = np.float32(0), np.zeros(len(block)), block
        else:
            level = np.rint(block / scale)
            left = block - level * scale
        scales.append(np.array([scale]))
        levels.append(level)
        kept.append(left)
    return np.concatenate(scales).astype("<f4"), np.concatenate(levels).astype(np.int8), np.concatenate(kept)


def _int8(values: Floats) -> tuple[bytes, Floats]:
    scales, levels, kept = _levels(values, 127)
    return scales.tobytes() + levels.tobytes(), kept


def _from_int8(message: bytes, count: int) -> Floats:
    num_blocks = -(-count // BLOCK)
    scales = np.frombuffer(message, "<f4", num_blocks)
    levels = np.frombuffer(message, np.int8, count, 4 * num_blocks).astype(np.float32)
    return levels * np.repeat(scales, BLOCK)[:count]


def _int4(values: Floats) -> tuple[bytes, Floats]:
    scales, levels, kept = _levels(values, 7)
    halves = (np.append(levels, np.zeros(len(levels) % 2, np.int8)) + 8).astype(np.uint8)
    return scales.tobytes() + (halves[::2] | halves[1::2] << 4).tobytes(), kept


def _from_int4(message: bytes, count: int) -> Floats:
    num_blocks = -(-count // BLOCK)
    scales = np.frombuffer(message, "<f4", num_blocks)
    packed = np.frombuffer(message, np.uint8, -(-count // 2), 4 * num_blocks)
    halves = np.stack([packed & 15, packed >> 4], axis=1).reshape(-1)[:count]
    return (halves.astype(np.float32) - 8) * np.repeat(scales, BLOCK)[:count]


def _top_k(values: Floats) -> tuple[bytes, Floats]:
    keys = values.view(np.uint32) & 0x7FFFFFFF
    k = -(-len(values) // ELEMENTS_PER_SENT)
    order = np.lexsort((np.arange(len(values)), -keys.astype(np.int64)))
    sent = np.sort(order[:k])
    kept = values.copy()
    kept[sent] = 0
    return sent.astype("<u4").tobytes() + values[sent].astype("<f4").tobytes(), kept


def _from_top_k(message: bytes, count: int) -> Floats:
    k = -(-count // ELEMENTS_PER_SENT)
    values = np.zeros(count, np.float32)
    # Added to zero, as the kernel does: a negative zero comes out as zero.
    values[np.frombuffer(message, "<u4", k)] += np.frombuffer(message, "<f4", k, 4 * k)
    return values


def _one_bit(values: Floats) -> tuple[bytes, Floats]:
    means, kept = [], []
    for block in _blocks(values):
        signs = np.signbit(block)
        pair = [_mean(np.where(signs, np.float32(0), block), len(block) - signs.sum())]
        pair.append(_mean(np.where(signs, block, np.float32(0)), signs.sum()))
        if np.isfinite([*block, *pair]).all():
            kept.append(block - np.where(signs, pair[1], pair[0]))
        else:
            pair = [np.float32(np.nan)] * 2
            kept.append(np.zeros_like(block))
        means += pair
    packed = np.packbits(np.signbit(values), bitorder="little").tobytes()
    return np.array(means, "<f4").tobytes() + packed, np.concatenate(kept) if kept else values


def _mean(masked: Floats, count: int) -> np.float32:
    """In 16 lanes, which are added one after the other."""
    padded = np.concatenate([masked, np.zeros(-len(masked) % LANES, np.float32)]).reshape(-1, LANES)
    lanes = np.zeros(LANES, np.float32)
    for row in padded:
        lanes = lanes + row
    total = np.float32(0)
    for lane in lanes:
        total = total + lane
    return total / np.float32(count) if count else np.float32(0)


def _from_one_bit(message: bytes, count: int) -> Floats:
    num_blocks = -(-count // BLOCK)
    means = np.frombuffer(message, "<f4", 2 * num_blocks).reshape(-1, 2)
    signs = np.unpackbits(np.frombuffer(message, np.uint8, -(-count // 8), 8 * num_blocks), bitorder="little")
    blocks = np.arange(count) // BLOCK
    return means[blocks, signs[:count]].astype(np.float32)


_ENCODERS = {"bf16": _bf16, "int8": _int8, "int4": _int4, "top-k": _top_k, "1-bit": _one_bit}
_DECODERS = {
    "bf16": _from_bf16,
    "int8": _from_int8,
    "int4": _from_int4,
    "top-k": _from_top_k,
    "1-bit": _from_one_bit,
}

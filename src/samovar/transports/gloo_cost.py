"""Payload bytes that gloo's algorithms send, counted from how they work; pure functions.

The headers that gloo puts before each message, and those of TCP and IP, are not payload.
"""

_MAX_SEGMENT_BYTES = 1 << 20


def ring_all_reduce_bytes(rank: int, world_size: int, num_bytes: int, element_bytes: int) -> int:
    """What `rank` sends: 2(P-1)/P of `num_bytes`, up to rounding.

    The buffer is cut into equal segments of whole elements, at most 1 MiB and at least two a rank; P chunks of as
    many segments each, of which the last may be shorter or empty. First every chunk but `rank` goes around to
    be added up, then every chunk but `rank` - 1, complete.
    """
    if world_size == 1 or num_bytes == 0:
        return 0
    num_segments = _rounded_up(max(-(-num_bytes // _MAX_SEGMENT_BYTES), 2 * world_size), world_size)
    segment_bytes = _rounded_up(-(-num_bytes // num_segments), element_bytes)
    chunk_bytes = num_segments // world_size * segment_bytes

    def chunk(number: int) -> int:
        return max(0, min(chunk_bytes, num_bytes - number * chunk_bytes))

    return 2 * num_bytes - chunk(rank) - chunk((rank - 1) % world_size)


def broadcast_bytes(rank: int, world_size: int, num_bytes: int) -> int:
    """What `rank` sends down the binomial tree of rank 0: in round i, ranks below 2^i each reach one 2^i above."""
    rounds = range((world_size - 1).bit_length())
    return num_bytes * sum(rank < 1 << i and rank + (1 << i) < world_size for i in rounds)


def all_gather_bytes(world_size: int, num_bytes: int) -> int:
    """What every rank sends: its own part and all but one of the others', around a ring."""
    return (world_size - 1) * num_bytes


def _rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple

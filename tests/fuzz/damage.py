"""Damage the bytes of a file: flip, cut or blank them, or move pages and parts of other files."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

Damage = Callable[[bytearray, random.Random, Sequence[bytes]], None]

EXTREMES = (b"\x00", b"\xff", b"\x7f", b"\x80", b"\x01", b"\x7f" + b"\xff" * 7, b"\x80" + b"\x00" * 7, b"\xff" * 9)


def flip(data: bytearray, chance: random.Random, _others: Sequence[bytes]) -> None:
    """Flip some bits anywhere."""
    for _ in range(chance.choice((1, 1, 3, 30, 300))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def flip_head(data: bytearray, chance: random.Random, _others: Sequence[bytes]) -> None:
    """Flip bits in the header and the schema, or in the header of a compressed file."""
    for _ in range(chance.choice((1, 2, 5))):
        data[chance.randrange(min(len(data), chance.choice((16, 100, 8192))))] ^= 1 << chance.randrange(8)


def put_extremes(data: bytearray, chance: random.Random, _others: Sequence[bytes]) -> None:
    """Write the largest and smallest numbers."""
    for _ in range(chance.choice((1, 3, 20))):
        at, value = chance.randrange(len(data)), chance.choice(EXTREMES)
        data[at : at + len(value)] = value[: len(data) - at]


def cut(data: bytearray, chance: random.Random, _others: Sequence[bytes]) -> None:
    """Cut off the end."""
    del data[chance.randrange(len(data)) :]


def cut_and_pad(data: bytearray, chance: random.Random, _others: Sequence[bytes]) -> None:
    """Replace the end by zeros, as after a crash."""
    start = chance.randrange(len(data))
    data[start:] = bytes(len(data) - start)


def blank(data: bytearray, chance: random.Random, _others: Sequence[bytes]) -> None:
    """Set a range to zero."""
    start, size = chance.randrange(len(data)), chance.choice((16, 512, 1024, 4096))
    data[start : start + size] = bytes(len(data[start : start + size]))


def swap_pages(data: bytearray, chance: random.Random, _others: Sequence[bytes]) -> None:
    """Copy a page over another; the tree then leads elsewhere or to itself."""
    size = _page_size(data)
    pages = len(data) // size
    for _ in range(chance.choice((1, 1, 4))):
        if pages > 1:
            source, target = chance.randrange(pages), chance.randrange(pages)
            data[target * size : (target + 1) * size] = data[source * size : (source + 1) * size]


def splice(data: bytearray, chance: random.Random, others: Sequence[bytes]) -> None:
    """Insert a part of another export."""
    other = chance.choice(others) or bytes(1)
    size = chance.choice((8, 100, _page_size(data), 10 * _page_size(data)))
    start = chance.randrange(len(other)) // size * size
    piece = other[start : start + size]
    at = chance.randrange(len(data)) // size * size
    data[at : at + len(piece)] = piece[: len(data) - at]


def repeat(data: bytearray, chance: random.Random, _others: Sequence[bytes]) -> None:
    """Append existing bytes or random bytes."""
    start = chance.randrange(len(data))
    data += data[start : start + 4096] if chance.random() < 0.5 else chance.randbytes(1 + chance.randrange(3000))


DAMAGES: Sequence[Damage] = (
    flip, flip, flip_head, flip_head, put_extremes, cut, cut_and_pad, blank, swap_pages, splice, repeat
)  # fmt: skip


def damaged(whole: bytes, chance: random.Random, others: Sequence[bytes]) -> bytes:
    """Return the bytes with one to three kinds of damage."""
    data = bytearray(whole)
    for damage in chance.choices(DAMAGES, k=chance.choice((1, 1, 2, 3))):
        if data:
            damage(data, chance, others)
    return bytes(data)


def _page_size(data: bytearray) -> int:
    said = int.from_bytes(data[16:18], "big")
    return said if said in (512, 1024, 2048, 4096, 8192, 16384, 32768) else 1024

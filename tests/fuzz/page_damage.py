"""Damage to the parts that the page decoder reads: page, cell, record and file headers, and pointers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

INTERIOR, LEAF = 5, 13


@dataclass(frozen=True)
class Page:
    """A b-tree page within `data`."""

    data: bytearray
    size: int
    number: int

    @property
    def start(self) -> int:
        """The offset of its header."""
        return (self.number - 1) * self.size + (100 if self.number == 1 else 0)

    @property
    def pointers(self) -> int:
        """The offset of its cell pointers."""
        return self.start + (12 if self.data[self.start] == INTERIOR else 8)

    @property
    def count(self) -> int:
        """The number of cells in its header, limited to those whose pointers fit."""
        return min(int.from_bytes(self.data[self.start + 3 : self.start + 5], "big"), self.size // 4)

    def cell(self, index: int) -> int:
        """Return the offset of a cell."""
        at = self.pointers + 2 * index
        return (self.number - 1) * self.size + int.from_bytes(self.data[at : at + 2], "big") % self.size

    def put(self, at: int, value: int, width: int = 1) -> None:
        """Write a number; bytes beyond the end of the file are dropped."""
        if 0 <= at <= len(self.data) - width:
            self.data[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "big")

    def flip(self, at: int, bit: int) -> None:
        """Flip a bit."""
        if 0 <= at < len(self.data):
            self.data[at] ^= 1 << bit


Damage = Callable[[Page, random.Random], None]


def page_header(page: Page, chance: random.Random) -> None:
    """Flip a bit of a page's header: type, free block, cell count, content area, fragments, last child."""
    page.flip(page.start + chance.randrange(page.pointers - page.start), chance.randrange(8))


def cell_count(page: Page, chance: random.Random) -> None:
    """Write another number of cells."""
    most = (page.size - 8) // 6
    counts = (0, 0, 1, page.count - 1, page.count + 1, most, most + 1, 65535, chance.randrange(1 << 16))
    page.put(page.start + 3, chance.choice(counts), 2)


def cell_pointer(page: Page, chance: random.Random) -> None:
    """Point into the header, the pointers, another cell, the end of the page, or anywhere."""
    if page.count:
        at = page.pointers + 2 * chance.randrange(page.count)
        head = page.pointers - page.start
        places = (
            0, head, head + 2 * page.count - 1, head + 2 * page.count, page.size - 5, page.size - 4, page.size - 3,
            page.cell(chance.randrange(page.count)), page.cell(0) + chance.choice((-1, 1)), chance.randrange(page.size),
        )  # fmt: skip
        page.put(at, chance.choice(places), 2)


def swapped_pointers(page: Page, chance: random.Random) -> None:
    """Swap two cells, so that rowids no longer ascend."""
    if page.count > 1:
        this, other = (page.pointers + 2 * chance.randrange(page.count) for _ in range(2))
        data = page.data
        data[this : this + 2], data[other : other + 2] = data[other : other + 2], data[this : this + 2]


def cell_head(page: Page, chance: random.Random) -> None:
    """Change one of the first bytes of a cell: sizes, rowid, serial types, or a child and its key."""
    if page.count:
        at = page.cell(chance.randrange(page.count)) + chance.randrange(chance.choice((2, 4, 8, 16)))
        if chance.random() < 0.5:
            page.flip(at, chance.randrange(8))
        else:
            page.put(at, chance.choice((0, 1, 2, 6, 7, 8, 9, 10, 11, 12, 13, 127, 128, 129, 255)))


def cell_body(page: Page, chance: random.Random) -> None:
    """Flip a bit where the values of a cell usually are: SQLite reads other values or other types."""
    if page.count:
        page.flip(page.cell(chance.randrange(page.count)) + chance.randrange(6, 50), chance.randrange(8))


def long_varint(page: Page, chance: random.Random) -> None:
    """Extend a number at the begin of a cell to up to ten bytes."""
    if page.count:
        at = page.cell(chance.randrange(page.count)) + chance.choice((0, 1, 2, 4))
        for byte in range(chance.randint(1, 10)):
            page.put(at + byte, 128 | chance.randrange(128))


def child_pointer(page: Page, chance: random.Random) -> None:
    """Point an interior page to itself, page 0 or 1, beyond the file, its neighbour, or any page."""
    pages = len(page.data) // page.size
    target = chance.choice((0, 1, page.number, pages, pages + 1, 1 << 31, chance.randrange(pages + 1)))
    cells = [page.cell(index) for index in range(page.count)]
    page.put(chance.choice((*cells, page.start + 8)), target, 4)


def other_page(page: Page, chance: random.Random) -> None:
    """Replace the page by another or by zeros, or swap two pages."""
    data, size, pages = page.data, page.size, len(page.data) // page.size
    this, other = (page.number - 1) * size, chance.randrange(pages) * size
    before, after = data[this : this + size], data[other : other + size]
    how = chance.randrange(3)
    data[this : this + size] = bytes(size) if how == 0 else after
    if how == 1:
        data[other : other + size] = before


def file_header(page: Page, chance: random.Random) -> None:
    """Change the file's header: page size, versions, reserved bytes, size, change counters, format, encoding."""
    at = chance.choice((16, 17, 18, 19, 20, 21, 27, 28, 30, 31, 31, 44, 47, 52, 55, 56, 59, 92, 95, 95))
    if chance.random() < 0.5:
        page.flip(at, chance.randrange(8))
    else:
        page.put(at, chance.choice((0, 1, 2, 3, 4, 5, 255)))


def stated_size(page: Page, chance: random.Random) -> None:
    """Write another number of pages into the header, valid or not."""
    pages = len(page.data) // page.size
    page.put(28, chance.choice((0, 1, pages - 1, pages, pages + 1, chance.randrange(1, pages + 1))), 4)
    if chance.random() < 0.3:
        page.flip(95, 0)


def cut(page: Page, chance: random.Random) -> None:
    """Cut the file, with or without a matching header."""
    pages = len(page.data) // page.size
    left = chance.randrange(1, pages + 1)
    del page.data[left * page.size - chance.choice((0, 0, 1, page.size // 2)) :]
    if chance.random() < 0.7:
        page.put(28, left, 4)


def anywhere(page: Page, chance: random.Random) -> None:
    """Flip a bit anywhere in the page."""
    page.flip((page.number - 1) * page.size + chance.randrange(page.size), chance.randrange(8))


DAMAGES: Sequence[Damage] = (
    page_header, cell_count, cell_count, cell_pointer, cell_pointer, swapped_pointers, swapped_pointers,
    cell_head, cell_head, cell_head, cell_body, cell_body, cell_body, long_varint,
    child_pointer, other_page, file_header, stated_size, cut, anywhere, anywhere,
)  # fmt: skip


def damage_pages(whole: bytes, chance: random.Random) -> tuple[bytes, list[str]]:
    """Return a database with one to three kinds of damage, and their names."""
    data = bytearray(whole)
    size = int.from_bytes(whole[16:18], "big")
    size = 65536 if size == 1 else size
    kinds = []
    for damage in chance.choices(DAMAGES, k=chance.choice((1, 1, 1, 1, 2, 3))):
        if len(data) < size:
            break
        damage(_pick_page(data, size, chance, damage is child_pointer), chance)
        kinds.append(damage.__name__)
    return bytes(data), kinds


def _pick_page(data: bytearray, size: int, chance: random.Random, interior: bool) -> Page:
    """Return a page, usually of a table; an interior page for damage to children."""
    pages = range(2, len(data) // size + 1)
    draw = chance.random()
    kind = INTERIOR if interior or draw < 0.25 else LEAF
    fitting = [number for number in pages if data[(number - 1) * size] == kind] if draw < 0.95 else []
    return Page(data, size, chance.choice(fitting) if fitting else chance.randrange(1, len(data) // size + 1))

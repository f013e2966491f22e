"""The targets of scripts/fuzz-guided on their seeds, and on what was found with them: no atheris is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.guided import TARGETS, seeds

# What coverage had the fuzzer find, as it found it, or shorter.
FOUND = {
    "pieces": [
        b'\x00"{""traceEvents": [',
        b'({"traceEvents":[{"a":1},{}","b":{}},{}],"c":"x \\"d],"e":"x \\"traceEvents\\": ["}',
    ],
}


@pytest.mark.parametrize("name", TARGETS)
def test_fast_and_slow_readers_agree(name: str, tmp_path: Path) -> None:
    for data in (*seeds(name), *FOUND.get(name, ()), b"", b"\x00"):
        TARGETS[name](data, tmp_path)


def test_a_flipped_bit_that_sqlite_notices_is_noticed_in_pages_too(tmp_path: Path) -> None:
    """One in the kinds of a record's columns gave other figures, where SQLite says that the file is damaged."""
    whole = seeds("pages")[1]
    for at in range(512, len(whole), 23):
        TARGETS["pages"](whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], tmp_path)

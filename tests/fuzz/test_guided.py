"""The targets of scripts/fuzz-guided on their seeds, and on what was found with them: no atheris is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fuzz.guided import TARGETS, seeds

# Inputs by which the fuzzer reached what none before had; its corpus, so far as it is small. Bytes as latin-1.
REACHED = json.loads(Path(__file__).with_name("reached.json").read_text(encoding="utf-8"))
# What went wrong, as it was found, or shorter.
FOUND = {
    "pieces": [
        b'\x00"{""traceEvents": [',
        b'({"traceEvents":[{"a":1},{}","b":{}},{}],"c":"x \\"d],"e":"x \\"traceEvents\\": ["}',
    ],
}


@pytest.mark.parametrize("name", TARGETS)
def test_fast_and_slow_readers_agree(name: str, tmp_path: Path) -> None:
    reached = [text.encode("latin-1") for text in REACHED.get(name, ())]
    for data in (*seeds(name), *reached, *FOUND.get(name, ()), b"", b"\x00"):
        TARGETS[name](data, tmp_path)


def test_a_flipped_bit_that_sqlite_notices_is_noticed_in_pages_too(tmp_path: Path) -> None:
    """One in the kinds of a record's columns gave other figures, where SQLite says that the file is damaged."""
    whole = seeds("pages")[1]
    for at in range(512, len(whole), 23):
        TARGETS["pages"](whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], tmp_path)

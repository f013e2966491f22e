"""Run the targets of scripts/fuzz-guided on their seeds and on past failures, without atheris."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fuzz.guided import TARGETS, seeds

# Small inputs of the fuzzer's corpus, each of which reached new code. Bytes as latin-1.
REACHED = json.loads(Path(__file__).with_name("reached.json").read_text(encoding="utf-8"))
# Inputs that failed, some shortened.
FOUND = {
    "pieces": [
        b'\x00"{""traceEvents": [',
        b'({"traceEvents":[{"a":1},{}","b":{}},{}],"c":"x \\"d],"e":"x \\"traceEvents\\": ["}',
    ],
}


@pytest.mark.parametrize("name", TARGETS)
def test_fast_and_slow_readers_agree(name: str) -> None:
    reached = [text.encode("latin-1") for text in REACHED.get(name, ())]
    for data in (*seeds(), *reached, *FOUND.get(name, ()), b"", b"\x00"):
        TARGETS[name](data)

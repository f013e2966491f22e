"""The forms of a report in a case: compressed, a torch.profiler trace."""

from __future__ import annotations

import gzip
import json
import lzma
import random
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.corpus import Corpus
from tests.fuzz.damage import damaged
from tests.fuzz.texts import changed_values, dumped, encoded, littered


@dataclass(frozen=True, slots=True)
class Given:
    """A report in a form. `origin` is an SQLite export with the same figures."""

    path: Path
    form: str
    origin: Path | None = None


def hand_over(report: Path, form: str, corpus: Corpus, chance: random.Random) -> Given:
    """Convert an SQLite export to a form, sometimes with damage; unchanged if it has no tables for the form."""
    if form == "profiler":
        report.write_bytes(profiler_trace(corpus, chance))
        return Given(report, form)
    if form in ("gz", "xz", "zst"):
        return _packed(report, form, corpus, chance)
    return Given(report, "sqlite")


def pack(data: bytes, form: str) -> bytes:
    """Return bytes compressed as gz, xz or zst, reproducibly."""
    if form == "gz":
        return gzip.compress(data, 1, mtime=0)
    if form == "xz":
        return lzma.compress(data, preset=0)
    try:
        import zstandard
    except ImportError:
        return gzip.compress(data, 1, mtime=0)
    packed: bytes = zstandard.ZstdCompressor(1).compress(data)
    return packed


def _packed(report: Path, form: str, corpus: Corpus, chance: random.Random) -> Given:
    data = profiler_trace(corpus, chance) if chance.random() < 0.2 else report.read_bytes()
    how = chance.choice(("whole", "damaged", "damaged", "parts", "twice", "more"))
    packed = pack(data, form)
    if how == "damaged":
        packed = damaged(packed, chance, [item.read_bytes() for item in corpus.exports])
    elif how == "parts":
        at = chance.randrange(len(data))
        packed = pack(data[:at], form) + pack(data[at:], form)
    elif how == "twice":
        packed = pack(packed, chance.choice(("gz", "xz", "zst")))
    elif how == "more":
        packed += chance.choice((b"\x00", bytes(512), b"x" * 100, packed[:50]))
    report.write_bytes(packed)
    return Given(report, f"{form} {how}")


def profiler_trace(corpus: Corpus, chance: random.Random) -> bytes:
    """Return a torch.profiler trace with changed structure, text or bytes."""
    document = json.loads(chance.choice(corpus.profiler).read_text())
    if chance.random() < 0.8:
        changed_values(document["traceEvents"], chance)
    if chance.random() < 0.2:
        around = [{key: value for key, value in document.items() if key != "traceEvents"}]
        changed_values(around, chance)
        rest = around[0] if around and isinstance(around[0], dict) else {}
        document = chance.choice((rest | {"traceEvents": document["traceEvents"]}, document | rest))
    if chance.random() < 0.05:
        document = chance.choice(
            (document["traceEvents"], {"a": document}, {"traceEvents": document}, {"traceEvents": {"a": 1}})
        )
    data = encoded(dumped(document, chance), chance)
    if chance.random() < 0.25:
        data = littered(data, chance)
    if chance.random() < 0.15:
        data = damaged(data, chance, [item.read_bytes() for item in corpus.profiler])
    return pack(data, "gz") if chance.random() < 0.3 else data

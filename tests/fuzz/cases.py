"""One number, one case: which export, what becomes of it, in which form it is handed over and to which command."""

from __future__ import annotations

import gzip
import lzma
import os
import random
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tests.fuzz.damage import damaged
from tests.fuzz.structure import changed

NAMES = (
    "report.sqlite", "report.sqlite", "report.sqlite", "-x.sqlite", "line\nend.sqlite", "تقرير.sqlite", "報告😀.sqlite",
    "e\u0301\u202egpj.sqlite", os.fsdecode(b"\xff\xfe.sqlite"), "a b%20?mode=rwc#.sqlite", "no ending", "[x]*.sqlite",
)  # fmt: skip
OLD = b"what was there before"
COMMANDS = ("analyze",) * 8 + ("page",) * 3 + ("options",) * 3 + ("info", "compare", "whatif", "redact", "export")
LITTER = (b"9" * 40, b"-", b"1e999", b"null", b"{", b"[" * 2000, b'"', b"\\ud800", b"\xff", b"true", b",,", b"NaN")


@dataclass(frozen=True, slots=True)
class Case:
    """A command line and its files. `sound`: the report is a whole database, so every figure can be worked out."""

    seed: int
    command: str
    arguments: tuple[str, ...]
    inputs: tuple[Path, ...]
    outputs: tuple[Path, ...]
    old: tuple[Path, ...]
    sound: bool
    from_pages: bool
    story: str


def make(seed: int, corpus: Sequence[Path], folder: Path) -> Case:
    """Write the files of a case into an empty folder and say what is to be run; the same number gives the same case."""
    chance = random.Random(seed)
    exports = [one for one in corpus if one.suffix == ".sqlite"]
    base = chance.choice(exports)
    report = folder / chance.choice(NAMES)
    report.write_bytes(base.read_bytes())
    story = [base.name]
    if chance.random() < 0.75:
        story += changed(report, chance)
    sound = len(story) > 1
    if not sound or chance.random() < 0.15:
        sound = False
        report.write_bytes(damaged(report.read_bytes(), chance, [one.read_bytes() for one in exports]))
        story.append("damaged")
    given, form = _form(report, chance, corpus)
    command = chance.choice(COMMANDS)
    inputs = [given]
    if command == "compare":
        other = folder / "other.sqlite"
        other.write_bytes(chance.choice(exports).read_bytes())
        inputs.insert(chance.randrange(2), other)
    arguments, outputs = _arguments(command, inputs, folder, chance)
    old = tuple(out for out in outputs if command != "redact" and chance.random() < 0.3)
    for out in old:
        out.write_bytes(OLD)
    return Case(
        seed, command, arguments, tuple(inputs), outputs, old,
        sound=sound and form == "sqlite", from_pages=chance.random() < 0.5, story=" ".join([*story, form, command]),
    )  # fmt: skip


def _form(report: Path, chance: random.Random, corpus: Sequence[Path]) -> tuple[Path, str]:
    """Hand the report over as it is, packed, as a folder of tables; or one of torch.profiler. All may be damaged."""
    others = [one.read_bytes() for one in corpus]
    form = chance.choice(("sqlite",) * 9 + ("gz", "xz", "zst", "parquet", "arrow", "profiler"))
    if form == "profiler":
        data = others[[one.suffix for one in corpus].index(".json")]
        for _ in range(chance.choice((0, 1, 5, 50))):
            at = chance.randrange(len(data))
            data = data[:at] + chance.choice(LITTER) + data[at + chance.choice((0, 1, 9)) :]
        data = damaged(data, chance, others) if chance.random() < 0.3 else data
        report.write_bytes(pack(data, "gz") if chance.random() < 0.3 else data)
        return report, form
    if form == "sqlite":
        return report, form
    if form in ("parquet", "arrow"):
        if not (folder := as_tables(report, form)):
            return report, "sqlite"
        if chance.random() < 0.5:
            one = chance.choice(sorted(folder.iterdir()))
            one.write_bytes(damaged(one.read_bytes(), chance, others))
            form += " damaged"
        report.unlink()
        return folder, form
    packed = pack(report.read_bytes(), form)
    if chance.random() < 0.5:
        packed = damaged(packed, chance, others)
        form += " damaged"
    report.write_bytes(packed)
    return report, form


def pack(data: bytes, form: str) -> bytes:
    """Return bytes packed as gz, xz or zst; the same bytes every time."""
    if form == "gz":
        return gzip.compress(data, 1, mtime=0)
    if form == "xz":
        return lzma.compress(data, preset=0)
    import zstandard

    packed: bytes = zstandard.ZstdCompressor(1).compress(data)
    return packed


def as_tables(report: Path, form: str) -> Path | None:
    """Write what can be read of an export as a parquetdir or arrowdir; None where SQLite cannot read it."""
    folder = report.with_name("report_tables")
    folder.mkdir()
    connection = sqlite3.connect(f"{report.absolute().as_uri()}?immutable=1", uri=True)
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    try:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0").fetchall()
        for (name,) in names:
            if "/" in name or "\x00" in name or len(name) > 100:
                continue
            cursor = connection.execute('SELECT * FROM "{}"'.format(name.replace('"', '""')))
            rows = cursor.fetchmany(20_000)
            columns = dict.fromkeys(str(column[0]) for column in cursor.description)
            if len(columns) == len(cursor.description):
                _write(folder / f"{name}.{form}", list(columns), rows)
    except (sqlite3.Error, OSError, UnicodeError):
        pass
    finally:
        connection.close()
    return folder if any(folder.iterdir()) else None


def _write(path: Path, columns: list[str], rows: list[tuple[object, ...]]) -> None:
    made = []
    for index, name in enumerate(columns):
        values = [row[index] for row in rows]
        try:
            made.append(pl.Series(name, values, strict=True))
        except (TypeError, OverflowError, pl.exceptions.PolarsError):
            made.append(pl.Series(name, [None if one is None else str(one) for one in values], pl.String))
    frame = pl.DataFrame(made)
    frame = frame.select(pl.col(name).cast(pl.Int64) if frame[name].dtype == pl.Null else name for name in columns)
    if path.suffix == ".parquet":
        frame.write_parquet(path)
    else:
        frame.write_ipc_stream(path)


def _arguments(
    command: str, inputs: Sequence[Path], folder: Path, chance: random.Random
) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    reports = [str(one) for one in inputs]
    json, page = folder / "out.json", folder / "out.html"
    if command == "info":
        return ("info", *reports), ()
    if command == "export":
        made = folder / f"out.{chance.choice(('pftrace', 'json'))}"
        to = {".pftrace": "perfetto", ".json": "chrome"}[made.suffix]
        return ("export", *reports, "--to", to, "--output", str(made), "--quiet"), (made,)
    if command == "redact":
        return ("redact", *reports, str(folder / "out.sqlite"), "--names", chance.choice(("keep", "hash"))), (
            folder / "out.sqlite",
        )
    if command == "analyze":
        return ("analyze", *reports, "--json", str(json), "--no-html"), (json,)
    if command == "options":
        return ("analyze", *reports, "--json", str(json), "--no-html", *_options(chance)), (json,)
    with_page = command == "page" or chance.random() < 0.3
    said = "analyze" if command == "page" else command
    arguments = (said, *reports, "--json", str(json), *(("--html", str(page)) if with_page else ()))
    return arguments, ((json, page) if with_page else (json,))


def _options(chance: random.Random) -> list[str]:
    found = []
    for option, values in {
        "--from": ("0", "1ms", "@5s", "9223372036854775807", "-1", "1e400s"),
        "--to": ("10ms", "1ns", "9223372036854775807", "0"),
        "--device": ("GPU 0", "0", "1", "-1", "99999999999999999999"),
        "--iteration": (".", "iteration", "(", "(a+)+$", "^$"),
        "--skip": ("0", "1", "1000000", "99999999999999999999"),
        "--top": ("1", "1000000"),
        "--fail-if": ("idle.host > 5%", "busy > 1ns", "exposed_h2d >= 0%", "nonsense > 1"),
    }.items():
        if chance.random() < 0.25:
            found += [option, chance.choice(values)]
    return found

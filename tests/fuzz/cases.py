"""Generate a case from a number: the report, its changes and form, and the command."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.corpus import Corpus
from tests.fuzz.damage import damaged
from tests.fuzz.ended import Way
from tests.fuzz.forms import Given, hand_over
from tests.fuzz.structure import changed

NAMES = (
    "report.sqlite", "report.sqlite", "report.sqlite", "-x.sqlite", "line\nend.sqlite", "تقرير.sqlite", "報告😀.sqlite",
    "e\u0301\u202egpj.sqlite", os.fsdecode(b"\xff\xfe.sqlite"), "a b%20?mode=rwc#.sqlite", "no ending", "[x]*.sqlite",
)  # fmt: skip
OLD = b"what was there before"
COMMANDS = ("analyze",) * 8 + ("page",) * 3 + ("options",) * 3 + ("info", "compare", "whatif", "redact", "export")
COMMANDS += ("whatif", "export")
# The share of each kind of input in the cases.
KINDS = {"sqlite": 36, "gz": 3, "xz": 3, "zst": 3, "parquet": 7, "arrow": 7, "profiler": 16}


@dataclass(frozen=True, slots=True)
class Case:
    """A command line and its files. `origin` is an SQLite export from whose rows all figures can be computed."""

    seed: int
    kind: str
    command: str
    arguments: tuple[str, ...]
    inputs: tuple[Path, ...]
    outputs: tuple[Path, ...] = ()
    old: tuple[Path, ...] = ()
    origin: Path | None = None
    way: Way = "sqlite"
    story: str = ""


def make(seed: int, corpus: Corpus, folder: Path) -> Case:
    """Write the files of a case into an empty folder and return the case. A number always gives the same case."""
    chance = random.Random(seed)
    kind = chance.choices(list(KINDS), list(KINDS.values()))[0]
    report = folder / chance.choice(NAMES)
    given, story = report_case(kind, report, corpus.exports, corpus, chance)
    command = chance.choice(COMMANDS)
    inputs = [given.path]
    if command == "compare":
        other = folder / "other.sqlite"
        other.write_bytes(chance.choice(corpus.exports).read_bytes())
        same = chance.random() < 0.2 and given.path.is_file()
        inputs.insert(chance.randrange(2), given.path if same else other)
    arguments, outputs = _arguments(command, inputs, folder, chance)
    old = tuple(out for out in outputs if command != "redact" and out.suffix and chance.random() < 0.3)
    for out in old:
        out.write_bytes(OLD)
    return Case(
        seed, kind, command, arguments, tuple(inputs), outputs, old, given.origin, _way(chance),
        " ".join([*story, given.form, command]),
    )  # fmt: skip


def report_case(
    kind: str, report: Path, bases: Sequence[Path], corpus: Corpus, chance: random.Random
) -> tuple[Given, list[str]]:
    """Write a changed or damaged report of a kind; return it and the changes."""
    base = chance.choice(bases)
    report.write_bytes(base.read_bytes())
    story = [base.name]
    if chance.random() < 0.75:
        story += changed(report, chance)
    if kind not in ("sqlite", "gz", "xz", "zst"):
        return hand_over(report, kind, corpus, chance), story
    sound = len(story) > 1
    if not sound or chance.random() < 0.15:
        sound = False
        report.write_bytes(damaged(report.read_bytes(), chance, [item.read_bytes() for item in corpus.exports]))
        story.append("damaged")
    if kind == "sqlite":
        return Given(report, "sqlite", report if sound else None), story
    return hand_over(report, kind, corpus, chance), story


def _way(chance: random.Random) -> Way:
    return chance.choices(("sqlite", "pages", "apart"), (50, 49, 1))[0]


def _arguments(
    command: str, inputs: Sequence[Path], folder: Path, chance: random.Random
) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    reports = [str(item) for item in inputs]
    json, page = folder / "out.json", folder / "out.html"
    if command == "info":
        return ("info", *reports), ()
    if command == "export":
        suffix, to = chance.choice(((".pftrace", "perfetto"), (".pftrace.gz", "perfetto"), ("", "parquet")))
        made = folder / f"out{suffix}"
        return ("export", *reports, "--format", to, "--output", str(made), "--quiet"), (made,)
    if command == "redact":
        return ("redact", *reports, str(folder / "out.sqlite"), "--names", chance.choice(("keep", "hash", "drop"))), (
            folder / "out.sqlite",
        )
    if command == "analyze":
        return ("analyze", *reports, "--json", str(json), "--no-html"), (json,)
    if command == "options":
        return ("analyze", *reports, "--json", str(json), "--no-html", *_options(chance)), (json,)
    with_page = command == "page" or (command != "compare" and chance.random() < 0.3)
    said = "analyze" if command == "page" else command
    more = ["--faster", "gemm=1.5", "--ranks", "2", "--gradients", "250MB"] if chance.random() < 0.2 else []
    arguments = (said, *reports, "--json", str(json), *(("--html", str(page)) if with_page else ()))
    return (*arguments, *(more if command == "whatif" else ())), ((json, page) if with_page else (json,))


def _options(chance: random.Random) -> list[str]:
    result = []
    for option, values in {
        "--from": ("0", "1ms", "@5s", "9223372036854775807", "-1", "1e400s"),
        "--to": ("10ms", "1ns", "9223372036854775807", "0"),
        "--device": ("GPU 0", "0", "1", "-1", "99999999999999999999"),
        "--iteration": (".", "iteration", "(", "(a+)+$", "^$"),
        "--skip": ("0", "1", "1000000", "99999999999999999999"),
        "--top": ("1", "1000000"),
        "--fail-if": ("devices.steady.causes.host > 5ms", "busy > 1ns", "exposed_h2d >= 0%", "nonsense > 1"),
    }.items():
        if chance.random() < 0.25:
            result += [option, chance.choice(values)]
    return result

"""A copy of a capture to share: the tables and columns that traceview reads, and of their texts only names.

Words that the analysis looks for stay in a hidden name (kept_words.txt), all others are hashed. Numbers and signs stay,
because the analysis reads what changes between the names of two iterations. A hidden name so matches each pattern of
the analysis that the name matches, and no other.
"""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from itertools import chain, count
from pathlib import Path
from typing import Literal

import polars as pl

from traceview.errors import DamagedExportError, OutputError
from traceview.measure.kernels.families import KernelKind, kind_words, shape_kinds
from traceview.model.names import COMMUNICATION, WORD
from traceview.normalise import normalise
from traceview.normalise.codes import UNNAMED, event_texts
from traceview.normalise.health import DRIVER, DROPPED, LOSS, NO_UNIFIED_MEMORY
from traceview.normalise.program import program_rows
from traceview.normalise.sizes import MARK, metric_column
from traceview.normalise.threads import process_of, without_path
from traceview.read import raw
from traceview.read.formats import read_capture
from traceview.read.raw import RawCapture
from traceview.read.source import MAX_NAME
from traceview.read.sqlite.reader import tables_with_metadata, write_tables
from traceview.report.files import check_different, check_file, new_file, refused_as_present

__all__ = ["KeptText", "Redacted", "redact"]

Step = Callable[[str, float], None]
Names = Literal["keep", "hash", "drop"]
# What a copy never has, though the analysis reads it: call stacks with their files, and the names of opened files.
LEFT_OUT = (*raw.STACKS, raw.FILE_EVENTS, raw.FILES)
COLUMNS: Mapping[str, tuple[str, ...]] = {
    table: wanted.columns for table, wanted in raw.TABLES.items() if table not in LEFT_OUT
}
# Kinds of texts, as the list of kept texts calls them.
KERNEL, RANGE, THREAD, CALL, GPU = "kernel", "range", "thread or process", "call", "GPU"
METRIC, SHAPE, GROUP, SERIAL, FLOPS = "hardware counter", "shape", "process group", "made-up serial number", "FLOPs"
STATED, UNREAD = "fact of the capture", "unread"
# The columns with texts, or with ids of texts in StringIds. All others have numbers.
TEXTS: Mapping[str, Mapping[str, str]] = {
    raw.KERNEL: {"shortName": KERNEL, "demangledName": KERNEL},
    raw.NVTX: {"text": RANGE, "textId": RANGE},
    raw.SCOPES: {"nameId": RANGE},
    raw.THREAD_NAMES: {"nameId": THREAD},
    raw.PROCESSES: {"name": THREAD},
    "TARGET_INFO_NVTX_CUDA_STREAM": {"name": RANGE},
    **{table: {"nameId": CALL} for table in (raw.RUNTIME, raw.SYSTEM_CALLS, raw.VIDEO_CALLS, *raw.OPENACC)},
    **{table: {"textId": CALL} for table in raw.MPI},
    raw.NCCL_CALLS: {"name": CALL, "communicator": GROUP},
    raw.MATH: {"nameId": CALL, "textId": SHAPE},
    raw.MESSAGES: {"nameId": CALL, "textId": GROUP},
    "TARGET_INFO_GPU": {"name": GPU},
    "TARGET_INFO_CUDA_DEVICE": {"uuid": SERIAL},
    raw.GPU_METRIC_NAMES: {"metricName": METRIC},
    raw.DIAGNOSTICS: {"text": STATED},
}
MADE_HERE = (raw.STRINGS, raw.PROGRAM)  # tables of a copy that are not copied
NO_TEXT = -1  # the id of a text that StringIds lacks
# What an event of NVTX names, by its eventType. Other events have no text in a copy, but for the marks of FLOPs.
EVENTS = {**dict.fromkeys((*raw.RANGE_TYPES, raw.CATEGORY_NAMED, raw.DOMAIN_CREATED), RANGE), raw.THREAD_NAMED: THREAD}
NAMING = (raw.SCOPES, raw.THREAD_NAMES, raw.PROCESSES, "TARGET_INFO_NVTX_CUDA_STREAM")  # their rows say only names
# A process with rows here is the program's. nsys names the threads and processes of the whole machine.
TRACED = (*raw.GPU_WORK, raw.RUNTIME, raw.NVTX, *raw.MPI, *raw.OPENACC, raw.SYSTEM_CALLS, raw.VIDEO_CALLS, raw.SCOPES)
OWNERS = ("globalTid", "globalPid")
SIZES = re.compile(rf"(?:[0-9]|x| |\*|{'|'.join(name for _, name, _ in raw.ELEMENTS)})*")  # 4096x2048 * 2048x8192 fp32
# How vendors name GPUs: "NVIDIA H200", "Tesla V100-SXM2-16GB", "A100-SXM4-40GB", "AMD Instinct MI300X".
PRODUCT = re.compile(
    r"(?:NVIDIA|Tesla|GeForce|Quadro|TITAN|RTX|Orin|AMD|Intel|[A-Z]{1,2}[0-9]{1,4})\b[A-Za-z0-9 ()/+.-]{0,60}"
)
COMMUNICATOR = re.compile("[0-9a-f]{1,16}")
LETTERS = "gjkqvwxz"  # no word of kept_words.txt has these alone
MIN_LETTERS = 6  # letters of a hash: more than the short words of kept_words.txt
MAX_CHANGES = 4  # stretches of letters and digits in a token: `conv2d_s16816gemm` has names, random keys have more
MAX_DIGITS = 6  # a longer number may identify something
LONG_NUMBER = re.compile(rf"[0-9]{{{MAX_DIGITS + 1},}}")
TOKEN = re.compile(r"[A-Za-z0-9]+|[^\x00-\x7f]+")
STRETCH = re.compile(r"[A-Za-z]+|[0-9]+")
# Calls of CUDA, HIP, NCCL, MPI, oneAPI and OpenACC, and operators of PyTorch: only these libraries name them.
PUBLIC_CALL = re.compile(r"(?a:(?:cuda|cu|hip|nccl|nvtx|nvrtc|ur|ze|pi|acc_|P?MPI_)[A-Z]\w{0,60}|aten::\w{1,60})")


@dataclass(frozen=True, slots=True, order=True)
class KeptText:
    """A text of a copy, and what it names."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Redacted:
    """What a copy has: the number of its tables and rows, and each distinct text.

    `notes` say what reading the capture left out. The copy does not repeat these notes.
    """

    tables: int
    rows: int
    texts: tuple[KeptText, ...]
    notes: tuple[str, ...]


class CopiedTexts:
    """Makes the texts of a copy. `strings` is its table StringIds, in which texts keep their ids where they can."""

    def __init__(self, tables: Mapping[str, pl.DataFrame], names: Names) -> None:
        """Read the texts of a capture; `names` says what becomes of names."""
        named = tables[raw.STRINGS].drop_nulls().unique("id", keep="first", maintain_order=True)
        self._known: dict[int, str] = dict(named.select("id", "value").iter_rows())
        self.strings: dict[int, str] = {}
        self.kept: set[KeptText] = set()
        self._names, self._hidden = names, HiddenNames([*self._known.values(), *_texts_beside(tables)])
        self._numbers = count(max((number for number in self._known if number < 1 << 40), default=0) + 1)
        self._more: dict[str, int] = {}
        self._serials: dict[str, str] = {}
        self._makers: Mapping[str, Callable[[str], str | None]] = {
            RANGE: self._name,
            THREAD: lambda text: self._name(without_path(text)),
            CALL: self._call,
            GPU: lambda text: text if PRODUCT.fullmatch(text) else None,
            METRIC: lambda text: text if metric_column(text) else None,
            SHAPE: lambda text: text if SIZES.fullmatch(text) else None,
            GROUP: lambda text: text if COMMUNICATOR.fullmatch(text) else self._hidden.public(text) or self._name(text),
            SERIAL: lambda text: self._serials.setdefault(text, str(len(self._serials) + 1)),
            FLOPS: str,
            UNREAD: lambda _text: None,
            STATED: read_words,
        }

    def copied(self, frame: pl.DataFrame, kinds: Mapping[str, str]) -> pl.DataFrame:
        """Return rows with the texts of the copy; `kinds` are those of the columns with texts or ids of texts."""
        return frame.with_columns(
            self._texts(frame[name], kind) if frame[name].dtype == pl.String else self._ids(frame[name], kind)
            for name, kind in kinds.items()
            if name in frame.columns
        )

    def _texts(self, column: pl.Series, kind: str) -> pl.Series:
        made = {text: self._makers[kind](text) for text in column.unique().drop_nulls().to_list()}
        self.kept.update(KeptText(kind, text) for text in made.values() if text is not None)
        return column.replace_strict(list(made), list(made.values()), default=None, return_dtype=pl.String)

    def _ids(self, column: pl.Series, kind: str) -> pl.Series:
        known = {number: self._known.get(number) for number in column.unique().sort().drop_nulls().to_list()}
        made = {
            number: NO_TEXT if text is None else self._id(self._makers[kind](text), kind, number)
            for number, text in known.items()
        }
        return column.replace_strict(list(made), list(made.values()), default=None, return_dtype=pl.Int64)

    def _id(self, text: str | None, kind: str, number: int) -> int | None:
        """Return the id of a text of the copy: `number`, unless it is that of another text."""
        if text is None:
            return None
        self.kept.add(KeptText(kind, text))
        if self.strings.setdefault(number, text) == text:
            return number
        if text not in self._more:
            self._more[text] = next(free for free in self._numbers if free not in self._known)
            self.strings[self._more[text]] = text
        return self._more[text]

    def _name(self, text: str) -> str | None:
        return text if self._names == "keep" else self._hidden.name(text) if self._names == "hash" else None

    def _call(self, text: str) -> str | None:
        """Return the name of a call without arguments, which may be paths."""
        name = text.partition("(")[0]
        return self._hidden.public(name) or self._name(name)

    def kernels(self, kernels: pl.DataFrame) -> pl.DataFrame:
        """Return kernels with the names of the copy. A hidden name states the kernel's kind."""
        columns = [name for name in TEXTS[raw.KERNEL] if name in kernels.columns]
        pairs = kernels.select(columns).unique(maintain_order=True)
        texts = [[self._known.get(number) for number in pairs[name].to_list()] for name in columns]
        if self._names != "keep":
            texts = hidden_kernels(texts, self._hidden, keeps_words=self._names == "hash")
        made = [
            [self._id(text, KERNEL, number) for text, number in zip(each, pairs[name].to_list(), strict=True)]
            for name, each in zip(columns, texts, strict=True)
        ]
        ids = pl.DataFrame(made, schema=dict.fromkeys(columns, pl.Int64))
        row = kernels.select(columns).join(
            pairs.with_row_index("row"), on=columns, how="left", nulls_equal=True, maintain_order="left"
        )["row"]
        return kernels.with_columns(ids[row])


def _texts_beside(tables: Mapping[str, pl.DataFrame]) -> Iterator[str]:
    """Yield the distinct texts that a copy may have outside StringIds."""
    for table, kinds in TEXTS.items():
        for name in kinds:
            if table in tables and name in tables[table].columns and tables[table][name].dtype == pl.String:
                yield from tables[table][name].unique().drop_nulls()


def read_words(diagnostic: str) -> str:
    """Return what the analysis reads in a diagnostic of the profiler, in its words alone."""
    dropped = re.search(DROPPED, diagnostic)
    others = (re.search(pattern, diagnostic) for pattern in (DRIVER, NO_UNIFIED_MEMORY))
    words = [f"events dropped: {dropped[1] or dropped[2]}"] if dropped else []
    return "; ".join([*words, *(match[0] for match in others if match)])


class CaptureCopy:
    """The tables of a copy."""

    def __init__(self, capture: RawCapture, names: Names) -> None:
        """Take the tables and columns of COLUMNS from a capture."""
        tables = dict(capture.tables)
        if capture.shapes is not None:
            kernels = tables[raw.KERNEL]
            tables[raw.KERNEL] = pl.concat([kernels, capture.shapes[kernels[raw.SHAPE]]], how="horizontal")
        self._tables = {name: _kept_columns(name, tables[name]) for name in COLUMNS if name in tables}
        self._names, self.texts = names, CopiedTexts(self._tables, names)

    def tables(self, step: Step) -> Iterator[tuple[str, pl.DataFrame]]:
        """Yield the tables of the copy, StringIds last."""
        for place, (name, frame) in enumerate(self._tables.items()):
            step(f"copy {name}", place / len(self._tables))
            if name == raw.KERNEL:
                yield name, self.texts.kernels(frame)
            elif name == raw.NVTX:
                yield name, self._events(frame)
            elif name not in MADE_HERE and not (self._names == "drop" and name in NAMING):
                yield name, self.texts.copied(self._of_the_program(name, frame), TEXTS.get(name, {}))
        strings = sorted(self.texts.strings.items())
        yield raw.STRINGS, pl.DataFrame(strings, schema={"id": pl.Int64, "value": pl.String}, orient="row")

    def _of_the_program(self, name: str, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the rows of a table that names threads or processes, for those of the program; others as they are."""
        if name not in (raw.THREAD_NAMES, raw.PROCESSES):
            return frame
        traced = [
            _processes_of(table, owner).unique()
            for listed, table in self._tables.items()
            for owner in OWNERS
            if listed in TRACED and owner in table.columns
        ]
        known = pl.concat([pl.Series([], dtype=pl.Int32), *traced])
        owned = [_processes_of(frame, owner).is_in(known.implode()) for owner in OWNERS if owner in frame.columns]
        return frame.filter(*owned) if owned else frame

    def _events(self, events: pl.DataFrame) -> pl.DataFrame:
        """Return the events of NVTX in their order. Those that the analysis does not name have no text."""
        is_mark = (pl.col("eventType") == raw.MARKED) & event_texts(events, self._tables).str.contains(MARK)
        named = pl.col("eventType").replace_strict(EVENTS, default=UNREAD, return_dtype=pl.String)
        kind = pl.when(is_mark).then(pl.lit(FLOPS)).otherwise(named).alias("kind")
        rows = events.with_columns(kind).with_row_index("row")
        copied = [
            self.texts.copied(rows.filter(kind=each), dict.fromkeys(("text", "textId"), each))
            for each in ((UNREAD, FLOPS) if self._names == "drop" else (UNREAD, FLOPS, RANGE, THREAD))
        ]
        return pl.concat(copied).sort("row").drop("row", "kind")


def _processes_of(frame: pl.DataFrame, owner: str) -> pl.Series:
    """Return the process of each row; null if the row has none."""
    return frame.select(pl.when(pl.col(owner).is_not_null()).then(process_of(owner))).to_series()


def _kept_columns(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the listed columns of a table; one without listed texts must have numbers."""
    texts = TEXTS.get(table, {}) if table not in MADE_HERE else raw.TABLES[table].text
    return frame.select(
        name for name in COLUMNS[table] if name in frame.columns and (name in texts or frame[name].dtype.is_integer())
    )


def redact(report: str | Path, out: str | Path, *, names: Names = "keep", progress: Step | None = None) -> Redacted:
    """Write a copy of a capture that is safe to share, as SQLite. A failure leaves no file.

    `names` says what becomes of the names of ranges, threads and kernels: "keep", "hash" or "drop". Raises ReportError
    when the capture cannot be read, and OutputError when `out` exists or cannot be written.
    """
    report, out = Path(report), Path(out)
    step = progress or (lambda _step, _done: None)
    if os.path.lexists(out):
        raise refused_as_present(out)
    check_different((report,), (out,))
    check_file(out)
    step("read", 0.0)
    capture = read_capture(report)
    stated = dict(tables_with_metadata(capture._replace(tables={})))
    with suppress(DamagedExportError):  # the copy of a capture that cannot be analyzed shows why
        stated[raw.PROGRAM] = program_rows(normalise(capture).program)
    copy = CaptureCopy(capture, names)
    rows: dict[str, int] = {}

    def tables() -> Iterator[tuple[str, pl.DataFrame]]:
        for name, frame in chain(stated.items(), copy.tables(step)):
            if frame.width:
                rows[name] = len(frame)
                yield name, frame

    with new_file(out, replaces=False) as written:
        try:
            write_tables(written, tables())
        except sqlite3.Error:
            raise OutputError(f"{out.name}: cannot be written (no space left, or a disk error)") from None
    texts = {text for frame in stated.values() for column in frame for text in column}
    return Redacted(
        tables=len(rows),
        rows=sum(rows.values()),
        texts=tuple(sorted(copy.texts.kept | {KeptText(STATED, text) for text in texts})),
        notes=tuple(problem for problem in capture.problems if LOSS.search(problem)),
    )


@cache
def kept_words() -> tuple[frozenset[str], re.Pattern[str]]:
    """Return the words that stay, and a pattern that splits a longer word at those that stay inside it."""
    lines = Path(__file__).with_name("kept_words.txt").read_text(encoding="utf-8").splitlines()
    words = frozenset(word for line in lines if not line.startswith("#") for word in line.split())
    inside = sorted((word for word in words if len(word) > 3 and word.isalpha()), key=len, reverse=True)
    return words, re.compile(f"({'|'.join(inside)})", re.IGNORECASE)


class HiddenNames:
    """Hides names. Equal words of one copy have equal hashes; another copy has others, so that no guess can be checked.

    `texts` are all texts that may be hidden: their long numbers are replaced by others in the same order.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._words, self._inside = kept_words()
        self._key = secrets.token_bytes(32)
        self._hashes: dict[str, str] = {}
        self._taken: set[str] = set()
        long = {number for text in texts for number in LONG_NUMBER.findall(text)}
        ordered = sorted(long, key=lambda number: (len(number.lstrip("0")), number.lstrip("0"), number))
        self._numbers = {number: str(10**MAX_DIGITS + place) for place, number in enumerate(ordered)}

    def name(self, text: str) -> str:
        """Return a name with its unknown words hashed; a name that has none stays as it is."""
        return TOKEN.sub(lambda match: self._token(match[0]), text[:MAX_NAME])[:MAX_NAME]

    def public(self, text: str) -> str | None:
        """Return a name that stays: a call of a public library, or one whose words are all known. None for others."""
        return text if PUBLIC_CALL.fullmatch(text) or self.name(text) == text else None

    def _token(self, token: str) -> str:
        if token.lower() in self._words:
            return token
        stretches = STRETCH.findall(token)
        if not stretches or len(stretches) > MAX_CHANGES:
            return self._hidden_outside_words(token, self._hashed)
        return "".join(self._numbers.get(each, each) if each.isdigit() else self._letters(each) for each in stretches)

    def _letters(self, letters: str) -> str:
        if letters.lower() in self._words:
            return letters
        return self._hidden_outside_words(letters, lambda piece: WORD.sub(lambda match: self._word(match[0]), piece))

    def _hidden_outside_words(self, text: str, hide: Callable[[str], str]) -> str:
        """Return a text with all but the words that stay inside it hidden."""
        pieces = self._inside.split(text)  # every second one stays
        pieces[::2] = [piece and hide(piece) for piece in pieces[::2]]
        return "".join(pieces)

    def _word(self, word: str) -> str:
        return word if word.lower() in self._words else self._hashed(word)

    def _hashed(self, word: str) -> str:
        """Return the hash of a word, with its capitals: these divide a name into words."""
        if word not in self._hashes:
            digest = blake2b(word.encode("utf-8", "replace"), key=self._key).digest()
            letters = "".join(LETTERS[byte % len(LETTERS)] for byte in digest)
            ends = range(MIN_LETTERS, len(letters))
            self._hashes[word] = next(letters[:end] for end in ends if letters[:end] not in self._taken)
            self._taken.add(self._hashes[word])
        hashed = self._hashes[word]
        return hashed.upper() if word.isupper() else hashed.capitalize() if word[0].isupper() else hashed


def hidden_kernels(names: list[list[str | None]], hidden: HiddenNames, *, keeps_words: bool) -> list[list[str | None]]:
    """Return hidden names of kernels for their short names, and their full names if the capture has these.

    The last of a kernel's names states its kind (kind_words), on which figures rest. Without `keeps_words`, a name is
    that of the kernel's family alone. Names of NCCL's kernels stay: they say the collective, its type and algorithm.
    """
    texts = [[text or UNNAMED for text in column] for column in (names[0], names[-1])]
    names_of_kernels = pl.DataFrame(texts, schema=dict.fromkeys(("name", "demangled"), pl.String))
    kinds = [KernelKind(*row) for row in shape_kinds(names_of_kernels).iter_rows()]
    communicating = {short for short, kind in zip(texts[0], kinds, strict=True) if kind.family == "communication"}
    made: list[list[str | None]] = [[] for _ in names]
    for short, full, kind in zip(*texts, kinds, strict=True):
        each = _hidden_kernel(short, full, kind, hidden, keeps_words)
        if short in communicating and not re.match(COMMUNICATION, each[-len(names)]):
            each[-len(names)] = f"nccl_{each[-len(names)]}"
        for column, text in zip(made, each[-len(names) :], strict=True):
            column.append(text)
    return [
        [None if before is None else after for before, after in zip(old, new, strict=True)]
        for old, new in zip(names, made, strict=True)
    ]


def _hidden_kernel(short: str, full: str, kind: KernelKind, hidden: HiddenNames, keeps_words: bool) -> list[str]:
    """Return the hidden short and full name of a kernel."""
    if kind.family == "communication" and hidden.name(short) == short and hidden.name(full) == full:
        return [short, full]
    if not keeps_words:
        return [kind.family, kind_words(kind._replace(label=kind.family))]
    return [hidden.name(short), f"{hidden.name(full)} {kind_words(kind._replace(label=hidden.name(kind.label)))}"]

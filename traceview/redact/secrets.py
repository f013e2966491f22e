"""Finds secrets in texts and replaces each by a mark; keeps or hashes names without changing any figure."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import count

import polars as pl

from traceview.measure.nvtx.names import COUNTER_WORDS, LIBRARY_NAMES, NUMBER, PART_WORDS, SIGNED_NUMBER
from traceview.model.trace import LIBRARY_DOMAINS, PROFILER_DOMAINS
from traceview.normalise.codes import SHORT_NAME
from traceview.normalise.operations import COMMUNICATION
from traceview.normalise.program import BACKWARD, NAMESPACES
from traceview.normalise.source_paths import is_library
from traceview.redact.shapes import SHAPES, Shape
from traceview.rules.host_bound import DATA, OPTIMIZER

PHASE_WORDS = (COUNTER_WORDS, PART_WORDS)  # words in the names of iterations and of their parts

LETTERS = "bcdfghjkmnpqtvwz"  # they cannot spell a word that rules search for in range names
MAX_ROUNDS = 4  # a replacement may reveal another secret next to it
_ANY = "|".join(f"(?:{shape.core})" for shape in SHAPES)
_SENSITIVE_VARIABLE = re.compile(r"TOKEN|KEY|SECRET|PASS|CRED|AUTH|WEBHOOK|DSN|COOKIE", re.IGNORECASE)
_USER_OR_HOST_VARIABLE = re.compile(r"(?:USER|LOGNAME|USERNAME|HOSTNAME|SUDO_USER)", re.IGNORECASE)
_MARK = re.compile(r"\[removed (\w+) \d+\]")  # left by an earlier redaction
_COMMON = frozenset({"root", "user", "localhost", "ubuntu", "admin", "none", "unknown", "python", "python3"})
HOST_OR_USER, VARIABLE = "host or user", "value of an environment variable"
FUNCTION_NAME = re.compile(r"(.*):(\d{1,9}) (.*)", re.DOTALL)  # the name of a Python function, as read/kineto writes it
PLAIN_PATH = re.compile(r"(?:[A-Za-z]:)?[^\s:]*")
LONG_NUMBER = 7  # digits; a number this long may be a secret itself


def words_of_environment(variables: str) -> dict[str, str]:
    """Return the private values among environment variables, with their kinds.

    A `;` or a line end separates variables.
    """
    words = {}
    for variable in re.split(r"[;\n]", variables):
        name, _, value = variable.partition("=")
        if len(value) >= 8 and _SENSITIVE_VARIABLE.search(name):
            words[value] = VARIABLE
        elif _USER_OR_HOST_VARIABLE.fullmatch(name.strip()):
            words[value] = HOST_OR_USER
        elif name.strip() == "HOME":
            words[value.rstrip("/").rsplit("/", 1)[-1]] = HOST_OR_USER
    return words


class Secrets:
    """Finds and replaces secrets, and counts the distinct ones per kind. It never returns a secret itself."""

    def __init__(self, private: Mapping[str, str]) -> None:
        """Search also for the `private` words of a capture, given with their kinds; ignore short and common words."""
        self._private = {
            word: kind for word, kind in private.items() if 4 <= len(word) < 1000 and word.lower() not in _COMMON
        }
        self._shapes = (*SHAPES, *self._private_shapes())
        self._replaced: dict[str, str] = {}
        self._seen: set[str] = set()
        self._marks: dict[str, str] = {}
        self._used_letters: set[str] = set()
        self._groups: dict[str, str] = {}
        self._letters = map(_letters_for, count())
        self._members: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()

    def _private_shapes(self) -> list[Shape]:
        """Return shapes for the private words, longest first. A host or user must be a separate word."""
        bounds = {VARIABLE: ("", ""), HOST_OR_USER: ("(?<![A-Za-z0-9])", "(?![A-Za-z0-9])")}
        shapes = []
        for kind, (before, after) in bounds.items():
            words = sorted((word for word, other in self._private.items() if other == kind), key=len, reverse=True)
            if words:
                shapes.append(Shape(kind, "|".join(map(re.escape, words)), before, after))
        return shapes

    def learn(self, texts: Iterable[str]) -> None:
        """Find the secrets of many texts at once, so that `clean` only has to look them up."""
        unseen = sorted(set(texts) - self._seen)
        self._seen.update(unseen)
        self._used_letters.update(mark[1] for text in unseen if "[removed " in text for mark in _MARK.finditer(text))
        texts = before = self._suspects(unseen)
        for _ in range(MAX_ROUNDS):
            after = texts
            for shape in self._shapes:
                after = self._replace(after, shape)
            changed = after != texts
            self._replaced.update(zip(before.filter(changed), after.filter(changed), strict=True))
            before, texts = before.filter(changed), after.filter(changed)
            if texts.is_empty():
                break

    def clean(self, text: str) -> str:
        """Return the text with `[removed ...]` in place of each secret. The same secret gets the same mark."""
        if text not in self._seen:
            self.learn([text])
        return self._replaced.get(text, text)

    def kind_in(self, texts: Iterable[str]) -> str | None:
        """Return the kind of a secret in the texts, or None. Texts that `learn` found clean are not searched again."""
        clear = self._seen - self._replaced.keys()
        suspects = self._suspects(sorted(set(texts) - clear))
        for shape in self._shapes:
            for text in suspects.filter(suspects.str.contains(shape.core)).to_list():
                if any(map(shape.is_secret, shape.pattern.finditer(text))):
                    return shape.kind
        return None

    def _suspects(self, texts: list[str]) -> pl.Series:
        """Return the texts that may contain a secret, in one pass of polars."""
        series = pl.Series(texts, dtype=pl.String)
        private = "|".join(f"(?:{shape.core})" for shape in self._shapes[len(SHAPES) :])
        return series.filter(series.str.contains(f"{_ANY}|{private}" if private else _ANY))

    def _replace(self, texts: pl.Series, shape: Shape) -> pl.Series:
        hits = texts.str.contains(shape.core)
        if not hits.any():
            return texts

        def mark(match: re.Match[str]) -> str:
            return self._mark(match[0], shape.kind) if shape.is_secret(match) else match[0]

        changed = [shape.pattern.sub(mark, text) for text in texts.filter(hits).to_list()]
        return texts.clone().scatter(hits.arg_true(), pl.Series(changed, dtype=pl.String))

    def _mark(self, secret: str, kind: str) -> str:
        """Return the mark of a secret. If only the numbers of two secrets differ, only those of their marks differ."""
        if secret not in self._marks:
            self.counts[kind] += 1
            group = re.sub(NUMBER, "#", secret)
            if group not in self._groups:
                self._groups[group] = next(letters for letters in self._letters if letters not in self._used_letters)
            self._members[group] += 1
            self._marks[secret] = f"[removed {self._groups[group]} {self._members[group]}]"
        return self._marks[secret]


def _letters_for(index: int) -> str:
    """Return the index written with LETTERS as digits."""
    text = LETTERS[index % len(LETTERS)]
    while index := index // len(LETTERS):
        text = LETTERS[index % len(LETTERS)] + text
    return text


class NameRedactor:
    """Keeps or hashes the names of ranges, kernels, threads and programs; removes secrets from them.

    Figures depend on parts of names (numbers, words that rules search for); hashing keeps these parts.
    """

    def __init__(self, secrets: Secrets, hashed: bool) -> None:
        """Use `secrets` to clean names; `hashed` selects hashing."""
        self._secrets = secrets
        self._hashed = hashed
        self._numbers: dict[str, str] = {}

    def word(self, text: str) -> str:
        """Return an API call, a setting or a message without secrets; it is never hashed."""
        return self._secrets.clean(text)

    def kernel(self, text: str) -> str:
        """Return a kernel's name. A hashed name keeps the prefix or the namespace of a library that figures rest on."""
        clean = self._secrets.clean(text)
        kind = COMMUNICATION.match(text)
        if self._hashed and (library := re.search(NAMESPACES, text)) and (short := re.match(SHORT_NAME, text)):
            # Its short name has the first hash. The word keeps whether the program trains a model.
            word = " Backward" if re.search(BACKWARD, text) else ""
            return f"void {library[1]}::{_digest(short[1])}({_digest(clean)}{word})"
        if self._hashed:
            return f"{kind[0]}_{_digest(clean)}" if kind else _digest(clean)
        return f"{kind[0]}_{clean}" if kind and not COMMUNICATION.match(clean) else clean

    def range(self, text: str) -> str:
        """Return a range's name. Hashing keeps its numbers, because iterations are recognised by them.

        A word that rules search for is kept, even inside a removed secret.
        """
        clean = self._secrets.clean(text)
        if text in (*LIBRARY_DOMAINS, *PROFILER_DOMAINS):
            return text  # ranges of these domains are not iterations
        if not self._hashed or clean == "":
            removed = [hint for hint in (DATA, OPTIMIZER) if clean != text and not hint.search(clean)]
            return " ".join([clean, *(word.lower() for hint in removed for word in hint.findall(text)[:1])])
        numbers = [match[1] or match[2] for match in re.finditer(rf"(?:^|[^\w.])(-\d+)|({NUMBER})", clean)]
        shape = re.sub(NUMBER, "#", re.sub(SIGNED_NUMBER, r"\1#", clean))
        matches = (DATA.search(text) or OPTIMIZER.search(text), *(re.search(words, text) for words in PHASE_WORDS))
        hints = dict.fromkeys(hint[0].lower() for hint in matches if hint)
        library = re.search(LIBRARY_NAMES, text)  # such ranges are not iterations
        hashed = f"{library[0]} {_digest(shape)}" if library else "_".join([*hints, _digest(shape)])
        return " ".join([hashed, *map(self._short_number, numbers)])

    def code(self, text: str) -> str:
        """Return a module's name as range() does, or a Python function with its file and line, as `train.py:20 step`.

        Hashing keeps the line, and functions of libraries.
        """
        parts = FUNCTION_NAME.match(text)
        if parts is None:
            return self.range(text)
        clean = self._secrets.clean(text)
        if not self._hashed or is_library(parts[1]):
            return clean
        return f"{_digest(parts[1])}.py:{parts[2]} {_digest(parts[3])}"

    def program(self, text: str) -> str:
        """Return a program's name without its folders."""
        path = text if PLAIN_PATH.fullmatch(text) else self._secrets.clean(text)
        return self.range(re.split(r"[/\\]", path)[-1])

    def _short_number(self, digits: str) -> str:
        """Return digits as they are, or a substitute for a long number, which may be a secret itself."""
        if len(digits) < LONG_NUMBER:
            return digits
        return self._numbers.setdefault(digits, str(10**LONG_NUMBER + len(self._numbers)))


def _digest(text: str) -> str:
    """Return a 64-bit hash spelled with LETTERS, because digits would count as numbers of the name."""
    return "".join(LETTERS[int(nibble, 16)] for nibble in hashlib.sha256(text.encode()).hexdigest()[:16])

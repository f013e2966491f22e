"""Finds secrets in texts, many texts at once, and replaces each by a mark of its own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import count

import polars as pl

from traceview.measure.iterations.candidates import NUMBER
from traceview.redact.shapes import SHAPES, Shape

LETTERS = "bcdfghjkmnpqtvwz"  # no word that the rules look for in a range's name can be written with them
MAX_ROUNDS = 4  # a replacement may uncover another secret beside it
_ANY = "|".join(f"(?:{shape.core})" for shape in SHAPES)
_SENSITIVE = re.compile(r"TOKEN|KEY|SECRET|PASS|CRED|AUTH|WEBHOOK|DSN|COOKIE", re.IGNORECASE)
_WHO = re.compile(r"(?:USER|LOGNAME|USERNAME|HOSTNAME|SUDO_USER)", re.IGNORECASE)
_MARK = re.compile(r"\[removed (\w+) \d+\]")  # of an earlier redaction
_COMMON = frozenset({"root", "user", "localhost", "ubuntu", "admin", "none", "unknown", "python", "python3"})
HOST_OR_USER, VARIABLE = "host or user", "value of an environment variable"


def words_of_environment(variables: str) -> dict[str, str]:
    """Return the values to search for elsewhere, by kind; a `;` or a line end separates `variables`."""
    words = {}
    for variable in re.split(r"[;\n]", variables):
        name, _, value = variable.partition("=")
        if len(value) >= 8 and _SENSITIVE.search(name):
            words[value] = VARIABLE
        elif _WHO.fullmatch(name.strip()):
            words[value] = HOST_OR_USER
        elif name.strip() == "HOME":
            words[value.rstrip("/").rsplit("/", 1)[-1]] = HOST_OR_USER
    return words


class Secrets:
    """Finds and replaces secrets; counts the distinct ones of each kind. Never returns what they were."""

    def __init__(self, private: Mapping[str, str]) -> None:
        """Take the capture's own words by kind; short words and common ones are not secrets."""
        self._private = {
            word: kind for word, kind in private.items() if 4 <= len(word) < 1000 and word.lower() not in _COMMON
        }
        self._shapes = (*SHAPES, *self._own_shapes())
        self._replaced: dict[str, str] = {}
        self._seen: set[str] = set()
        self._marks: dict[str, str] = {}
        self._taken: set[str] = set()
        self._groups: dict[str, str] = {}
        self._letters = map(_letters, count())
        self._members: Counter[str] = Counter()
        self.found: Counter[str] = Counter()

    def _own_shapes(self) -> list[Shape]:
        """Return shapes for the capture's own words, long ones first; a host or user stands alone, a key anywhere."""
        bounds = {VARIABLE: ("", ""), HOST_OR_USER: ("(?<![A-Za-z0-9])", "(?![A-Za-z0-9])")}
        shapes = []
        for kind, (before, after) in bounds.items():
            words = sorted((word for word, other in self._private.items() if other == kind), key=len, reverse=True)
            if words:
                shapes.append(Shape(kind, "|".join(map(re.escape, words)), before, after))
        return shapes

    def learn(self, texts: Iterable[str]) -> None:
        """Find the secrets of many texts at once, so that `cleaned` only looks them up."""
        unseen = sorted(set(texts) - self._seen)
        self._seen.update(unseen)
        self._taken.update(mark[1] for text in unseen if "[removed " in text for mark in _MARK.finditer(text))
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

    def cleaned(self, text: str) -> str:
        """Return the text with `[removed ..]` for each secret; the same mark for the same secret."""
        if text not in self._seen:
            self.learn([text])
        return self._replaced.get(text, text)

    def kind_in(self, texts: Iterable[str]) -> str | None:
        """Return the kind of a secret that some of the texts hold, None where none does.

        A text in which `learn` found nothing is not searched again.
        """
        clear = self._seen - self._replaced.keys()
        suspects = self._suspects(sorted(set(texts) - clear))
        for shape in self._shapes:
            for text in suspects.filter(suspects.str.contains(shape.core)).to_list():
                if any(map(shape.is_secret, shape.pattern.finditer(text))):
                    return shape.kind
        return None

    def _suspects(self, texts: list[str]) -> pl.Series:
        """Return the texts that may hold a secret: one pass of polars over all of them."""
        series = pl.Series(texts, dtype=pl.String)
        own = "|".join(f"(?:{shape.core})" for shape in self._shapes[len(SHAPES) :])
        return series.filter(series.str.contains(f"{_ANY}|{own}" if own else _ANY))

    def _replace(self, texts: pl.Series, shape: Shape) -> pl.Series:
        hits = texts.str.contains(shape.core)
        if not hits.any():
            return texts

        def mark(match: re.Match[str]) -> str:
            return self._mark(match[0], shape.kind) if shape.is_secret(match) else match[0]

        changed = [shape.pattern.sub(mark, text) for text in texts.filter(hits).to_list()]
        return texts.clone().scatter(hits.arg_true(), pl.Series(changed, dtype=pl.String))

    def _mark(self, secret: str, kind: str) -> str:
        """Return what replaces a secret: names that differ in numbers alone still do so."""
        if secret not in self._marks:
            self.found[kind] += 1
            group = re.sub(NUMBER, "#", secret)
            if group not in self._groups:
                self._groups[group] = next(letters for letters in self._letters if letters not in self._taken)
            self._members[group] += 1
            self._marks[secret] = f"[removed {self._groups[group]} {self._members[group]}]"
        return self._marks[secret]


def _letters(index: int) -> str:
    text = LETTERS[index % len(LETTERS)]
    while index := index // len(LETTERS):
        text = LETTERS[index % len(LETTERS)] + text
    return text

"""Hidden names: words that the analysis looks for stay (words.txt), all others are hashed.

Numbers and signs stay, because the analysis reads what changes between the names of two iterations. A hidden name so
matches each pattern of the analysis that the name matches, and no other.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable
from functools import cache
from hashlib import blake2b
from pathlib import Path

import polars as pl

from traceview.measure.kernels.families import KernelKind, kind_words, shape_kinds
from traceview.model.names import COMMUNICATION, WORD
from traceview.normalise.codes import UNNAMED
from traceview.read.source import MAX_NAME

LETTERS = "gjkqvwxz"  # no word of words.txt has these alone
MIN_LETTERS = 6  # letters of a hash: more than the short words of words.txt
MAX_CHANGES = 4  # stretches of letters and digits in a token: `conv2d_s16816gemm` has names, random keys have more
MAX_DIGITS = 6  # a longer number may identify something
LONG_NUMBER = re.compile(rf"[0-9]{{{MAX_DIGITS + 1},}}")
TOKEN = re.compile(r"[A-Za-z0-9]+|[^\x00-\x7f]+")
STRETCH = re.compile(r"[A-Za-z]+|[0-9]+")
# Calls of CUDA, HIP, NCCL, MPI, oneAPI and OpenACC, and operators of PyTorch: only these libraries name them.
PUBLIC_CALL = re.compile(r"(?a:(?:cuda|cu|hip|nccl|nvtx|nvrtc|ur|ze|pi|acc_|P?MPI_)[A-Z]\w{0,60}|aten::\w{1,60})")


@cache
def kept_words() -> tuple[frozenset[str], re.Pattern[str]]:
    """Return the words that stay, and a pattern that splits a longer word at those that stay inside it."""
    lines = Path(__file__).with_name("words.txt").read_text(encoding="utf-8").splitlines()
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

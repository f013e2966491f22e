"""Finds secrets in texts and replaces each by a mark; keeps or hashes names without changing any figure.

The private words of a capture are its host, its user, and the values of environment variables.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from urllib.parse import quote, quote_plus

import polars as pl

from traceview.captures.redact.shapes import LISTED, SHAPES, Shape, values_that_are_set
from traceview.measure.nvtx import COUNTER_WORDS, LIBRARY_NAMES, NUMBER, PART_WORDS, SIGNED_NUMBER
from traceview.model.names import COMMUNICATION, loading_words
from traceview.model.trace import LIBRARY_DOMAINS, PROFILER_DOMAINS
from traceview.model.units import quantity
from traceview.normalise.codes import SHORT_NAME
from traceview.normalise.health import READ_DIAGNOSTICS
from traceview.normalise.program import BACKWARD, NAMESPACES
from traceview.normalise.stacks import INSTALLED, is_library
from traceview.rules.host_bound import OPTIMIZER

# Settings whose value is a host or user name; names are searched for these values.
HOST_OR_USER_SETTINGS = frozenset({"Hostname", "DEVICE_DISPLAY_NAME", "USER_NAME", "EXPORT_HOST", "EXPORT_USER"})
HOST_OR_USER, VARIABLE, OTHER_VARIABLE = "host or user", "value of an environment variable", "value of another variable"
# nsys writes `NAME="value"`, `NAME=value;NAME=value` and, as the kernel does, `NAME=value` with NUL bytes between.
_VARIABLE = re.compile(r"(?:^|(?<=[;\n\0]))([A-Za-z_]\w{0,100})=")
_SENSITIVE = re.compile(r"TOKEN|KEY|SECRET|PASS|PWD$|CRED|AUTH|WEBHOOK|DSN|COOKIE|_PW\b|_URL$|_URI$", re.IGNORECASE)
_USER_OR_HOST = re.compile(r".*(?:USER|LOGNAME|USERNAME|HOST|HOSTNAME|ACCOUNT|NODELIST|NODENAME|ADDR)")
_PUBLIC_FOLDER = re.compile(r"/(?:usr|s?bin|lib\w*|etc|proc|dev|sys)\b")
_FOLDER = re.compile(r"(?:HOME|PWD|OLDPWD|USERPROFILE|HOMEPATH|\w+_HOME)$")
PUBLIC = frozenset(LISTED["public"]["words"].split())  # they do not identify anybody


def words_of_settings(settings: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the words in settings of a capture, which are names and values, that may be private, with their kinds."""
    words: dict[str, str] = {}
    arguments = []
    for name, value in settings:
        if "ENVIRONMENT" in name.upper():
            words |= words_of_environment(value)
        elif (key := name.rsplit(":", 1)[-1]) in HOST_OR_USER_SETTINGS:
            words |= _forms_of_host(unquoted(value))
        elif key == "WORKING_DIR":
            words |= words_of_environment(f"PWD={value}")
        elif key.startswith("ARGUMENT_"):
            arguments.append(value)
    return words | dict.fromkeys(values_that_are_set("\0".join(arguments)), VARIABLE)


def words_of_environment(variables: str) -> dict[str, str]:
    """Return the values of environment variables, with their kinds.

    A `;`, a line end or a NUL separates variables. Quotes around a value do not belong to it.
    """
    words: dict[str, str] = {}
    starts = list(_VARIABLE.finditer(variables))
    ends = [*(match.start() for match in starts[1:]), len(variables)]
    for match, end in zip(starts, ends[: len(starts)], strict=True):
        name, value = match[1].upper(), unquoted(variables[match.end() : end].rstrip(";\n\0"))
        if _USER_OR_HOST.fullmatch(name):
            words |= _forms_of_host(value)
        elif _SENSITIVE.search(name):
            words[value] = VARIABLE
        else:
            items = [item for item in re.split(r"[\s:;,=]+", value) if not _PUBLIC_FOLDER.match(item)]
            words = dict.fromkeys((value, *items, *map(last_part, items)), OTHER_VARIABLE) | words
        if _FOLDER.fullmatch(name) and is_private(last_part(value), HOST_OR_USER):
            words[last_part(value)] = HOST_OR_USER
    return words


def _forms_of_host(value: str) -> dict[str, str]:
    return dict.fromkeys((value, value.partition(".")[0]), HOST_OR_USER)


def last_part(path: str) -> str:
    """Return the part of a path after its last slash or backslash; those at its end do not count."""
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]


def unquoted(value: str) -> str:
    """Return a value without spaces and quotes around it."""
    value = value.strip()
    while len(value) > 1 and value[0] == value[-1] and value[0] in "\"'`":
        value = value[1:-1]
    return value


def is_private(word: str, kind: str) -> bool:
    """Return whether a word may identify somebody: it is long enough, and neither a number nor made of PUBLIC words."""
    parts = re.findall(r"[^\W_]+", word.lower())
    if all(part in PUBLIC or (part.isdigit() and len(part) < 7) for part in parts):
        return False
    return len(word) >= {HOST_OR_USER: 3, VARIABLE: 4}.get(kind, 6)


def written_forms(word: str) -> Iterator[str]:
    """Yield a word as texts may hold it: plain, and as JSON, an address, HTML, a shell and base64 write it."""
    yield word
    yield json.dumps(word)[1:-1]
    yield json.dumps(word, ensure_ascii=False)[1:-1]
    yield quote(word, safe="")
    yield quote(word)
    yield quote_plus(word)
    yield html.escape(word)
    yield html.escape(word, quote=False)
    yield word.replace("'", "'\\''")
    yield repr(word)[1:-1]
    if len(word) >= 8:
        yield b64encode(word.encode("utf-8", "replace")).decode().rstrip("=")


def pattern_of_words(words: Iterable[str], kinds: Mapping[str, str]) -> str:
    """Return a pattern of private words, longest first. All but a long value of a key must be words of their own."""
    patterns = []
    for word in sorted(words, key=len, reverse=True):
        whole = kinds[word] != VARIABLE or len(word) < 8
        before = "(?<![A-Za-z0-9])" if whole and word[0].isalnum() else ""
        after = "(?![A-Za-z0-9])" if whole and word[-1].isalnum() else ""
        patterns.append(f"{before}{re.escape(word)}{after}")
    return f"(?i:{'|'.join(patterns)})"


def _optimizer_word(name: str) -> str:
    match = OPTIMIZER.search(name)
    return match[0].lower() if match else ""


HINTS = (loading_words, _optimizer_word)  # find words that rules search for
PHASE_WORDS = (COUNTER_WORDS, PART_WORDS)  # words in the names of iterations and of their parts

LETTERS = "bcdfghjkmnpqtvwz"  # they cannot spell a word that rules search for in range names
MAX_ROUNDS = 4  # a replacement may reveal another secret next to it
_ANY = "|".join(f"(?:{shape.core})" for shape in SHAPES)
_MARK = re.compile(r"\[removed (\w+) \d+\]")  # left by an earlier redaction
FUNCTION_NAME = re.compile(r"(.*):(\d{1,9}) (.*)", re.DOTALL)  # the name of a Python function, as read/kineto writes it
# Calls of CUDA, NCCL, MPI and the system, operators of PyTorch, its autograd's own nodes (a function of the program has
# no number), and collectives: hashing keeps these names.
PUBLIC_CALL = re.compile(
    r"(?:cu|cuda|nccl|nvtx|P?MPI_|acc_)[A-Z]\w*|(?:aten|prims?|_?c10d(?:_functional)?)::\w+|\w+Backward\d+|"
    r"pthread_(?:cond|mutex|rwlock|barrier|spin)_(?:timed|try|clock)?(?:wait|lock|rdlock|wrlock|signal|broadcast|unlock)|"
    r"pthread_(?:create|join|kill)|sem_(?:timed|try|clock)?wait|sem_(?:open|post)|epoll_p?wait2?|sched_yield|posix_spawnp?|"
    r"(?:p?(?:read|write)v?|f?open|fdopen|pipe|f(?:read|write|get[cs]|put[cs]|close|flush|sync|cntl)|putc|puts|getc|"
    r"recv(?:m?msg|from)?|send(?:m?msg|to|file)?|accept|connect|bind|listen|socket|p?poll|p?select|futex|ioctl|"
    r"m(?:un|re)?map|mprotect|v?f?printf|wait(?:pid|id)?|v?fork|system|(?:nano|u)?sleep|dlopen|dlclose|f?stat|flock|"
    r"sig(?:timed)?wait(?:info)?)(?:64|[1-4])?|"
    r"_?(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|reduce|gather|scatter|send|recv|barrier)"
    r"(?:_base|_coalesced|_into|_tensor|_single|_object|_list|v)*"
)
PLAIN_PATH = re.compile(r"(?:[A-Za-z]:)?[^\s:=?&]*")
LONG_NUMBER = 7  # digits; a number this long may be a secret itself


class Secrets:
    """Finds and replaces secrets, and counts the distinct ones per kind. It never returns a secret itself."""

    def __init__(self, private: Mapping[str, str]) -> None:
        """Search also for the `private` words of a capture, given with their kinds; ignore short and public words."""
        own = {word for word, kind in private.items() if kind != OTHER_VARIABLE and word}
        self._has_values = VARIABLE in private.values() or OTHER_VARIABLE in private.values()
        self._kept_words = sum(not is_private(word, private[word]) for word in own)
        self._private = {
            form.lower(): kind
            for word, kind in private.items()
            if len(word) < 1000 and is_private(word, kind)
            for form in written_forms(word)
        }
        self._replaced: dict[str, str] = {}
        self._seen: set[str] = set()
        self._results: set[str] = set()
        self._marks: dict[str, str] = {}
        self._used_letters: set[str] = set()
        self._groups: dict[str, str] = {}
        self._letters = map(_letters_for, count())
        self._members: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()

    def _shapes_for(self, texts: pl.Series) -> list[Shape]:
        """Return SHAPES, and one per kind of private words with those that occur in the texts."""
        if not self._private:
            return list(SHAPES)
        present = texts.str.extract_many(list(self._private), ascii_case_insensitive=True, overlapping=True)
        words = {word.lower() for word in present.explode().drop_nulls().unique()}
        return [*SHAPES, *(self._shape_of(kind, words) for kind in sorted({self._private[word] for word in words}))]

    def _shape_of(self, kind: str, words: set[str]) -> Shape:
        own = sorted(word for word in words if self._private[word] == kind)
        core = f"(?i:{'|'.join(map(re.escape, own))})"
        return Shape(kind, core, exact=pattern_of_words(own, self._private))

    def learn(self, texts: Iterable[str]) -> None:
        """Find the secrets of many texts at once, so that `clean` only has to look them up."""
        unseen = sorted(set(texts) - self._seen)
        self._seen.update(unseen)
        self._used_letters.update(mark[1] for text in unseen if "[removed " in text for mark in _MARK.finditer(text))
        texts = before = self._suspects(unseen)
        shapes = self._shapes_for(texts)
        for _ in range(MAX_ROUNDS):
            if texts.is_empty():
                break
            after = texts
            for shape in shapes:
                after = self._replace(after, shape)
            changed = after != texts
            self._replaced.update(zip(before.filter(changed), after.filter(changed), strict=True))
            before, texts = before.filter(changed), after.filter(changed)
        self._results.update(self._replaced.values())

    def clean(self, text: str) -> str:
        """Return the text with `[removed ...]` in place of each secret. The same secret gets the same mark."""
        if text not in self._seen and text not in self._results:
            self.learn([text])
        return self._replaced.get(text, text)

    def not_promised(self) -> tuple[str, ...]:
        """Return sentences on the secrets that `clean` may leave in texts."""
        kept = quantity(self._kept_words, "host, user or value of a key", "hosts, users or values of keys")
        return (
            "Secrets without a known pattern are not recognised (docs/redact.md lists the patterns).",
            *(
                ()
                if self._has_values
                else ("The capture lists no environment, so its values stay where names have them.",)
            ),
            *(
                (f"{kept} of the environment stay in names, because they are short or common.",)
                if self._kept_words
                else ()
            ),
        )

    def kind_in(self, texts: Iterable[str]) -> str | None:
        """Return the kind of a secret in the texts, or None. Texts that `learn` found clean are not searched again."""
        clear = self._seen - self._replaced.keys()
        suspects = self._suspects(sorted(set(texts) - clear))
        for shape in self._shapes_for(suspects):
            for text in suspects.filter(suspects.str.contains(shape.core)).to_list():
                if any(map(shape.is_secret, shape.pattern.finditer(text))):
                    return shape.kind
        return None

    def _suspects(self, texts: list[str]) -> pl.Series:
        """Return the texts that may contain a secret, in one pass of polars."""
        series = pl.Series(texts, dtype=pl.String)
        suspicious = series.str.contains(_ANY)
        if self._private:
            suspicious |= series.str.contains_any(list(self._private), ascii_case_insensitive=True)
        return series.filter(suspicious)

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
        """Return a setting or a label of nsys without secrets; it is never hashed."""
        return self._secrets.clean(text)

    def call(self, text: str) -> str:
        """Return the name of a call, an operator or a collective. With hashed names, only those of PUBLIC_CALL stay."""
        name, _, arguments = text.partition("(")
        if not self._hashed or PUBLIC_CALL.fullmatch(text):
            return self._secrets.clean(text)
        return f"{name}({_digest(arguments)})" if arguments and PUBLIC_CALL.fullmatch(name) else self.range(text)

    def message(self, text: str) -> str:
        """Return a diagnostic of nsys. Hashing keeps what the analysis reads in it."""
        if not self._hashed:
            return self._secrets.clean(text)
        matches = [match for pattern in READ_DIAGNOSTICS if (match := re.search(pattern, text))]
        return "; ".join(re.sub(r"(?i)(dropped [0-9]+)[^0-9]*events?", r"\1 events", match[0]) for match in matches)

    def kernel(self, text: str) -> str:
        """Return a kernel's name. A hashed name keeps the prefix or the namespace of a library that figures rest on."""
        clean = self._secrets.clean(text)
        kind = re.match(COMMUNICATION, text)
        if self._hashed and (library := re.search(NAMESPACES, text)) and (short := re.match(SHORT_NAME, text)):
            # Its short name has the first hash. The word keeps whether the program trains a model.
            word = " Backward" if re.search(BACKWARD, text) else ""
            return f"void {library[1]}::{_digest(short[1])}({_digest(clean)}{word})"
        if self._hashed:
            return f"{kind[0]}_{_digest(clean)}" if kind else _digest(clean)
        return f"{kind[0]}_{clean}" if kind and not re.match(COMMUNICATION, clean) else clean

    def range(self, text: str) -> str:
        """Return a range's name. Hashing keeps its numbers, because iterations are recognised by them.

        A word that rules search for is kept, even inside a removed secret.
        """
        clean = self._secrets.clean(text)
        if text in (*LIBRARY_DOMAINS, *PROFILER_DOMAINS):
            return text  # ranges of these domains are not iterations
        if not self._hashed or clean == "":
            lost = [hint for find in HINTS if (hint := find(text)) and not find(clean)] if clean != text else []
            return " ".join([clean, *lost])
        numbers = [match[1] or match[2] for match in re.finditer(rf"(?:^|[^\w.])(-\d+)|({NUMBER})", clean)]
        shape = re.sub(NUMBER, "#", re.sub(SIGNED_NUMBER, r"\1#", clean))
        phases = (match[0].lower() for words in PHASE_WORDS if (match := re.search(words, text)))
        hints = dict.fromkeys([*[hint for find in HINTS if (hint := find(text))][:1], *phases])
        library = re.search(LIBRARY_NAMES, text)  # such ranges are not iterations
        kept = re.sub(r"\w*Fusion\w*", "Fusion", library[0]) if library else ""
        hashed = f"{kept} {_digest(shape)}" if library else "_".join([*hints, _digest(shape)])
        return " ".join([hashed, *map(self._short_number, numbers)])

    def code(self, text: str) -> str:
        """Return a module's name as range() does, or a Python function with its file and line, as `train.py:20 step`.

        Hashing keeps the line, and functions of Python and of well-known packages.
        """
        parts = FUNCTION_NAME.match(text)
        if parts is None:
            return self.range(text)
        clean = self._secrets.clean(text)
        installed = INSTALLED.match(parts[1])
        if not self._hashed or (is_library(parts[1]) and not installed):
            return clean
        if installed and is_library(parts[1][installed.end() :]):
            return f"{parts[1][installed.end() :]}:{parts[2]} {self._secrets.clean(parts[3])}"
        if installed:  # any package may be installed
            return f"lib/site-packages/{_digest(parts[1])}.py:{parts[2]} {_digest(parts[3])}"
        return f"{_digest(parts[1])}.py:{parts[2]} {_digest(parts[3])}"

    def program(self, text: str) -> str:
        """Return a program's name without its folders."""
        return self.range(last_part(self._secrets.clean(program_name(text))))

    def _short_number(self, digits: str) -> str:
        """Return digits as they are, or a substitute for a long number, which may be a secret itself."""
        if len(digits) < LONG_NUMBER:
            return digits
        return self._numbers.setdefault(digits, str(10**LONG_NUMBER + len(self._numbers)))


def program_name(text: str) -> str:
    """Return the last part of a program's path, or the whole text of another form."""
    return last_part(text) if PLAIN_PATH.fullmatch(text) else text


def _digest(text: str) -> str:
    """Return a 64-bit hash spelled with LETTERS, because digits would count as numbers of the name."""
    return "".join(LETTERS[int(nibble, 16)] for nibble in hashlib.sha256(text.encode()).hexdigest()[:16])

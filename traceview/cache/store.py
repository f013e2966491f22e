"""Entries on disk: checked when read, written whole or not at all, private, and bounded.

A question is a folder, an answer to it a file in it; both are called by digests alone. Everything is opened
relative to the folder of the cache and no link is followed, so that nothing outside is read, written or removed.
Whatever goes wrong (a full disk, a folder that cannot be written or is somebody else's) is no error: nothing is
found, or nothing is kept.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

MOST_BYTES = 2_000_000_000
SPARE = 256 << 20  # left free on the disk
ABANDONED = 3600  # seconds after which a half-written entry is nobody's any more
HEAD = b"traceview answer 1\n"
NAME = re.compile(r"[0-9a-f]{40}")
PART = re.compile(r"part-[0-9a-f]{16}")
# https://bford.info/cachedir: backups leave the folder out.
TAG = "CACHEDIR.TAG"
TAG_TEXT = b"Signature: 8a477f597d28d172789f06886806bc55\n# Answers kept by traceview; safe to delete.\n"
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
WRITING = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Entry:
    """One answer, or what was left of one while it was written."""

    question: str
    name: str
    size: int  # bytes
    used: float  # seconds since 1970


@dataclass(frozen=True, slots=True)
class Store:
    """The answers in one folder, `most` bytes of them at most."""

    root: Path
    most: int = MOST_BYTES

    def has(self, question: str) -> bool:
        """Is any answer to this question here?"""
        with self._folder(question) as folder:
            return folder is not None

    def get(self, question: str, name: str) -> str | None:
        """Return an answer that is whole and unchanged, and remember that it was used."""
        with self._folder(question) as folder:
            if folder is None:
                return None
            with suppress(OSError):
                return _checked(_read(folder, _called(name)), question, name)
        return None

    def put(self, question: str, name: str, answer: str) -> bool:
        """Keep an answer, in place of one that was there; say whether it is there now."""
        data = _sealed(answer, question, name)
        with self._folder(question, make=True) as folder:
            if folder is None or len(data) > self.most:
                return False
            with suppress(OSError):
                room = os.fstatvfs(folder)
                if room.f_bavail * room.f_frsize > len(data) + SPARE:
                    _write(folder, _called(name), data)
                    return True
        return False

    def entries(self) -> list[Entry]:
        """Return all entries, the longest unused first."""
        found = [entry for question in self._questions() for entry in self._entries(question)]
        return sorted(found, key=lambda entry: (entry.used, entry.question, entry.name))

    def trim(self) -> None:
        """Remove what was used longest ago, until the rest fits, and what was abandoned half-written."""
        entries = self.entries()
        left = sum(entry.size for entry in entries)
        for entry in entries:
            abandoned = PART.fullmatch(entry.name) is not None and entry.used < time.time() - ABANDONED
            if left > self.most or abandoned:
                left -= entry.size
                self._remove(entry)

    def clear(self) -> int:
        """Remove every entry; return the bytes. What is not ours stays."""
        entries = self.entries()
        for entry in entries:
            self._remove(entry)
        for question in self._questions():
            self._remove_folder(question)
        return sum(entry.size for entry in entries)

    @contextmanager
    def _folder(self, question: str | None = None, *, make: bool = False) -> Iterator[int | None]:
        """Yield a descriptor of the cache or of a question's folder; None where it is absent or not to be trusted."""
        opened: list[int] = []
        try:
            with suppress(OSError):
                opened.append(_root(self.root, make))
                if question is not None:
                    if make:
                        with suppress(FileExistsError):
                            os.mkdir(question, 0o700, dir_fd=opened[0])
                    opened.append(os.open(question, FOLDER, dir_fd=opened[0]))
            yield opened[-1] if len(opened) == (1 if question is None else 2) else None
        finally:
            for one in opened:
                os.close(one)

    def _questions(self) -> list[str]:
        with self._folder() as folder:
            if folder is None:
                return []
            return [name for name in _listed(folder) if NAME.fullmatch(name)]

    def _entries(self, question: str) -> Iterator[Entry]:
        with self._folder(question) as folder:
            for name in _listed(folder) if folder is not None else ():
                if NAME.fullmatch(name) or PART.fullmatch(name):
                    with suppress(OSError):
                        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
                        yield Entry(question, name, found.st_size, found.st_mtime)

    def _remove(self, entry: Entry) -> None:
        with self._folder(entry.question) as folder:
            if folder is not None:
                with suppress(OSError):
                    os.unlink(entry.name, dir_fd=folder)
        self._remove_folder(entry.question)

    def _remove_folder(self, question: str) -> None:
        with self._folder() as root:
            if root is not None:
                with suppress(OSError):  # it may hold more
                    os.rmdir(question, dir_fd=root)


def _root(root: Path, make: bool) -> int:
    """Open the folder of the cache. Raises OSError where it is a link, or others may write into it."""
    if make and not root.is_dir():
        root.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            root.mkdir(mode=0o700)
    folder = os.open(root, FOLDER)
    try:
        about = os.fstat(folder)
        if about.st_uid != os.geteuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(f"{root} may be written by others")
        if make:
            _tag(folder)
    except BaseException:
        os.close(folder)
        raise
    return folder


def _tag(root: int) -> None:
    with suppress(FileExistsError):
        file = os.open(TAG, WRITING, 0o600, dir_fd=root)
        try:
            os.write(file, TAG_TEXT)
        finally:
            os.close(file)


def _listed(folder: int) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _called(name: str) -> str:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


def _seal(question: str, name: str, text: bytes) -> bytes:
    seal = hashlib.blake2b(digest_size=32)
    for part in (question.encode(), name.encode("utf-8", "surrogatepass"), text):
        seal.update(b"%d:" % len(part))
        seal.update(part)
    return seal.hexdigest().encode()


def _sealed(answer: str, question: str, name: str) -> bytes:
    text = answer.encode("utf-8", "surrogatepass")
    return HEAD + _seal(question, name, text) + b"\n" + text


def _checked(data: bytes, question: str, name: str) -> str | None:
    """Return the answer in an entry; None where it is damaged, changed by hand, or another's."""
    length = len(HEAD) + 65
    seal, text = data[len(HEAD) : length], data[length:]
    if not data.startswith(HEAD) or not hmac.compare_digest(seal, _seal(question, name, text) + b"\n"):
        return None
    return text.decode("utf-8", "surrogatepass")


def _read(folder: int, name: str) -> bytes:
    opened = os.open(name, READING, dir_fd=folder)
    with os.fdopen(opened, "rb") as file:
        about = os.fstat(opened)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
            return b""
        with suppress(OSError):  # a folder that may only be read answers as well
            os.utime(opened)
        return file.read()


def _write(folder: int, name: str, data: bytes) -> None:
    part = f"part-{secrets.token_hex(8)}"
    try:
        with os.fdopen(os.open(part, WRITING, 0o600, dir_fd=folder), "wb") as file:
            file.write(data)
        os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(part, dir_fd=folder)
        raise

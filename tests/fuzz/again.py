"""Ask the same twice with damaged answers on disk in between: the second answer is the first one."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from tests.fuzz.cases import Case
from tests.fuzz.damage import damaged
from tests.fuzz.ended import Ended, Way, run


def asked_again(case: Case, before: Ended, scratch: Path) -> Iterator[str]:
    """Yield what is wrong with a second look; the first one went as `before` says and wrote its outputs."""
    way: Way = "sqlite" if case.way == "apart" else case.way  # five processes take long
    chance, cache = random.Random(case.seed), scratch.parent / "answers"
    shutil.rmtree(cache, ignore_errors=True)
    first = {out: out.read_bytes() for out in case.outputs if out.is_file()}
    time.sleep(0.06)  # a report that changed just now is not kept
    with mock.patch.dict(os.environ, {"TRACEVIEW_CACHE": str(cache)}):
        for how in ("kept", "found", "damaged", "damaged", "damaged"):
            if how == "damaged" and cache.is_dir():
                how = _damaged_answers(cache, chance)
            ended = run(case.arguments, scratch, way)
            # A second look says so on standard error.
            if (ended.code, ended.out, ended.raised) != (before.code, before.out, before.raised):
                yield f"{how}: ended with {ended.code}: {ended.raised or ended.err}"
            if wrong := [out.name for out, data in first.items() if not out.is_file() or out.read_bytes() != data]:
                yield f"{how}: other answers in {wrong}"
        for more in ((), ("--clear",)):
            ended = run(("cache", *more), scratch)
            if ended.code or ended.raised or ended.err or ended.out.count("\n") != 1:
                yield f"cache {more}: {ended}"
    shutil.rmtree(cache, ignore_errors=True)


def _damaged_answers(cache: Path, chance: random.Random) -> str:
    """Do something to an answer or a folder of answers, and say what."""
    files = sorted(path for path in cache.rglob("*") if path.is_file() and not path.is_symlink())
    if not files:
        return "nothing kept"
    one, other = chance.choice(files), chance.choice(files)
    how = chance.choice(
        ("bytes", "bytes", "bytes", "another's", "gone", "folder", "link", "pipe", "empty", "unreadable")
    )
    if how == "bytes":
        one.write_bytes(damaged(one.read_bytes(), chance, [other.read_bytes(), b"traceview answer 1\n"]))
    elif how == "another's":
        one.write_bytes(other.read_bytes())
    elif how == "empty":
        one.write_bytes(b"")
    elif how == "unreadable":
        one.chmod(0)
    else:
        one.unlink()
        if how == "folder":
            one.mkdir()
        elif how == "link":
            one.symlink_to(other if other != one else "/dev/zero")
        elif how == "pipe":
            os.mkfifo(one)
    return f"{how} {one.name}"

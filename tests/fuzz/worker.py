"""Check cases one by one: `python -m tests.fuzz.worker FIRST COUNT MEGABYTES`. scripts/fuzz runs it.

Prints the number before each case, and a line of JSON after it: {"seed", "code", "command", "kind", "story", "wrong"}.
The files of failed cases are kept in the folder `seed` under FUZZ_FINDS.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from pathlib import Path

from tests.fuzz import cases
from tests.fuzz.corpus import Corpus
from tests.fuzz.judge import judge


def main(first: int, count: int, megabytes: int) -> None:
    """Check `count` cases from `first` on, with a memory limit in addition to the imports."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    finds = Path(os.environ["FUZZ_FINDS"])
    with tempfile.TemporaryDirectory(prefix="traceview-fuzz-") as name:
        folder = Path(name)
        (folder / "corpus").mkdir()
        exports = Corpus.make(folder / "corpus")
        taken = _limit_memory(megabytes)
        for seed in range(first, first + count):
            print(seed, flush=True)
            print(json.dumps(_one(seed, exports, folder, finds)), flush=True)
            # polars keeps memory that a damaged arrow file requested; the next worker starts without it.
            if _taken() > taken + (megabytes << 19):
                return


def _taken() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _limit_memory(megabytes: int) -> int:
    import traceview.pipeline
    import traceview.report.analysis  # noqa: F401

    taken = _taken()
    resource.setrlimit(resource.RLIMIT_AS, (taken + (megabytes << 20),) * 2)
    return taken


def _one(seed: int, exports: Corpus, folder: Path, finds: Path) -> dict[str, object]:
    here, scratch = folder / "case", folder / "temporary"
    shutil.rmtree(here, ignore_errors=True)
    shutil.rmtree(scratch, ignore_errors=True)
    here.mkdir()
    scratch.mkdir()
    try:
        case = cases.make(seed, exports, here)
    except Exception:  # the case itself failed: reported and not counted
        return {"seed": seed, "code": None, "command": "", "kind": "", "story": traceback.format_exc(), "wrong": []}
    try:
        code, wrong = judge(case, scratch)
    except Exception:
        code, wrong = -1, [traceback.format_exc()]
    if wrong and not (finds / str(seed)).exists() and len(list(finds.iterdir())) < 500:
        shutil.copytree(here, finds / str(seed))
    return {"seed": seed, "code": code, "command": case.command, "kind": case.kind, "story": case.story, "wrong": wrong}


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))

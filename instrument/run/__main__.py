"""The command `python -m instrument.run`."""

from __future__ import annotations

import argparse
import sys

from instrument.run.program import load_module, load_script, run_as_main, show_as_python
from instrument.run.session import Options, Session

USAGE = "python -m instrument.run [OPTION ...] (SCRIPT | -m MODULE) [ARGUMENT ...]"
ABOUT = (
    "Run a PyTorch script with ranges for its iterations and their phases. The script and its results do not change."
)


def main() -> None:
    """Run the program that the command line names."""
    parser = argparse.ArgumentParser(usage=USAGE, description=ABOUT, allow_abbrev=False)
    parser.add_argument("--modules", type=int, default=0, metavar="DEPTH", help="name modules too, to this depth")
    parser.add_argument("--live", action="store_true", help="print the step time and its parts, without a profiler")
    parser.add_argument("--every", type=float, default=5.0, metavar="SECONDS", help="between the lines of --live")
    parser.add_argument("--capture-slow", action="store_true", help="trace the step after one that takes twice as long")
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="run a module, like python -m")
    parser.add_argument("script", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    given = parser.parse_args()
    program = given.module or given.script
    if not program:
        parser.error("name a script, or -m and a module")
    session = Session(Options(given.modules, given.every if given.live else None, given.capture_slow))
    try:
        load = load_module if given.module else load_script
        module, code = load(program[0], program[1:])
    except (OSError, ImportError) as error:
        sys.exit(f"{sys.executable}: {error}" if given.module else _cannot_open(error))
    except SyntaxError:
        show_as_python(is_script=not given.module)
        raise
    try:
        run_as_main(module, code, is_script=not given.module)
    finally:
        session.close()


def _cannot_open(error: Exception) -> int:
    text = f"[Errno {error.errno}] {error.strerror}" if isinstance(error, OSError) else str(error)
    sys.stderr.write(f"{sys.executable}: can't open file {getattr(error, 'filename', '')!r}: {text}\n")
    return 2


if __name__ == "__main__":
    main()

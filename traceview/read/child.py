"""A process of its own that runs one of our modules, and finds what it imports where its parent does."""

from __future__ import annotations

import json
import sys

# Isolated: before it knows the parent's path, nothing that lies beside a report is imported.
START = "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); from {} import main; main()"


def command(module: str, *arguments: str) -> list[str]:
    """Return the command that calls `main` of a module; its arguments are sys.argv from 1 on."""
    return [sys.executable, "-I", "-c", START.format(module), *arguments, json.dumps(sys.path)]

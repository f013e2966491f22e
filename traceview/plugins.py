"""Rules and measures of other packages, by entry point (docs/extending.md "In your own package").

A package names them in its metadata, for example in its pyproject.toml:

    [project.entry-points."traceview.rules"]
    spin_wait = "my_package:spin_wait"

`importlib.metadata` takes 16 ms to list the entry points of 140 packages, which every analysis would pay. This module
reads the same files in 1.5 ms, and imports what they name when it is used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import lru_cache, reduce
from importlib import import_module
from pathlib import Path
from typing import Any

from traceview.errors import is_out_of_memory
from traceview.frozen import frozen

RULES, MEASURES = "traceview.rules", "traceview.measures"
METADATA = (".dist-info", ".egg-info")  # folders that hold the metadata of an installed package
MARK = b"[traceview."  # in a file of entry points: it has a group of ours


@frozen
class Plugin:
    """An entry point: its name, the name and version of its package, and `module:attribute`."""

    group: str
    name: str
    package: str
    target: str

    def load(self) -> Any:
        """Import what the entry point names."""
        module, _, attribute = self.target.partition(":")
        return reduce(getattr, filter(None, attribute.split(".")), import_module(module))

    def failure(self, error: BaseException) -> str:
        """Return one line on an error of the plugin. The error's own text may hold data from the capture."""
        from traceback import extract_tb

        others = ("<", str(Path(__file__).parent))
        frames = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith(others)]
        where = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
        return f"{self.words} failed ({type(error).__name__}{where}) and is left out"

    @property
    def words(self) -> str:
        """The plugin in words: "the rule `spin_wait` of the package example 1.0"."""
        return f"the {self.group.rpartition('.')[2].removesuffix('s')} `{self.name}` of the package {self.package}"


def is_fault(error: BaseException) -> bool:
    """Return whether an error is a fault of a plugin, not an interruption. A panic in polars is not an Exception."""
    return not (isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit)) or is_out_of_memory(error))


def plugins(group: str) -> tuple[Plugin, ...]:
    """Return the plugins of a group that installed packages name, by package and name."""
    return tuple(plugin for plugin in _all_plugins(tuple(sys.path)) if plugin.group == group)


@lru_cache(maxsize=1)
def _all_plugins(folders: tuple[str, ...]) -> tuple[Plugin, ...]:
    """Return the plugins of all groups. The first package of a name hides others, as in an import."""
    files: dict[str, tuple[str, bytes]] = {}
    for folder in dict.fromkeys(folders):
        for name, path in _metadata_folders(folder or os.curdir):
            package = name.rpartition(".")[0].split("-")
            if package[0] not in files:
                files[package[0]] = (" ".join(package[:2]), _bytes_of(f"{path}/entry_points.txt"))
    every = (entry for package, data in files.values() if MARK in data for entry in _entries(package, data))
    return tuple(sorted(every, key=lambda plugin: (plugin.package, plugin.name)))


def _metadata_folders(folder: str) -> list[tuple[str, str]]:
    """Return the names and paths of the folders with metadata in a folder of sys.path; [] if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return [(entry.name, entry.path) for entry in entries if entry.name.endswith(METADATA)]
    except OSError:  # such as a zip file
        return []


def _bytes_of(path: str) -> bytes:
    try:
        with open(path, "rb", 0) as file:  # noqa: PTH123 -- in half the time of Path; there are hundreds of packages
            return file.read()
    except OSError:
        return b""


def _entries(package: str, data: bytes) -> Iterator[Plugin]:
    """Yield the plugins in a file of entry points: sections with lines `name = module:attribute`."""
    group = ""
    for line in map(str.strip, data.decode("utf-8", "replace").splitlines()):
        if line.startswith("["):
            group = line.strip("[]")
        elif group in (RULES, MEASURES) and "=" in line and not line.startswith(("#", ";")):
            name, _, target = line.partition("=")
            yield Plugin(group, name.strip(), package, target.partition("[")[0].strip())

"""Rules and measures of other packages, by entry point (docs/extending.md "In your own package")."""

from __future__ import annotations

import sys
from functools import lru_cache, reduce
from importlib import import_module
from importlib.metadata import EntryPoint, distributions, entry_points
from itertools import chain
from pathlib import Path
from traceback import extract_tb
from typing import Any, NamedTuple

from traceview.errors import is_out_of_memory

RULE_GROUP, MEASURE_GROUP = "traceview.rules", "traceview.measures"


class Plugin(NamedTuple):
    """An entry point: its name, the name and version of its package, and `module:attribute`."""

    group: str
    name: str
    package: str
    target: str

    @classmethod
    def from_entry_point(cls, point: EntryPoint) -> Plugin:
        """Return an installed plugin."""
        package = "" if point.dist is None else f"{point.dist.name} {point.dist.version}"
        return cls(point.group, point.name, package, point.value.partition("[")[0].strip())

    def load(self) -> Any:
        """Import what the entry point names."""
        module, _, attribute = self.target.partition(":")
        return reduce(getattr, filter(None, attribute.split(".")), import_module(module))

    def failure(self, error: BaseException) -> str:
        """Return one line on an error of the plugin. The error's own text may hold data from the capture."""
        others = ("<", str(Path(__file__).parents[1]))
        frames = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith(others)]
        where = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
        return f"{self.words} failed ({type(error).__name__}{where}) and is left out"

    def left_out(self, fault: str) -> str:
        """Return one line on a fault in what the plugin returns or declares."""
        return f"{self.words} is left out: {fault}"

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
def _all_plugins(_folders: tuple[str, ...]) -> tuple[Plugin, ...]:
    """Return the plugins of all groups. The folders of sys.path are an argument, because they can change."""
    stated = (package.read_text("entry_points.txt") or "" for package in distributions())
    if not any(group in text for text in stated for group in (RULE_GROUP, MEASURE_GROUP)):
        return ()
    points = entry_points()  # reads the metadata of all packages
    groups = (points.select(group=group) for group in (RULE_GROUP, MEASURE_GROUP))
    every = map(Plugin.from_entry_point, chain.from_iterable(groups))
    return tuple(sorted(every, key=lambda plugin: (plugin.package, plugin.name)))

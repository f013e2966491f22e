"""The captures that a server may read, and the analyses that it keeps."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, cast

from traceview.errors import RequestError
from traceview.model.analysis import Analysis, NotMeasured
from traceview.model.times import window_of_times
from traceview.model.units import plain
from traceview.model.whatif import WhatIf
from traceview.pipeline import analyze, open_trace
from traceview.ranks.analyze_reports import find_reports
from traceview.read.formats import captures_in
from traceview.read.source import table_files
from traceview.replay.prediction import whatif

Result = TypeVar("Result")

MAX_KEPT = 4  # analyses and predictions; an analysis of a million kernels takes a gigabyte
JOURNALS = ("-wal", "-shm", "-journal")  # suffixes of the files that SQLite reads with a database
MAX_FOLDERS = 200  # that are searched for captures


class Captures:
    """The files that the user names, and those under the working folder."""

    def __init__(self, named: Sequence[Path], folder: Path) -> None:
        self.folder = folder.resolve()
        self.roots = (self.folder, *(path.resolve() for path in named))
        self.options: dict[Path, dict[str, Any]] = {}
        self._kept: OrderedDict[tuple[object, ...], object] = OrderedDict()

    def path(self, name: str) -> Path:
        """Return the path of a capture; a link stands for its target. Raises RequestError if it may not be read."""
        try:
            path = (self.folder / name).resolve()
            read_too = [*table_files(path), *(path.with_name(f"{path.name}{suffix}") for suffix in JOURNALS)]
            linked = [file for file in read_too if file.is_symlink()]
        except (OSError, ValueError) as error:  # a name that is too long, a NUL, a folder that the user may not read
            reason = getattr(error, "strerror", None) or "not a file name"
            raise RequestError(f"{plain(name, 200)} cannot be read ({reason}); `open` lists the captures") from None
        self._check_inside(name, path)
        if path.is_dir() and not table_files(path):
            raise RequestError(f"{plain(name, 200)} is a folder; `open` without a capture lists the captures")
        for file in linked:
            self._check_inside(f"{name}: the link {file.name}", file.resolve())
        return path

    def reports(self, names: Sequence[str]) -> list[Path]:
        """Return the reports of files, folders and patterns, each as `path` does. Raises TraceviewError."""
        for name in names:
            try:
                self._check_inside(name, (self.folder / name).resolve())
            except (OSError, ValueError):
                raise RequestError(f"{plain(name, 200)} is not a file name; `open` lists the captures") from None
        return [self.path(str(path)) for path in find_reports([str(self.folder / name) for name in names])]

    def _check_inside(self, name: str, path: Path) -> None:
        if not any(path.is_relative_to(root) for root in self.roots):
            raise RequestError(
                f"{plain(name, 200)} is outside the working folder, and the user did not name it: traceview mcp FILE"
            )

    def set_options(self, name: str, **options: object) -> Analysis:
        """Set the options of a capture's analyses, and return its analysis. Options that do not fit leave the former.

        Raises TraceviewError.
        """
        path = self.path(name)
        former = self.options.get(path, {})
        self.options[path] = options
        try:
            return self.analysis(name)
        except BaseException:
            self.options[path] = former
            raise

    def analysis(self, name: str, start: str = "", end: str = "", range_name: str = "") -> Analysis:
        """Return the analysis of a capture, or of a window of it. Raises TraceviewError."""

        def analyzed() -> Analysis:
            trace = open_trace(self.path(name))
            try:
                window = window_of_times(trace, start or None, end or None)
                return analyze(trace, window=window, range_name=range_name or None, **self._options(name))
            except OverflowError:  # a time of more than 64 bits
                raise RequestError("start and end are beyond the clock of any capture; write 120ms") from None

        return self._keep((*self._version(name), start, end, range_name), analyzed)

    def prediction(self, name: str, faster: Mapping[str, float] | None) -> WhatIf | NotMeasured:
        """Return what changes would give. Raises TraceviewError."""
        speedups = tuple(sorted((faster or {}).items()))
        key = (*self._version(name), "whatif", speedups)
        return self._keep(key, lambda: whatif(self.analysis(name), faster_kernels=faster))

    def _options(self, name: str) -> dict[str, Any]:
        return self.options.get(self.path(name), {})

    def _version(self, name: str) -> tuple[object, ...]:
        """Return what the results of a capture depend on: the file, its time and size, and its options."""
        path = self.path(name)
        state = path.stat() if path.exists() else None
        return (path, state and (state.st_mtime_ns, state.st_size), *sorted(self._options(name).items()))

    def _keep(self, key: tuple[object, ...], build: Callable[[], Result]) -> Result:
        """Return a result, which is built if it is not among the last MAX_KEPT."""
        if key not in self._kept:
            result = build()
            while len(self._kept) >= MAX_KEPT:
                self._kept.popitem(last=False)
            self._kept[key] = result
        self._kept.move_to_end(key)
        return cast(Result, self._kept[key])

    def listed(self) -> list[dict[str, str]]:
        """Return the captures that may be read, as names relative to the working folder, with their kinds."""
        kinds: dict[Path, str] = {}
        for root in dict.fromkeys(self.roots):
            kinds |= _captures_under(root)
        return [{"capture": self._name(path), "kind": kinds[path]} for path in sorted(kinds)]

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.folder) if path.is_relative_to(self.folder) else path)


def _captures_under(root: Path) -> dict[Path, str]:
    """Return the captures in a folder and the folders below it with their kinds; a capture is one itself.

    At most MAX_FOLDERS folders are searched, the upper ones first. Hidden folders and links to folders are not.
    """
    if not root.is_dir() or table_files(root):
        return {root: "capture"}
    captures: dict[Path, str] = {}
    folders = [root]
    for folder in islice(folders, MAX_FOLDERS):  # the list grows meanwhile
        with suppress(OSError):  # a folder that the user may not read
            captures |= dict(captures_in(folder))
            folders += [path for path in sorted(folder.iterdir()) if path not in captures and _is_searched(path)]
    return captures


def _is_searched(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not path.name.startswith(".")

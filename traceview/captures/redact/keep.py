"""The tables, columns and rows that a redacted copy keeps (keep.toml). Everything not listed is dropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from traceview.model.catalogue import read_toml
from traceview.read import raw

_LISTED = read_toml(Path(__file__).with_name("keep.toml"))
_ENUMS = [f"ENUM_{name}" for name in _LISTED["enums"]]
_MORE: Mapping[str, Sequence[str]] = _LISTED["columns"] | dict.fromkeys(_ENUMS, ("id", "name", "label"))
COLUMNS: Mapping[str, frozenset[str]] = {
    table: frozenset((*(raw.TABLES[table].columns if table in raw.TABLES else ()), *_MORE.get(table, ())))
    for table in {**raw.TABLES, **_MORE}
    if table not in (*raw.STACKS, raw.FILE_EVENTS, raw.FILES)
}
ROWS: Mapping[str, Sequence[str]] = _LISTED["rows"]
WORDS: Mapping[str, Sequence[str]] = _LISTED["words"] | dict.fromkeys(_ENUMS, ("name", "label"))
NAMES: Mapping[str, Sequence[str]] = _LISTED["names"]
REMOVED: Mapping[str, str] = _LISTED["removed"]
NOT_NEEDED = "not needed for any figure"
SERIAL = "uuid"
IDS = ("demangledName", "shortName", "mangledName", "nameId", "textId")
OWNERS = ("globalTid", "globalPid")  # (value >> 24) & 0xFFFFFF is the process
PROCESS_TABLES = ("PROCESSES", "ThreadNames")  # these list every program of the machine
LOCAL = "Local (CLI)"
# Settings whose value is a host or user name; names are searched for these values.
HOST_OR_USER_SETTINGS = frozenset({"Hostname", "DEVICE_DISPLAY_NAME", "USER_NAME", "EXPORT_HOST", "EXPORT_USER"})

"""What stays in a redacted copy. Whatever is not named here goes, also what a later version adds."""

from __future__ import annotations

import re
from collections.abc import Mapping

from traceview.read import raw

TABLES = frozenset(
    {
        *raw.TABLES,
        "ANALYSIS_DETAILS",
        "CUDA_GRAPH_EVENTS",
        "DIAGNOSTIC_EVENT",
        "EXPORT_META_DATA",
        "META_DATA_CAPTURE",
        "META_DATA_EXPORT",
        "PROCESSES",
        "TARGET_INFO_CUDA_CONTEXT_INFO",
        "TARGET_INFO_SYSTEM_ENV",
    }
)
PREFIXES = ("CUPTI_ACTIVITY_KIND_", "ENUM_")
PLAIN = re.compile(r"\w{1,64}", re.ASCII)  # a table or column that is called anything else goes

_EXPORT = ("EXPORT_PRODUCT_%", "EXPORT_SCHEMA_VERSION%", "EXPORT_PARAM_LAZY")
# Of these tables of names and values, the rows with these names (as LIKE sees them).
ROWS: Mapping[str, tuple[str, ...]] = {
    "META_DATA_CAPTURE": ("CAPTURE_EVENT_TYPE", "PROCESS_0:COLLECT_%", "PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:%"),
    "META_DATA_EXPORT": _EXPORT,
    "EXPORT_META_DATA": _EXPORT,
    "TARGET_INFO_SYSTEM_ENV": ("NvDriverVersion", "CudaDriverVersion"),
}
# Texts that are cleaned of secrets and stay; in every other column a text becomes an empty one.
WORDS: Mapping[str, tuple[str, ...]] = {
    "META_DATA_CAPTURE": ("name", "value"),
    "META_DATA_EXPORT": ("name", "value"),
    "EXPORT_META_DATA": ("name", "value"),
    "TARGET_INFO_SYSTEM_ENV": ("devStateName", "name", "value"),
    "TARGET_INFO_GPU": ("name", "busLocation", "chipName"),
    "DIAGNOSTIC_EVENT": ("text",),
}
ENUM_WORDS = ("name", "label")
# Texts that are the program's own names.
NAMES: Mapping[str, tuple[str, ...]] = {
    raw.NVTX: ("text",),
    "PROCESSES": ("name",),
    "TARGET_INFO_NVTX_CUDA_STREAM": ("name",),
}
SERIAL = "uuid"
IDS = ("demangledName", "shortName", "mangledName", "nameId", "textId")
GONE = ("jsonTextId", "jsonText", "binaryData")  # payloads of NVTX: they hold anything
OWNERS = ("globalTid", "globalPid")  # (either >> 24) & 0xFFFFFF is the process
DIRECTORIES = ("PROCESSES", "ThreadNames")  # they list every program of the machine
LOCAL = "Local (CLI)"
# Settings whose value is the host or the user, to be looked for in names too.
WHO = frozenset({"Hostname", "DEVICE_DISPLAY_NAME", "USER_NAME", "EXPORT_HOST", "EXPORT_USER"})

WHAT: Mapping[str, str] = {
    "ANALYSIS_FILE": "files of the profiler and what the program printed",
    "ProcessStreams": "what the program printed",
    "TARGET_INFO_SESSION_START_TIME": "the time of day",
    "TARGET_INFO_SYSTEM_ENV": "the environment, host name, system and paths",
    "META_DATA_CAPTURE": "the command line, environment variables, working folder, host and user",
    "META_DATA_EXPORT": "the host, user, paths and time of the export",
    "EXPORT_META_DATA": "the host, user, paths and time of the export",
    "PROCESSES": "other programs of the machine",
    "ThreadNames": "threads of other programs",
    "DIAGNOSTIC_EVENT": "messages with paths or settings",
    raw.STRINGS: "texts that nothing that stays refers to",
    "SAMPLING_CALLCHAINS": "call stacks: symbols and the files they are in",
    "CUDA_CALLCHAINS": "call stacks: symbols and the files they are in",
    "OSRT_CALLCHAINS": "call stacks: symbols and the files they are in",
}
UNREAD = "no figure needs it"


def is_kept(table: str) -> bool:
    """Does this table stay?"""
    return PLAIN.fullmatch(table) is not None and (table in TABLES or table.startswith(PREFIXES))


def words_of(table: str) -> tuple[str, ...]:
    """Return the columns of a table whose texts are cleaned and stay."""
    return ENUM_WORDS if table.startswith("ENUM_") else WORDS.get(table, ())

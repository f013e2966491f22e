"""The tables, columns and rows that a redacted copy keeps. Everything not listed here is dropped."""

from __future__ import annotations

from collections.abc import Mapping

from traceview.read import raw

_EVENT = ("start", "end", "eventClass", "globalTid", "correlationId", "nameId")
_GEOMETRY = (
    *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "clusterX", "clusterY", "clusterZ"),
    *("registersPerThread", "staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread", "localMemoryTotal"),
    *("sharedMemoryExecuted", "sharedMemoryLimitConfig", "sharedMemoryRequestedPercentage", "launchType"),
    *("cacheConfig", "clusterSchedulingPolicy", "maxPotentialClusterSize", "maxActiveClusters"),
)
_GPU = (
    *("id", "name", "uuid", "busLocation", "cuDevice", "chipName", "isDiscrete", "l2CacheSize", "totalMemory"),
    *("memoryBandwidth", "clockRate", "smCount", "constantMemory", "maxIPC", "asyncEngines", "threadsPerWarp"),
    *("maxRegistersPerBlock", "maxRegistersPerSm", "maxShmemPerBlock", "maxShmemPerBlockOptin", "maxShmemPerSm"),
    *("maxWarpsPerSm", "maxBlocksPerSm", "maxThreadsPerBlock", "computeMajor", "computeMinor", "smMajor", "smMinor"),
)
_ENUMS = (
    *("CUDA_FUNC_CACHE_CONFIG", "CUDA_KERNEL_LAUNCH_TYPE", "CUDA_KRENEL_LAUNCH_TYPE", "CUDA_SHARED_MEM_LIMIT_CONFIG"),
    *("CUDA_MEMCPY_OPER", "CUDA_MEM_KIND", "CUDA_UNIF_MEM_MIGRATION", "CUPTI_OVERHEAD_TYPE", "CUPTI_STREAM_TYPE"),
    *("CUPTI_SYNC_TYPE", "NSYS_EVENT_CLASS", "NSYS_EVENT_TYPE", "OPENACC_DEVICE", "OPENACC_EVENT_KIND"),
    *("DIAGNOSTIC_SEVERITY_LEVEL", "DIAGNOSTIC_SOURCE_TYPE", "DIAGNOSTIC_TIMESTAMP_SOURCE"),
)
_SETTINGS = ("name", "value")
# Kept in addition to what the analysis reads (raw.TABLES): sizes and ids set by the driver or nsys. Values that a
# program sets are dropped: NVTX payloads and colours, memset values, MPI tags, files, the names of variables.
_MORE: Mapping[str, tuple[str, ...]] = {
    raw.KERNEL: ("demangledName", "mangledName", "graphId", "graphNodeId", "gridId", "greenContextId", *_GEOMETRY),
    raw.MEMCPY: (
        *("greenContextId", "srcDeviceId", "srcContextId", "dstDeviceId", "dstContextId", "deprecatedSrcId"),
        *("migrationCause", "graphNodeId", "copyCount"),
    ),
    raw.MEMSET: ("greenContextId", "graphNodeId", "memKind"),
    raw.GRAPH: ("greenContextId", "graphExecId"),
    raw.RUNTIME: ("eventClass", "returnValue"),
    raw.SYNCHRONIZATION: ("start", "end", "deviceId", "greenContextId", "deprecatedSyncType", "eventSyncId"),
    raw.CUDA_EVENT: ("deviceId", "greenContextId", "timestamp", "eventSyncId"),
    raw.NVTX: ("rangeId", "endGlobalTid"),
    raw.OVERHEAD: ("globalTid", "nameId", "returnValue", "correlationId", "overheadType"),
    **dict.fromkeys(raw.OPENACC, ("eventKind", "DeviceType", "cuDeviceId", "cuContextId", "cuStreamId")),
    "TARGET_INFO_GPU": _GPU,
    "TARGET_INFO_CUDA_STREAM": ("priority",),
    "TARGET_INFO_CUDA_NULL_STREAM": ("deviceId",),
    "TARGET_INFO_NVTX_CUDA_STREAM": ("deviceId",),
    "ThreadNames": ("priority",),
    "ANALYSIS_DETAILS": ("duration", "startTime", "stopTime"),
    "CUDA_GRAPH_EVENTS": (*_EVENT, "graphId", "originalGraphId", "graphExecId", "graphNodeId", "originalGraphNodeId"),
    "CUPTI_ACTIVITY_KIND_OVERHEAD": (*_EVENT, "overheadType"),
    "DIAGNOSTIC_EVENT": ("timestamp", "timestampType", "source", "severity", "text", "globalPid"),
    "PROCESSES": ("globalPid", "pid", "name"),
    "TARGET_INFO_CUDA_CONTEXT_INFO": (
        *("nullStreamId", "processId", "deviceId", "contextId", "parentContextId", "isGreenContext"),
    ),
    "TARGET_INFO_SYSTEM_ENV": ("devStateName", "nameEnum", *_SETTINGS),
    **dict.fromkeys(("META_DATA_CAPTURE", "META_DATA_EXPORT", "EXPORT_META_DATA"), _SETTINGS),
    **{f"ENUM_{name}": ("id", "name", "label") for name in _ENUMS},
}
COLUMNS: Mapping[str, frozenset[str]] = {
    table: frozenset((*(raw.TABLES[table].columns if table in raw.TABLES else ()), *_MORE.get(table, ())))
    for table in {**raw.TABLES, **_MORE}
    if table not in (*raw.STACKS, raw.FILE_EVENTS, raw.FILES)
}

_EXPORT = ("EXPORT_PRODUCT_%", "EXPORT_SCHEMA_VERSION%", "EXPORT_PARAM_LAZY")
# Kept rows of tables with names and values, as LIKE patterns of the name.
ROWS: Mapping[str, tuple[str, ...]] = {
    "META_DATA_CAPTURE": ("CAPTURE_EVENT_TYPE", "PROCESS_0:COLLECT_%", "PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:%"),
    "META_DATA_EXPORT": _EXPORT,
    "EXPORT_META_DATA": _EXPORT,
    "TARGET_INFO_SYSTEM_ENV": ("NvDriverVersion", "CudaDriverVersion"),
}
# Columns with texts of nsys, kept without secrets. A text in a column outside WORDS and NAMES becomes empty.
WORDS: Mapping[str, tuple[str, ...]] = {
    "META_DATA_CAPTURE": _SETTINGS,
    "META_DATA_EXPORT": _SETTINGS,
    "EXPORT_META_DATA": _SETTINGS,
    "TARGET_INFO_SYSTEM_ENV": ("devStateName", *_SETTINGS),
    "TARGET_INFO_GPU": ("name", "busLocation", "chipName"),
    "DIAGNOSTIC_EVENT": ("text",),
    raw.GPU_METRIC_NAMES: ("metricName",),
    **{f"ENUM_{name}": ("name", "label") for name in _ENUMS},
}
# Columns with names that the program chose.
NAMES: Mapping[str, tuple[str, ...]] = {
    raw.NVTX: ("text",),
    raw.STRINGS: ("value",),
    "PROCESSES": ("name",),
    "TARGET_INFO_NVTX_CUDA_STREAM": ("name",),
}
SERIAL = "uuid"
IDS = ("demangledName", "shortName", "mangledName", "nameId", "textId")
OWNERS = ("globalTid", "globalPid")  # (value >> 24) & 0xFFFFFF is the process
PROCESS_TABLES = ("PROCESSES", "ThreadNames")  # these list every program of the machine
LOCAL = "Local (CLI)"
# Settings whose value is a host or user name; names are searched for these values.
HOST_OR_USER_SETTINGS = frozenset({"Hostname", "DEVICE_DISPLAY_NAME", "USER_NAME", "EXPORT_HOST", "EXPORT_USER"})

_STACKS = "call stacks: symbols and their files"
# The content of dropped tables and rows, for the summary.
REMOVED: Mapping[str, str] = {
    "ANALYSIS_FILE": "files of the profiler and output of the program",
    "ProcessStreams": "output of the program",
    "TARGET_INFO_SESSION_START_TIME": "the time of day",
    "TARGET_INFO_SYSTEM_ENV": "the environment, host name, system and paths",
    "META_DATA_CAPTURE": "the command line, environment variables, working folder, host and user",
    "META_DATA_EXPORT": "the host, user, paths and time of the export",
    "EXPORT_META_DATA": "the host, user, paths and time of the export",
    "PROCESSES": "other programs of the machine",
    "ThreadNames": "threads of other programs",
    "DIAGNOSTIC_EVENT": "messages with paths or settings",
    raw.STRINGS: "texts that no kept row uses",
    **dict.fromkeys(raw.STACKS, _STACKS),
    **dict.fromkeys((raw.FILE_EVENTS, raw.FILES), "names of files that the program opened"),
    **dict.fromkeys(("NVTX_PAYLOAD_SCHEMAS", "NVTX_PAYLOAD_SCHEMA_ENTRIES"), "NVTX payloads"),
}
NOT_NEEDED = "not needed for any figure"

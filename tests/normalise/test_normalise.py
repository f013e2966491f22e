"""The Trace of every kind of export equals that of a slow and simple reader."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.build_export import (
    Call,
    Copy,
    CudaDevice,
    Gpu,
    Graph,
    Kernel,
    Memset,
    NamedStream,
    NullStream,
    Nvtx,
    Overhead,
    Record,
    Stream,
    Sync,
    ThreadName,
    build_export,
)
from tests.captures import ALL, H200, shared
from tests.oracle.export import Export
from traceview import normalise
from traceview.errors import DamagedExportError
from traceview.model.trace import Trace
from traceview.normalise.api import role_of, without_suffix
from traceview.normalise.devices import ClockBounds, measure_clocks
from traceview.pipeline import open_trace

PROCESSES = st.sampled_from([10, 11, 0xFFFFFF, None])
DEVICES = st.sampled_from([0, 0, 1, 7])
STREAMS = st.sampled_from([7, 13, 0, 4294967295])
CORRELATIONS = st.sampled_from([0, 1, 2, 3, 4294967295, None, -5])
TIMES = st.integers(0, 60)
NAMES = st.sampled_from(
    ["gemm", "NCCLdevKernel_x", "ncclDevKernel_AllReduce", "my_nccl", "Mscclpp1", "two_shot_all_reduce", "</b>", 999999]
)
CALLS = st.sampled_from(
    [
        "cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020_ptsz", "cudaMemcpy_v3020", "cuMemcpyHtoDAsync_v2",
        "cudaMemcpy2DToArrayAsync", "cudaMalloc_v3020", "cudaMallocAsync_v11020", "cudaFree", "cudaFreeHost",
        "cuMemFree_v2", "cudaDeviceSynchronize_v3020", "cudaStreamSynchronize_ptsz", "cuCtxSynchronize",
        "cudaMemcpyPeer", "cudaMemcpyToSymbol_ptds", "cuMemcpyDtoH_v2_ptds", "cuMemHostAlloc_v2", 888888,
    ]
)  # fmt: skip
PLACES = {"stream": STREAMS, "device": DEVICES, "process": PROCESSES, "correlation": CORRELATIONS}
SIZES = st.sampled_from([0, 1, 1 << 40, None])


def lasting(row: type, /, **fields: st.SearchStrategy[object]) -> st.SearchStrategy[list[object]]:
    """Return rows of a kind; some end before they start."""
    length = st.sampled_from([0, 0, 1, 5, 30, -1])
    made = st.tuples(TIMES, length, st.fixed_dictionaries(fields)).map(
        lambda drawn: row(start=drawn[0], end=drawn[0] + drawn[1], **drawn[2])
    )
    return st.lists(made, max_size=8)


@st.composite
def nvtx_row(draw: st.DrawFn) -> Nvtx:
    start, length = draw(TIMES), draw(st.sampled_from([0, 3, 40, None]))
    return Nvtx(
        start=start,
        end=None if length is None else start + length,
        text=draw(st.sampled_from([None, "step 1", "step 2", ""])),
        registered=draw(st.sampled_from([None, "step 1", "forward", 777777])),
        kind=draw(st.sampled_from([59, 59, 60, 34, 75, 76])),
        domain=draw(st.sampled_from([0, 0, 1, None])),
        thread=draw(st.sampled_from([11, 12])),
        process=draw(st.sampled_from([10, 11])),
    )


CUDA_DEVICES = st.builds(
    CudaDevice,
    device=DEVICES,
    process=st.sampled_from([10, 11]),
    uuid=st.sampled_from(["GPU-a", "GPU-b"]),
)
MEMORY_KINDS = st.sampled_from([*range(9), None])
EXPORTS = st.fixed_dictionaries(
    {
        "kernels": lasting(Kernel, name=NAMES, **PLACES),
        "copies": lasting(
            Copy,
            kind=st.sampled_from([*range(16), None, -1]),
            bytes=SIZES,
            source=MEMORY_KINDS,
            target=MEMORY_KINDS,
            **PLACES,
        ),
        "memsets": lasting(Memset, bytes=SIZES, **PLACES),
        "graphs": lasting(Graph, graph=st.sampled_from([1, 2, None]), **PLACES),
        "api": lasting(
            Call,
            name=CALLS,
            correlation=CORRELATIONS,
            process=st.sampled_from([10, 11, 0xFFFFFF]),
            thread=st.sampled_from([10, 11]),
        ),
        "overhead": lasting(Overhead),
        "gpus": st.lists(st.builds(Gpu, number=st.sampled_from([0, 1])), max_size=2),
        "cuda_devices": st.lists(CUDA_DEVICES, max_size=3, unique_by=lambda row: (row.device, row.process)),
        "nvtx": st.lists(nvtx_row(), max_size=10),
        "empty": st.lists(st.sampled_from(["CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS", "TARGET_INFO_CUDA_DEVICE"])),
    }
)


def agrees(path: Path) -> Trace:
    """Compare a Trace with that of the simple reader, row by row."""
    expected, trace = Export(path), open_trace(path)
    calls = sorted(expected.calls, key=lambda call: (call.start, call.end))
    row_of = {id(call): row for row, call in enumerate(calls)}
    assert _operations(trace) == [
        (
            item.start, item.end, item.cls, item.table, item.kind, item.memory, item.size, item.process, item.context,
            item.stream, item.correlation, None if item.launch is None else row_of[id(item.launch)],
        )
        for item in expected.operations
    ]  # fmt: skip
    actual = trace.api.with_columns(trace.threads["tid"].gather(trace.api["thread"]).alias("thread"))
    assert actual.rows() == [
        (
            call.start, call.end, call.name, call.role, call.implicit, call.thread & 0xFFFFFF, call.process,
            call.correlation,
        )
        for call in calls
    ]  # fmt: skip
    ranges = trace.ranges.with_columns(trace.threads["tid"].gather(trace.ranges["thread"]).alias("thread"))
    assert ranges.drop("open").rows() == [
        (item.start, item.end, item.name, item.domain, item.thread & 0xFFFFFF, item.process) for item in expected.ranges
    ]
    assert trace.overhead.rows() == sorted(item for item in expected.overhead if item[0] <= item[1])
    groups = {pair: number for number, pairs in enumerate(expected.devices) for pair in pairs}
    assert in_order_of_appearance(trace.operations["device"].to_list()) == in_order_of_appearance(
        [groups[item.process, item.device] for item in expected.operations]
    )
    return trace


def _operations(trace: Trace) -> list[tuple[object, ...]]:
    streams = trace.streams[trace.operations["stream"]]
    assert (streams["process"] == trace.operations["process"]).all()
    assert (streams["device"] == trace.operations["device"]).all()
    return trace.operations.select(
        "start", "end", "class", "source", "kind", "memory", "bytes", "process",
        streams["context"], streams["stream_id"], "correlation", "launch",
    ).rows()  # fmt: skip


def in_order_of_appearance(values: list[int]) -> list[int]:
    seen = list(dict.fromkeys(values))
    return [seen.index(value) for value in values]


@pytest.mark.parametrize("name", ALL)
def test_shared_captures(name: str) -> None:
    trace = agrees(shared(name))
    assert trace.info.problems == ()
    assert len(trace.operations) or name not in H200


def agreeing_clocks(*evidence: Any) -> list[ClockBounds]:
    return [clock._replace(offset=0) for clock in measure_clocks(*evidence)]


@settings(max_examples=60)
@given(EXPORTS)
def test_random_exports(parts: dict[str, list[object]]) -> None:
    """Their times contradict each other, so that clocks are left as they are (tests/normalise/test_clocks.py)."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(normalise, "measure_clocks", agreeing_clocks)
        path = build_export(Path(folder) / "made.sqlite", **parts)
        try:
            agrees(path)
        except DamagedExportError as error:
            assert "all GPU work is invalid" in str(error)
            assert not Export(path).operations


def test_repeated_correlation_ids(tmp_path: Path) -> None:
    kernels = [
        Kernel(10, 20),
        Kernel(11, 20, process=11),
        Kernel(30, correlation=0),
        Kernel(40, correlation=9),
    ]
    kernels = [replace(kernel, end=50) for kernel in kernels]
    calls = [Call(7, 8), Call(1, 2, process=11), Call(5, 6, "cudaGraphLaunch"), Call(0, 1, correlation=0)]
    trace = open_trace(build_export(tmp_path / "made.sqlite", kernels=kernels, api=calls))
    assert trace.operations["launch"].to_list() == [2, 1, None, None]


def test_correlation_ids_above_32_bits(tmp_path: Path) -> None:
    """Hand-made: in 32 bits the first two ids would equal others."""
    kernels = [Kernel(10 * row, 10 * row + 5, correlation=item) for row, item in enumerate([1 << 32, -1, 2**32 - 1])]
    calls = [Call(1, 2, correlation=2**32 - 1), Call(2, 3, correlation=1 << 32), Call(3, 4, correlation=-5)]
    trace = agrees(build_export(tmp_path / "made.sqlite", kernels=kernels, api=calls))
    assert trace.operations["launch"].to_list() == [None, None, 0]
    message = "2 rows of CUPTI_ACTIVITY_KIND_{} with an impossible correlation id, which is ignored"
    assert set(trace.info.problems) >= {message.format("KERNEL"), message.format("RUNTIME")}


def test_stream_of_a_traced_graph(tmp_path: Path) -> None:
    """The graph is left out, its stream has no work, and the kernel keeps its device."""
    kernels = [Kernel(10, 20, device=0, stream=8), Kernel(30, 40, device=1, correlation=2)]
    graphs = [Graph(9, 21, device=1, stream=5)]
    trace = open_trace(build_export(tmp_path / "e.sqlite", kernels=kernels, graphs=graphs))
    devices = trace.devices["device_id"].to_list()
    assert [devices[item] for item in trace.operations["device"].to_list()] == [0, 1]
    streams = trace.streams["stream_id"].to_list()
    assert [streams[item] for item in trace.operations["stream"].to_list()] == [8, 7]


def test_traced_graphs_are_left_out(tmp_path: Path) -> None:
    trace = open_trace(
        build_export(
            tmp_path / "made.sqlite",
            kernels=[Kernel(10, 20)],
            graphs=[Graph(9, 21), Graph(30, 40, correlation=2), Graph(50, 60, process=11)],
        )
    )
    assert trace.operations["name"].to_list() == ["gemm", "CUDA graph 2", "CUDA graph 2"]


def test_order_of_equal_times(tmp_path: Path) -> None:
    trace = open_trace(
        build_export(
            tmp_path / "made.sqlite",
            memsets=[Memset()],
            copies=[Copy(), Copy(10, 10)],
            graphs=[Graph(correlation=8)],
            kernels=[Kernel(name="second"), Kernel(name="first", start=9), Kernel(name="third")],
        )
    )
    names = ["first", "memcpy h2d", "second", "third", "CUDA graph 2", "memcpy h2d", "memset"]
    assert trace.operations["name"].to_list() == names


def test_single_gpu_is_one_device(tmp_path: Path) -> None:
    kernels = [Kernel(10, 20), Kernel(30, 40, process=11)]
    path = tmp_path / "made.sqlite"
    item = open_trace(build_export(path, kernels=kernels, gpus=[Gpu()]))
    assert item.devices.select("id", "device_id", "name", "processes").rows() == [("GPU 0", 0, "NVIDIA H200", [10, 11])]
    empty_table = open_trace(build_export(path, kernels=kernels, gpus=[Gpu()], empty=["TARGET_INFO_CUDA_DEVICE"]))
    assert empty_table.devices.equals(item.devices)


def test_device_0_of_several_processes(tmp_path: Path) -> None:
    path, kernels = tmp_path / "made.sqlite", [Kernel(10, 20), Kernel(30, 40, process=11)]
    two = open_trace(build_export(path, kernels=kernels, gpus=[Gpu(), Gpu(1, device=1)]))
    assert two.devices["id"].to_list() == ["GPU 0 (process 10)", "GPU 0 (process 11)"]
    same = [CudaDevice(), CudaDevice(process=11)]
    assert open_trace(build_export(path, kernels=kernels, cuda_devices=same)).devices["processes"].to_list() == [
        [10, 11]
    ]
    unlisted = build_export(path, kernels=kernels, gpus=[Gpu()], cuda_devices=[CudaDevice()])
    assert open_trace(unlisted).devices["processes"].to_list() == [[10, 11]]
    other = [CudaDevice(), CudaDevice(process=11, uuid="GPU-2")]
    assert len(open_trace(build_export(path, kernels=kernels, cuda_devices=other)).devices) == 2


def test_stream_labels(tmp_path: Path) -> None:
    trace = open_trace(
        build_export(
            tmp_path / "made.sqlite",
            kernels=[Kernel(stream=stream) for stream in (7, 13, 14, 15)],
            streams=[Stream(13, flag=3), Stream(14), Stream(15)],
            null_streams=[NullStream(7)],
            named_streams=[NamedStream("copies", 14)],
        )
    )
    assert trace.streams["label"].to_list() == [
        "stream 7 (default)", "stream 13 (default)", "copies (stream 14)", "stream 15",
    ]  # fmt: skip


def test_thread_names_have_no_path(tmp_path: Path) -> None:
    names = ["python3", "/home/someone/secret/train.py --key=1", "C:\\Users\\someone\\train.exe", "x" * 60]
    trace = open_trace(
        build_export(
            tmp_path / "made.sqlite",
            api=[Call(thread=number) for number in range(len(names))],
            threads=[ThreadName(name, number) for number, name in enumerate(names)],
        )
    )
    assert trace.threads["name"].to_list() == ["python3", "train.py", "train.exe", "x" * 40]


def test_range_types_and_open_ranges(tmp_path: Path) -> None:
    rows = [
        Nvtx(kind=75, text="my domain", domain=3, end=None),
        Nvtx(1, 5, text="a", domain=3),
        Nvtx(2, None, registered="b", kind=60),
        Nvtx(3, None, text="mark", kind=34),
        Nvtx(4, 6, domain=4),
    ]
    trace = open_trace(build_export(tmp_path / "made.sqlite", nvtx=rows, kernels=[Kernel(10, 70)]))
    assert trace.ranges.select("start", "end", "name", "domain", "open").rows() == [
        (1, 5, "a", "my domain", False),
        (2, 70, "b", "", True),
        (4, 6, "(unnamed)", "domain 4", False),
    ]


def test_stream_events(tmp_path: Path) -> None:
    trace = open_trace(
        build_export(
            tmp_path / "made.sqlite",
            api=[Call(correlation=4)],
            records=[Record(event=5, correlation=4)],
            syncs=[Sync(1), Sync(2, event=5, stream=13), Sync(3), Sync(4)],
        )
    )
    assert trace.stream_events.select("kind", "stream_id", "event_id", "launch").rows() == [
        ("record", 7, 5, 0),
        ("synchronize", 7, 0, None),
        ("wait", 13, 5, None),
        ("synchronize", 7, 0, None),
        ("synchronize", 7, 0, None),
    ]


BAD = [
    (20, 10),
    ("noon", 20),
    (10, "noon"),
    (None, 20),
    (10, None),
    (10, 1 << 62),
    (-(1 << 63), 20),
    (1.5, 20),
]


@pytest.mark.parametrize("times", BAD)
def test_rows_with_invalid_times_are_left_out(tmp_path: Path, times: tuple[object, object]) -> None:
    start, end = times
    trace = open_trace(
        build_export(
            tmp_path / "made.sqlite",
            kernels=[Kernel(1, 2), Kernel(start, end)],
            api=[Call(start, end), Call(0, 1)],
            nvtx=[Nvtx(0, 9, text="whole"), Nvtx(start, end if end is not None else "noon", text="bad")],
        )
    )
    assert trace.operations.select("start", "end", "launch").rows() == [(1, 2, 0)]
    assert len(trace.api) == 1
    assert trace.ranges["name"].to_list() == ["whole"]
    for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
        assert sum(line.startswith(f"1 row of {table} left out") for line in trace.info.problems) == 1


def test_other_nvtx_events_need_no_time(tmp_path: Path) -> None:
    rows = [Nvtx(None, None, text="my domain", kind=75, domain=3), Nvtx(1, 5, text="a", domain=3)]
    trace = open_trace(build_export(tmp_path / "made.sqlite", nvtx=rows))
    assert trace.ranges["domain"].to_list() == ["my domain"]
    assert trace.info.problems == ()


@pytest.mark.parametrize(
    "column",
    ["CUPTI_ACTIVITY_KIND_MEMCPY.srcKind", "CUPTI_ACTIVITY_KIND_MEMSET.bytes", "NVTX_EVENTS.domainId"],
)
def test_missing_optional_column_has_a_note(tmp_path: Path, column: str) -> None:
    trace = open_trace(
        build_export(
            tmp_path / "made.sqlite",
            copies=[Copy()],
            memsets=[Memset()],
            nvtx=[Nvtx(text="a")],
            drop=[column],
        )
    )
    table, name = column.split(".")
    assert any(line.startswith(f"{table} has no column {name!r}") for line in trace.info.problems)


@pytest.mark.parametrize(
    ("name", "bare", "role"),
    [
        ("cudaMemcpy_v3020", "cudaMemcpy", "blocking_copy"),
        ("cudaMemcpyAsync_v3020_ptsz", "cudaMemcpyAsync", "api"),
        ("cuMemcpyHtoD_v2_ptds", "cuMemcpyHtoD", "blocking_copy"),
        ("cudaMemcpy2DFromArray", "cudaMemcpy2DFromArray", "blocking_copy"),
        ("cudaMemcpyPeer_ptds", "cudaMemcpyPeer", "api"),
        ("cuMemcpy3DPeer_ptds", "cuMemcpy3DPeer", "api"),
        ("cudaStreamSynchronize_ptsz", "cudaStreamSynchronize", "sync"),
        ("cudaMallocAsync_v11020", "cudaMallocAsync", "memory"),
        ("cudaStreamWaitEvent", "cudaStreamWaitEvent", "api"),
        ("cuLibraryLoadData", "cuLibraryLoadData", "api"),
    ],
)
def test_api_roles(name: str, bare: str, role: str) -> None:
    assert without_suffix(name) == bare
    assert role_of(bare) == role


def test_empty_export(tmp_path: Path) -> None:
    trace = open_trace(build_export(tmp_path / "made.sqlite", empty=["CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS"]))
    for frame in (
        trace.operations,
        trace.api,
        trace.ranges,
        trace.devices,
        trace.streams,
        trace.stream_events,
    ):
        assert isinstance(frame, pl.DataFrame)
        assert frame.is_empty()


def test_names_of_threads(tmp_path: Path) -> None:
    """The system's name counts, else the name that NVTX gives; an empty name is none."""
    path = build_export(
        tmp_path / "made.sqlite",
        kernels=[Kernel()],
        api=[Call(thread=thread, correlation=thread) for thread in (11, 12, 13, 14)],
        threads=[ThreadName("python3", 11), ThreadName("", 12), ThreadName(" ", 14)],
        nvtx=[
            Nvtx(text="main", kind=39, thread=11),
            Nvtx(text="loader", kind=39, thread=12),
            Nvtx(registered="writer", kind=39, thread=13),
        ],
    )
    assert open_trace(path).threads["name"].to_list() == ["python3", "loader", "writer", ""]


COMMUNICATION_KERNELS = [
    "ncclDevKernel_SendRecv", "cross_device_reduce_1stage", "cross_device_reduce_2stage", "multimem_all_gather_kernel",
    "one_shot_all_reduce_kernel", "two_shot_all_reduce_kernel_inplace", "oneShotAllReduceKernel",
    "allreduce_fusion_kernel_oneshot_lamport", "nvshmemi_transfer_amo_nonfetch", "moeAllToAllKernel", "all_to_all_v",
]  # fmt: skip
OTHER_KERNELS = ["reduce", "reduce_kernel", "allReduce", "block_all_reduce", "my_all_to_all", "dispatch", "combine"]


def classes(path: Path) -> dict[str, str]:
    operations = open_trace(path).operations.select(pl.col("name", "class").cast(pl.String))
    return dict(operations.iter_rows())


def test_communication_is_recognised_by_the_beginning_of_the_short_name(tmp_path: Path) -> None:
    names = [*COMMUNICATION_KERNELS, *OTHER_KERNELS]
    kernels = [Kernel(start=10 * at, end=10 * at + 5, name=name, correlation=at) for at, name in enumerate(names)]
    named = classes(build_export(tmp_path / "made.sqlite", kernels=kernels))
    assert [name for name in names if named[name] == "communication"] == COMMUNICATION_KERNELS


def test_kernels_of_deep_ep_communicate(tmp_path: Path) -> None:
    full = ["void deep_ep::intranode::dispatch<(int)8>(int4 *)", "deep_ep::internode_ll::combine(void *)"]
    texts = [f"INSERT INTO StringIds VALUES ({900 + at}, '{text}')" for at, text in enumerate(full)]
    kernels = [Kernel(start=10 * at, end=10 * at + 5, name=name) for at, name in enumerate(OTHER_KERNELS)]
    named = classes(build_export(tmp_path / "made.sqlite", kernels=kernels, statements=texts))
    assert [name for name in named if named[name] == "communication"] == ["dispatch", "combine"]


def test_ranges_about_the_interpreter_are_not_ranges(tmp_path: Path) -> None:
    nvtx = [
        Nvtx(start=0, end=0, text="GIL Trace", kind=75, domain=3),
        *(Nvtx(start=at, end=at + 9, text="Holding GIL", domain=3) for at in (1, 20, 40)),
        Nvtx(start=5, end=60, text="step"),
    ]
    trace = open_trace(build_export(tmp_path / "made.sqlite", kernels=[Kernel()], api=[Call()], nvtx=nvtx))
    assert trace.ranges["name"].to_list() == ["step"]
    assert trace.info.tables["NVTX_EVENTS"] == 5

"""Exact stacks of Python functions, against a loop over nanoseconds; hand-made calls."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from tests.captures import analyzed, shared
from traceview.model.sizes import empty_frame
from traceview.model.stacks import SCOPES, HostEvidence
from traceview.normalise.stacks import call_stacks, function_stacks, native_stacks, qualified_name, take_stacked_calls
from traceview.normalise.threads import Threads
from traceview.read import raw

Call = tuple[int, int, str, int]


def scopes_of(calls: list[Call]) -> pl.DataFrame:
    rows = [(start, end, name, thread, 1, "function", False, None, None, None) for start, end, name, thread in calls]
    names = pl.Enum(sorted({call[2] for call in calls}))
    return pl.DataFrame(rows, schema={**SCOPES, "name": names}, orient="row")


def nested_calls(rng: np.random.Generator, start: int, end: int, thread: int, level: int = 0) -> list[Call]:
    calls = []
    at = start
    while level < 4 and at < end:
        begin = at + int(rng.integers(0, 8))
        until = min(begin + int(rng.integers(0, 30)), end)
        if begin >= until:
            break
        calls.append((begin, until, f"train.py:{int(rng.integers(1, 4))} run", thread))
        calls += nested_calls(rng, begin, until, thread, level + 1)
        at = until
    return calls


def stack_at(calls: list[Call], moment: int, thread: int) -> list[str]:
    """Return the open functions, the innermost first."""
    return [name for start, end, name, own in reversed(calls) if own == thread and start <= moment < end]


@pytest.mark.parametrize("seed", range(6))
def test_stacks_of_calls(seed: int) -> None:
    rng = np.random.default_rng(seed)
    calls = [call for thread in (0, 1) for call in nested_calls(rng, 0, 90, thread)]
    made = function_stacks(scopes_of(calls))
    assert made is not None
    frames, stacks, samples = made
    seen = {}
    for start, end, thread, _, _, node in samples.rows():
        names = []
        while node >= 0:
            function, file, line, library = frames.row(stacks["frame"][node])
            names.append(f"{file}:{line} {function}")
            assert not library
            node = stacks["parent"][node]
        for moment in range(start, end):
            assert (thread, moment) not in seen
            seen[thread, moment] = names
    for thread in (0, 1):
        for moment in range(90):
            assert seen.get((thread, moment), []) == stack_at(calls, moment, thread)
    assert stacks.n_unique() == len(stacks)


def test_no_functions() -> None:
    assert function_stacks(empty_frame(SCOPES)) is None


TID = (7 << 24) + 7
TEXTS = ["read", "__read", "libc.so.6", "0x7f12", "libx.so", "load(char const*)", "app", "NSYS_OSRT_read_0"]
TEXTS += ["libToolsInjection64.so", "[Max depth]", "0x7f34"]
IDS = {text: number for number, text in enumerate(TEXTS)}


def tables(chains: list[tuple[int, str, str]], calls: list[tuple[int, int, int | None]]) -> dict[str, pl.DataFrame]:
    """Return raw tables: frames (id, symbol, module) from the innermost on, and calls (start, end, id)."""
    frames = pl.DataFrame(
        [(number, IDS[symbol], IDS[module]) for number, symbol, module in chains],
        schema={"id": pl.Int64, "symbol": pl.Int64, "module": pl.Int64},
        orient="row",
    ).with_columns(pl.int_range(pl.len()).over("id").alias("stackDepth"))
    rows = [(start, end, TID, 0, chain) for start, end, chain in calls]
    names = ("start", "end", "globalTid", "nameId", raw.STACK_ID)
    return {
        raw.SYSTEM_CALLS: pl.DataFrame(rows, schema=dict.fromkeys(names, pl.Int64), orient="row"),
        raw.SYSTEM_STACKS: frames,
        raw.STRINGS: pl.DataFrame({"id": list(IDS.values()), "value": TEXTS}),
    }


def evidence(made: dict[str, pl.DataFrame]) -> HostEvidence:
    (stacked,) = take_stacked_calls(made)
    parts = call_stacks(stacked, made, Threads(pl.Series("globalTid", [TID])))
    assert parts is not None
    return HostEvidence(*parts)


def test_stack_of_a_call_has_no_frames_of_the_profiler() -> None:
    chain = [
        *((1, "__read", "libc.so.6"), (1, "NSYS_OSRT_read_0", "libToolsInjection64.so"), (1, "0x7f12", "libx.so")),
        *((1, "0x7f34", "libx.so"), (1, "load(char const*)", "app"), (1, "[Max depth]", "[Max depth]")),
    ]
    made = tables(chain, [(10, 20, 1), (30, 30, 1), (40, 50, 0), (60, 70, None), (80, 90, 5)])
    known = evidence(made)
    assert raw.SYSTEM_STACKS not in made and raw.STACK_ID not in made[raw.SYSTEM_CALLS].columns
    assert known.samples.select("start", "end", "thread", "python_thread").rows() == [(10, 20, 0, None)]
    stack = known.stack(known.samples["stack"][0])
    assert [(frame.text, frame.library) for frame in stack] == [
        ("load (app)", False),
        ("(unresolved) (libx.so)", True),
        ("__read (libc.so.6)", True),
    ]


def test_samples_have_a_stack() -> None:
    made = tables([(number, "load(char const*)", "app") for number in range(6)], [])
    names = ("start", "globalTid", "id")
    samples = [(100 * number, TID, number) for number in range(6)]
    made[raw.CPU_SAMPLES] = pl.DataFrame(samples, schema=dict.fromkeys(names, pl.Int64), orient="row")
    made[raw.CPU_STACKS] = made.pop(raw.SYSTEM_STACKS)
    parts = native_stacks(made, Threads(pl.Series("globalTid", [TID])))
    assert parts is not None
    assert HostEvidence(*parts).stack(parts[2]["stack"][5])[0].text == "load (app)"
    assert parts[2]["stack"].min() == 0


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("main", "main"),
        ("HalfTensor::HalfTensor(std::vector<unsigned long, std::allocator<unsigned long> > const&)",) * 1
        + ("HalfTensor::HalfTensor",),
        ("float* arange<float>(long)", "arange"),
        ("void std::this_thread::sleep_for<long, std::ratio<1l, 1l> >(long const&)", "std::this_thread::sleep_for"),
        ("<lambda>", "<lambda>"),
    ],
)
def test_qualified_name(symbol: str, name: str) -> None:
    assert qualified_name(symbol) == name


def test_long_waits_of_a_public_capture_are_named() -> None:
    """System calls with stacks, no samples: the program reads a key, then files."""
    analysis = analyzed(shared("public/nsys2021.2_no_metadata.sqlite"), whole=True)
    (finding,) = (finding for finding in analysis.findings if finding.id == "host_bound")
    assert finding.title.endswith("4.65 s at main (testqo), waiting in `getc`")
    assert finding.host is not None and finding.host.calls[-1].function == "_IO_getc"
    assert {"loadColumn", "main"} <= {line.function for line in analysis.tables["lines"].rows}


def test_waits_of_a_public_capture_have_the_place_of_their_samples() -> None:
    analysis = analyzed(shared("public/nsys2024.5_hpc_node.sqlite"))
    places = {finding.id: finding.host for finding in analysis.findings if finding.host is not None}
    assert places["host_bound"].waits_in == "write"
    assert any(frame.function == "hydro" for frame in places["host_bound"].stack)
    assert not any("__cudart" in finding.title for finding in analysis.findings)  # symbols of the linked runtime

"""Tests of rare situations on real captures of small programs (samples/scenarios): figures and findings.

Expected counts and bytes come from scenarios.py, all other figures from the oracle.
"""

from __future__ import annotations

import pytest

from tests.captures import analyzed, sample
from tests.test_against_oracle import compare
from traceview.model.analysis import Analysis, DeviceUse
from traceview.model.findings import Finding
from traceview.model.rows import CopyOverlap
from traceview.model.trace import Window

ITERATIONS = 12
NAMES = ("contexts", "graph_nodes", "graph_whole", "green", "managed", "many_streams", "p2p")


def scenario(name: str) -> Analysis:
    return analyzed(sample(f"scenarios/{name}.sqlite"))


def only_device(name: str) -> DeviceUse:
    (device,) = scenario(name).devices
    return device


def copies(device: DeviceUse) -> dict[tuple[str, str], CopyOverlap]:
    return {(one.kind, one.memory): one for one in device.copies}


def finding(name: str, wanted: str) -> Finding:
    return next(one for one in scenario(name).findings if one.id == wanted)


@pytest.mark.parametrize("name", NAMES)
def test_figures_equal_the_oracle(name: str) -> None:
    # The oracle takes a minute for all 136 streams, and a second for two iterations.
    start = scenario(name).devices[0].window.start
    two = Window(start, start + 6_000_000) if name == "many_streams" else None
    compare(sample(f"scenarios/{name}.sqlite"), window=two)


def test_136_streams_are_counted() -> None:
    device = only_device("many_streams")
    assert len(device.streams) == 136
    assert {(one.kernel_count, one.copy_count) for one in device.streams} == {(ITERATIONS, ITERATIONS)}
    (copied,) = device.copies
    assert (copied.kind, copied.memory, copied.bytes) == ("h2d", "pinned", 136 * ITERATIONS << 18)


def test_hideable_copies_are_not_on_a_shared_stream() -> None:
    assert not [one for one in scenario("many_streams").findings if one.id == "shared_stream"]
    assert "only the kernels of another stream can hide it" in finding("many_streams", "exposed_h2d").advice
    assert "can never overlap" in finding("graph_nodes", "shared_stream").title


def test_copy_between_gpus_belongs_to_the_sender() -> None:
    first, second = scenario("p2p").devices
    assert copies(first)["p2p", "device"].bytes == ITERATIONS * 16 << 20
    assert not second.copies
    assert "copy engine and the link" in finding("p2p", "exposed_p2p").advice


def test_contexts_share_a_device() -> None:
    device = only_device("contexts")
    assert sorted((one.context_id, one.kernel_count, one.copy_count) for one in device.streams) == [
        (1, ITERATIONS, 0),
        (2, 0, ITERATIONS),
        (3, 0, ITERATIONS),
    ]
    assert copies(device)["h2d", "pageable"].bytes == 2 * ITERATIONS * 4 << 20


def test_green_contexts_share_a_device() -> None:
    device = only_device("green")
    assert [one.kernel_count for one in device.streams] == [ITERATIONS, ITERATIONS]
    # Both run at once on parts of the multiprocessors, so the union is shorter than the sum.
    assert device.compute_ns < sum(one.compute_ns for one in device.streams)


def test_migrations_are_copies_without_launch() -> None:
    device = only_device("managed")
    moved = copies(device)
    assert moved["um_h2d", "managed"].bytes == moved["um_d2h", "managed"].bytes > 0
    waits = finding("managed", "managed_wait")
    assert waits.cost_ns == device.gaps.causes["unknown"]
    assert waits is scenario("managed").findings[0]


def test_graph_is_compute_or_nodes() -> None:
    whole, nodes = only_device("graph_whole"), only_device("graph_nodes")
    assert not whole.copies
    assert copies(nodes)["h2d", "pinned"].count == ITERATIONS
    assert sum(one.kernel_count for one in nodes.streams) == 10 * ITERATIONS
    # In a complete graph, the copy and the memset count as compute.
    assert whole.compute_ns > nodes.compute_ns

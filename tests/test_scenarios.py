"""What few training runs have, on real captures of small programs (samples/scenarios): figures and findings.

The counts and bytes are those that scenarios.py asked for; the rest is the independent computation's.
"""

from __future__ import annotations

from functools import cache

import pytest

from tests.captures import sample
from tests.test_against_oracle import compare
from traceview.model.analysis import Analysis, CopyOverlap, DeviceUse, Finding
from traceview.model.trace import Window
from traceview.pipeline import analyze

ITERATIONS = 12
NAMES = ("contexts", "graph_nodes", "graph_whole", "green", "managed", "many_streams", "p2p")


@cache
def analyzed(name: str) -> Analysis:
    return analyze(sample(f"scenarios/{name}.sqlite"))


def only_device(name: str) -> DeviceUse:
    (device,) = analyzed(name).devices
    return device


def copies(device: DeviceUse) -> dict[tuple[str, str], CopyOverlap]:
    return {(one.kind, one.memory): one for one in device.copies}


def finding(name: str, wanted: str) -> Finding:
    return next(one for one in analyzed(name).findings if one.id == wanted)


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_equals_the_independent_computation(name: str) -> None:
    # The independent computation takes a minute for the whole of 136 streams, and a second for two iterations.
    start = analyzed(name).devices[0].window.start
    two = Window(start, start + 6_000_000) if name == "many_streams" else None
    compare(sample(f"scenarios/{name}.sqlite"), window=two)


def test_136_streams_are_136_streams() -> None:
    device = only_device("many_streams")
    assert len(device.streams) == 136
    assert {(one.kernel_count, one.copy_count) for one in device.streams} == {(ITERATIONS, ITERATIONS)}
    (copied,) = device.copies
    assert (copied.kind, copied.memory, copied.bytes) == ("h2d", "pinned", 136 * ITERATIONS << 18)


def test_copies_that_other_streams_could_hide_are_not_said_to_be_unhideable() -> None:
    assert not [one for one in analyzed("many_streams").findings if one.id == "shared_stream"]
    assert "only the kernels of another stream can hide it" in finding("many_streams", "exposed_h2d").advice
    assert "can never overlap" in finding("graph_nodes", "shared_stream").title


def test_a_copy_between_gpus_is_the_sending_ones() -> None:
    first, second = analyzed("p2p").devices
    assert copies(first)["p2p", "device"].bytes == ITERATIONS * 16 << 20
    assert not second.copies
    assert "copy engine and the link" in finding("p2p", "exposed_p2p").advice


def test_the_contexts_of_one_gpu_are_streams_of_one_device() -> None:
    device = only_device("contexts")
    assert sorted((one.context_id, one.kernel_count, one.copy_count) for one in device.streams) == [
        (1, ITERATIONS, 0),
        (2, 0, ITERATIONS),
        (3, 0, ITERATIONS),
    ]
    assert copies(device)["h2d", "pageable"].bytes == 2 * ITERATIONS * 4 << 20


def test_green_contexts_share_a_gpu_by_streams() -> None:
    device = only_device("green")
    assert [one.kernel_count for one in device.streams] == [ITERATIONS, ITERATIONS]
    # Each has a part of the multiprocessors: both run at once, and their union is less than their sum.
    assert device.compute_ns < sum(one.compute_ns for one in device.streams)


def test_migrations_of_managed_memory_are_copies_without_a_launch() -> None:
    device = only_device("managed")
    moved = copies(device)
    assert moved["um_h2d", "managed"].bytes == moved["um_d2h", "managed"].bytes > 0
    waits = finding("managed", "managed_wait")
    assert waits.cost_ns == device.gaps.causes["unknown"]
    assert waits is analyzed("managed").findings[0]


def test_a_graph_is_one_piece_of_compute_or_its_nodes() -> None:
    whole, nodes = only_device("graph_whole"), only_device("graph_nodes")
    assert not whole.copies
    assert copies(nodes)["h2d", "pinned"].count == ITERATIONS
    assert sum(one.kernel_count for one in nodes.streams) == 10 * ITERATIONS
    # The copy and the memset inside count as compute where nothing tells them apart.
    assert whole.compute_ns > nodes.compute_ns

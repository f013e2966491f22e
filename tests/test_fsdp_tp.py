"""Ranks 0 and 3 of four under FSDP2 x tensor parallelism (samples/fsdp_tp), against sizes that follow from the program.

Six blocks, each with a layer norm and linear layers of 2048 to 8192 and back, in FP32 on a batch of 8 x 512 rows. The
mesh has 2 x 2 ranks. The trace has four steps.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from statistics import median

import pytest

from tests.captures import analyzed, sample
from tests.ranks.reports import merged
from traceview import Analysis

WIDTH, INNER, LAYERS, ROWS, STEPS = 2048, 8192, 6, 8 * 512, 4
HALF = INNER // 2  # of the inner width, on each of two tensor-parallel ranks
BLOCK = 2 * WIDTH + (WIDTH * HALF + HALF) + (HALF * WIDTH + WIDTH)  # parameters of a block on a rank before sharding
FILES = {rank: f"fsdp_tp/rank{rank}.json.gz" for rank in (0, 3)}


def analysis_of(rank: int) -> Analysis:
    return analyzed(sample(FILES[rank]))


def plain_lengths(rank: int) -> dict[str, list[float]]:
    """Return the µs of the trace's communication kernels by `Collective name`."""
    lengths = defaultdict(list)
    for event in json.loads(gzip.decompress(sample(FILES[rank]).read_bytes()))["traceEvents"]:
        if event.get("cat") == "kernel" and "Collective name" in event["args"]:
            lengths[event["args"]["Collective name"]].append(event["dur"])
    return lengths


@pytest.mark.parametrize(
    ("rank", "data", "tensor"), [(0, "mesh_dp (1)", "mesh_tp (3)"), (3, "mesh_dp (2)", "mesh_tp (4)")]
)
def test_collectives_have_the_sizes_of_the_program(rank: int, data: str, tensor: str) -> None:
    rows = {row.collective: row for row in analysis_of(rank).devices[0].tables["collectives"].rows}
    expected = {  # group, parallelism, a step's count, bytes, bus factor of two ranks
        "all_gather": (data, "DP", 2 * LAYERS, 4 * BLOCK, 0.5),  # before each forward and backward pass
        "reduce_scatter": (data, "DP", LAYERS, 4 * BLOCK, 0.5),
        "all_reduce": (tensor, "TP", 2 * LAYERS, 4 * ROWS * WIDTH, 1.0),
    }
    plain = plain_lengths(rank)
    assert set(rows) == set(expected)
    for kind, (group, parallelism, count, size, factor) in expected.items():
        row = rows[kind]
        assert (row.group, row.parallelism, row.group_size, row.element_type) == (group, parallelism, 2, "fp32")
        assert (row.message_bytes, row.bus_factor) == (size, factor)
        (lengths,) = (each for name, each in plain.items() if name.strip("_").startswith(kind.replace("_", "")[:5]))
        assert row.count <= count * STEPS == len(lengths)
        if row.count == len(lengths):
            assert row.bus_bandwidth == pytest.approx(size * factor / median(lengths) / 1e3, rel=0.01)
            assert row.algorithm_bandwidth == pytest.approx(size / median(lengths) / 1e3, rel=0.01)


def test_flops_are_those_of_this_rank() -> None:
    (speed,) = analysis_of(0).tables["speed_of_light"].rows
    assert speed.flops == 3 * LAYERS * 2 * (2 * ROWS * WIDTH * HALF)  # forward, and two products backward
    assert speed.mfu is not None and speed.mfu < 1


def test_advice_is_for_sharded_parameters() -> None:
    (finding,) = (row for row in analysis_of(0).findings if row.id == "exposed_communication")
    assert "FSDP" in finding.advice and "bucket" not in finding.advice + finding.code


def test_ranks_without_a_common_group_match_nothing() -> None:
    fleet = merged([sample(name) for name in FILES.values()])
    assert fleet.groups == () and [clock.method for clock in fleet.clocks] == ["reference", "session start"]
    assert sum("no other rank ran the collectives" in note.text for note in fleet.notes) == 4

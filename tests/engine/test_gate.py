"""The gate (tests/engine/gate.py): one part in memory, one that is read, and five show the same JSON and the same page.

Every measure, rule and chart runs, and those of packages: docs/example_package and the examples of
docs/extending.md. TRACEVIEW_GATE=all tests every capture; TRACEVIEW_GATE=100:200 tests these seeds of made captures.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from tests.build_export import Call, Graph, Kernel, Nvtx, Record, build_export
from tests.captures import ALL, SAMPLES, sample, shared
from tests.docs_examples import examples
from tests.engine.gate import same_in_parts
from tests.engine.made_captures import make_capture
from tests.test_plugins import EXAMPLE, example_entry_points, install
from tests.variants import without_ranges
from traceview.model.plugins import MEASURE_GROUP, RULE_GROUP

SOME = (
    "cudagraph.sqlite",
    "fsdp_tp/rank0.json.gz",
    "openacc/heat_as_2024.2.sqlite",
    "scenarios/graph_nodes.sqlite",
    "scenarios/many_streams.sqlite",
    "trainer/staged.sqlite",  # with stacks
)
SMALL_COPIES = ("openacc/heat_as_2024.2.sqlite",)  # have the finding of docs/extending.md
WANTED = os.environ.get("TRACEVIEW_GATE", "")
EVERY = sorted(str(path.relative_to(SAMPLES)) for kind in ("*.sqlite", "*.json.gz") for path in SAMPLES.rglob(kind))
SEEDS = tuple(range(*map(int, WANTED.split(":"))) if ":" in WANTED else (0, 1, 4, 5, 7, 10, 11, 13, 15, 20, 25, 47, 90))
SMALL_LIMITS = {
    "model.timeline.stored.BLOCK_MARKS": 300,
    "model.timeline.stored.MIN_LEVEL_MARKS": 50,
    "model.timeline.levels.MAX_MARKS_WITHOUT_LEVELS": 500,
    "model.timeline.sums.MAX_SUMMED_MARKS": 2000,
    "model.timeline.rows.MAX_PLACES_OF_NAME": 5,
    "engine.run.MAX_MODELLED": 2000,
}
LOSSES = ("lost_launches", "cuda_ends_early")
DOCS_EXAMPLES = (
    ("longest_kernels", "A measure", MEASURE_GROUP, "LONGEST_KERNELS"),
    ("small_copies", "A finding", RULE_GROUP, "small_copies"),
)


@pytest.fixture(scope="module", autouse=True)
def packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Install the packages."""
    folder = tmp_path_factory.mktemp("packages")
    install(folder, "traceview_example", (EXAMPLE / "traceview_example.py").read_text(), example_entry_points())
    for name, section, group, extension in DOCS_EXAMPLES:
        install(folder, f"docs_{name}", examples(section)[0], {group: {name: extension}})
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield


start_of = attrgetter("start")


@pytest.mark.parametrize("name", EVERY if WANTED == "all" else SOME)
def test_samples(name: str, tmp_path: Path) -> None:
    shown = same_in_parts(sample(name), tmp_path)
    assert '"short_kernels": [' in shown.json and '"longest_kernels": [' in shown.json
    if name in SMALL_COPIES:
        assert shown.parts > 1 and '"id": "small_copies"' in shown.json
        assert '"remedy": "Copy small values together, once per iteration."' in shown.json


@pytest.mark.parametrize("options", [{"whole": True}, {"device": "1", "skip": 5, "flops_per_iteration": 10**12}])
def test_options(options: dict[str, Any], tmp_path: Path) -> None:
    same_in_parts(sample("ddp2.sqlite"), tmp_path, 5, (5,), **options)


def test_limits_of_a_large_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models look at a part of the capture. Its timeline has blocks, levels and an index, and few places in full."""
    for name, value in SMALL_LIMITS.items():
        monkeypatch.setattr(f"traceview.{name}", value)
    same_in_parts(sample("dual.sqlite"), tmp_path, 5, (5,), detail=2_000_000)


@pytest.mark.parametrize("name", ALL if WANTED == "all" else ["public/nsys2022.2_mpi_empty_tables.sqlite"])
def test_shared_captures(name: str, tmp_path: Path) -> None:
    same_in_parts(shared(name), tmp_path)


def test_period_of_the_launches(tmp_path: Path) -> None:
    shown = same_in_parts(without_ranges(sample("dual.sqlite"), tmp_path), tmp_path, 5, (5,))
    assert json.loads(shown.json)["iterations"]["source"] == "period"


def test_events_of_streams_without_work_count_in_all_parts(tmp_path: Path) -> None:
    """Another stream has an event before, during and after the work of the GPU."""
    names = ["cudaLaunchKernel" if 400 <= at < 1600 else "cudaEventRecord" for at in range(2000)]
    calls = [Call(20_000 * at, 20_000 * at + 90, name, at) for at, name in enumerate(names)]
    kernels = [Kernel(20_000 * at + 100, 20_000 * at + 12_000, correlation=at) for at in range(400, 1600)]
    events = [Record(number, correlation=at, stream=9) for number, at in enumerate((1, 900, 1999))]
    path = build_export(tmp_path / "made.sqlite", api=calls, kernels=kernels, records=events)
    assert "(3 events)" in same_in_parts(path, tmp_path, least=5).json


def test_graph_whose_kernels_are_traced_too(tmp_path: Path) -> None:
    """The row of the graph lasts longer than its kernels, which lie in another part."""
    starts = range(0, 40_000_000, 20_000)
    api = [Call(start, start + 5_000, correlation=at) for at, start in enumerate(starts, 1)]
    kernels = [Kernel(start + 6_000, start + 16_000, f"kernel {at % 7}", at) for at, start in enumerate(starts, 1)]
    api.append(Call(12_050_000, 12_055_000, "cudaGraphLaunch_v10000", correlation=9_000))
    kernels += [Kernel(12_056_100, 12_058_000, correlation=9_000), Kernel(12_060_000, 12_070_000, correlation=9_000)]
    graphs = [Graph(12_056_000, 90_000_000, correlation=9_000)]
    api, kernels = sorted(api, key=start_of), sorted(kernels, key=start_of)  # otherwise it is read as a whole
    path = build_export(tmp_path / "made.sqlite", api=api, kernels=kernels, graphs=graphs)
    same_in_parts(path, tmp_path, least=5)


def test_graphs_without_work(tmp_path: Path) -> None:
    """A graph that the capture lacks runs in each tenth gap between two kernels."""
    api, kernels, start = [], [], 0
    for number in range(2_000):
        api.append(Call(start, start + 5_000, correlation=number))
        kernels.append(Kernel(start + 6_000, start + 16_000, f"kernel {number % 7}", number))
        if number % 10 == 9:
            api.append(Call(start + 7_000, start + 8_000, "cudaGraphLaunch_v10000", correlation=9_000 + number))
        start += 320_000 if number % 10 == 9 else 20_000
    shown = same_in_parts(build_export(tmp_path / "made.sqlite", api=api, kernels=kernels), tmp_path, least=5)
    costs = {finding["id"]: finding["cost_ns"] for finding in json.loads(shown.json)["findings"]}
    assert costs["lost_graphs"] == 199 * 310_000


@pytest.mark.parametrize("shift", [-9_000_000, -400_000, 700_000])
def test_launches_of_a_gpu_with_another_clock_are_not_lost(shift: int, tmp_path: Path) -> None:
    starts = range(20_000_000, 60_000_000, 20_000)
    api = [Call(start, start + 5_000, correlation=at) for at, start in enumerate(starts, 1)]
    kernels = [
        Kernel(start + shift, start + shift + 9_000, f"kernel {at % 7}", at) for at, start in enumerate(starts, 1)
    ]
    shown = same_in_parts(build_export(tmp_path / "made.sqlite", api=api, kernels=kernels), tmp_path, least=5)
    assert "lost_launches" not in shown.json
    assert ('"clock_corrected"' in shown.json) == (shift < 0)  # a late clock looks like a queue


def test_lost_events(tmp_path: Path) -> None:
    """Two processes, each loses half of its launches, and one its last events."""
    calls, kernels, ranges = [], [], []
    for number in range(400):
        process, start = (10, 20)[number % 2], 1_000_000 * number
        ranges.append(Nvtx(start, start + 900_000, text=f"step {number}", process=process))
        if number % 2 == 0 or number < 300:
            calls.append(Call(start, start + 9_000, correlation=number + 1, process=process))
            if number % 4 < 2:
                kernels.append(Kernel(start + 10_000, start + 99_000, correlation=number + 1, process=process))
    shown = same_in_parts(
        build_export(tmp_path / "made.sqlite", api=calls, kernels=kernels, nvtx=ranges), tmp_path, 5, (5,)
    )
    ids = [note["id"] for note in json.loads(shown.json)["notes"]]
    assert [name for name in ids if name in LOSSES] == ["lost_launches", "lost_launches", "cuda_ends_early"]


@pytest.mark.parametrize("seed", SEEDS)
def test_made_captures(seed: int, tmp_path: Path) -> None:
    same_in_parts(make_capture(tmp_path / "made.sqlite", seed), tmp_path)

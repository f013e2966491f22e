"""Copies that are more than copies: collectives on copy engines, batches, and slow ones on the GPU."""

from __future__ import annotations

from operator import attrgetter

from tests.cases.made import analyzed_case


def test_collectives_on_copy_engines_are_communication() -> None:
    """The same figures and findings as those of the kernels that ran these collectives."""
    made, base = analyzed_case("nsys", "ce_collectives"), analyzed_case("nsys", "base_ddp")
    first = made.devices[0].communication
    assert (round(first.busy_ns / 1e6, 1), round(first.exposed_ns / 1e6, 2)) == (18.6, 2.26)
    for device, other in zip(made.devices, base.devices, strict=True):
        same = attrgetter("count", "busy_ns", "overlapped_ns", "exposed_ns", "exposed_causes", "contention_ns")
        assert same(device.communication) == same(other.communication)
        assert device.gaps.causes == other.gaps.causes
        kinds = {row.kind for row in device.tables["copies"].rows}
        assert kinds == {"h2d", "d2h"}
    for name in ("exposed_communication", "communication_wait"):
        costs = [[each.cost_ns for each in analysis.findings if each.id == name] for analysis in (made, base)]
        assert costs[0] == costs[1] != []


def test_small_copies_of_batch_calls() -> None:
    """40,000 copies of 16 KiB come from 20 calls and do not reach the rate of large ones."""
    (finding,) = (each for each in analyzed_case("nsys", "batch_copies").findings if each.id == "exposed_h2d")
    assert "40,000 host-to-device copies from 20 calls" in finding.title
    assert "Copies of 16.4 kB do not reach the link's rate: these make 16.8 GB/s, large ones about 55" in finding.advice
    assert finding.remedy == "Copy fewer, larger pieces."


def test_slow_copies_on_the_gpu() -> None:
    made, base = (analyzed_case("nsys", name).findings for name in ("d2d_slow", "base_prefetch"))
    (finding,) = (each for each in made if each.id == "exposed_d2d")
    assert "11 device-to-device copies" in finding.title and "1.9% of its memory's rate" in finding.title
    assert "exposed_d2d" not in [each.id for each in base]

"""The verdict on hand-made rows: what an engineer would say who looks at them."""

from __future__ import annotations

import shlex
from dataclasses import replace
from statistics import median
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from instrument.config.flags import ConfigCommand, config_options
from instrument.config.schema import Capture, Config, Data, Model, Training
from instrument.diagnosis.costs import Diagnosis, StageResult, StageTimes, compute_costs
from instrument.diagnosis.verdict import REMEDIES, build_diagnosis, capture_commands, non_default_flags


def config(*, device: str = "cuda:0", model: Model | None = None, data: Data | None = None, **training: Any) -> Config:
    return Config(
        Training(**{"device": device, "precision": "bf16"} | training), model or Model(), data or Data(workers=0)
    )


def row(stage: str, ms: float | None, apart: float = 0.0, **figures: Any) -> StageResult:
    rounds = () if ms is None else (ms - apart / 2, ms, ms + apart / 2)
    return StageResult(stage, ms=ms, rounds_ms=rounds, **figures)


def rows(
    pipeline: float, *, compute: float = 10.0, gpu: float | None = 10.0, training: float = 30.0, loader: float = 0.1,
    plain: float = 40.0, copy: float = 0.1,
) -> list[StageResult]:  # fmt: skip
    """Return the rows of a run on a GPU that computes for 10 ms in bf16, and is fed well unless said otherwise."""
    return [
        row("training", training, gpu_ms=training),
        row("mixed", compute, gpu_ms=gpu),
        row("loader", loader),
        row("plain", plain, copy_ms=copy * 2),
        row("pipeline", pipeline, copy_ms=copy),
    ]


def is_whole(found: Diagnosis) -> bool:
    """Whether a verdict says all that it has to, and no more was lost than there is."""
    assert found.total_ms is not None
    assert found.lost_ms is not None
    assert found.lost_percent is not None
    assert 0 <= found.lost_ms <= found.total_ms
    assert found.lost_percent == pytest.approx(100 * found.lost_ms / found.total_ms)
    return bool(found.because and found.remedy.why and len(found.capture) == 3)


def test_loader_bound() -> None:
    found = build_diagnosis(rows(50.0, loader=49.0), config(data=Data(workers=4)))
    assert (found.bound, found.stage) == ("loader", "loader")
    assert found.lost_ms == pytest.approx(39.0)
    assert found.remedy.flags == ""
    found = build_diagnosis(rows(50.0, loader=49.0), config(data=Data(workers=4, distinct_batches=0)))
    assert found.remedy.flags == "--workers 20"
    assert "49.00" in found.because
    assert is_whole(found)


def test_loader_in_process_suggests_workers() -> None:
    found = build_diagnosis(rows(30.0, loader=29.0), config(data=Data(distinct_batches=0, workers=0)))
    assert (found.bound, found.lost_ms) == ("loader", pytest.approx(20.0))
    assert found.remedy.flags == "--workers 3"
    assert "--distinct-batches" in found.remedy.why


def test_loading_thread_slows_the_launching_thread() -> None:
    found = build_diagnosis(rows(14.0, loader=6.0), config())
    assert (found.bound, found.lost_ms) == ("loader", pytest.approx(4.0))


def test_serial_loader_costs_its_whole_time() -> None:
    found = build_diagnosis(rows(17.0, loader=4.0, copy=3.0), config(strategy="serial"))
    assert (found.bound, found.lost_ms) == ("loader", pytest.approx(4.0))


def test_copy_bound_without_overlap() -> None:
    found = build_diagnosis(rows(19.0, copy=9.0, plain=20.0), config(strategy="pinned", data=Data(preload=True)))
    assert (found.bound, found.stage, found.lost_ms) == ("copy", "plain", pytest.approx(9.0))
    assert found.remedy.flags == "--strategy prefetch"
    assert is_whole(found)


def test_copy_bound_if_copies_exceed_compute() -> None:
    found = build_diagnosis(rows(26.0, copy=25.0), config(data=Data(workers=2)))
    assert (found.bound, found.stage, found.lost_ms) == ("copy", "pipeline", pytest.approx(15.0))
    assert found.remedy.flags == ""
    assert "fewer bytes" in found.remedy.why


def test_pageable_copies_come_before_waits() -> None:
    """As on an H200: 24 ms a step from pageable memory, 10 from pinned."""
    found = build_diagnosis(rows(24.0, compute=9.0, gpu=9.0, copy=14.0, plain=24.0), config(strategy="serial"))
    assert (found.bound, found.lost_ms) == ("copy", pytest.approx(14.0))


def test_synchronisation_bound() -> None:
    found = build_diagnosis(rows(13.0), config(sync="every", data=Data(workers=2)))
    assert (found.bound, found.stage) == ("synchronisation", "pipeline")
    assert found.lost_ms == pytest.approx(3.0)
    assert found.remedy.flags == "--sync 10"
    assert is_whole(found)


def test_sync_each_step_is_not_a_loader_problem() -> None:
    assert build_diagnosis(rows(13.0, loader=5.0), config(sync="1")).bound == "synchronisation"


def test_strategy_waits_more_than_it_hides() -> None:
    found = build_diagnosis(rows(14.0, plain=13.0), config(strategy="staged", accumulation=2))
    assert (found.bound, found.remedy.flags) == ("synchronisation", "--strategy prefetch")
    assert any("slower than the plain stage" in note for note in found.notes)


def test_launch_bound() -> None:
    found = build_diagnosis(rows(10.2, gpu=4.0), config())
    assert (found.bound, found.stage, found.lost_ms) == ("launch", "mixed", pytest.approx(6.0))
    assert found.remedy.flags == "--strategy graph"
    assert "--annotate-modules 2" in found.capture[0]
    assert is_whole(found)


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        ({"precision": "fp16"}, "--compile"),
        ({"accumulation": 2}, "--compile"),
        ({"model": Model(compile=True), "data": Data(batch=32)}, "--batch 64"),
    ],
)
def test_launch_bound_without_a_graph(given: dict[str, Any], flags: str) -> None:
    assert build_diagnosis(rows(10.2, gpu=4.0), config(**given)).remedy.flags == flags


def test_graph_is_measured_by_gpu_work() -> None:
    found = build_diagnosis(rows(4.1, gpu=4.0), config(strategy="graph"))
    assert (found.bound, found.lost_ms) == ("compute", 0.0)
    found = build_diagnosis(rows(8.0, gpu=4.0, copy=7.5), config(strategy="graph", data=Data(preload=True)))
    assert (found.bound, found.lost_ms) == ("copy", pytest.approx(3.5))


def test_pinned_copy_during_launch_wait_is_free() -> None:
    found = build_diagnosis(rows(14.0, gpu=5.0, loader=4.0, copy=2.0), config(strategy="pinned"))
    named = {cost.bound: cost.ms for cost in compute_costs(times(found_rows=rows(14.0, gpu=5.0, loader=4.0, copy=2.0)))}
    assert found.bound == "launch"
    assert (named["loader"], named["copy"]) == (pytest.approx(4.0), 0.0)


def times(found_rows: list[StageResult]) -> StageTimes:
    made = StageTimes.from_results(found_rows, config(strategy="pinned"))
    assert made is not None
    return made


def test_compute_bound() -> None:
    found = build_diagnosis(rows(10.3, plain=10.4), config())
    assert (found.bound, found.stage, found.lost_ms) == ("compute", "mixed", 0.0)
    assert found.remedy.flags == "--compile"
    assert is_whole(found)


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        ({"precision": "fp32"}, "--precision bf16"),
        ({"model": Model(attention="math")}, "--attention auto"),
        ({"model": Model(checkpointing=True)}, "--checkpointing none"),
        ({"model": Model(compile=True)}, ""),
    ],
)
def test_remedies_for_compute(given: dict[str, Any], flags: str) -> None:
    found = build_diagnosis(rows(10.0, training=10.0 if "precision" in given else 30.0), config(**given))
    assert (found.bound, found.remedy.flags) == ("compute", flags)


def test_mixed_precision_costs_more_than_it_saves() -> None:
    found = build_diagnosis(rows(10.1, training=8.0), config())
    assert (found.bound, found.stage, found.lost_ms) == ("precision", "mixed", pytest.approx(2.0))
    assert found.remedy.flags == "--precision fp32"
    assert is_whole(found)


def test_useless_mixed_precision_is_the_last_verdict() -> None:
    found = build_diagnosis(rows(10.1, training=10.2), config())
    assert (found.bound, found.lost_ms) == ("precision", 0.0)


def test_useless_mixed_precision_is_a_note() -> None:
    found = build_diagnosis(rows(10.1, gpu=3.0, training=10.2), config())
    assert found.bound == "launch"
    assert any("Mixed precision gains nothing" in note for note in found.notes)


def test_full_overlap_states_what_it_hides() -> None:
    found = build_diagnosis(rows(10.2, loader=7.0, copy=6.0, plain=23.0), config(data=Data(workers=4)))
    assert found.bound == "compute"
    assert found.notes == ("The pipeline hides all 13.00 ms of loading and copying behind the compute.",)


def test_partial_overlap_states_its_share() -> None:
    found = build_diagnosis(rows(15.0, loader=14.0, plain=30.0), config(data=Data(workers=4)))
    assert "The pipeline hides 15.00 of 20.00 ms of loading and copying behind the compute." in found.notes


def with_rounds(measured: list[StageResult], **rounds: tuple[float, ...]) -> list[StageResult]:
    """Return the rows with these rounds, and their medians as times."""
    return [
        replace(one, ms=median(rounds[one.stage]), rounds_ms=rounds[one.stage]) if one.stage in rounds else one
        for one in measured
    ]


def test_noisy_rounds_decide_nothing() -> None:
    found = build_diagnosis(with_rounds(rows(11.5), mixed=(10.0, 10.0, 10.0), pipeline=(9.5, 11.5, 13.5)), config())
    assert (found.bound, found.lost_ms, found.total_ms) == ("unknown", None, None)
    assert found.because.startswith("too noisy: the rounds differ by 4.00 ms and the cost is 1.40 ms (")
    assert "--iterations" in found.remedy.why


def test_common_drift_is_not_noise() -> None:
    drifting = with_rounds(rows(13.0, gpu=None), mixed=(10.0, 15.0, 20.0), pipeline=(13.0, 18.0, 23.0))
    found = build_diagnosis(drifting, config(sync="every", data=Data(workers=2)))
    assert (found.bound, found.lost_ms) == ("synchronisation", pytest.approx(3.0))


def test_noisy_rounds_do_not_claim_full_overlap() -> None:
    found = build_diagnosis(with_rounds(rows(10.0), mixed=(10.0, 10.0, 10.0), pipeline=(9.0, 10.0, 12.0)), config())
    assert found.because == "too noisy: the rounds differ by 3.00 ms and an iteration takes 10.00 ms"


def test_impossibly_fast_pipeline_is_noise() -> None:
    """The compute of 154 ms in a pipeline of 46 ms once was a verdict that lost 205% of an iteration."""
    found = build_diagnosis(rows(46.0, compute=154.0, gpu=None, training=76.0), config(device="cpu"))
    assert (found.bound, found.lost_percent) == ("unknown", None)
    assert found.because == "too noisy: the pipeline takes 46.00 ms, less than its compute alone (154.00 ms)"


def test_noisy_rounds_hide_slow_mixed_precision() -> None:
    steady = (12.0, 12.0, 12.0)
    noisy = with_rounds(rows(12.1, gpu=12.0), training=(9.0, 10.0, 14.0), mixed=steady, pipeline=steady)
    assert build_diagnosis(noisy, config()).because.startswith("too noisy: the rounds differ by 5.00 ms")


def test_no_copies_or_launches_without_a_gpu() -> None:
    found = build_diagnosis(rows(18.0, gpu=None, copy=3.0, loader=6.0, training=12.0), config(device="cpu"))
    assert (found.bound, found.lost_ms) == ("loader", pytest.approx(6.0))
    assert not any("hides" in note or "overlaps" in note for note in found.notes)
    assert "cudaProfilerApi" not in found.capture[0]


@pytest.mark.parametrize("missing", ["mixed", "pipeline"])
def test_too_few_stages_for_a_verdict(missing: str) -> None:
    measured = [one for one in rows(10.0) if one.stage != missing]
    found = build_diagnosis(measured, config())
    assert (found.bound, found.stage, found.total_ms, found.lost_ms) == ("unknown", None, None, None)
    assert found.because == f"stage {missing}: not selected by --stages"
    failed = [*measured, StageResult(missing, not_measured={"ms": "it does not fit the memory"})]
    assert build_diagnosis(failed, config()).because == f"stage {missing}: it does not fit the memory"


def test_in_fp32_the_compute_is_the_training_stage() -> None:
    measured = [one for one in rows(30.5) if one.stage != "mixed"]
    found = build_diagnosis(measured, config(precision="fp32"))
    assert (found.bound, found.stage) == ("compute", "training")


@pytest.mark.parametrize("left_out", ["training", "loader", "plain"])
def test_other_stages_can_be_missing(left_out: str) -> None:
    found = build_diagnosis([one for one in rows(30.0, copy=29.0) if one.stage != left_out], config())
    assert (found.bound, found.lost_ms) == ("copy", pytest.approx(19.0))


TIME = st.floats(0.01, 1000)


@given(
    st.fixed_dictionaries(
        {
            "pipeline": TIME,
            "compute": TIME,
            "gpu": TIME | st.none(),
            "training": TIME,
            "loader": TIME,
            "plain": TIME,
            "copy": TIME,
        }
    ),
    st.sampled_from(["serial", "pinned", "prefetch", "staged", "graph"]),
    st.sampled_from(["auto", "every", "10", "event"]),
    st.integers(0, 3),
    st.sampled_from(["cpu", "cuda:0"]),
)
def test_every_measurement_has_a_verdict(given_ms: Any, strategy: Any, sync: str, workers: int, device: str) -> None:
    made_config = config(device=device, strategy=strategy, sync=sync, data=Data(workers=workers))
    measured = rows(given_ms.pop("pipeline"), **given_ms)
    found = build_diagnosis(measured, made_config)
    made = StageTimes.from_results(measured, made_config)
    assert made is not None
    named = {cost.bound: cost.ms for cost in compute_costs(made)}
    assert all(0 <= cost <= made.total_ms for cost in named.values())
    assert found.lost_ms is None or 0 <= found.lost_ms <= made.total_ms
    assert max(named["loader"], named["copy"], named["synchronisation"]) <= made.feeding_ms
    assert found.bound in (*REMEDIES, "unknown")
    assert found.capture


@click.command(cls=ConfigCommand)
@config_options
def parsed(config: Config) -> Config:
    return config


def parse(*arguments: str) -> Config:
    made = parsed.main(list(arguments), standalone_mode=False)
    assert isinstance(made, Config)
    return made


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "--strategy pinned --sync event --precision fp32 --clip none --device cuda:1",
        "--device cpu --batch 128 --width 1024 --layers 4",
        "--workers 3 --prefetch-factor 4 --preload --checkpointing full --compile blocks",
        "--data '/a folder/it''s.npy' --batch 7 --steps 9 --warmup 5 --learning-rate 1e-5",
        "--shard --no-progress --checkpoint-folder k --checkpoint-every 5 --jsonl x --annotate-modules 3",
    ],
)
def test_flags_reproduce_the_configuration(arguments: str) -> None:
    of = parse(*shlex.split(arguments))
    default = Config()  # of what the flags leave out; no run without a GPU has others there
    training = replace(
        of.training, steps=default.training.steps, warmup=default.training.warmup,
        annotate_modules=default.training.annotate_modules,
    )  # fmt: skip
    kept = replace(of, training=training, checkpoint=default.checkpoint, monitor=default.monitor)
    again = parse(*non_default_flags(of))
    assert replace(again, data=again.data.with_workers()) == replace(kept, data=kept.data.with_workers())
    synthetic = replace(of, data=replace(of.data, path=None).with_workers())
    assert ("--workers" in non_default_flags(synthetic)) == ("--workers" in arguments)


@pytest.mark.parametrize("bound", REMEDIES)
def test_suggested_commands_are_valid(bound: Any) -> None:
    made_config = config(strategy="pinned", warmup=50, data=Data(batch=8))
    profile, export, analyze = (shlex.split(command) for command in capture_commands(bound, made_config))
    at = profile.index("python")
    assert profile[:2] == ["nsys", "profile"]
    assert profile[2 : at - 2] == [
        "-t", "cuda,nvtx", "-s", "none", "--cpuctxsw=none", "-c", "cudaProfilerApi", "--capture-range-end=stop",
    ]  # fmt: skip
    assert profile[at - 2 : at + 3] == ["-o", f"next-{bound}", "python", "-m", "instrument.train"]
    made = parse(*profile[at + 3 :])
    assert made.capture == Capture(20, 30)
    assert made.training.steps == 30
    assert (made.training.strategy, made.data.batch) == ("pinned", 8)
    assert export[-1] == f"next-{bound}.nsys-rep"
    assert analyze == ["traceview", "analyze", f"next-{bound}.sqlite"]
    assert export[export.index("-o") + 1] == analyze[-1]


@pytest.mark.parametrize("strategy", ["serial", "pinned", "prefetch", "staged", "graph"])
@pytest.mark.parametrize("sync", ["every", "event"])
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_suggested_flags_are_valid(strategy: Any, sync: str, device: str) -> None:
    made_config = config(strategy=strategy, sync=sync, device=device)
    made = StageTimes.from_results(rows(20.0), made_config)
    assert made is not None
    for remedy in REMEDIES.values():
        parse(*shlex.split(remedy(made).flags))
        assert remedy(made).why


def test_pipeline_a_little_faster_than_its_compute_is_still_launch_bound() -> None:
    """As on an H200, with 12 narrow layers."""
    found = build_diagnosis(rows(22.9, compute=26.2, gpu=2.8, training=17.3), config())
    assert (found.bound, found.lost_ms) == ("launch", pytest.approx(20.1))

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


def without(measured: list[StageResult], stage: str) -> list[StageResult]:
    return [one for one in measured if one.stage != stage]


ANEW, SLOW = Data(workers=4, distinct_batches=0), Data(workers=0, distinct_batches=0)
KEPT, COMPILED = Data(preload=True), Model(compile=True)
SERIAL, STAGED = config(strategy="serial"), config(strategy="staged", accumulation=2)
GRAPH, PREFETCH = "--strategy graph", "--strategy prefetch"


def is_whole(found: Diagnosis) -> bool:
    """Whether a verdict says all that it has to, and no more was lost than there is."""
    assert found.total_ms is not None
    assert found.lost_ms is not None
    assert found.lost_percent is not None
    assert 0 <= found.lost_ms <= found.total_ms
    assert found.lost_percent == pytest.approx(100 * found.lost_ms / found.total_ms)
    return bool(found.because and found.remedy.why and len(found.capture) == 3)


@pytest.mark.parametrize(
    ("measured", "settings", "bound", "stage", "lost_ms", "flags", "said"),
    [
        (rows(50.0, loader=49.0), config(data=Data(workers=4)), "loader", "loader", 39.0, "", "49.00"),
        (rows(50.0, loader=49.0), config(data=ANEW), "loader", "loader", 39.0, "--workers 20", "49.00"),
        (rows(30.0, loader=29.0), config(data=SLOW), "loader", "loader", 20.0, "--workers 3", "--distinct-batches"),
        # A loading thread slows the thread that launches.
        (rows(14.0, loader=6.0), config(), "loader", "loader", 4.0, "", ""),
        (rows(17.0, loader=4.0, copy=3.0), config(strategy="serial"), "loader", "loader", 4.0, "", ""),
        (rows(19.0, copy=9.0, plain=20.0), config(strategy="pinned", data=KEPT), "copy", "plain", 9.0, PREFETCH, ""),
        (rows(26.0, copy=25.0), config(data=Data(workers=2)), "copy", "pipeline", 15.0, "", "fewer bytes"),
        # As on an H200: 24 ms a step from pageable memory, 10 from pinned.
        (rows(24.0, compute=9.0, gpu=9.0, copy=14.0, plain=24.0), SERIAL, "copy", "plain", 14.0, PREFETCH, ""),
        (rows(13.0), config(sync="every", data=Data(workers=2)), "synchronisation", "pipeline", 3.0, "--sync 10", ""),
        (rows(13.0, loader=5.0), config(sync="1"), "synchronisation", "pipeline", 3.0, "--sync 10", ""),
        (rows(14.0, plain=13.0), STAGED, "synchronisation", "pipeline", 3.9, PREFETCH, "slower than the plain stage"),
        (rows(10.2, gpu=4.0), config(), "launch", "mixed", 6.0, "--strategy graph", "--annotate-modules 2"),
        (rows(10.2, gpu=4.0), config(precision="fp16"), "launch", "mixed", 6.0, "--compile", ""),
        (rows(10.2, gpu=4.0), config(accumulation=2), "launch", "mixed", 6.0, "--compile", ""),
        (rows(10.2, gpu=4.0), config(model=COMPILED, data=Data(batch=32)), "launch", "mixed", 6.0, "--batch 64", ""),
        # As on an H200, with 12 narrow layers: the pipeline is a little faster than its compute.
        (rows(22.9, compute=26.2, gpu=2.8, training=17.3), config(), "launch", "mixed", 20.1, "--strategy graph", ""),
        (rows(4.1, gpu=4.0), config(strategy="graph"), "compute", "mixed", 0.0, "", ""),
        (rows(8.0, gpu=4.0, copy=7.5), config(strategy="graph", data=KEPT), "copy", "pipeline", 3.5, "", ""),
        (rows(10.3, plain=10.4), config(), "compute", "mixed", 0.0, "--compile", ""),
        (rows(10.0, training=10.0), config(precision="fp32"), "compute", "training", 0.0, "--precision bf16", ""),
        (rows(10.0), config(model=Model(attention="math")), "compute", "mixed", 0.0, "--attention auto", ""),
        (rows(10.0), config(model=Model(checkpointing=True)), "compute", "mixed", 0.0, "--checkpointing none", ""),
        (rows(10.0), config(model=COMPILED), "compute", "mixed", 0.0, "", ""),
        (without(rows(30.5), "mixed"), config(precision="fp32"), "compute", "training", 0.0, "--precision bf16", ""),
        (rows(10.1, training=8.0), config(), "precision", "mixed", 2.0, "--precision fp32", ""),
        (rows(10.1, training=10.2), config(), "precision", "mixed", 0.0, "--precision fp32", ""),
        (rows(10.1, gpu=3.0, training=10.2), config(), "launch", "mixed", 7.0, GRAPH, "Mixed precision gains nothing"),
        # What a pinned copy takes while the launches wait is free.
        (rows(14.0, gpu=5.0, loader=4.0, copy=2.0), config(strategy="pinned"), "launch", "mixed", 5.0, GRAPH, ""),
    ],
)  # fmt: skip
def test_verdict(
    measured: list[StageResult], settings: Config, bound: str, stage: str, lost_ms: float, flags: str, said: str
) -> None:
    found = build_diagnosis(measured, settings)
    assert (found.bound, found.stage, found.remedy.flags) == (bound, stage, flags)
    assert found.lost_ms == pytest.approx(lost_ms)
    assert said in " ".join([found.because, found.remedy.why, *found.notes, *found.capture])
    assert is_whole(found)


def test_pinned_copy_during_launch_wait_is_free() -> None:
    times = StageTimes.from_results(rows(14.0, gpu=5.0, loader=4.0, copy=2.0), config(strategy="pinned"))
    assert times is not None
    named = {cost.bound: cost.ms for cost in compute_costs(times)}
    assert (named["loader"], named["copy"]) == (pytest.approx(4.0), 0.0)


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


STEADY = (12.0, 12.0, 12.0)


@pytest.mark.parametrize(
    ("measured", "device", "because"),
    [
        (
            with_rounds(rows(11.5), mixed=(10.0, 10.0, 10.0), pipeline=(9.5, 11.5, 13.5)), "cuda:0",
            "the rounds differ by 4.00 ms and the cost is 1.40 ms (",
        ),
        (
            with_rounds(rows(10.0), mixed=(10.0, 10.0, 10.0), pipeline=(9.0, 10.0, 12.0)), "cuda:0",
            "the rounds differ by 3.00 ms and an iteration takes 10.00 ms",
        ),
        (
            with_rounds(rows(12.1, gpu=12.0), training=(9.0, 10.0, 14.0), mixed=STEADY, pipeline=STEADY), "cuda:0",
            "the rounds differ by 5.00 ms",
        ),
        # Once a verdict that lost 205% of an iteration.
        (
            rows(46.0, compute=154.0, gpu=None, training=76.0), "cpu",
            "the pipeline takes 46.00 ms, less than its compute alone (154.00 ms)",
        ),
    ],
)  # fmt: skip
def test_noise_decides_nothing(measured: list[StageResult], device: str, because: str) -> None:
    found = build_diagnosis(measured, config(device=device))
    assert (found.bound, found.lost_ms, found.lost_percent, found.total_ms) == ("unknown", None, None, None)
    assert found.because.startswith(f"too noisy: {because}")
    assert "--iterations" in found.remedy.why


def test_common_drift_is_not_noise() -> None:
    drifting = with_rounds(rows(13.0, gpu=None), mixed=(10.0, 15.0, 20.0), pipeline=(13.0, 18.0, 23.0))
    found = build_diagnosis(drifting, config(sync="every", data=Data(workers=2)))
    assert (found.bound, found.lost_ms) == ("synchronisation", pytest.approx(3.0))


def test_no_copies_or_launches_without_a_gpu() -> None:
    found = build_diagnosis(rows(18.0, gpu=None, copy=3.0, loader=6.0, training=12.0), config(device="cpu"))
    assert (found.bound, found.lost_ms) == ("loader", pytest.approx(6.0))
    assert not any("hides" in note or "overlaps" in note for note in found.notes)
    assert "cudaProfilerApi" not in found.capture[0]


@pytest.mark.parametrize("missing", ["mixed", "pipeline"])
def test_too_few_stages_for_a_verdict(missing: str) -> None:
    measured = without(rows(10.0), missing)
    found = build_diagnosis(measured, config())
    assert (found.bound, found.stage, found.total_ms, found.lost_ms) == ("unknown", None, None, None)
    assert found.because == f"stage {missing}: not selected by --stages"
    failed = [*measured, StageResult(missing, not_measured={"ms": "it does not fit the memory"})]
    assert build_diagnosis(failed, config()).because == f"stage {missing}: it does not fit the memory"


@pytest.mark.parametrize("left_out", ["training", "loader", "plain"])
def test_other_stages_can_be_missing(left_out: str) -> None:
    found = build_diagnosis(without(rows(30.0, copy=29.0), left_out), config())
    assert (found.bound, found.lost_ms) == ("copy", pytest.approx(19.0))


TIME = st.floats(0.01, 1000)


@given(
    st.fixed_dictionaries(
        dict.fromkeys(("pipeline", "compute", "training", "loader", "plain", "copy"), TIME) | {"gpu": TIME | st.none()}
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

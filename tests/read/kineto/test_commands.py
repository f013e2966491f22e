"""Every command takes a trace of torch.profiler, or says in one line what it needs."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.captures import sample
from traceview.cli import cli
from traceview.pipeline import analyze
from traceview.report.analysis import document

GRAPH, SERIAL = "torch_profiler/graph.json.gz", "torch_profiler/serial.json.gz"
FSDP = "fsdp_tp/rank0.json.gz"
SAMPLES = (SERIAL, FSDP)


def run(*arguments: str | Path) -> Result:
    actual = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    if actual.exception is not None and not isinstance(actual.exception, SystemExit):
        raise actual.exception
    return actual


def test_analyze_writes_page_and_json(tmp_path: Path) -> None:
    page, figures = tmp_path / "page.html", tmp_path / "out.json"
    actual = run("analyze", sample(GRAPH), "--html", page, "--json", figures)
    assert "graph.json.gz · torch.profiler" in actual.output and "NVIDIA H200" in actual.output
    assert json.loads(figures.read_text(encoding="utf-8"))["report"]["profiler"] == "torch.profiler"
    assert '"profiler":"torch.profiler"' in page.read_text(encoding="utf-8").replace(": ", ":")


def test_compare_names_the_two_profilers() -> None:
    captures = (sample("trainer/serial.sqlite"), sample(SERIAL))
    assert "was captured with torch.profiler" in run("compare", *captures).output
    actual = run("compare", *captures, "-v")
    assert "279        279            0" in actual.output, "as many launches and kernels an iteration"


@pytest.mark.parametrize("command", ["whatif", "info"])
def test_other_commands(command: str) -> None:
    assert "graph.json.gz" in run(command, sample(GRAPH)).output


def test_folder_with_a_trace_for_each_rank(tmp_path: Path) -> None:
    for rank in (0, 3):
        (tmp_path / f"host_{9 - rank}.pt.trace.json.gz").symlink_to(sample(f"fsdp_tp/rank{rank}.json.gz"))
    note = f"{tmp_path} has the traces of ranks 0, 3; this is rank 0, host_9.pt.trace.json.gz"
    for command in (("analyze", "--no-html"), ("info",)):
        actual = run(*command, tmp_path)
        assert note in actual.output and "\nhost_9.pt.trace.json.gz" in actual.output
    assert "→ host_9.pt.trace.json.gz" in run("compare", tmp_path, tmp_path).output
    ranks = run("fleet", tmp_path, "--no-html", "--json", "-").output
    assert json.loads(ranks)["reports"] == [f"rank {rank} · host_{9 - rank}.pt.trace.json.gz" for rank in (0, 3)]
    run("export", tmp_path, "--format", "perfetto", "-o", tmp_path / "all.pftrace")
    assert (tmp_path / "all.pftrace").stat().st_size > 1e5


def test_info_names_the_options_that_the_trace_was_recorded_without(tmp_path: Path) -> None:
    options = ("with_stack=True", "record_shapes=True", "profile_memory=True", "schedule=")
    missing = {name: [each for each in options if each in run("info", sample(name)).output] for name in SAMPLES}
    assert missing == {SERIAL: list(options), FSDP: ["with_stack=True", "profile_memory=True", "schedule="]}
    trace = json.loads(gzip.decompress(sample(SERIAL).read_bytes()))
    for event in trace["traceEvents"]:
        event["name"] = event["name"].replace("iteration ", "ProfilerStep#")
    path = tmp_path / "steps.json"
    path.write_text(json.dumps(trace))
    info, summary = run("info", path).output, run("analyze", path, "--no-html", "-v").output
    assert "schedule=" not in info
    for text in (info, summary):
        assert "ProfilerStep#" in text and re.search(r"ProfilerStep#\d", text) is None, "the steps are one row"


def test_info_names_the_ranks() -> None:
    groups = "process groups: default_pg of 4 (0, 1, 2, 3), mesh_dp of 2 (1, 3), mesh_tp of 2 (2, 3)"
    assert f"rank 3 of 4; {groups}" in " ".join(run("info", sample("fsdp_tp/rank3.json.gz")).output.split())
    assert "rank" not in run("info", sample(SERIAL)).output.partition("MISSING")[0]


@pytest.mark.parametrize(
    ("info", "text"),
    [
        ({"rank": "x", "world_size": -1.5, "pg_config": {"a": 1}}, "rank ? of ? GPU work"),
        (
            {"rank": 2**70, "pg_config": [7, {}, {"pg_desc": "\ud800\x1b[31m", "ranks": [0, "a", None]}]},
            "? of ?, ?\ufffd[31m of 1 (0)",
        ),
        (
            {"rank": 0, "world_size": 9, "pg_config": [{"pg_name": "g", "pg_size": 9, "ranks": [*range(9)]}] * 9},
            "g of 9, 1 more",
        ),
    ],
)
def test_any_distributed_info_is_read(tmp_path: Path, info: object, text: str) -> None:
    trace = json.loads(gzip.decompress(sample(SERIAL).read_bytes())) | {"distributedInfo": info}
    (tmp_path / "run.json").write_text(json.dumps(trace))
    assert text in " ".join(run("info", tmp_path / "run.json").output.split())


def test_redacted_trace(tmp_path: Path) -> None:
    plain, copy = sample(GRAPH), tmp_path / "copy.sqlite"
    run("redact", plain, copy)
    assert b"/tmp" not in copy.read_bytes()
    actual, expected = (document(analyze(path)) for path in (copy, plain))
    assert actual["report"].pop("file") != expected["report"].pop("file")
    assert actual == expected


def test_advice_names_the_right_profiler(tmp_path: Path) -> None:
    """A trace of the CPU alone: the advice is about torch.profiler, not nsys."""
    text = gzip.decompress(sample(GRAPH).read_bytes()).decode()
    path = tmp_path / "run.json"
    for category in ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver"):
        text = text.replace(f'"cat": "{category}"', '"cat": "cpu_op"')
    path.write_text(text, encoding="utf-8")
    for command in ("analyze", "info"):
        actual = run(command, path, *(["--no-html"] if command == "analyze" else []))
        assert "ProfilerActivity.CUDA" in actual.output and "nsys profile" not in actual.output
        assert "times of the host are measured" in " ".join(actual.output.split())


# The calls of Intel's GPUs for those of CUDA, in a real trace of CUDA: no real trace of an Intel GPU is at hand.
XPU = {
    '"cuda_runtime"': '"xpu_runtime"',
    '"cuda_driver"': '"xpu_driver"',
    '"cudaLaunchKernel': '"urEnqueueKernelLaunch',
    '"cudaStreamSynchronize': '"urQueueFinish',
    '"cudaDeviceSynchronize': '"zeCommandQueueSynchronize',
    '"cudaMemcpyAsync': '"urEnqueueUSMMemcpy',
}


def test_trace_of_an_intel_gpu(tmp_path: Path) -> None:
    """Times and causes are those of the same calls of CUDA."""
    text = gzip.decompress(sample(GRAPH).read_bytes()).decode()
    for cuda, intel in XPU.items():
        text = text.replace(cuda, intel)
    (tmp_path / "xpu.json").write_text(text, encoding="utf-8")
    intel, cuda = (analyze(path, costs=None) for path in (tmp_path / "xpu.json", sample(GRAPH)))
    (actual,), (expected,) = intel.devices, cuda.devices
    assert (actual.compute_ns, actual.gaps.causes) == (expected.compute_ns, expected.gaps.causes)
    waits = [(each.host.sync.count, each.host.sync.blocked_ns, each.host.sync.cost_ns) for each in (intel, cuda)]
    assert waits[0] == waits[1] and waits[0][0] > 0
    assert [note.text[:38] for note in intel.notes if "(XPU)" in note.text] == [
        "a trace of Intel GPUs (XPU) is measure"
    ]
    assert not any("(XPU)" in note.text or "(ROCm)" in note.text for note in cuda.notes)


def test_trace_of_the_cpu_alone(tmp_path: Path) -> None:
    trace = json.loads(gzip.decompress(sample(GRAPH).read_bytes()))
    kept = ("cpu_op", "user_annotation", None)
    trace["traceEvents"] = [event for event in trace["traceEvents"] if event.get("cat") in kept]
    (tmp_path / "cpu.json").write_text(json.dumps(trace), encoding="utf-8")
    text = " ".join(run("analyze", tmp_path / "cpu.json", "--no-html").output.split())
    assert "no GPU work: only ranges, iterations and other times of the host are measured" in text
    assert "ProfilerActivity.CUDA" in text

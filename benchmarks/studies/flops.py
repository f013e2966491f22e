"""FLOPs that traceview counts from shapes, against PyTorch's FlopCounterMode and torch.profiler's with_flops.

    python benchmarks/studies/flops.py capture gpt2_bf16 FOLDER     on a GPU: a trace of five steps and the other counts
    python benchmarks/studies/flops.py check FOLDER                 anywhere: compares the traces with these counts

FOLDER may also have captures of instrument with the metrics of the same run: NAME.sqlite and NAME.jsonl of

    nsys profile -t cuda,nvtx -s none --cpuctxsw=none -c cudaProfilerApi --capture-range-end=stop -o NAME \
        python -m instrument.train --precision bf16 --batch 128 --steps 60 --capture 30:50 --jsonl NAME.jsonl
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS = 5
FIRST_RECORD = 39  # the last step of the first record of metrics that lies in the captured steps
Step = Callable[[], None]


def gpt2(*, batch: int, autocast: bool) -> Step:
    """Return a training step of a GPT-2 with six layers."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=6, attn_implementation="sdpa")).cuda().train()
    tokens = torch.randint(50257, (batch, 512), device="cuda")
    return _step(lambda: model(input_ids=tokens, labels=tokens).loss, model, autocast)


def resnet50(*, batch: int, autocast: bool) -> Step:
    """Return a training step of ResNet-50."""
    import torch
    import torchvision

    model = torchvision.models.resnet50().cuda().train().to(memory_format=torch.channels_last)
    images = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    target = torch.randint(1000, (batch,), device="cuda")
    return _step(lambda: torch.nn.functional.cross_entropy(model(images), target), model, autocast)


PROGRAMS: dict[str, Callable[[], Step]] = {
    "gpt2_bf16": lambda: gpt2(batch=16, autocast=True),
    "gpt2_fp32": lambda: gpt2(batch=4, autocast=False),
    "resnet50_bf16": lambda: resnet50(batch=64, autocast=True),
    "resnet50_fp32": lambda: resnet50(batch=32, autocast=False),
}


def _step(loss: Callable[[], Any], model: Any, autocast: bool) -> Step:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            value = loss()
        value.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def capture(name: str, folder: Path) -> None:
    """Write NAME.json.gz, a trace of STEPS steps, and NAME.flops.json, the FLOPs of a step by other counters."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function
    from torch.utils.flop_counter import FlopCounterMode

    step = PROGRAMS[name]()
    for _ in range(8):
        step()
    with FlopCounterMode(display=False) as counter:
        step()
    torch.cuda.synchronize()
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, record_shapes=True, with_flops=True) as profiler:
        for index in range(STEPS):
            with record_function(f"ProfilerStep#{index}"):
                step()
        torch.cuda.synchronize()
    profiler.export_chrome_trace(str(folder / f"{name}.json.gz"))
    own = sum(event.flops or 0 for event in profiler.key_averages()) / STEPS
    counts = {"counter_total": counter.get_total_flops(), "with_flops": own}
    (folder / f"{name}.flops.json").write_text(json.dumps(counts))


def check(folder: Path) -> dict[str, Any]:
    """Return the FLOPs of a step by each counter, and the MFU by traceview and by instrument."""
    from traceview import analyze

    figures: dict[str, Any] = {}
    for name in PROGRAMS:
        if (folder / f"{name}.json.gz").exists():
            analysis = analyze(folder / f"{name}.json.gz")
            (row,) = analysis.tables["speed_of_light"].rows
            rows = analysis.devices[0].tables["matrix_precisions"].rows
            counts = json.loads((folder / f"{name}.flops.json").read_text())
            kernels = sum(each.flops or 0 for each in rows) // STEPS
            figures[name] = counts | {"traceview": row.flops, "kernels": kernels}
    for metrics in sorted(folder.glob("*.jsonl")):
        (row,) = analyze(metrics.with_suffix(".sqlite")).tables["speed_of_light"].rows
        records = [json.loads(line) for line in metrics.read_text().splitlines()]
        own = next(record["perf/mfu"] for record in records if record["step"] == FIRST_RECORD and "perf/mfu" in record)
        figures[metrics.stem] = {"traceview": row.mfu, "instrument": own, "ratio": round(row.mfu / own, 4)}
    return figures


if __name__ == "__main__":
    if sys.argv[1:2] == ["capture"]:
        capture(sys.argv[2], Path(sys.argv[3]))
    else:
        print(json.dumps(check(Path(sys.argv[2])), indent=1))

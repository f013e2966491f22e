#!/usr/bin/env python3
r"""Small DDP programs on two GPUs before and after a change: pairs for `traceview whatif` across ranks.

    torchrun --nproc-per-node 2 benchmarks/studies/ranks_pairs.py time ROUND.json --round 0    without a profiler
    torchrun --nproc-per-node 2 --no-python bash -c 'nsys profile -t cuda,nvtx -s none --cpuctxsw=none \
        -c cudaProfilerApi --capture-range-end=stop -o NAME_rank$RANK \
        python benchmarks/studies/ranks_pairs.py capture NAME'
    python benchmarks/studies/ranks_pairs.py neighbour 1         while shared_gpu is captured, with NEIGHBOUR_RUNS=1
    python benchmarks/studies/ranks_pairs.py table FOLDER        the exports NAME_rank0.sqlite and the rounds
    python benchmarks/studies/ranks_pairs.py unprofiled FOLDER   each rank's time without the profiler, and the rounds

`time` runs all programs in one process group; each round begins with another one. `table` predicts from the captures of
the first program of each pair alone, with `traceview whatif`, and compares with the second one. The pairs, and what was
expected of them before the first run, are in ranks_pairs.txt.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_suffix(".txt")
WARM_UP, STEPS, CAPTURED, SLOW_RANK = 10, 40, 30, 1
LOADING_S = 0.025
HEAD = """| before | change | captured, ms | predicted | range | after, ms | error | no nsys, before | after | change |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"""

Step = Callable[[], None]
Cleanup = Callable[[], None]


def transformer(rank: int, *, load: str = "", extra: int = 0, neighbour: bool = False) -> tuple[Step, Cleanup]:
    """Train 8 encoder layers in bf16, which the GPU limits. Gradients are 400 MB.

    On the slow rank, `load` makes the loader sleep or sort for LOADING_S, `extra` forwards are added to each step, and
    with `neighbour` another program uses the GPU.
    """
    import numpy as np
    import torch
    from torch import nn

    slow = rank == SLOW_RANK
    device = torch.device("cuda", rank)
    layer = nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True, norm_first=True, device=device)
    model = data_parallel(nn.TransformerEncoder(layer, 8, enable_nested_tensor=False), rank)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ready = [torch.randn(16, 512, 1024).pin_memory() for _ in range(2)]
    unsorted = np.random.default_rng(0).random(1 << 14)
    other = program_on(rank) if neighbour and slow and not os.environ.get("NEIGHBOUR_RUNS") else None

    def batches() -> Iterator[Any]:
        for batch in itertools.cycle(ready):
            if load == "sleep" and slow:
                time.sleep(LOADING_S)
            elif load == "sort" and slow:
                start = time.thread_time()
                while time.thread_time() - start < LOADING_S:
                    np.sort(unsorted)
            yield batch

    loader = batches()

    def step() -> None:
        with nvtx("data_load"):
            inputs = next(loader)
        inputs = inputs.to(device, non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16):
            if slow:
                for _ in range(extra):
                    with torch.no_grad():
                        model.module(inputs)
            loss = model(inputs).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step, lambda: stop(other)


def layers(rank: int, width: int, count: int, batch: int, *, bucket_mb: float = 25, bf16: bool = False) -> Any:
    """Train `count` square layers, whose gradients take long to reduce."""
    import torch
    from torch import nn
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    device = torch.device("cuda", rank)
    made = itertools.chain.from_iterable((nn.Linear(width, width, device=device), nn.ReLU()) for _ in range(count))
    model = data_parallel(nn.Sequential(*made), rank, bucket_cap_mb=bucket_mb)
    if bf16:
        model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, foreach=True)
    inputs = torch.randn(batch, width, device=device)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(inputs).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step, lambda: None


PROGRAMS: dict[str, Callable[[int], tuple[Step, Cleanup]]] = {
    "even": transformer,
    "sleeping_loader": lambda rank: transformer(rank, load="sleep"),
    "sorting_loader": lambda rank: transformer(rank, load="sort"),
    "extra_forwards": lambda rank: transformer(rank, extra=2),
    "shared_gpu": lambda rank: transformer(rank, neighbour=True),
    "wide": lambda rank: layers(rank, 4096, 48, 512),
    "wide_bf16": lambda rank: layers(rank, 4096, 48, 512, bf16=True),
    "narrow_1mb": lambda rank: layers(rank, 1024, 128, 2048, bucket_mb=1),
    "narrow_13mb": lambda rank: layers(rank, 1024, 128, 2048, bucket_mb=13),
    "narrow_25mb": lambda rank: layers(rank, 1024, 128, 2048),
    "narrow_100mb": lambda rank: layers(rank, 1024, 128, 2048, bucket_mb=100),
}


def data_parallel(model: Any, rank: int, **more: Any) -> Any:
    """Return the model in DDP; without gradient_as_bucket_view, as most programs have it."""
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model, device_ids=[rank], **more)


def program_on(rank: int) -> subprocess.Popen[str]:
    """Start a program that multiplies matrices on a GPU, and wait until it does."""
    command = [sys.executable, __file__, "neighbour", str(rank)]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    other.stdout.readline()
    return other


def multiply(number: int) -> None:
    """Multiply matrices on a GPU until the process ends; say "ready" first."""
    import torch

    torch.cuda.set_device(number)
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for step in itertools.count():
        matrix @ matrix
        if step % 20 == 0:
            torch.cuda.synchronize()
        if step == 20:
            print("ready", flush=True)


def stop(other: subprocess.Popen[str] | None) -> None:
    """End a program that was started."""
    if other is not None:
        other.kill()
        other.wait()


def nvtx(name: str) -> Any:
    """Return a range for nsys."""
    import torch

    return torch.cuda.nvtx.range(name)


def timed(names: list[str], rank: int) -> dict[str, float]:
    """Return ms per step of each program, of the slower rank."""
    import torch
    import torch.distributed as dist

    found = {}
    for name in names:
        step, cleanup = PROGRAMS[name](rank)
        for _ in range(WARM_UP):
            step()
        torch.cuda.synchronize()
        dist.barrier()
        start = time.perf_counter()
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
        taken = torch.tensor(1000 * (time.perf_counter() - start) / STEPS, device="cuda")
        dist.all_reduce(taken, dist.ReduceOp.MAX)
        found[name] = round(taken.item(), 3)
        cleanup()
        if rank == 0:
            print(f"{name} {found[name]} ms", flush=True)
        del step, cleanup
        gc.collect()
        torch.cuda.empty_cache()
    return found


def capture(name: str, rank: int) -> None:
    """Run the program, and let nsys record steps after the warm-up."""
    import torch
    import torch.distributed as dist

    step, cleanup = PROGRAMS[name](rank)
    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    cudart = torch.cuda.cudart()
    cudart.cudaProfilerStart()
    start = time.perf_counter()
    for number in range(CAPTURED):
        with nvtx(f"iteration {number}"):
            step()
    torch.cuda.synchronize()
    taken = 1000 * (time.perf_counter() - start) / CAPTURED
    cudart.cudaProfilerStop()
    cleanup()
    if rank == 0:
        print(f"{name} {taken:.2f} ms a step under nsys", flush=True)


def pairs() -> list[tuple[str, str, str]]:
    """Return before, after and the change of each pair."""
    lines = (line.partition("#")[0].split() for line in LIST.read_text().splitlines())
    return [(line[0], line[1], line[2]) for line in lines if line]


def table(folder: Path) -> None:
    """Print predictions beside what was captured and timed."""
    rounds = [json.loads(file.read_text()) for file in sorted(folder.glob("round*.json"))]
    times = {name: sorted(each[name] for each in rounds if name in each) for name in PROGRAMS}
    print(HEAD)
    answers: dict[str, dict[str, Any] | None] = {}
    for before, after, change in pairs():
        for name in (before, after):
            if name not in answers:
                answers[name] = answer(folder, name)
        first, second = answers[before], answers[after]
        if first is None or second is None:
            print(f"| {before} | {change} | - | not captured, or no model |")
            continue
        found = [each for each in first["predictions"] if named(each["change"]) == change]
        cells = ["not predicted", "-"]
        error = "-"
        if found:
            low, high = found[0]["low_ns"] / 1e6, found[0]["high_ns"] / 1e6
            cells = [f"{found[0]['iteration_ns'] / 1e6:.2f}", f"{low:.2f} to {high:.2f}"]
            error = f"{found[0]['iteration_ns'] / second['measured_ns'] - 1:+.1%}"
        shares = [f"{text(times[before])}", f"{text(times[after])}"]
        if times[before] and times[after]:
            shares.append(f"{median(times[after]) / median(times[before]) - 1:+.1%}")
        now, then = (f"{each['measured_ns'] / 1e6:.2f}" for each in (first, second))
        print(f"| {before} → {after} | {change} | {' | '.join((now, *cells, then, error, *shares))} |")


def unprofiled(folder: Path) -> None:
    """Print the predicted time of each rank without the profiler and the measured runs, and count the hits."""
    sys.path.insert(0, str(ROOT))
    from traceview import analyze

    rounds = [json.loads(file.read_text()) for file in sorted(folder.glob("round*.json"))]
    inside, hits, count = 0, 0, 0
    print("| capture | without, runs | predicted | range |", "| --- | ---: | ---: | ---: |", sep="\n")
    for file in sorted(folder.glob("*_rank*.sqlite")):
        runs = sorted(each[name] for each in rounds if (name := file.stem.rpartition("_")[0]) in each)
        time = getattr(analyze(file).iterations, "unprofiled", None)
        if time is None or not runs:
            continue
        middle, low, high = (ns / 1e6 for ns in (time.mean_ns, time.low_ns, time.high_ns))
        count += 1
        inside += low <= median(runs) <= high
        hits += abs(middle / median(runs) - 1) <= 0.1 or runs[0] <= middle <= runs[-1]
        print(f"| {file.stem} | {text(runs)} | {middle:.2f} | {low:.2f} to {high:.2f} |")
    print(f"\n{hits} of {count} hits, {inside} in the range")


def named(change: str) -> str:
    """Return the name of a change with "slow" for the slow rank, whose label is a file's name."""
    head, mark, rank = change.partition("without:") if change.startswith("without:") else change.partition("@")
    return f"{head}{mark}{'slow' if rank.endswith(f'rank{SLOW_RANK}') else rank}"


def text(times: list[float]) -> str:
    """Return the median and the least and most of some times."""
    return f"{median(times):.2f} ({times[0]:.2f} to {times[-1]:.2f})" if times else "-"


def answer(folder: Path, name: str) -> dict[str, Any] | None:
    """Return what `traceview whatif` answers on the ranks' captures of a program."""
    reports = sorted(folder.glob(f"{name}_rank*.sqlite"))
    if len(reports) < 2:
        return None
    command = [sys.executable, "-m", "traceview", "whatif", *map(str, reports), "--json", "-"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{name}: {done.stderr.strip()[-300:]}", file=sys.stderr)
        return None
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def main() -> None:
    """Run what the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("time", "capture", "neighbour", "table", "unprofiled"))
    parser.add_argument("name", help="a program, the file of a round, a GPU, or the folder of the captures")
    parser.add_argument("--round", type=int, default=0)
    options = parser.parse_args()
    if options.what in ("table", "unprofiled"):
        (table if options.what == "table" else unprofiled)(Path(options.name).resolve())
        return
    if options.what == "neighbour":
        multiply(int(options.name))
        return
    import torch
    import torch.distributed as dist

    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    torch.manual_seed(0)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    if options.what == "capture":
        capture(options.name, rank)
    else:
        at = 4 * options.round % len(PROGRAMS)
        found = timed([*PROGRAMS][at:] + [*PROGRAMS][:at], rank)
        if rank == 0:
            Path(options.name).write_text(json.dumps(found, indent=1) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Measure programs before and after a change, with and without nsys, each run in a process of its own.

    python benchmarks/studies/blind_pairs.py run FOLDER [PROGRAM ...] --nsys NSYS --budget 560 --packs OUT
    python benchmarks/studies/blind_pairs.py rank FOLDER PROGRAM:CHANGE ... --budget 560 --packs OUT
    python benchmarks/studies/blind_pairs.py one PROGRAM VARIANT FILE [--profiled]
    python benchmarks/studies/blind_pairs.py list

`run` writes PROGRAM.VARIANT.plain.N.json, three of each variant in turn, and PROGRAM.VARIANT.nsys.1 with its capture,
compressed; `rank` measures other changes, each alone, beside `before`. With --packs, what is written also goes into
tar files below 15 MiB there, program by program. `list` names the programs, `one` makes one run. A program that fails
is reported in a line. benchmarks/blind_pairs.txt has what was expected; read it with

    python benchmarks/unprofiled_pairs.py FOLDER --list benchmarks/blind_pairs.txt
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # asking for a GPU must not begin to use it before a fork

import torch
from blind_job import PROGRAMS
from blind_measure import write

ROUNDS, PACK = 3, 15 << 20
FIRST = 45.0  # seconds that a program is expected to take before one has run
PROFILE = ("profile", "-t", "cuda,nvtx", "-s", "none", "--cpuctxsw=none", "-c", "cudaProfilerApi")
PROFILE += ("--capture-range-end=stop", "-f", "true")
LIBRARIES = {
    "speech-pin": ("torchaudio",),
    "conformer-fused": ("torchaudio",),
    "lightning-load": ("torchvision.transforms.v2", "pytorch_lightning"),
    "retinanet-bf16": ("torchvision",),
    "r3d-channels-last": ("torchvision",),
    "gin-load": ("torch_geometric.loader", "torch_geometric.nn"),
    "mixer-sync": ("torchmetrics",),
    "gp-allocate": ("gpytorch",),
    "ode-tf32": ("torchdiffeq",),
    "bart-sdpa": ("transformers.models.bart.modeling_bart",),
    "clip-tf32-sdpa": ("transformers.models.clip.modeling_clip",),
}  # imported once, before the forks


class Runner:
    """Makes runs, each in a process: a fork of this one, whose imports it has, or one that begins anew."""

    def __init__(self, programs: Sequence[str], options: argparse.Namespace) -> None:
        self.end, self.longest = time.monotonic() + options.budget, FIRST
        self.folder, self.packs, self.tiny = Path(options.names[0]).resolve(), options.packs, options.tiny
        self.limit = options.limit
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in sorted({library for program in programs for library in LIBRARIES.get(program, ())}):
            try:
                importlib.import_module(name)
            except Exception as error:
                say(f"import of {name} failed: {error}")
        if torch.cuda.is_available():
            self.forks = self.forked(trial, "trial", 30.0)
            say(
                "runs are forks" if self.forks else "a fork cannot use the GPU: each run is a process that imports anew"
            )
        else:
            self.forks = True

    def forked(self, function: Callable[[], object], label: str, limit: float) -> bool:
        """Call a function in a fork of this process, and return whether it succeeded."""
        log = self.folder / f"{label}.log"
        pid = os.fork()
        if pid == 0:
            os.setsid()
            code = 1
            try:
                output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(output, 1)
                os.dup2(output, 2)
                function()
                code = 0
            except BaseException as error:
                print(f"{type(error).__name__}: {error}".replace("\n", " ")[:300], flush=True)
            finally:
                sys.stdout.flush()
                os._exit(code)
        until = time.monotonic() + limit
        while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < until:
            time.sleep(0.01)
        kill_group(pid)
        if ended[0] == 0:
            os.waitpid(pid, 0)
        return self.reported(label, ended[0] != 0 and ended[1] == 0, log)

    def started(self, command: Sequence[str], label: str, limit: float, wanted: Path) -> bool:
        """Run a command, and return whether it wrote the wanted file."""
        log = self.folder / f"{label}.log"
        with log.open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        try:
            process.wait(limit)
            until = time.monotonic() + 10
            while process.returncode == 0 and not wanted.exists() and time.monotonic() < until:
                time.sleep(0.05)
        except subprocess.TimeoutExpired:
            pass
        kill_group(process.pid)
        process.wait()
        return self.reported(label, wanted.exists(), log)

    def reported(self, label: str, done: bool, log: Path) -> bool:
        """Print the last line of what a failed run wrote."""
        if done:
            log.unlink(missing_ok=True)
        else:
            lines = log.read_text(errors="replace").split("\n") if log.exists() else []
            said = next((line for line in reversed(lines) if line.strip()), "no output, or too slow")
            say(f"{label} FAILED: {said[:300]}")
        return done

    def plain(self, name: str, variant: str, number: int) -> float | None:
        """Run without the profiler, and return the ms a step."""
        label = f"{name}.{variant}.plain.{number}"
        path = self.folder / f"{label}.json"
        if self.forks:
            done = self.forked(lambda: write(path, name, variant, tiny=self.tiny), label, self.limit)
        else:
            done = self.started(self.command(name, variant, path), label, self.limit, path)
        return float(json.loads(path.read_text())["ms_per_step"]) if done else None

    def command(self, name: str, variant: str, path: Path) -> list[str]:
        """Return the command of a run."""
        return [sys.executable, __file__, "one", name, variant, str(path), *(["--tiny"] if self.tiny else [])]

    def capture(self, name: str, variant: str, nsys: str) -> float | None:
        """Run under nsys, compress the capture, and return the ms a step."""
        label = f"{name}.{variant}.nsys.1"
        path, base = self.folder / f"{label}.json", self.folder / label
        command = [nsys, *PROFILE, "-o", str(base), *self.command(name, variant, path), "--profiled"]
        if not self.started(command, label, 2 * self.limit, path):
            return None
        made = next((own for end in ("qdstrm", "nsys-rep") if (own := Path(f"{base}.{end}")).is_file()), None)
        if made is None:
            say(f"{label} FAILED: nsys wrote no capture")
            return None
        compress(made)
        return float(json.loads(path.read_text())["ms_per_step"])

    def pack(self, name: str) -> None:
        """Add what a program wrote to a tar file that is not full."""
        if self.packs is None:
            return
        self.packs.mkdir(parents=True, exist_ok=True)
        for path in sorted(self.folder.glob(f"{name}.*")):
            tars = sorted(self.packs.glob("blind*.tar"))
            room = bool(tars) and tars[-1].stat().st_size + path.stat().st_size + 20480 < PACK
            target = tars[-1] if room else self.packs / f"blind{len(tars):02}.{os.getpid()}.tar"
            if path.stat().st_size + 20480 > PACK or path.suffix in (".qdstrm", ".nsys-rep"):
                say(f"{path.name} left out: {path.stat().st_size >> 20} MiB")
                continue
            with tarfile.open(target, "a") as tar:
                tar.add(path, path.name)

    def program(self, name: str, variants: Sequence[str], nsys: str | None) -> None:
        """Measure a program's variants in turn, and print their times."""
        start = time.monotonic()
        if self.end - start < self.longest:
            say(f"{name} NOT RUN: {self.end - start:.0f} s of the budget are left")
            return
        times: dict[str, list[float]] = {variant: [] for variant in variants}
        captured: dict[str, float | None] = {}
        for number in range(1, ROUNDS + 1):
            for variant in variants:
                if number == 1 or times[variant]:
                    ms = self.plain(name, variant, number)
                    times[variant] += [] if ms is None else [ms]
            if nsys and number == 1:
                captured = {variant: self.capture(name, variant, nsys) for variant in variants}
        before = median(times[variants[0]]) if times[variants[0]] else None
        for variant in variants:
            runs = " ".join(f"{ms:.2f}" for ms in sorted(times[variant]))
            gain = f"{1 - median(times[variant]) / before:+.1%}" if times[variant] and before else "-"
            say(f"{name} {variant}: {runs} ms, gain {gain}, with nsys {captured.get(variant)}")
        self.pack(name)
        spent = time.monotonic() - start
        self.longest = spent if self.longest == FIRST else max(self.longest, spent)
        say(f"{name}: {spent:.0f} s, {self.end - time.monotonic():.0f} s left")


def trial() -> None:
    """Use the processor's threads and the GPU."""
    torch.randn(1000, 1000).mm(torch.randn(1000, 1000)).cuda().sum().item()


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def kill_group(pid: int) -> None:
    """End what a run has left behind."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def compress(path: Path) -> None:
    """Replace a file by a compressed one."""
    if shutil.which("xz"):
        subprocess.run(["xz", "-1", "-T8", "-f", str(path)], check=True)
        return
    with path.open("rb") as source, lzma.open(f"{path}.xz", "wb", preset=1) as target:
        shutil.copyfileobj(source, target)
    path.unlink()


def main() -> None:
    """Parse the arguments, and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "rank", "one", "list"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--nsys")
    parser.add_argument("--budget", type=float, default=560.0, help="seconds")
    parser.add_argument("--limit", type=float, default=75.0, help="seconds of a run; twice as long under nsys")
    parser.add_argument("--packs", type=Path)
    parser.add_argument("--profiled", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="small sizes, for a test without a GPU")
    options = parser.parse_args()
    if options.what == "list":
        print("\n".join(f"{name} {changes}" for name, (changes, _) in PROGRAMS.items()))
        return
    if options.what == "one":
        name, variant, path = options.names
        write(Path(path), name, variant, profiled=options.profiled, tiny=options.tiny)
        return
    asked: dict[str, list[str]] = {}
    for item in options.names[1:] or PROGRAMS:
        name, _, change = item.partition(":")
        asked.setdefault(name, ["before"]).append(change or "after")
    runner = Runner(list(asked), options)
    for name, variants in asked.items():
        runner.program(name, variants, options.nsys if options.what == "run" else None)


if __name__ == "__main__":
    main()

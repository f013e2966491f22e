"""`python -m instrument.run` runs a program as `python` does: same output, exit code, tracebacks and graphs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.captures import ROOT
from tests.profiling import profiled, run

MAIN = """
import __main__, sys
print(__name__, __package__, __file__, __spec__ and __spec__.name, sys.argv, sys.path[0], sorted(vars(__main__)))
"""
TRAIN = f"""
import os
os.environ["OMP_NUM_THREADS"] = "1"
{MAIN}
import pickle, random, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1))
    def forward(self, x):
        return self.layers(x)

if __name__ == "__main__":
    torch.manual_seed(5)
    random.seed(5)
    loader = DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=4, shuffle=True, num_workers=1)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(2):
        for (x,) in loader:
            loss = model(x.to("cpu")).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item())
        with torch.no_grad():
            print(model(x).sum().item())
        torch.save(model, sys.argv[1])
    print(torch.load(sys.argv[1], weights_only=False), model.layers[0]._forward_pre_hooks)
    print(torch.rand(3), random.random(), torch.get_num_threads(), sum(torch.get_rng_state()))
    try:
        raise KeyError("first")
    except KeyError:
        model(torch.ones(3))
"""
COMPILED = """
import torch, torch._dynamo
from torch import nn
from torch._dynamo.utils import counters

graphs = []
def backend(graph, inputs):
    graphs.append(graph.code)
    return graph.forward

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
    def forward(self, x):
        x = self.layer(x).to(torch.float64).to("cpu").to(x)
        if x.sum() > 1e9:
            print("no")
        return x.relu()

torch.manual_seed(0)
model = nn.Sequential(Block(), nn.Linear(8, 1))
model[1].register_forward_hook(lambda module, inputs, output: output * 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
def step(x, called):
    loss = called(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss
compiled = torch.compile(model, backend=backend)
whole = torch.compile(step, backend=backend)
for _ in range(3):
    print(step(torch.randn(4, 8), compiled).item(), whole(torch.randn(4, 8), model).item())
print(graphs, sorted(counters["graph_break"].items()), counters["stats"])
"""
RANKS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.profiler.profile() as profile:
    for _ in range(3):
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(total.item(), flush=True)
found = {event.name for event in profile.events()}
open(f"ranges-{dist.get_rank()}", "w").write(" ".join(sorted(found & {"iteration 1", "forward", "all_reduce"})))
dist.destroy_process_group()
"""
SPAWNED = """
import torch
def work(rank):
    model = torch.nn.Linear(2, 1)
    with torch.profiler.profile() as profile:
        for _ in range(2):  # the second step closes the range of the first
            model(torch.ones(1, 2)).sum().backward()
            torch.optim.SGD(model.parameters()).step()
    print(sorted({event.name for event in profile.events()} & {"iteration 0", "forward"}))
if __name__ == "__main__":
    torch.multiprocessing.spawn(work, nprocs=1)
"""
SHORT = {
    "a value": "import sys; print('x'); sys.exit(3)",
    "a text": "import sys; sys.exit('bye')",
    "no Python": "a b",
    "an exception": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError from error",
    "an interrupt": "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(5)",
    "a hook": "import sys\nsys.excepthook = lambda kind, error, trace: print(kind, trace.tb_next)\nraise ValueError",
    "names": MAIN,
}
Result = tuple[int, str, str]


def ended(folder: Path, *command: object) -> Result:
    """Return the exit code and output of Python with these arguments."""
    given = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, *map(str, command)]
    done = subprocess.run(words, cwd=folder, env=given, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout, done.stderr


def both(folder: Path, *command: object, options: tuple[str, ...] = ()) -> tuple[Result, Result]:
    return ended(folder, *command), ended(folder, "-m", "instrument.run", *options, *command)


@pytest.mark.parametrize("how", SHORT)
def test_ends_as_without(tmp_path: Path, how: str) -> None:
    (tmp_path / "program.py").write_text(SHORT[how])
    plain, with_ranges = both(tmp_path, "program.py", "--flag", "-m")
    assert with_ranges == plain


@pytest.mark.parametrize("program", [["-m", "package", "x"], ["-m", "package.part"], ["-m", "absent"], ["absent.py"]])
def test_modules_end_as_without(tmp_path: Path, program: list[str]) -> None:
    (tmp_path / "package").mkdir()
    for name, text in {"__init__": "", "__main__": MAIN + "raise OSError(1)", "part": MAIN}.items():
        (tmp_path / "package" / f"{name}.py").write_text(text)
    plain, with_ranges = both(tmp_path, *program)
    assert with_ranges == plain


def test_without_a_program_it_says_how_to_name_one(tmp_path: Path) -> None:
    code, _, error = ended(tmp_path, "-m", "instrument.run", "--live")
    assert code == 2 and "name a script" in error


def test_training_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    plain, with_ranges = both(tmp_path, "train.py", "model.pt", options=("--modules", "2"))
    assert plain[0] == 1 and "mat1 and mat2" in plain[2]
    assert with_ranges == plain


def test_compiled_graphs_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(COMPILED)
    plain, with_ranges = both(tmp_path, "train.py", options=("--modules", "1"))
    assert plain[0] == 0 and plain[1].count("def forward") > 3
    assert with_ranges[:2] == plain[:2]


def test_ranks_of_torchrun(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
    plain = ended(tmp_path, *torchrun, "train.py")
    assert (tmp_path / "ranges-1").read_text() == ""
    with_ranges = ended(tmp_path, *torchrun, "-m", "instrument.run", "train.py")
    assert plain[0] == 0 and with_ranges[:2] == plain[:2]
    assert (tmp_path / "ranges-1").read_text() == "all_reduce forward iteration 1"


def test_spawned_processes_have_ranges(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SPAWNED)
    assert ended(tmp_path, "-m", "instrument.run", "train.py")[1] == "['forward', 'iteration 0']\n"


def test_nsys_records_the_ranges(nsys: str, tmp_path: Path) -> None:
    pytest.importorskip("nvtx")
    pl = pytest.importorskip("polars")
    from traceview.pipeline import open_trace

    (tmp_path / "train.py").write_text(TRAIN.replace("model(torch.ones(3))", "pass"))
    report = tmp_path / "report.nsys-rep"
    profiled(nsys, report, sys.executable, "-m", "instrument.run", tmp_path / "train.py", tmp_path / "model.pt")
    run(nsys, "export", "-t", "sqlite", "-o", report.with_suffix(".sqlite"), report)
    ranges = open_trace(report.with_suffix(".sqlite")).ranges.select(pl.col("name").cast(pl.String))["name"]
    counts = dict(ranges.value_counts().iter_rows())
    assert [counts[f"iteration {number}"] for number in range(12)] == [1] * 12
    phases = {"h2d": 12, "forward": 12, "backward": 12, "optimizer": 12, "validate": 2, "checkpoint": 2}
    assert {name: counts[name] for name in phases} == phases

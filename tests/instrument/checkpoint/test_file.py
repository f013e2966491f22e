"""A file is whole or not there: killed writers, full disks, damaged, foreign and dangerous files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from collections import OrderedDict
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from instrument.checkpoint import file
from instrument.errors import InstrumentError

ROOT = Path(__file__).parents[3]
CONTENTS: dict[str, Any] = {"step": 1, "parts": {"model": {"weight": torch.arange(10_000.0)}}, "extra": {}}


def in_subprocess(script: str, *arguments: object, **how: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", HEADER + script, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, **how)


def leftovers(folder: Path) -> list[Path]:
    return list(folder.glob(f".*{file.TEMPORARY}"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a whole checkpoint."""
    path = tmp_path / "0001-step-1.pt"
    file.write(path, CONTENTS)
    return path


def test_contents_round_trip(path: Path, tmp_path: Path) -> None:
    read = file.read(path)
    assert torch.equal(read["parts"]["model"]["weight"], CONTENTS["parts"]["model"]["weight"])
    assert read["step"] == 1
    assert [item.name for item in tmp_path.iterdir()] == [path.name]


HEADER = """
import os, resource, sys, time
from pathlib import Path
import torch
from instrument.checkpoint import file
from instrument.errors import InstrumentError
def write(step, weight):
    file.write(Path(sys.argv[1]), {"step": step, "parts": {"model": {"weight": weight}}, "extra": {}})
"""
KILLED_WHILE_WRITING = """
def stop_here(handle):
    print("half", flush=True)
    time.sleep(60)
os.fsync = stop_here
write(2, torch.zeros(10_000))
"""


def test_killed_write_keeps_the_old_file(path: Path, tmp_path: Path) -> None:
    with in_subprocess(KILLED_WHILE_WRITING, path) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "half\n"
        written = leftovers(tmp_path)
        file.remove_stale(tmp_path)
        assert leftovers(tmp_path) == written != [], "a living run's file was removed"
        run.send_signal(signal.SIGKILL)
    assert file.read(path)["step"] == 1
    assert file.history(tmp_path) == [path], "the half-written file counts as a checkpoint"
    file.remove_stale(tmp_path)
    assert list(tmp_path.iterdir()) == [path]


WRITES_FOR_EVER = """
step = 0
while True:
    step += 1
    write(step, torch.full((300_000,), float(step)))
    print(step, flush=True)
"""


@pytest.mark.parametrize("lines", [1, 4])
def test_kill_leaves_a_complete_checkpoint(tmp_path: Path, lines: int) -> None:
    path = tmp_path / "0001-step-1.pt"
    with in_subprocess(WRITES_FOR_EVER, path) as run:
        assert run.stdout is not None
        for _ in range(lines):
            run.stdout.readline()
        run.send_signal(signal.SIGKILL)
    read = file.read(path)
    assert read["step"] >= lines
    assert torch.equal(read["parts"]["model"]["weight"], torch.full((300_000,), float(read["step"])))


FULL_DISK = """
# A limit on the size of files stands in for a full disk: the write fails halfway, with an OSError.
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    write(2, torch.zeros(int(sys.argv[2])))
except InstrumentError as error:
    print(error)
"""


@pytest.mark.parametrize("numbers", [13_000, 1_000_000])
def test_full_disk_is_one_line_and_keeps_the_old_file(path: Path, tmp_path: Path, numbers: int) -> None:
    with in_subprocess(FULL_DISK, path, numbers) as run:
        said, _ = run.communicate()
    assert said == f"{path} cannot be written: File too large\n"
    assert file.read(path)["step"] == 1
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("folder", ["/proc/self", "/proc/none/checkpoints"])
def test_unwritable_folder_is_one_line(folder: str) -> None:
    with pytest.raises(InstrumentError, match=rf"^checkpoint folder {folder} cannot be written to: [^\n]+$"):
        file.refuse_unwritable(Path(folder))
    with pytest.raises(InstrumentError, match=r"^/proc/self/a\.pt cannot be written: [^\n]+$"):
        file.write(Path("/proc/self/a.pt"), CONTENTS)


@pytest.mark.parametrize("kept", [0, 100, 1_000, 20_000, -1])
def test_truncated_file_is_refused(path: Path, kept: int) -> None:
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InstrumentError, match=r"^\S+0001-step-1\.pt is [^\n]+ from another[^\n]+$"):
        file.read(path)


def test_flipped_bit_is_detected(path: Path) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    assert not torch.equal(torch.load(path)["parts"]["model"]["weight"], CONTENTS["parts"]["model"]["weight"])
    with pytest.raises(InstrumentError, match=r"is damaged \(the checksum of [^\n]+ is wrong\); resume from another"):
        file.read(path)


class Trap:
    def __init__(self, at: Path) -> None:
        self.at = at

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.at,)


def test_pickled_code_is_not_executed(tmp_path: Path) -> None:
    path, sprung = tmp_path / "0001-step-1.pt", tmp_path / "sprung"
    torch.save({"program": "instrument", "format": 1, "parts": Trap(sprung)}, path)
    with pytest.raises(InstrumentError, match="contains other objects than tensors and plain values"):
        file.read(path)
    assert not sprung.exists()


@pytest.mark.parametrize("foreign", [{"state_dict": {}}, [1, 2], torch.zeros(3), {"program": "other", "format": 1}])
def test_file_of_another_program_is_named(tmp_path: Path, foreign: object) -> None:
    torch.save(foreign, tmp_path / "model.pt")
    with pytest.raises(InstrumentError, match=r"model\.pt was written by another program; [^\n]+$"):
        file.read(tmp_path / "model.pt")


def test_foreign_zip_and_newer_format_are_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("readme", "text")
    with pytest.raises(InstrumentError, match=r"^\S+a\.pt cannot be read as a checkpoint: [^\n]+$"):
        file.read(tmp_path / "a.pt")
    torch.save({"program": "instrument", "format": 99}, tmp_path / "b.pt")
    with pytest.raises(InstrumentError, match="has format 99, this version reads 1"):
        file.read(tmp_path / "b.pt")


@pytest.mark.parametrize("value", [Path("a"), Fraction(1, 3), print, Trap(Path("a")), [{"a": Fraction(1)}]])
def test_unreadable_state_is_refused(tmp_path: Path, value: object) -> None:
    path = tmp_path / "0001-step-1.pt"
    with pytest.raises(InstrumentError, match=r"^0001-step-1\.pt\['extra'\]\['late'\]\S* is a [^\n]+ to one of these$"):
        file.write(path, {"extra": {"late": value}})
    assert list(tmp_path.iterdir()) == []


def test_numpy_number_is_refused(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises(InstrumentError, match=r"\['loss'\] is a numpy\.float64"):
        file.write(tmp_path / "a.pt", {"loss": numpy.float64(0.5)})


def test_plain_values_round_trip(tmp_path: Path) -> None:
    plain = {
        "values": [None, True, 1 << 70, -0.0, float("inf"), "é", b"\0", (1, (2,)), {3}],
        "ordered": OrderedDict(a=1),
        1: torch.float16,
        "size": torch.Size([2, 3]),
    }
    file.write(tmp_path / "a.pt", {"extra": plain})
    assert file.read(tmp_path / "a.pt")["extra"] == plain


def test_history_is_in_order_of_writing(tmp_path: Path) -> None:
    for name in ("0010-step-5.pt", "0009-step-30.pt", "9-step-1.pt", "10000-step-7-emergency.pt"):
        (tmp_path / name).touch()
    for name in ("best.pt", "other.pt", "0011-step-5.pt.part"):
        (tmp_path / name).touch()
    ordered = [path.name for path in file.history(tmp_path)]
    assert ordered == ["9-step-1.pt", "0009-step-30.pt", "0010-step-5.pt", "10000-step-7-emergency.pt"]
    assert file.next_name(tmp_path, 6, emergency=False).name == "10001-step-6.pt"
    assert file.next_name(tmp_path / "none", 6, emergency=True).name == "0001-step-6-emergency.pt"


def test_hard_link_survives_the_first_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, best = tmp_path / "0001-step-1.pt", tmp_path / "best.pt"
    file.write(path, CONTENTS)
    file.link(path, best)
    file.link(path, best)
    assert path.samefile(best)
    monkeypatch.setattr(os, "link", lambda *_names: (_ for _ in ()).throw(OSError("no links here")))
    file.link(path, best)
    assert not path.samefile(best)
    path.unlink()
    assert file.read(best)["step"] == 1
    assert list(tmp_path.iterdir()) == [best]

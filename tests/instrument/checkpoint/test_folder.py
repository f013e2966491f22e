"""Which checkpoints a run keeps: the last ones, the best one, what an emergency leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from instrument.checkpoint.folder import Checkpoints
from instrument.errors import ConfigError, InstrumentError


class Number:
    """The smallest part there is."""

    def __init__(self, value: float = 0.0) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.value = state_dict["value"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def loaded(checkpoints: Checkpoints, where: str | Path) -> float:
    number = Number()
    checkpoints.load(where, {"number": number})
    return number.value


def test_last_checkpoints_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step, loss in enumerate([0.9, 0.2, 0.5, float("nan"), 0.4], start=1):
        path = checkpoints.save(step, {"number": Number(step)}, loss=loss)
        assert checkpoints.latest() == path
    assert names(tmp_path) == ["0004-step-4.pt", "0005-step-5.pt", "best.pt"]
    assert loaded(checkpoints, "best") == 2
    assert loaded(checkpoints, "latest") == 5


def test_no_best_without_a_loss_or_the_setting(tmp_path: Path) -> None:
    Checkpoints(tmp_path / "a").save(1, {})
    Checkpoints(tmp_path / "b", best=False).save(1, {}, loss=0.5)
    assert names(tmp_path / "a") == names(tmp_path / "b") == ["0001-step-1.pt"]


def test_best_of_earlier_runs_stays(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(1, {"number": Number(1)}, loss=0.2)
    again = Checkpoints(tmp_path)
    again.load("latest", {})
    again.save(2, {"number": Number(2)}, loss=0.3)
    assert loaded(again, "best") == 1
    again.save(3, {"number": Number(3)}, loss=0.1)
    assert loaded(again, "best") == 3


def test_damaged_best_is_reported_and_replaced(tmp_path: Path) -> None:
    said: list[str] = []
    checkpoints = Checkpoints(tmp_path, log=said.append)
    (tmp_path / "best.pt").write_bytes(b"PK")
    checkpoints.save(1, {"number": Number(1)}, loss=0.5)
    assert loaded(checkpoints, "best") == 1
    assert len(said) == 1 and said[0].startswith(f"{tmp_path / 'best.pt'} ") and said[0].endswith("; replacing it")


def test_going_back_keeps_later_records(tmp_path: Path) -> None:
    first = Checkpoints(tmp_path, keep=3, best=False)
    for step in (10, 20, 30):
        first.save(step, {"number": Number(step)})
    second = Checkpoints(tmp_path, keep=3, best=False)
    assert second.load(tmp_path / "0001-step-10.pt", {}).step == 10
    path = second.save(11, {"number": Number(11)})
    assert second.latest() == path
    assert names(tmp_path) == ["0002-step-20.pt", "0003-step-30.pt", "0004-step-11.pt"]


def test_files_of_earlier_runs_are_refused(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(1, {"number": Number(1)})
    other = Checkpoints(tmp_path, keep=1)
    with pytest.raises(InstrumentError, match=r"contains checkpoints of an earlier run: use --resume latest"):
        other.start(None, {})
    other.save(1, {})
    other.save(2, {})
    assert names(tmp_path) == ["0001-step-1.pt", "0003-step-2.pt"]


def test_start_resumes_or_begins(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "deep" / "folder")
    assert checkpoints.start(None, {}) is None
    checkpoints.save(3, {"number": Number(3)}, extra={"position": [1, 2], "losses": {"1": 0.5}})
    resumed = checkpoints.start("latest", {})
    assert resumed is not None
    assert (resumed.step, resumed.extra) == (3, {"position": [1, 2], "losses": {"1": 0.5}})


def test_emergency_checkpoint_has_a_reason_and_is_the_latest(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, {"number": Number(1)})
    path = checkpoints.emergency(2, {"number": Number(2)}, ValueError("loss is nan\nmore"), extra={"losses": {}})
    assert path == tmp_path / "0002-step-2-emergency.pt"
    assert names(tmp_path) == ["0001-step-1.pt", path.name]
    number = Number()
    resumed = checkpoints.load("latest", {"number": number})
    assert (number.value, resumed.step, resumed.reason) == (2, 2, "ValueError: loss is nan")
    checkpoints.save(3, {"number": Number(3)})
    assert names(tmp_path) == ["0003-step-3.pt"]


@pytest.mark.parametrize("failure", [OSError("disk on fire"), RuntimeError("CUDA error"), KeyboardInterrupt()])
def test_failed_emergency_checkpoint_keeps_the_first_error(tmp_path: Path, failure: BaseException) -> None:
    class Broken(Number):
        def state_dict(self) -> dict[str, Any]:
            raise failure

    said: list[str] = []
    checkpoints = Checkpoints(tmp_path, log=said.append)
    with pytest.raises(ZeroDivisionError):
        try:
            raise ZeroDivisionError
        except ZeroDivisionError as error:
            assert checkpoints.emergency(7, {"number": Broken()}, error) is None
            raise
    assert len(said) == 1 and said[0].startswith("no emergency checkpoint at step 7: ")
    assert names(tmp_path) == []


def test_failed_write_keeps_older_files(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, {"number": Number(1)})
    with pytest.raises(InstrumentError, match=r"\['extra'\]\['bad'\] is a builtins\.object"):
        checkpoints.save(2, {"number": Number(2)}, extra={"bad": object()})
    assert loaded(checkpoints, "latest") == 1


def test_undeletable_file_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    checkpoints = Checkpoints(tmp_path, keep=1, log=said.append)
    checkpoints.save(1, {})
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".pt":
            raise PermissionError(1, "Operation not permitted")
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    checkpoints.save(2, {})
    assert said == [f"cannot remove the old checkpoint {tmp_path / '0001-step-1.pt'}: Operation not permitted"]


def test_invalid_keep_and_unusable_folder_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keep is 0: keep at least 1"):
        Checkpoints(tmp_path, keep=0)
    (tmp_path / "file").touch()
    with pytest.raises(InstrumentError, match=r"checkpoint folder \S+file cannot be written to: File exists"):
        Checkpoints(tmp_path / "file")


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("latest", r"contains no checkpoint; start without --resume"),
        ("best", r"best\.pt does not exist; give a file"),
        ("/nowhere/0001-step-1.pt", r"^checkpoint /nowhere/0001-step-1\.pt does not exist; give a file"),
    ],
)
def test_resume_without_checkpoints_is_one_line(tmp_path: Path, where: str, said: str) -> None:
    with pytest.raises(InstrumentError, match=said):
        Checkpoints(tmp_path).load(where, {})


def test_missing_file_names_alternatives(tmp_path: Path) -> None:
    Checkpoints(tmp_path / "a").save(4, {"number": Number(4)})
    with pytest.raises(InstrumentError, match=r"step-9\.pt does not exist; the last one there is 0001-step-4\.pt"):
        Checkpoints(tmp_path / "b").load(tmp_path / "a" / "step-9.pt", {})
    assert loaded(Checkpoints(tmp_path / "b"), tmp_path / "a") == 4

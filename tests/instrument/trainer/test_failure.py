"""A failed run leaves its collectives, and its error passes through."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from instrument.distributed.world import World  # noqa: E402
from instrument.errors import ConfigError  # noqa: E402
from instrument.trainer.failure import failure_records, record_collectives  # noqa: E402
from tests.instrument import ranks  # noqa: E402

CPU = torch.device("cpu")


def failing(world: World, folder: Path) -> list[str]:
    lines: list[str] = []
    try:
        with failure_records(folder / "records", CPU, world.rank, lines.append):
            torch.distributed.all_reduce(torch.ones(3))
            raise ValueError("no more data")
    except ValueError as error:
        lines.append(str(error))
    return lines


def test_collectives_of_each_rank_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "100")
    results = ranks.run([failing], tmp_path)["failing"]
    for rank, lines in enumerate(results):
        path = tmp_path / "records" / f"collectives-rank{rank}"
        assert [line.partition(";")[0] for line in lines] == [f"the last collectives are in {path}", "no more data"]
        recorded: Any = pickle.loads(path.read_bytes())
        assert recorded["entries"][-1]["profiling_name"] == "gloo:all_reduce"


def test_error_of_one_process_passes_through(tmp_path: Path) -> None:
    lines: list[str] = []
    with pytest.raises(ValueError, match="broken"), failure_records(tmp_path / "a", CPU, 0, lines.append):
        raise ValueError("broken")
    assert (lines, list((tmp_path / "a").iterdir())) == ([], [])


def test_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refusal = pytest.raises(ConfigError, match=r"--failure-records .* cannot be created")
    with refusal, failure_records(tmp_path / "file" / "a", CPU, 0, print):
        pass


def test_collectives_are_kept_unless_the_user_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"TORCH_FR_BUFFER_SIZE": "7"}
    monkeypatch.setattr("os.environ", environment)
    record_collectives()
    assert environment == {"TORCH_FR_BUFFER_SIZE": "7", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}

"""A few fixed cases of `scripts/fuzz`. Failures of long runs are in tests/fuzz/test_regressions.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import cases
from tests.fuzz.corpus import Corpus
from tests.fuzz.judge import judge

FEW = 5


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus.make(tmp_path_factory.mktemp("corpus"))


@pytest.mark.parametrize("first", range(0, 45, FEW))
def test_cases(first: int, exports: Corpus, tmp_path: Path) -> None:
    for seed in range(first, first + FEW):
        here, scratch = tmp_path / str(seed), tmp_path / f"temporary{seed}"
        here.mkdir()
        scratch.mkdir()
        case = cases.make(seed, exports, here)
        code, wrong = judge(case, scratch)
        assert not wrong, f"{case.story}: exit code {code}, {wrong}"


def test_corpus_has_every_kind_of_capture(exports: Corpus) -> None:
    assert [len(part) for part in (exports.exports, exports.profiler)] == [11, 2]
    assert all(20_000 < path.stat().st_size < 500_000 for path in (*exports.exports, *exports.profiler))

"""--fail-if for a fleet."""

from __future__ import annotations

import pytest

from tests.captures import sample
from tests.ranks.reports import merged
from traceview.cli.fleet import failures, parse
from traceview.errors import RequestError
from traceview.model.fleet import Fleet


def failed(fleet: Fleet, *texts: str) -> list[str]:
    return list(failures(tuple(parse(text) for text in texts), fleet))


def test_names_the_worst_rank(slow_gpu: Fleet) -> None:
    (line,) = failed(slow_gpu, "straggler > 5%")
    assert line == "straggler > 5%: straggler is 23.850% (2.953716 ms of 12.384655 ms) on slowgpu_rank2"
    assert failed(slow_gpu, "straggler > 25%", "stragglers > 1", "skipped > 0", "skew.median > 1s") == []
    assert failed(slow_gpu, "ranks < 8") == ["ranks < 8: ranks is 4"]
    (line,) = failed(slow_gpu, "wait > 10%")
    assert line.startswith("wait > 10%: wait is 15.") and line.endswith(" on slowgpu_rank3 and on 2 more")
    assert failed(slow_gpu, "clock.uncertainty >= 5us") == ["clock.uncertainty >= 5us: clock.uncertainty is 118.148 µs"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("strager > 5%", "did you mean straggler"),
        ("stragglers > 5%", "is a count"),
        ("skew.p95 > 5%", "is a time"),
        ("straggler", "is not a condition"),
        ("x > 1", "use one of straggler, own"),
    ],
)
def test_invalid_conditions(text: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        parse(text)


def test_unmeasured_quantity_is_an_error() -> None:
    with pytest.raises(RequestError, match="straggler was not measured; it needs two ranks with three iterations each"):
        failed(merged([sample("dual.sqlite")]), "straggler > 5%")

from __future__ import annotations

import asyncio
import gc
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any

import pytest

import instrument
from instrument import annotate, mark, phase, ranges

Log = list[tuple[str, str, int]]


class Recorder:
    """Stands in for nvtx and records each call with its thread."""

    def __init__(self) -> None:
        self.log: Log = []
        self.made: list[tuple[Any, ...]] = []
        self.marks: list[tuple[Any, ...]] = []

    def annotate(self, name: str, *attributes: Any) -> RecordedRange:
        self.made.append((name, *attributes))
        return RecordedRange(self, name)

    def mark(self, name: str, *attributes: Any) -> None:
        self.marks.append((name, *attributes))

    @property
    def words(self) -> list[str]:
        return [f"{what} {name}" for what, name, _thread in self.log]


class RecordedRange:
    def __init__(self, recorder: Recorder, name: str) -> None:
        self.recorder, self.name = recorder, name

    def __enter__(self) -> None:
        self.recorder.log.append(("push", self.name, threading.get_ident()))

    def __exit__(self, *_raised: object) -> None:
        self.recorder.log.append(("pop", self.name, threading.get_ident()))


def assert_nested(log: Log) -> None:
    open_by_thread: dict[int, list[str]] = {}
    for what, name, thread in log:
        stack = open_by_thread.setdefault(thread, [])
        if what == "push":
            stack.append(name)
        else:
            assert stack.pop() == name
    assert not any(open_by_thread.values())


def test_blocks_are_nested_ranges(recorder: Recorder) -> None:
    with annotate("outer"), annotate("inner"):
        pass
    assert recorder.words == ["push outer", "push inner", "pop inner", "pop outer"]


def test_attributes_reach_the_profiler(recorder: Recorder) -> None:
    annotate("h2d", color="green", domain="loader", category="copy", payload=32)
    mark("epoch", color=0xFF00FF00, domain="loader", category=3, payload=0.5)
    phase("forward", payload=7)
    assert recorder.made == [
        ("h2d", "green", "loader", "copy", 32),
        ("forward", None, None, "phase", 7),
    ]
    assert recorder.marks == [("epoch", 0xFF00FF00, "loader", 3, 0.5)]


def test_function_keeps_name_arguments_result(recorder: Recorder) -> None:
    @annotate()
    def scaled(value: int, *, by: int = 2) -> int:
        """Scale."""
        return value * by

    assert scaled(3, by=5) == 15
    assert (scaled.__name__, scaled.__doc__) == ("scaled", "Scale.")
    name = test_function_keeps_name_arguments_result.__name__ + ".<locals>.scaled"
    assert recorder.words == [f"push {name}", f"pop {name}"]


def test_methods_and_properties_keep_their_kind(recorder: Recorder) -> None:
    class Owner:
        @annotate("static")
        @staticmethod
        def static(number: int) -> int:
            return number

        @annotate("class")
        @classmethod
        def of_class(cls, number: int) -> tuple[type, int]:
            return cls, number

        @annotate("property")
        @property
        def value(self) -> int:
            return 3

    assert (Owner.static(1), Owner().static(2), Owner().of_class(4)) == (1, 2, (Owner, 4))
    assert Owner().value == 3
    pushed = [word for word in recorder.words if word.startswith("push")]
    assert pushed == ["push static", "push static", "push class", "push property"]


@pytest.mark.parametrize("package", [None, "nvtx"])
def test_decorator_without_parentheses_is_refused(package: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "nvtx", None if package is None else pytest.importorskip(package))
    with pytest.raises(TypeError, match="write @annotate\\(\\), with parentheses"):
        annotate(assert_nested)  # type: ignore[arg-type]


@pytest.mark.parametrize("package", [None, "nvtx"])
@pytest.mark.parametrize("use", [annotate, mark, phase], ids=["annotate", "mark", "phase"])
def test_unknown_color_is_refused_with_nvtx_and_without(
    package: str | None, use: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "nvtx", None if package is None else pytest.importorskip(package))
    with pytest.raises(ValueError, match="the color 'purplish' is unknown: use one of green, blue, "):
        use("x", color="purplish")
    for color in (*ranges.COLORS, 0xFF00FF00):
        use("x", color=color)


def scaled(by: int, value: int) -> int:
    return by * value


class Scale:
    def __init__(self, by: int) -> None:
        self.by = by

    def __call__(self, value: int) -> int:
        return self.by * value


class Later(Scale):
    async def __call__(self, value: int) -> int:  # type: ignore[override]
        await asyncio.sleep(0)
        return self.by * value


def test_callable_objects_get_ranges_named_after_what_they_call(recorder: Recorder) -> None:
    called = [annotate()(function)(3) for function in (partial(partial(scaled), 2), Scale(2), partial(Scale(2)))]
    assert called == [6, 6, 6]
    assert [word for word in recorder.words if word.startswith("push")] == ["push scaled", "push Scale", "push Scale"]
    assert asyncio.run(annotate("later")(Later(2))(3)) == 6
    assert recorder.words[-4:] == ["push later", "pop later"] * 2


@pytest.mark.parametrize(
    ("value", "problem"),
    [(Scale, "Scale is a class: annotate its methods"), (3, "int is not callable")],
)
def test_ranges_refuse_objects_without_a_call(value: Any, problem: str) -> None:
    for range_ in (annotate(), annotate("name")):
        with pytest.raises(TypeError, match=problem):
            range_(value)


def test_exception_closes_the_range_of_a_block_and_of_a_function(recorder: Recorder) -> None:
    @annotate("load")
    def load() -> None:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"), annotate("step"):
        load()
    assert recorder.words == ["push step", "push load", "pop load", "pop step"]


def test_recursion_opens_a_range_per_call(recorder: Recorder) -> None:
    @annotate("down")
    def down(depth: int) -> int:
        return 0 if depth == 0 else 1 + down(depth - 1)

    assert down(3) == 3
    assert recorder.words == ["push down"] * 4 + ["pop down"] * 4


def test_generator_has_a_range_only_while_it_runs(recorder: Recorder) -> None:
    @annotate("load")
    def batches() -> Iterator[int]:
        yield 1
        yield 2

    for batch in batches():
        with annotate(f"train {batch}"):
            pass
    assert recorder.words == [
        *("push load", "pop load", "push train 1", "pop train 1"),
        *("push load", "pop load", "push train 2", "pop train 2"),
        *("push load", "pop load"),
    ]


def test_generator_accepts_send_throw_and_close(recorder: Recorder) -> None:
    seen: list[object] = []

    @annotate("talk")
    def talk() -> Generator[str, int, str]:
        try:
            seen.append((yield "first"))
            try:
                yield "second"
            except KeyError as error:
                seen.append(error.args[0])
            yield "third"
        finally:
            seen.append("closed")
        return "never"

    speaking = talk()
    assert next(speaking) == "first"
    assert speaking.send(7) == "second"
    assert speaking.throw(KeyError("lost")) == "third"
    speaking.close()
    assert seen == [7, "lost", "closed"]
    assert recorder.words == ["push talk", "pop talk"] * 4


def test_generator_returns_its_value(recorder: Recorder) -> None:
    @annotate("count")
    def count() -> Generator[int, None, str]:
        yield 1
        return "done"

    def outer() -> Generator[int, None, None]:
        assert (yield from count()) == "done"

    assert list(outer()) == [1]
    assert_nested(recorder.log)


def test_ranges_of_coroutines_do_not_interleave(recorder: Recorder) -> None:
    @annotate("fetch")
    async def fetch(value: int) -> int:
        for _ in range(value):
            await asyncio.sleep(0)
        return value

    @annotate("gather")
    async def gather() -> list[int]:
        return list(await asyncio.gather(fetch(3), fetch(1), fetch(2)))

    assert asyncio.run(gather()) == [3, 1, 2]
    assert_nested(recorder.log)
    assert recorder.words.count("push fetch") == 4 + 2 + 3


def test_error_and_cancellation_close_the_range_of_a_coroutine(recorder: Recorder) -> None:
    @annotate("fail")
    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    @annotate("wait")
    async def wait() -> None:
        await asyncio.sleep(60)

    async def both() -> None:
        waiting = asyncio.create_task(wait())
        with pytest.raises(ValueError, match="no"):
            await fail()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(both())
    assert_nested(recorder.log)
    assert recorder.words.count("push wait") == recorder.words.count("pop wait") == 2


def test_asynchronous_generator_is_refused() -> None:
    async def stream() -> Any:
        yield 1

    with pytest.raises(TypeError, match="stream is an asynchronous generator"):
        annotate("stream")(stream)


def test_several_threads_share_an_annotation(recorder: Recorder) -> None:
    shared = annotate("work")
    inside = threading.Barrier(4)

    def work() -> None:
        with shared:
            inside.wait(timeout=300)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_nested(recorder.log)
    assert recorder.words[:4] == ["push work"] * 4


@pytest.mark.parametrize("package", [None, "nvtx"])
def test_every_argument_is_accepted_with_nvtx_and_without(package: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "nvtx", None if package is None else pytest.importorskip(package))

    @annotate()
    def double(value: int) -> int:
        return 2 * value

    mark("here", color="blue", domain="tests", category="c", payload=1)
    for color in ("green", 0xFF00FF00, None):
        with annotate("block", color=color, domain="tests", category=2, payload=1.5), phase("forward"):
            assert double(4) == 8


def test_import_loads_neither_torch_nor_traceview() -> None:
    code = "import instrument, sys; instrument.annotate('x'); print({'torch', 'traceview', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_public_names_are_documented() -> None:
    documented = re.findall(r"^    ([A-Za-z_, ]+?)  +\S", instrument.__doc__ or "", re.MULTILINE)
    named = {name.strip() for line in documented for name in line.split(",")}
    assert named == set(instrument.__all__)


def test_collections_get_ranges(recorder: Recorder) -> None:
    with ranges.annotate_collections():
        gc.collect(1)
    gc.collect(0)
    assert "push gc generation 1" in recorder.words and "pop gc generation 1" in recorder.words
    assert gc.callbacks == [] or not any("annotate_collections" in str(each) for each in gc.callbacks)
    assert_nested(recorder.log)

"""No output destroys a file that a command reads or that the user did not name: drawn commands, names and spellings."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from tests.captures import sample
from tests.fuzz.ended import Ended, run
from tests.fuzz.forms import as_tables

CASES = 60
TRACE = '{"traceEvents": [], "schemaVersion": 1}'
# {r} is a report, {o} the drawn output.
COMMANDS = (
    "analyze {r} --no-html --json {o}",
    "analyze {r} --html {o}",
    "compare {r} a.sqlite --json {o}",
    "compare {r} a.sqlite --markdown {o}",
    "whatif {r} --html {o} --ranks 2 --gradients 1MB",
    "export {r} --format perfetto -o {o}",
    "export {r} --format parquet -o {o}",
    "export {r} --format parquet -o tables.out --json {o}",
    "fleet runs --workers 1 --no-html --json {o}",
    "info {r} --json {o}",
    "redact {r} {o}",
    "redact {r} copy.sqlite --json {o}",
)
REPORTS = ("a.sqlite", "tables", "link.sqlite")
DEFAULTS = {
    "analyze a.sqlite": "a.overlap.html",
    "analyze tables": "tables.overlap.html",
    "fleet runs --workers 1": "runs/fleet.overlap.html",
    "export a.sqlite --format perfetto": "a.pftrace",
    "export a.sqlite --format parquet": "a.parquet-tables",
    "record --no-html -- true": "report.nsys-rep",
}


class World:
    """A folder with captures in several forms, beside a folder with files that no command names."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder, self.outside = root, root / "in", root / "outside"
        self.scratch = root / "scratch"
        for folder in (self.folder / "runs", self.outside, self.scratch):
            folder.mkdir(parents=True)
        shutil.copyfile(sample("cudagraph.sqlite"), self.folder / "a.sqlite")
        (self.folder / "link.sqlite").symlink_to("a.sqlite")
        for name in ("rank0.sqlite", "rank1.sqlite", "rank1.nsys-rep"):
            shutil.copyfile(sample("cudagraph.sqlite"), self.folder / "runs" / name)
        (self.folder / "runs" / "trace.json").write_text(TRACE)
        (self.outside / "precious").write_text("precious")
        as_tables(self.folder / "a.sqlite", self.folder / "tables", "parquet")
        self.before = self.files()

    def files(self) -> dict[Path, bytes]:
        """Return the content of every file that no command may change."""
        names = (path for folder in (self.folder, self.outside) for path in folder.rglob("*"))
        return {path: path.read_bytes() for path in names if path.is_file() and not path.is_symlink()}

    def targets(self) -> list[str]:
        """Return the names of inputs and of what may belong to one, relative to the folder."""
        files = [str(path.relative_to(self.folder)) for path in self.before if path.is_relative_to(self.folder)]
        beside = [f"{name}-{suffix}" for name in ("a.sqlite", "link.sqlite") for suffix in ("wal", "shm", "journal")]
        return sorted({*files, *beside, "link.sqlite", "tables", "tables/new.parquet", "tables/new.html", "."})

    def run(self, command: str) -> Ended:
        """Run a command in the folder."""
        return run(tuple(command.split()), self.scratch)

    def changed(self) -> list[str]:
        """Return the files that are gone, changed, or new where only inputs are, and remove all other new files."""
        now = self.files()
        new = {path for path in now if path not in self.before}
        kept = {path for path in new if path.parent in (self.folder / "tables", self.outside) or "-" in path.suffix}
        for path in new - kept:
            path.unlink()
        return sorted(str(path) for path in (self.before.keys() | kept) if now.get(path) != self.before.get(path))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path)
    monkeypatch.chdir(world.folder)
    return world


def test_outputs_are_never_part_of_an_input(world: World) -> None:
    chance = random.Random(4)
    for number in range(CASES):
        output = chance.choice(world.targets())
        way = chance.choice(("{0}", "./runs/../{0}", str(world.folder / "{0}"), "out-link"))
        if way == "out-link":
            (world.folder / way).unlink(missing_ok=True)
            (world.folder / way).symlink_to(output)
        if output == "runs/trace.json":  # an export may replace an earlier trace
            continue
        command = COMMANDS[number % len(COMMANDS)].format(r=chance.choice(REPORTS), o=way.format(output))
        ended = world.run(command)
        assert world.changed() == [], command
        assert (ended.code, ended.err.count("\n"), ended.raised) == (2, 1, ""), f"{command}: {output}\n{ended}"
        (world.folder / "out-link").unlink(missing_ok=True)


@pytest.mark.parametrize("report", REPORTS)
def test_copy_is_never_part_of_an_input(world: World, report: str) -> None:
    """A new `a.sqlite-wal` would make a report unreadable, and a new file in a folder may belong to it."""
    for output in world.targets():
        ended = world.run(f"redact {report} {output}")
        assert world.changed() == [], output
        assert (ended.code, ended.err.count("\n"), ended.raised) == (2, 1, ""), f"{output}: {ended}"


@pytest.mark.parametrize("command", DEFAULTS)
@pytest.mark.parametrize("is_dangling", [False, True])
def test_default_name_is_never_written_through_a_link(
    world: World, monkeypatch: pytest.MonkeyPatch, command: str, is_dangling: bool
) -> None:
    monkeypatch.setattr("traceview.captures.record.required_nsys", lambda: "/bin/false")
    link = world.folder / DEFAULTS[command]
    link.parent.mkdir(parents=True, exist_ok=True)
    target = world.outside / ("new" if is_dangling else "precious")
    if not is_dangling and link.name == "a.parquet-tables":
        target = world.outside / "empty"
        target.mkdir()
    link.unlink(missing_ok=True)
    world.before.pop(link, None)
    link.symlink_to(target)
    ended = world.run(command)
    assert world.changed() == [] and link.is_symlink() and target.exists() == (not is_dangling)
    assert (ended.code, ended.err.count("\n")) == (2, 1), ended
    assert f"{link.name}: is a symbolic link" in ended.err


def test_link_that_appears_later_is_replaced(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the check and the end of the work, somebody else can write to a shared folder."""
    page = world.folder / "a.overlap.html"
    monkeypatch.setattr(
        "traceview.cli.analyze.refuse_link", lambda path, _: path.symlink_to(world.outside / "precious")
    )
    assert world.run("analyze a.sqlite --quiet").code == 0
    assert (world.outside / "precious").read_text() == "precious" and not page.is_symlink() and page.is_file()


def test_named_link_stays(world: World) -> None:
    """The user names it, and its target is written."""
    (world.folder / "out.json").symlink_to(world.outside / "new.json")
    assert world.run("analyze a.sqlite --quiet --no-html --json out.json").code == 0
    assert (world.folder / "out.json").is_symlink() and json.loads((world.outside / "new.json").read_text())


def test_outputs_of_the_last_run_are_replaced(world: World) -> None:
    for command in (
        "analyze a.sqlite --quiet --json out.json",
        "export a.sqlite --quiet --format perfetto",
        "export a.sqlite --quiet --format perfetto -o trace.gz",
        "export tables --quiet --format parquet",
        "fleet runs --workers 1 --quiet --json fleet.json",
        "info tables --json info.json",
    ):
        for _ in range(2):
            ended = world.run(command)
            assert ended.code in (0, 3), ended

"""The `optimize` command: record, predict, change, record again, compare, and keep a ledger of predictions."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from traceview.cli import command
from traceview.cli.options import FILE, JSON, QUIET, reading_options
from traceview.cli.outputs import check_outputs, print_out, screen, write_output
from traceview.cli.record import DELAY, SECONDS, check_limits, record_program
from traceview.errors import RequestError, TraceviewError
from traceview.report.files import is_stdout, refuse_link

if TYPE_CHECKING:
    from traceview.model.analysis import Analysis
    from traceview.report.ledger import GainLedger

NEXT = "Make the change, then run the same command again; --expect NAME,... says which change it is."


@command(
    "traceview optimize --run 'python train.py'",
    "traceview optimize --run 'python train.py' --expect pin,prefetch",
    "traceview optimize --run 'python train.py' --change 'git apply pin.patch'",
    "traceview optimize --ledger",
)
@click.option("--run", "program", metavar="COMMAND", help="The program to make faster, as in the shell.")
@click.option("--change", metavar="COMMAND", help="A command that makes the change, for example an agent.")
@click.option(
    "--expect",
    metavar="NAME,...",
    help="The changes of whatif that are made, for example pin,prefetch.  [default: the best one]",
)
@click.option(
    "--folder", type=FILE, default=Path("optimize"), show_default=True, help="Where recordings and the ledger are kept."
)
@click.option("--ledger", "only_ledger", is_flag=True, help="Print the ledger and its error; record nothing.")
@DELAY
@SECONDS
@click.option("--iterations", type=click.IntRange(min=1), metavar="N", help="Record N iterations, as `record` does.")
@JSON
@QUIET
@reading_options
def optimize(
    program: str | None,
    change: str | None,
    expect: str | None,
    folder: Path,
    only_ledger: bool,
    json_path: Path | None,
    quiet: bool,
    **limits: Any,
) -> None:
    """Record a program, predict what changes give, and measure them after each.

    The first run records and predicts. It then runs --change, waits for Enter on a terminal, or ends: make the change
    and run the same command again. Each later run records the program as it is now, and adds a line to the ledger.
    """
    from traceview.comparison.ledger import LEDGER, read_ledger

    if (program is None) != only_ledger:
        raise RequestError("use --run COMMAND, or --ledger to print the ledger alone")
    check_limits(limits)
    if program is not None and is_stdout(json_path):
        raise RequestError("--json needs a file name with --run, because the program prints to standard output")
    check_outputs((), (json_path,))
    if click.get_current_context().get_parameter_source("folder") is ParameterSource.DEFAULT:
        refuse_link(folder, "--folder")
    refuse_link(folder / LEDGER, "--folder")
    ledger = read_ledger(folder)
    if program is not None:
        loop = _Loop(program, folder, limits, quiet)
        names = tuple(filter(None, (expect or "").split(",")))
        ledger = loop.turn(ledger, change, names)
    _write(ledger, json_path, quiet)


def _write(ledger: GainLedger, json_path: Path | None, quiet: bool) -> None:
    from traceview.report.ledger import render, to_json

    if (
        not write_output(json_path, partial(to_json, ledger))
        and not quiet
        and (ledger.entries or ledger.open_step is None)
    ):
        print_out(render(ledger, screen()))


class _Loop:
    """One turn of the loop, on a program and a folder."""

    def __init__(self, program: str, folder: Path, limits: dict[str, Any], quiet: bool) -> None:
        self.program, self.folder, self.limits, self.quiet = program, folder, limits, quiet

    def turn(self, ledger: GainLedger, change: str | None, names: tuple[str, ...]) -> GainLedger:
        """Record and predict if that is not done yet, have the change made, record again, and return the ledger."""
        from traceview.comparison.ledger import expected_together, ledger_entry, open_step, write_ledger
        from traceview.report.ledger import GainLedger, render_entry, render_step

        step, is_new, before = ledger.open_step, ledger.open_step is None, None
        if step is None:
            recording, before = self._record()
            step = open_step(before, recording)
            ledger = GainLedger(ledger.entries, step)
            write_ledger(self.folder, ledger)
            self._say(render_step(step, screen()))
        before = before or self._analyze(step.recording)
        if not names and not step.expected:
            raise RequestError(f"{step.recording}: no change of whatif applies; name those that you make with --expect")
        expected = expected_together(before, names) if names else step.expected[0]
        if not self._change(change, is_new):
            return ledger
        recording, after = self._record()
        entry = ledger_entry(before, after, step, expected, recording)
        self._say(render_entry(entry, screen()))
        step = open_step(after, recording)
        ledger = GainLedger((*ledger.entries, entry), step)
        write_ledger(self.folder, ledger)
        self._say(render_step(step, screen()))
        return ledger

    def _change(self, change: str | None, is_new: bool) -> bool:
        """Return whether the change is made now: by a command, by a person at the terminal, or before this run."""
        if change is not None:
            environment = {**os.environ, "TRACEVIEW_LEDGER": str(self.folder / "ledger.json")}
            code = subprocess.run(["sh", "-c", change], check=False, env=environment).returncode
            if code:
                raise RequestError(
                    f"the command of --change ended with exit code {code}; nothing was recorded after it"
                )
        elif is_new and sys.stdin.isatty():
            click.pause("Make the change, then press a key ...", err=True)
        elif is_new:
            self._say(f"{NEXT}\n")
            return False
        return True

    def _record(self) -> tuple[str, Analysis]:
        """Record the program, and return the recording's name and its analysis."""
        from traceview.captures.record import Recording

        number = 1 + max((int(path.stem) for path in self.folder.glob("*.nsys-rep") if path.stem.isdigit()), default=0)
        recording = Recording(command=("sh", "-c", self.program), output=self.folder / f"{number}", **self.limits)
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            record_program(recording, self.quiet)
        except TraceviewError:
            with suppress(OSError):  # a folder that holds something stays
                self.folder.rmdir()
            raise
        return recording.report.name, self._analyze(recording.report.name)

    def _analyze(self, recording: str) -> Analysis:
        from traceview.pipeline import analyze

        return analyze(self.folder / Path(recording).name)

    def _say(self, text: str) -> None:
        """Print to standard error, so that --json - stays alone on standard output."""
        if not self.quiet:
            click.echo(text, err=True, nl=False)

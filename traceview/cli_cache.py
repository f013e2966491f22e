"""The `cache` command: where answers are kept, how much of them, and away with them."""

from __future__ import annotations

import click

from traceview.cli_output import print_out
from traceview.errors import RequestError


@click.command(short_help="Say where answers are kept for a second look, or remove them.")
@click.option("--clear", is_flag=True, help="Remove them all.")
def cache(clear: bool) -> None:
    """Say where `analyze` keeps its answers, and how many.

    The same question about the same bytes, asked of the same traceview, is answered from there. It is safe to
    delete. TRACEVIEW_CACHE names another folder, or is off.
    """
    from traceview.cache import Store, folder
    from traceview.report.words import plain

    if (place := folder()) is None:
        raise RequestError("no answers are kept: TRACEVIEW_CACHE is off, or there is no home folder")
    store = Store(place)
    where = plain(str(place), 4000)
    if clear:
        print_out(f"Removed {store.clear() / 1e6:.1f} MB from {where}\n")
        return
    entries = store.entries()
    size = sum(entry.size for entry in entries)
    print_out(f"{len(entries)} answers, {size / 1e6:.1f} MB of at most {store.most / 1e6:.0f} MB, in {where}\n")

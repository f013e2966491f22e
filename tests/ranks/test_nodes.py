"""Nodes: which stragglers run on which host, without its name."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.captures import sample
from tests.ranks.reports import merged, process_alone
from traceview.ranks.measure_report import SYSTEM, node_of
from traceview.report.fleet import to_json
from traceview.report.fleet.terminal import render_brief, verdict


def on_host(path: Path, name: str) -> Path:
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"DROP TABLE IF EXISTS {SYSTEM}")
        database.execute(f"CREATE TABLE {SYSTEM} (name TEXT, value TEXT)")
        database.execute(f"INSERT INTO {SYSTEM} (name, value) VALUES ('Hostname', ?)", (name,))
        database.commit()
    return path


@pytest.mark.parametrize("hosts", [("secret-a", "secret-b"), ("secret-a", "secret-a")])
def test_stragglers_by_node(hosts: tuple[str, str], tmp_path: Path) -> None:
    source = sample("ddp2.sqlite")
    paths = [
        on_host(process_alone(source, tmp_path / f"rank{rank}.sqlite", 701 + rank), host)
        for rank, host in enumerate(hosts)
    ]
    fleet = merged(paths)
    assert [rank.node for rank in fleet.ranks] == [0, len(set(hosts)) - 1]
    (slow,) = fleet.stragglers
    node = fleet.ranks[slow.rank].node
    several = f", on node {node} of 2" if len(set(hosts)) > 1 else ""
    assert verdict(fleet) == f"1 straggler of 2 ranks{several}."
    label, device = fleet.ranks[slow.rank].label, fleet.ranks[slow.rank].device
    assert f"{label}: node {node}, {device} (NVIDIA H200): own time +" in render_brief(fleet)
    text = to_json(fleet)
    assert "secret" not in text and (node_of(paths[0]) or "") not in text
    assert [rank["node"] for rank in json.loads(text)["ranks"]] == [rank.node for rank in fleet.ranks]
    assert node_of(source) is None

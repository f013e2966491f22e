"""benchmarks/ask_agent.py, with a scripted agent that answers one question rightly."""

from __future__ import annotations

import shlex
import sys

import pytest

from benchmarks import ask_agent
from tests.mcp.test_questions import QUESTIONS

AGENT = """
import sys
asked = sys.stdin.read()
print("24.0 ms" if "How long is an iteration?" in asked and "capture, analyze" in asked.replace("→", ",") else "yes")
"""


def test_right_answers_are_counted_with_the_skill(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    truth = next(text for text in ask_agent.right_answers(QUESTIONS[0]) if text.endswith(" ms"))
    agent = AGENT.replace("24.0 ms", f"It takes {truth}.").replace("capture, analyze", "Make a GPU program faster")
    command = shlex.join([sys.executable, "-c", agent])
    monkeypatch.setattr(sys, "argv", ["ask_agent", command, "--first", "2"])
    ask_agent.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "without the skill: 0 of 2 right"
    assert lines[3] == "with the skill: 1 of 2 right" and lines[4].startswith(f"  {QUESTIONS[1].text}")
    assert "trainer/serial.sqlite" in ask_agent.prompt(QUESTIONS[0], "")


def test_refusals_count_as_answers() -> None:
    refusal = next(question for question in QUESTIONS if question.truth.startswith("= "))
    assert ask_agent.is_right(refusal, "This cannot be known.") and not ask_agent.is_right(refusal, "42 ms")

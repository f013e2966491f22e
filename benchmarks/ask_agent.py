"""Ask an agent the questions of tests/mcp/questions.txt, with the skill and without it, and count the right answers.

    python -m benchmarks.ask_agent COMMAND [--first N]

COMMAND runs once for each question, in samples/, with the question on standard input; its output is the answer. It
needs access to `traceview mcp` or to the commands of traceview, and no skill of its own. An answer is right if it holds
the figure, name or refusal of the JSON as a word: times also in ms or s with three digits.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
from collections.abc import Iterator
from typing import Any

from tests.captures import ROOT, SAMPLES
from tests.mcp.test_questions import CAPTURES, QUESTIONS, Question, at, written
from traceview.model.units import duration

SKILL = ROOT / "traceview" / "mcp" / "plugin" / "skills" / "traceview" / "SKILL.md"
LIMIT_S = 600


def prompt(question: Question, skill: str) -> str:
    """Return what the agent reads: the question with the files of its calls, and the skill."""
    letters = re.findall(r"\b[A-Z]\b", " ".join(question.calls))
    files = ", ".join(dict.fromkeys(CAPTURES[letter] for letter in letters))
    return f"{skill}\nCaptures: {files}. {question.text} Answer with the value alone; if it cannot be known, say so.\n"


def right_answers(question: Question) -> Iterator[str]:
    """Yield the texts of which a right answer holds one."""
    if question.truth.startswith("= "):
        yield from ("cannot", "can't", "not possible", "lacks", "is missing")
        return
    *command, path = question.truth.split()
    truth: Any = at(written(*command), path)
    yield str(truth)
    if isinstance(truth, int):
        yield f"{truth:,}"
        yield duration(truth)
    if isinstance(truth, float):
        yield f"{truth:.2f}"


def is_right(question: Question, answer: str) -> bool:
    """Return whether an answer holds the truth."""
    words = (rf"(?<![\w.,]){re.escape(text)}(?![.,]?\w)" for text in right_answers(question))
    return any(re.search(word, answer, re.IGNORECASE) for word in words)


def main() -> None:
    """Print the number of right answers without and with the skill, and the questions that were answered wrongly."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command", help="the command of the agent")
    parser.add_argument("--first", type=int, default=len(QUESTIONS), metavar="N", help="ask the first N questions")
    given = parser.parse_args()
    for name, skill in (("without the skill", ""), ("with the skill", SKILL.read_text(encoding="utf-8"))):
        wrong = []
        for question in QUESTIONS[: given.first]:
            command = shlex.split(given.command)
            text = prompt(question, skill)
            ran = subprocess.run(command, input=text, capture_output=True, text=True, cwd=SAMPLES, timeout=LIMIT_S)
            if ran.returncode:
                raise SystemExit(f"{command[0]} ended with {ran.returncode}: {ran.stderr.strip()[-200:]}")
            if not is_right(question, ran.stdout):
                wrong.append(f"  {question.text} {ran.stdout.strip()[:100]!r}")
        count = len(QUESTIONS[: given.first])
        print(f"{name}: {count - len(wrong)} of {count} right", *wrong, sep="\n")


if __name__ == "__main__":
    main()

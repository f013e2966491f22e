"""One look at one report: what is known of it already, and what to keep for the next time."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from traceview.cache import question
from traceview.cache.content import State, StoppedError
from traceview.cache.store import Store


@dataclass(slots=True)
class Look:
    """A report, what is asked of it, and the store. Answers have names, of the caller's choice.

    What is found was made of exactly these bytes by exactly this program. What is kept is kept only if the
    report stayed as it was from before the look until after the answers were made.
    """

    report: Path
    asked: str
    before: State
    settled: bool
    source: str
    store: Store
    _content: str | None = None
    _digesting: threading.Thread | None = None
    _stop: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def at(cls, report: Path, options: Sequence[str | int | None], store: Store) -> Look | None:
        """Begin to look; None where there is nothing that could be known or kept."""
        if (before := State.of(report)) is None:
            return None
        settled = before.settled()
        try:
            source = question.source()
            asked = question.digest(report, [*options, before.size], source)
        except OSError:
            return None
        return cls(report, asked, before, settled, source, store)

    def answers(self, names: Sequence[str]) -> dict[str, str] | None:
        """Return the answers of these names, if all of them are known."""
        # Of most reports that are new nothing is known at all, and their content need not be read for that.
        if not self.store.has(self.asked):
            return None
        self._digest()
        found = {name: answer for name in names if (answer := self._known(name)) is not None}
        return found if len(found) == len(names) and State.of(self.report) == self.before else None

    def begin(self) -> None:
        """Take the report's digest on another thread, while answers are made."""
        if self._content is None and self._digesting is None:
            self._digesting = threading.Thread(target=self._digest, daemon=True)
            self._digesting.start()

    def keep(self, answers: Mapping[str, str]) -> None:
        """Keep answers that were made since `begin`, unless the report or the program changed meanwhile."""
        if self._digesting is not None:
            self._digesting.join()
        unchanged = self.settled and State.of(self.report) == self.before
        if self._content is None or not unchanged or not self._same_source():
            return
        for name, answer in answers.items():
            self.store.put(self.asked, self._called(name), answer)
        self.store.trim()

    def end(self) -> None:
        """Stop reading for a digest that nobody waits for."""
        self._stop.set()
        if self._digesting is not None:
            self._digesting.join()

    def _known(self, name: str) -> str | None:
        return None if self._content is None else self.store.get(self.asked, self._called(name))

    def _called(self, name: str) -> str:
        return f"{self._content} {name}"

    def _digest(self) -> None:
        try:
            self._content = self.before.digest(self._stop)
        except (OSError, StoppedError):
            self._content = None

    def _same_source(self) -> bool:
        try:
            return question.source() == self.source
        except OSError:
            return False

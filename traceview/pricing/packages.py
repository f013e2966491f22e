"""Rules of other packages: loaded by entry point, and guarded, so that a faulty one does not end the analysis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from traceview.model.plugins import RULE_GROUP, Plugin, is_fault, plugins
from traceview.model.program import Program
from traceview.model.trace import Note
from traceview.pricing.base import FindingDraft, GpuWork, MeasuredCapture, Rule
from traceview.pricing.texts import PRICED, Entry, read_entry, texts_for

Result = TypeVar("Result")


class UnfitRuleError(TypeError):
    """A rule or its result does not fit pricing/base.py. The text contains no data of the capture."""


class PackageRule(NamedTuple):
    """A rule that an entry point names. It is imported when it runs."""

    plugin: Plugin

    @property
    def rule(self) -> Rule:
        """The rule. Raises UnfitRuleError if the entry point names something else."""
        rule = self.plugin.load()
        if not isinstance(rule, Rule):
            raise UnfitRuleError("the entry point names no traceview.plugin.Rule")
        return rule

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The texts of the rule's findings; empty also if it cannot be loaded, which `find` reports."""
        loaded = guarded(self, lambda: self.rule)
        return {} if isinstance(loaded, Failure) else loaded.entries

    def find(self, capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft | Note]:
        """Yield what the rule yields. Raises UnfitRuleError if that is neither a draft with an entry nor a note."""
        for draft in self.rule.find(capture, device):
            if not isinstance(draft, (FindingDraft, Note)):
                raise UnfitRuleError("find yields neither a FindingDraft nor a Note")
            if isinstance(draft, FindingDraft):
                _check_texts(self.rule.entries, draft, capture.program)
            yield draft

    def failure(self, error: BaseException) -> Failure:
        """Return the note on an error of the rule. Raises the error again if it is not the rule's fault."""
        if not is_fault(error):
            raise error
        known = isinstance(error, UnfitRuleError)
        text = self.plugin.left_out(str(error)) if known else self.plugin.failure(error)
        return Failure(Note(f"package_{self.plugin.name}", text, affects=(self.plugin.name,)))


class Failure(NamedTuple):
    """A rule of another package that failed."""

    note: Note


AnyRule = Rule | PackageRule


def _check_texts(entries: Mapping[str, Entry], draft: FindingDraft, program: Program) -> None:
    """Raise UnfitRuleError, or another error, if the texts of a draft are not in the form of pricing/texts.py."""
    entry = entries.get(draft.id)
    if not isinstance(entry, Mapping) or not all(isinstance(each, (str, Mapping)) for each in entry.values()):
        raise UnfitRuleError(f"the finding {str(draft.id)[:40]!r} has no entry of texts and tables")
    texts = texts_for(entry, draft.case, program, {**draft.values, **dict.fromkeys(PRICED, "")})
    if texts is not None and (texts.missing or not all(texts[name] for name in ("title", "advice"))):
        missing = ", ".join(sorted(texts.missing)) or "a title or an advice"
        raise UnfitRuleError(f"the entry of the finding {draft.id[:40]!r} lacks {missing}")


def guarded(rule: AnyRule, run: Callable[[], Result]) -> Result | Failure:
    """Return the result of `run`, or the failure of a rule of another package."""
    if not isinstance(rule, PackageRule):
        return run()
    try:
        return run()
    except BaseException as error:
        return rule.failure(error)


def rules_of_packages() -> tuple[PackageRule, ...]:
    """Return the rules of other packages, by package and name."""
    return tuple(map(PackageRule, plugins(RULE_GROUP)))


def entry_of(rule: AnyRule, finding: str) -> Entry:
    """Return the entry of a rule's finding. Raises KeyError if it has none."""
    entry = rule.entries.get(finding) or read_entry(finding)
    if entry is None:
        raise KeyError(finding)
    return entry

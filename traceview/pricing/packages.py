"""Rules of other packages: loaded by entry point, and guarded, so that a faulty one does not end the analysis."""

from __future__ import annotations

from collections.abc import Iterator

from traceview.frozen import frozen
from traceview.model.trace import Note
from traceview.plugins import RULES, Plugin, is_fault, plugins
from traceview.pricing.base import CaptureFacts, FindingDraft


@frozen
class PackageRule:
    """A rule that an entry point names. It is imported when it runs."""

    plugin: Plugin

    def __call__(self, facts: CaptureFacts) -> Iterator[FindingDraft | Note]:
        """Yield what the rule yields; a note if it fails or yields something else."""
        try:
            for draft in self.plugin.load()(facts):
                if not isinstance(draft, (FindingDraft, Note)):
                    raise TypeError
                yield draft
        except BaseException as error:
            yield self.failure(error)

    def failure(self, error: BaseException) -> Note:
        """Return a note on an error of the rule. Raises the error again if it is not the rule's fault."""
        if not is_fault(error):
            raise error
        return Note(f"package_{self.plugin.name}", self.plugin.failure(error), affects=(self.plugin.name,))


def rules_of_packages() -> tuple[PackageRule, ...]:
    """Return the rules of other packages, by package and name."""
    return tuple(map(PackageRule, plugins(RULES)))

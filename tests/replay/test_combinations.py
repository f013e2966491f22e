"""Changes alone and in every combination, which a page shows."""

from __future__ import annotations

from itertools import combinations

import pytest

from tests.captures import analyzed, sample
from traceview.replay.prediction import changes_of_run, predict


@pytest.mark.parametrize("name", ["serial", "dual"])
def test_combinations_are_predictions_of_the_changes_together(name: str) -> None:
    analysis = analyzed(sample(f"{name}.sqlite"))
    changes = changes_of_run(analysis)
    assert changes is not None
    found = changes.combinations()
    assert found is not None
    sets = [tuple(row.change.split("+")) for row in found.predictions]
    assert len(set(map(frozenset, sets))) == len(sets)
    best = [names[0] for names in sets if len(names) == 1][: found.combined]
    assert {frozenset(names) for names in sets if len(names) == 2} <= {frozenset(two) for two in combinations(best, 2)}
    for row, names in zip(found.predictions, sets, strict=True):
        if len(names) == 2:
            assert row.iteration_ns == predict(analysis, names).iteration_ns

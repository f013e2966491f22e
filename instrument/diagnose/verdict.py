"""From measured rows to where time is lost, what it costs, what to change and what to capture next. Pure; no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from instrument.config.schema import Config
from instrument.diagnose.costs import SMALL, Times, apart, costs, ms
from instrument.diagnose.next_capture import commands
from instrument.diagnose.records import Cost, Remedy, Row, Verdict
from instrument.diagnose.remedies import remedy

UNSTEADY = 0.2  # of an iteration, between a stage's fastest and slowest round


def verdict(rows: Sequence[Row], config: Config) -> Verdict:
    """Return the verdict on a diagnosis.

    Args:
        rows: of the stages that were asked for, measured or not.
        config: the run's, with the device that was found.
    """
    times = Times.of(rows, config)
    if times is None:
        return _missing(rows, config)
    noise = _noise(times)
    if noise is not None:
        why = "run it again with twice the --iterations, or on a machine that runs nothing else"
        return _unknown(f"too noisy: {noise}", why, config)
    worst = _worst(times)
    return Verdict(
        worst.bound,
        worst.stage,
        times.total_ms,
        worst.ms,
        100 * worst.ms / times.total_ms if times.total_ms else 0.0,
        worst.because,
        remedy(worst.bound, times),
        tuple(_notes(times, worst, rows)),
        commands(worst.bound, config),
    )


def _worst(times: Times) -> Cost:
    most = costs(times)[0]
    if most.ms > times.least_ms:
        return most
    if _gains_nothing(times):
        return next(cost for cost in costs(times) if cost.bound == "precision")
    took = f"the pipeline takes {times.total_ms:.2f} ms, its compute alone {ms(times.compute):.2f}"
    because = f"{took}: nothing worth a change is lost around the compute"
    return Cost("compute", times.compute.stage, 0.0, because)


def _noise(times: Times) -> str | None:
    """Return why the rounds decide nothing; None where they do."""
    most, total, compute = costs(times)[0], times.total_ms, ms(times.compute)
    if not times.replays and compute - total > times.least_ms:
        return f"the pipeline takes {total:.2f} ms, less than its compute alone, which takes {compute:.2f}"
    if most.ms > times.least_ms and most.noise_ms >= most.ms:
        return f"the rounds disagree by {most.noise_ms:.2f} ms, and the difference is {most.ms:.2f} ({most.because})"
    if most.ms <= times.least_ms and times.feeding_noise_ms > UNSTEADY * total:
        return f"the rounds disagree by {times.feeding_noise_ms:.2f} ms, and an iteration takes {total:.2f}"
    return None


def _unknown(because: str, why: str, config: Config) -> Verdict:
    return Verdict("unknown", None, None, None, None, because, Remedy("", why), (), commands("unknown", config))


def _missing(rows: Sequence[Row], config: Config) -> Verdict:
    needed = ("training" if config.training.precision == "fp32" else "mixed", "pipeline")
    reasons = {row.stage: row.not_measured.get("ms", "") for row in rows if row.ms is None}
    missing = [name for name in needed if not any(row.stage == name and row.ms is not None for row in rows)]
    because = "; ".join(f"stage {name}: {reasons.get(name, 'it was not asked for')}" for name in missing)
    why = f"a verdict compares the stages {' and '.join(needed)}: measure both"
    return _unknown(because, why, config)


def _gains_nothing(times: Times) -> bool:
    if times.training is None or times.config.training.precision == "fp32":
        return False
    return ms(times.compute) >= (1 - SMALL) * ms(times.training)


def _notes(times: Times, worst: Cost, rows: Sequence[Row]) -> Iterator[str]:
    if worst.bound != "precision" and _gains_nothing(times):
        yield f"Mixed precision gains nothing here: {ms(times.compute):.2f} ms, {_ms(times.training)} in fp32."
    if times.plain is not None and times.on_gpu:
        yield from _against_plain(times, ms(times.plain))
    unsteady = [row.stage for row in rows if row.ms and apart(row) > max(UNSTEADY * row.ms, times.least_ms)]
    if unsteady:
        yield f"The rounds of {', '.join(unsteady)} differ: use more --iterations, or a quieter machine."


def _against_plain(times: Times, plain: float) -> Iterator[str]:
    """Say what the strategy hides of what feeding costs where nothing overlaps."""
    total, in_turn = times.total_ms, plain - ms(times.compute)
    if total > (1 + SMALL) * plain:
        yield f"The pipeline is slower than the naive way, which takes {plain:.2f} ms."
    elif in_turn > times.least_ms and times.feeding_ms <= times.least_ms:
        yield f"The pipeline overlaps fully: the {in_turn:.2f} ms that feeding costs in turn are hidden."
    elif in_turn > times.least_ms and total < plain:
        yield f"The pipeline hides {plain - total:.2f} of the {in_turn:.2f} ms that feeding costs in turn."


def _ms(row: Row | None) -> str:
    return "unknown" if row is None else f"{ms(row):.2f}"

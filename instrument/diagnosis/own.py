"""The diagnosis of a model, a loader and a loss, from Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from instrument.config.schema import Config
from instrument.config.sections import Precision, Training
from instrument.diagnosis.costs import Diagnosis, StageResult, StageTimes
from instrument.diagnosis.measure import Plan, measure
from instrument.diagnosis.output import diagnosis_table
from instrument.diagnosis.stages import StageContext
from instrument.diagnosis.verdict import build_diagnosis
from instrument.errors import LogFunction
from instrument.own import Loss
from instrument.workload import named_after, own_workload


@dataclass(frozen=True, slots=True)
class DiagnosisReport:
    """What a diagnosis measured and found; `print(report)` shows it as a table.

    Attributes:
        stages: the measurements of each stage.
        diagnosis: the largest cost and its remedy.
    """

    stages: tuple[StageResult, ...]
    diagnosis: Diagnosis

    def __str__(self) -> str:
        return diagnosis_table(self.stages, self.diagnosis)


def diagnose(
    model: nn.Module,
    loader: Iterable[Any],
    loss: Loss | None = None,
    *,
    device: str = "auto",
    precision: Precision = "fp32",
    strategy: str = "prefetch",
    accumulation: int = 1,
    iterations: int | None = None,
    warm_up: int | None = None,
    log: LogFunction = lambda _line: None,
) -> DiagnosisReport:
    """Measure the parts of a training step, and return where it loses time and what to change.

        print(instrument.diagnose(model, DataLoader(dataset, batch_size=32), nn.CrossEntropyLoss()))

    The model is copied, so that its weights stay as they are.

    Args:
        model: the model.
        loader: a DataLoader, a data set of samples, or another iterable of batches that can be iterated again.
        loss: loss(outputs, targets) for batches (inputs, ..., targets), or loss(model, batch) if its first parameter
            is called `model`; None if the model returns its loss.
        device: "auto", "cpu", "cuda" or "cuda:N".
        precision: "fp32", "bf16" or "fp16" autocast.
        strategy: how the pipeline copies batches, a name of `instrument.strategies.STRATEGIES`.
        accumulation: micro-batches per optimizer step.
        iterations: timed iterations of each stage in each of five rounds; None for 10, on a CPU as many as 15 s allow.
        warm_up: iterations before them; None for 5.
        log: receives a line before each round.

    Raises:
        InstrumentError: a setting is invalid, or the batch does not fit the loss.
    """
    config = Config(
        Training(device=device, precision=precision, strategy=strategy, accumulation=accumulation, on_nan="continue")
    )
    config = named_after(config, model, loader)
    context = StageContext.from_config(config, lambda ready: own_workload(ready, model, loader, loss))
    plan = Plan.of_device(context.device, iterations, warm_up)
    return report_stages(context, plan, log, ["python", "your_program.py"], own=True)


def report_stages(
    context: StageContext, plan: Plan, log: LogFunction, program: Sequence[str], *, own: bool = False
) -> DiagnosisReport:
    """Measure the stages and return what follows; `log` receives a line before each round."""
    compute, pipeline = measure(context, plan, log)
    times = StageTimes(context.config, compute, pipeline)
    return DiagnosisReport((compute, pipeline), build_diagnosis(times, program, own=own))

"""The loss of a batch, computed with the user's model and loss.

loss(model, batch)          if the first parameter of the loss is called `model`
loss(outputs, targets)      for batches (inputs, ..., targets); outputs = model(inputs, ...)
(loss, {"accuracy": ...})   instead of the loss alone: further figures for the records, of the last micro-batch
no loss                     the model returns its loss: a scalar, or an output with `loss`, as in transformers;
                            a batch is passed as model(**batch) or model(*batch)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from instrument.errors import ConfigError, InstrumentError
from instrument.own.references import error_line
from instrument.trainer.recover import is_out_of_memory

Loss = Callable[..., Any]


class OwnLoss:
    """Computes the scalar loss of the user's model and a batch.

    Args:
        loss: see the module's docstring; a class such as `nn.CrossEntropyLoss` is called without arguments first. Its
            attribute `count`, a function of a batch, returns the number of terms in the mean, such as labels that are
            not ignored; without it, micro-batches weigh by their samples.

    Attributes:
        metrics: figures that the last call returned besides the loss.

    Raises:
        ConfigError: `loss` cannot be called.
    """

    def __init__(self, loss: Loss | None) -> None:
        made: Any = loss() if inspect.isclass(loss) else loss
        if made is not None and not callable(made):
            raise ConfigError(f"the loss is {type(made).__name__} and must be a function of outputs and targets")
        self._loss: Loss | None = made
        self.count: Callable[[Any], Any] | None = getattr(made, "count", None)
        self.metrics: Mapping[str, Tensor] = {}
        self._worked = False
        self._takes_model = made is not None and _first_parameter(made) == "model"

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the loss.

        Raises:
            InstrumentError: the batch has not the form that the loss needs, or the loss is not a scalar tensor, or
                the first call fails.
        """
        try:
            value = self._value(model, batch)
        except Exception as error:
            if self._worked or isinstance(error, InstrumentError) or is_out_of_memory(error):
                raise
            remedy = "; " + _REMEDIES["the model"] if self._loss is None else ""
            raise InstrumentError(f"the model or the loss fails with {error_line(error)}{remedy}") from error
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], Mapping):
            value, metrics = value
            self.metrics = {name: torch.as_tensor(metric).detach() for name, metric in metrics.items()}
        if not isinstance(value, Tensor) or value.dim():
            text = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"type {type(value).__name__}"
            source = "the model" if self._loss is None else "the loss function"
            raise InstrumentError(f"{source} returns {text} and must return one number; {_REMEDIES[source]}")
        self._worked = True
        return value

    def _value(self, model: nn.Module, batch: Any) -> Any:
        if self._takes_model and self._loss is not None:
            return self._loss(model, batch)
        if self._loss is None:
            return _own_loss(_call(model, batch))
        if not isinstance(batch, list | tuple) or len(batch) < 2:
            raise InstrumentError(
                f"a batch is {type(batch).__name__} and must be (inputs, targets) for a loss of outputs and targets; "
                "write the loss as a function loss(model, batch)"
            )
        *inputs, targets = batch
        return self._loss(model(*inputs), targets)


_REMEDIES = {
    "the model": "give a loss: --loss package.module:loss",
    "the loss function": "return its mean()",
}


def _call(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, list | tuple) else model(batch)


def _own_loss(output: Any) -> Any:
    """Return the loss in a model's output."""
    if isinstance(output, Mapping):
        return output.get("loss")
    return getattr(output, "loss", output)


def _first_parameter(function: Loss) -> str | None:
    try:
        return next(iter(inspect.signature(function).parameters), None)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return None

"""A model, data and a loss of the user's own: `--model package.module:factory --data ... --loss ...`.

A loss has one of these forms:

loss(model, batch)          if the first parameter of the loss is called `model`
loss(outputs, targets)      for batches (inputs, ..., targets); outputs = model(inputs, ...)
(loss, {"accuracy": ...})   instead of the loss alone: further figures for the records, of the last micro-batch
no loss                     the model returns its loss: a scalar, or an output with `loss`, as in transformers;
                            a batch is passed as model(**batch) or model(*batch)
"""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from instrument.checkpoint.states import random_state_kept
from instrument.config.schema import Config
from instrument.config.settings import did_you_mean
from instrument.data import Position
from instrument.distributed.world import World, is_equal_on_ranks
from instrument.errors import ConfigError, InstrumentError, LogFunction, log_warning
from instrument.monitor.loader import LoaderGauge
from instrument.trainer.recover import is_out_of_memory
from instrument.trees import fingerprint

_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


def load_reference(setting: str, text: str) -> Any:
    """Return the object that "package.module:name" or "folder/file.py:name" names; `name` may have dots.

    Args:
        setting: the flag that holds the reference, for error messages, such as "--model".
        text: the reference.

    Raises:
        ConfigError: the module cannot be imported, or it has no such name.
    """
    module_name, _, path = text.rpartition(":")
    try:
        value: Any = _imported(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"{setting} {text}: no module named {error.name} in the current folder or the environment; "
                "run the command in the folder of your code, or set PYTHONPATH"
            ) from None
        raise ConfigError(f"{setting} {text}: {error_line(error)}") from error
    except Exception as error:
        raise ConfigError(f"{setting} {text}: the import fails with {error_line(error)}") from error
    for name in path.split("."):
        if not hasattr(value, name):
            hint = did_you_mean(name, tuple(vars(value))) if hasattr(value, "__dict__") else ""
            raise ConfigError(f"{setting} {text}: {module_name} has no {name}{hint}")
        value = getattr(value, name)
    return value


def _imported(name: str) -> Any:
    """Import a module by its name, or by the path of its file."""
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(name).resolve()
    if not path.is_file():
        raise FileNotFoundError(f"{name} does not exist")
    loaded = sys.modules.get(path.stem)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    # Its folder is searched too, so that it imports its neighbours and worker processes import it.
    sys.path.insert(0, str(path.parent))
    return importlib.import_module(path.stem)


def call_reference(setting: str, text: str, function: Any, config: Config) -> Any:
    """Return the result of a factory. It is called with the configuration if a parameter is called `config`.

    Raises:
        ConfigError: the factory raised an exception.
    """
    try:
        return function(config=config) if "config" in _parameters(function) else function()
    except InstrumentError:
        raise
    except Exception as error:
        raise ConfigError(f"{setting} {text}: calling it fails with {error_line(error)}") from error


def _parameters(function: Any) -> tuple[str, ...]:
    """Return the names of a function's parameters; some built-in functions do not have them."""
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ()


def error_line(error: BaseException) -> str:
    """Return an exception with the place where it was raised, in one line: "ValueError: no width (mine.py:12)"."""
    message = " ".join(str(error).split())
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    # The user's own line, if there is one, and not torch's that it calls.
    frames = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)] or frames
    last = frames[-1] if frames else None
    if last is None or last.filename == __file__:
        return text
    return f"{text} ({Path(last.filename).name}:{last.lineno})"


Loss = Callable[..., Any]


class OwnLoss:
    """Computes the scalar loss of the user's model and a batch.

    Args:
        loss: see above; a class such as `nn.CrossEntropyLoss` is called without arguments first. Its
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
        self._takes_model = made is not None and _parameters(made)[:1] == ("model",)

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


UNKNOWN_LENGTH = 1 << 40  # batches per epoch of a stream without a length: more than a run reads
MIN_REPORTED_SKIP = 100


class StreamLoader:
    """Iterates over the user's batches, epoch after epoch, like `instrument.data.Loader`.

    The order of a shuffling DataLoader depends on the seed and the epoch only: each epoch seeds the generators of the
    loader and of its samplers, and calls `set_epoch` of the sampler and of the data set if they have it. To start at a
    later batch, the loader reads and drops the batches before it. In a stream without a length, the epoch of a position
    is always 0.

    Args:
        source: a DataLoader, or an iterable that starts anew with each `iter()`.
        seed: the seed of the run.
        start: the first batch.
        endless: whether an iteration continues with the next epoch.
        finish: applied to each batch, such as a function that pins it; None for nothing.
        log: receives one line before many batches are skipped.
        gauge: counts what a DataLoader does.
    """

    def __init__(
        self,
        source: Iterable[Any],
        *,
        seed: int = 0,
        start: Position | None = None,
        endless: bool = False,
        finish: Callable[[Any], Any] | None = None,
        log: LogFunction = log_warning,
        gauge: LoaderGauge | None = None,
    ) -> None:
        self.source, self.seed, self.endless, self._log = source, seed, endless, log
        self._finish, self._gauge = finish, gauge or LoaderGauge()
        self._length = stream_length(source)
        self._limit: int | None = None
        self.position = start or Position()
        self._generator = torch.Generator()

    def __len__(self) -> int:
        """Return the number of batches in an epoch; UNKNOWN_LENGTH if the source has no length."""
        return self._length or UNKNOWN_LENGTH

    def __iter__(self) -> Iterator[Any]:
        start = self.position
        if start.batch >= MIN_REPORTED_SKIP:
            self._log(f"data: reading {start.batch} batches that are already trained on, to resume after them")
        for batch in self._batches(start):
            self.position = self.position.after(1, len(self))
            yield batch if self._finish is None else self._finish(batch)

    def shorten(self, batches: int) -> None:
        """End each epoch after `batches`, the least of all ranks, so that all ranks are in the same epoch."""
        if batches < len(self):
            self._length = self._limit = batches

    def seek(self, position: Position) -> None:
        """Start the next iteration at `position`.

        Raises:
            ConfigError: an epoch has no such batch.
        """
        if position.batch >= len(self):
            raise ConfigError(f"position {position.epoch}, {position.batch}: an epoch has {len(self)} batches here")
        self.position = position

    def _batches(self, start: Position) -> Iterator[Any]:
        epoch, skip = start.epoch, start.batch
        while True:
            self._seed_epoch(epoch)
            count, batches = 0, self._gauge.watched(self.source)
            if skip:
                with random_state_kept():  # the batches that are dropped may be augmented at random
                    count = sum(1 for _batch in islice(batches, skip))
                skip -= count
            for batch in batches:
                count += 1
                yield batch
                if count == self._limit:
                    break
            if not count:
                raise InstrumentError(
                    f"data: epoch {epoch} of {type(self.source).__name__} has no batch; "
                    "give data that can be iterated again, and not more samples a batch than there are"
                )
            if not self.endless:
                return
            epoch += 1

    def _seed_epoch(self, epoch: int) -> None:
        sampler = getattr(self.source, "sampler", None)
        for part in (sampler, getattr(self.source, "dataset", None)):
            set_epoch = getattr(part, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(epoch)
        if not isinstance(self.source, DataLoader):
            return
        parts: tuple[Any, ...] = (self.source, sampler, getattr(self.source.batch_sampler, "sampler", None))
        for part in parts:
            if getattr(part, "generator", self) is None:
                part.generator = self._generator
            own = getattr(part, "generator", None)
            if isinstance(own, torch.Generator):
                own.manual_seed((self.seed + epoch) % (1 << 64))


def report_equal_batches(batch: Any, world: World, log: LogFunction) -> None:
    """Say so if all ranks have the same first batch, as they do where a stream is not divided among them."""
    if is_equal_on_ranks(fingerprint(batch), world):
        log(
            f"all {world.size} processes read the same first batch: divide the data by rank, with a "
            "DistributedSampler or datasets.distributed.split_dataset_by_node"
        )


def stream_length(source: Iterable[Any]) -> int | None:
    """Return the number of batches in an epoch of `source`; None if it does not know."""
    try:
        return len(source) or None  # type: ignore[arg-type]
    except TypeError:
        return None

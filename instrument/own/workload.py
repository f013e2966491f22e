"""The workload of a user's model, data and loss, from references or from objects."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler, default_collate

from instrument.checkpoint.states import random_state_kept
from instrument.config.schema import Config
from instrument.config.settings import is_reference
from instrument.config.training import Precision
from instrument.data.datasets import Loader, MakeBatches
from instrument.data.loading import InMemorySamples, LoaderBatches
from instrument.data.order import Order, Position
from instrument.errors import ConfigError
from instrument.memory import PinnedBudget
from instrument.models import tune
from instrument.own.losses import Loss, OwnLoss
from instrument.own.references import call_reference, error_line, load_reference
from instrument.own.streams import StreamLoader, stream_length
from instrument.pinned import PinnedCollator
from instrument.workload import Workload, count_flops

UNKNOWN_BATCH = 1 << 30  # batch size of an iterable that does not state it: no batch is split before memory runs out


class OwnWorkload(Workload):
    """A model, data and a loss of the user's own.

    Args:
        config: the configuration of the run.
        make_model: returns a new model.
        data: a data set of samples, whose order the seed determines; or a DataLoader or another iterable of batches.
        loss: see `instrument.own.losses`; None if the model returns its loss.
        validation: returns the data for validations, like `data`.

    Raises:
        ConfigError: the data has no batch, or `--epochs` is used for data without a length.
    """

    def __init__(
        self,
        config: Config,
        make_model: Callable[[], nn.Module],
        data: Any,
        loss: Loss | None,
        validation: Callable[[Config], Any] = lambda _config: None,
    ) -> None:
        self._make_model, self._given, self._validation = make_model, data, validation
        self._data = _opened(data, config)
        super().__init__(_fit(config, self._data))
        self.compute_loss = OwnLoss(loss)
        self.count = self.compute_loss.count
        if config.training.epochs is not None and not is_map_style(self._data) and stream_length(self._data) is None:
            raise ConfigError(f"--epochs {config.training.epochs}: the data has no length; use --steps")

    @classmethod
    def from_references(cls, config: Config) -> OwnWorkload:
        """Import the model's factory, the data and the loss that the configuration names.

        Raises:
            ConfigError: a reference cannot be imported, or is not what the setting needs.
        """
        loss_text = config.model.loss
        factory = load_reference("--model", config.model.name)
        if not callable(factory):
            raise ConfigError(f"--model {config.model.name}: {type(factory).__name__} is not a function or a class")
        data = _data_of("--data", str(config.data.path), config)
        loss = None if loss_text is None else load_reference("--loss", loss_text)

        def validation(config: Config) -> Any:
            return _data_of("--validation", str(config.data.path), config)

        return cls(config, lambda: _model_of(factory, config), data, loss, validation)

    def with_config(self, config: Config) -> OwnWorkload:
        """Return the same workload with another configuration."""
        made = copy.copy(self)
        made._data = _opened(self._given, config)
        made.config = _fit(config, made._data)
        return made

    def validation(self, config: Config) -> OwnWorkload:
        """Return the workload that a run with this workload validates on."""
        made = copy.copy(self)
        made._given = self._validation(config)
        return made.with_config(config)

    def build_model(self, device: torch.device, precision: Precision) -> nn.Module:
        """Return a new model on `device`."""
        return tune(self._make_model().to(device), self.config.model, device)

    def _loader(
        self, config: Config, *, rank: int, world: int, start: Position | None, endless: bool, pinned: bool
    ) -> Loader | StreamLoader:
        """Return a loader of the user's batches.

        Samples of a data set are shuffled in each epoch, and ranks use disjoint samples. A DataLoader or another
        iterable gives its own batches on every rank.

        Raises:
            ConfigError: there are several ranks, and the DataLoader's sampler does not divide the samples.
        """
        data, seed = config.data, config.training.seed
        if not is_map_style(self._data):
            _check_divided(self._data, world)
            pins = pinned and not getattr(self._data, "pin_memory", False)
            finish = PinnedCollator(PinnedBudget(data.pinned_budget)).pin if pins else None
            return StreamLoader(self._data, seed=seed, start=start, endless=endless, finish=finish)
        order = Order(len(self._data), data.batch, rank, world, seed, shuffle=True)
        if data.preload:
            samples, data = InMemorySamples(self._data, len(self._data), data, seed=seed), data.on_demand()
        else:
            samples = self._data
        make: MakeBatches = LoaderBatches(samples, data, pinned=pinned, seed=seed)
        return Loader(order, make, start=start, endless=endless)

    def flops(self) -> tuple[int | None, str]:
        """Count the operations of a step for the first sample of a data set."""
        dataset = self._data.dataset if isinstance(self._data, DataLoader) else self._data
        if not is_map_style(dataset) or self.config.data.batch == UNKNOWN_BATCH:
            return None, "operations are counted for data sets with an index only"
        collate = self._data.collate_fn if isinstance(self._data, DataLoader) else default_collate
        try:
            with random_state_kept():  # a sample may be augmented at random
                each = count_flops(self._make_model, collate([dataset[0]]), self.compute_loss)
        except Exception as error:  # the user's model may not run on the device "meta"
            return None, f"operations cannot be counted on the device meta: {error_line(error)}"
        return each * self.config.data.batch * self.config.training.accumulation, ""


def open_workload(config: Config) -> Workload:
    """Return the workload of a configuration, with its optimizer and hooks.

    Raises:
        ConfigError: a reference "package.module:name" cannot be imported, or is not what the setting needs.
    """
    made = OwnWorkload.from_references(config) if is_reference(config.model.name) else Workload(config)
    training = config.training
    if is_reference(training.optimizer):
        made.make_optimizer = load_reference("--optimizer", training.optimizer)
    if training.hooks is not None:
        made.hooks = call_reference("--hooks", training.hooks, load_reference("--hooks", training.hooks), config)
    return made


def own_workload(
    config: Config, model: nn.Module, data: Iterable[Any], loss: Loss | None, validation: Any = None
) -> OwnWorkload:
    """Return the workload of objects. The model is copied for each use, so that it stays unchanged."""
    return OwnWorkload(config, lambda: copy.deepcopy(model), data, loss, lambda _config: validation)


def named_after(config: Config, model: Any, data: Any, validation: Any = None) -> Config:
    """Return a configuration whose references are the classes of objects, which take their place."""
    kinds = (type(part) for part in (model, data, validation))
    model_name, path, validation_path = (f"{kind.__module__}:{kind.__name__}" for kind in kinds)
    named = replace(config.data, path=Path(path), validation=None if validation is None else Path(validation_path))
    return replace(config, model=replace(config.model, name=model_name), data=named)


def is_map_style(data: Any) -> bool:
    """Return whether `data` is a data set of samples with an index and a length, and not a list of batches."""
    if isinstance(data, IterableDataset | DataLoader | list | tuple | type):
        return False
    return isinstance(data, Dataset) or (hasattr(data, "__getitem__") and hasattr(data, "__len__"))


def _check_divided(data: Any, world: int) -> None:
    if world > 1 and isinstance(data, DataLoader) and isinstance(data.sampler, RandomSampler | SequentialSampler):
        raise ConfigError(
            f"each of {world} processes would read all data of the DataLoader; "
            "give the Dataset itself, or a DataLoader with a DistributedSampler"
        )


def _model_of(factory: Any, config: Config) -> nn.Module:
    text, is_module = config.model.name, isinstance(factory, nn.Module)
    model = copy.deepcopy(factory) if is_module else call_reference("--model", text, factory, config)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"--model {text}: returns {type(model).__name__}, not a torch.nn.Module")
    return model


def _data_of(setting: str, text: str, config: Config) -> Any:
    """Return the data set or the loader that a reference names."""
    data = load_reference(setting, text)
    if isinstance(data, type) or not (is_map_style(data) or hasattr(data, "__iter__")):
        if not callable(data):
            raise ConfigError(f"{setting} {text}: {type(data).__name__} is not a Dataset or a DataLoader")
        data = call_reference(setting, text, data, config)
    if not (is_map_style(data) or hasattr(data, "__iter__")):
        raise ConfigError(f"{setting} {text}: returns {type(data).__name__}, not a Dataset or a DataLoader")
    return data


def _opened(data: Any, config: Config) -> Any:
    """Return the data, or a DataLoader over an iterable data set, with the settings of the run.

    Each worker would iterate over all of the data set, so it has none unless their number is given.
    """
    if not isinstance(data, IterableDataset) or type(data).__name__ == "WebLoader":  # webdataset's, of batches
        return data
    settings = config.data.with_workers(0)
    return DataLoader(
        data,
        batch_size=settings.batch,
        drop_last=True,
        num_workers=settings.workers,
        prefetch_factor=settings.prefetch_factor,
        persistent_workers=settings.persistent_workers,
    )


def _fit(config: Config, data: Any) -> Config:
    """Return the configuration with the batch size and the workers of the user's loader."""
    if is_map_style(data):
        return replace(config, data=config.data.with_workers())
    batch = getattr(data, "batch_size", None)
    workers = getattr(data, "num_workers", 0)
    own = replace(
        config.data,
        batch=batch if isinstance(batch, int) else UNKNOWN_BATCH,
        workers=workers,
        prefetch_factor=getattr(data, "prefetch_factor", None) if workers else None,
        persistent_workers=bool(workers and getattr(data, "persistent_workers", False)),
        preload=False,
    )
    return replace(config, data=own)

"""What a run trains: the package's model on its data, or a model, data and a loss of the user's own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler, default_collate
from torch.utils.flop_counter import FlopCounterMode

from instrument.checkpoint.states import draws_random_numbers, random_state_kept
from instrument.config.schema import Config
from instrument.config.sections import Training
from instrument.config.settings import is_reference
from instrument.data import Loader, Position, Synthetic, map_style_loader
from instrument.errors import ConfigError
from instrument.models import Transformer, compile_model
from instrument.monitor.loader import LoaderGauge
from instrument.own import Loss, OwnLoss, StreamLoader, call_reference, load_reference, stream_length
from instrument.pinned import pin
from instrument.trainer.hooks import Hooks
from instrument.trainer.learner import ComputeLoss, CountTerms, Learner, call_model
from instrument.trainer.optimizer import MakeOptimizer
from instrument.trees import map_tensors

UNKNOWN_BATCH = 1 << 30  # batch size of an iterable that does not state it: no batch is split before memory runs out


class Workload:
    """A model, its data and its loss.

    Args:
        config: the configuration of the run.
        make_model: returns a new model for a configuration.
        data: a data set of samples, whose order the seed determines; or a DataLoader or another iterable of batches.
        compute_loss: returns the scalar loss of a model and a batch on the same device.
        validation: returns the data for validations, like `data`, for a configuration that has their settings.

    Attributes:
        config: the configuration; `data` has the batch size and workers of the loader in use.
        compute_loss: as given.
        count: returns the number of terms in the mean of a batch's loss; None if these are its samples.
        make_optimizer: the configured one, see `instrument.trainer.optimizer.build_optimizer`; None for AdamW.
        hooks: what the run calls, as configured.

    Raises:
        ConfigError: `--epochs` is used for data without a length; or a reference "package.module:name" cannot be
            imported, or is not what the setting needs.
    """

    def __init__(
        self,
        config: Config,
        make_model: Callable[[Config], nn.Module],
        data: Any,
        compute_loss: ComputeLoss,
        validation: Callable[[Config], Any],
    ) -> None:
        self._make_model, self._given, self._validation = make_model, data, validation
        self._data = _opened(data, config)
        self.config = _fit(config, self._data)
        self.compute_loss = compute_loss
        self.count: CountTerms | None = getattr(compute_loss, "count", None)
        training = config.training
        self.make_optimizer: MakeOptimizer | None = None
        if is_reference(training.optimizer):
            self.make_optimizer = load_reference("--optimizer", training.optimizer)
        self.hooks = Hooks()
        if training.hooks is not None:
            self.hooks = call_reference("--hooks", training.hooks, load_reference("--hooks", training.hooks), config)
        if training.epochs is not None and not is_map_style(self._data) and stream_length(self._data) is None:
            raise ConfigError(f"--epochs {training.epochs}: the data has no length; use --steps")

    def with_config(self, config: Config) -> Workload:
        """Return the same workload with another configuration."""
        made = copy.copy(self)
        made._data = _opened(self._given, config)
        made.config = _fit(config, made._data)
        return made

    def validation(self, config: Config) -> Workload:
        """Return the workload that a run with this workload validates on; `config` has the settings of the data."""
        made = copy.copy(self)
        made._given = self._validation(config)
        return made.with_config(config)

    def build_model(self, device: torch.device) -> nn.Module:
        """Return a new model on `device`, with weights from torch's global generator on the CPU.

        Raises:
            ConfigError: the model cannot be built.
        """
        return compile_model(self._make_model(self.config).to(device), self.config.model)

    def learner(self, model: nn.Module, training: Training, steps: int, device: torch.device) -> Learner:
        """Return the model of a run with its loss and its optimizer."""
        return Learner(model, training, steps, device, self.compute_loss, self.count, self.make_optimizer)

    def build_loader(
        self,
        config: Config | None = None,
        *,
        rank: int = 0,
        world: int = 1,
        start: Position | None = None,
        endless: bool | None = None,
        pinned: bool = False,
        gauge: LoaderGauge | None = None,
    ) -> Loader | StreamLoader:
        """Return a loader of host batches.

        Samples of a data set are shuffled in each epoch, but synthetic ones are not, and ranks use disjoint samples. A
        DataLoader or another iterable gives its own batches on every rank.

        Args:
            config: the configuration of the run, or one with other settings of `data`.
            rank: this process, from 0.
            world: the number of processes.
            start: the first batch, such as `Position(*saved)` from a checkpoint.
            endless: whether an iteration continues with the next epoch; None to do so if the run is limited by steps.
            pinned: whether batches are in pinned memory, within `data.pinned_budget`. Kept batches are pinned once.
            gauge: counts what a DataLoader does.

        Raises:
            ConfigError: the sizes or the position do not fit, there is not enough memory for preloading or pinning, or
                there are several ranks, and the DataLoader's sampler does not divide the samples.
        """
        config = config or self.config
        endless = config.training.epochs is None if endless is None else endless
        pinned = pinned and torch.cuda.is_available()
        data, seed = config.data, config.training.seed
        if is_map_style(self._data):
            about: dict[str, Any] = {"rank": rank, "world": world, "start": start, "endless": endless}
            return map_style_loader(self._data, data, seed, **about, pinned=pinned, gauge=gauge)
        _check_divided(self._data, world)
        pins = pinned and not getattr(self._data, "pin_memory", False)
        finish = pin if pins else None
        return StreamLoader(self._data, seed=seed, start=start, endless=endless, finish=finish, gauge=gauge)

    def draws_random_numbers(self) -> bool:
        """Return whether the first sample draws from a global generator; False for data without an index."""
        dataset = self._data.dataset if isinstance(self._data, DataLoader) else self._data
        try:
            return is_map_style(dataset) and draws_random_numbers(lambda: dataset[0])
        except Exception:  # the loader raises it again, in the place where a run reports it
            return False

    def flops(self) -> int | None:
        """Return the floating-point operations of one step; None for data without an index, or if counting fails.

        They are those of the first sample of a data set. The count is that of the model itself: it excludes the second
        forward pass of checkpointing. The random numbers of the run stay the same.
        """
        dataset = self._data.dataset if isinstance(self._data, DataLoader) else self._data
        if not is_map_style(dataset) or self.config.data.batch == UNKNOWN_BATCH:
            return None
        collate = self._data.collate_fn if isinstance(self._data, DataLoader) else default_collate
        plain = replace(self.config, model=replace(self.config.model, checkpointing=None))
        try:
            with random_state_kept():  # a sample may be augmented at random
                each = count_flops(lambda: self._make_model(plain), collate([dataset[0]]), self.compute_loss)
        except Exception:  # a user's model may not run on the device "meta"
            return None
        return each * self.config.data.batch * self.config.training.accumulation


def count_flops(make: Callable[[], nn.Module], batch: Any, compute_loss: ComputeLoss) -> int:
    """Count the floating-point operations of forward and backward of a batch, on the "meta" device.

    Args:
        make: returns the model. It is called with the device "meta", so that no time is lost on initial weights.
        batch: a nested batch of host tensors.
        compute_loss: as in `Workload`.
    """
    on_meta = map_tensors(batch, lambda tensor: torch.empty_like(tensor, device="meta"))
    with torch.device("meta"):
        model = make().to("meta")
    with FlopCounterMode(display=False) as counter:
        compute_loss(model, on_meta).backward()  # type: ignore[no-untyped-call]
    return int(counter.get_total_flops())


def open_workload(config: Config) -> Workload:
    """Return the workload of a configuration.

    Raises:
        ConfigError: as `Workload`, for the model, the data and the loss too.
    """
    return _named_workload(config) if is_reference(config.model.name) else _package_workload(config)


def own_workload(
    config: Config, model: nn.Module, data: Iterable[Any], loss: Loss | None, validation: Any = None
) -> Workload:
    """Return the workload of objects. The model is copied for each use, so that it stays unchanged."""
    return Workload(config, lambda _config: copy.deepcopy(model), data, OwnLoss(loss), lambda _config: validation)


def named_after(config: Config, model: Any, data: Any, validation: Any = None) -> Config:
    """Return a configuration whose references are the classes of objects, which take their place."""
    kinds = (type(part) for part in (model, data, validation))
    model_name, path, validation_path = (f"{kind.__module__}:{kind.__name__}" for kind in kinds)
    named = replace(config.data, path=Path(path), validation=None if validation is None else Path(validation_path))
    return replace(config, model=replace(config.model, name=model_name), data=named)


def _package_workload(config: Config) -> Workload:
    """Return the workload of the package's model, on synthetic data.

    Raises:
        ConfigError: the configuration names data.
    """
    if named := config.data.path or config.data.validation:
        raise ConfigError(f"--data {named} needs a model of your own: --model MODULE:FUNCTION")

    def make_model(config: Config) -> nn.Module:
        return Transformer(config.model, config.data)

    def samples(config: Config) -> Synthetic:
        return Synthetic(config.model, config.data, config.training.seed)

    return Workload(config, make_model, samples(config), call_model, samples)


def _named_workload(config: Config) -> Workload:
    """Import the model's factory, the data and the loss that the configuration names."""
    loss_text = config.model.loss
    factory = load_reference("--model", config.model.name)
    if not callable(factory):
        raise ConfigError(f"--model {config.model.name}: {type(factory).__name__} is not a function or a class")
    data = _data_of("--data", str(config.data.path), config)
    loss = OwnLoss(None if loss_text is None else load_reference("--loss", loss_text))

    def validation(config: Config) -> Any:
        return _data_of("--validation", str(config.data.path), config)

    return Workload(config, lambda config: _model_of(factory, config), data, loss, validation)


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
    """Return the model that a reference names."""
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

"""Transient errors are retried a limited number of times; a batch in parts gives the gradients of the whole batch."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from instrument.errors import ConfigError, InstrumentError
from instrument.trainer.recover import MicroBatches, is_out_of_memory, retry_loader, shares

DEAD_WORKER = RuntimeError("DataLoader worker (pid(s) 12) exited unexpectedly")
TRANSIENT = [OSError("disk"), ConnectionResetError("peer"), TimeoutError("late"), DEAD_WORKER]
LASTING = [FileNotFoundError("gone"), PermissionError("no"), ValueError("bad"), RuntimeError("shape mismatch")]


class Failing:
    """Yields the number of its opening, after raising each of `errors` in turn."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors, self.opened = list(errors), 0

    def __call__(self, count: int) -> Iterator[int]:
        self.opened += 1
        if self.errors:
            raise self.errors.pop(0)
        return iter([self.opened][count:])


@pytest.mark.parametrize("error", TRANSIENT, ids=repr)
def test_transient_error_is_retried_and_logged(error: Exception) -> None:
    said: list[str] = []
    slept: list[float] = []
    batches = retry_loader(Failing(error, error), retries=3, wait=0.5, log=said.append, sleep=slept.append)
    assert list(batches) == [3]
    assert slept == [0.5, 1.0]
    assert said == [
        f"data: {type(error).__name__}: {error}; reopening at batch 0 in {pause} s, retry {again} of 3"
        for again, pause in ((1, "0.5"), (2, "1"))
    ]


@pytest.mark.parametrize("error", LASTING, ids=repr)
def test_other_errors_are_raised_at_once(error: Exception) -> None:
    failing = Failing(error, error)
    with pytest.raises(type(error)) as caught:
        next(retry_loader(failing, log=pytest.fail, sleep=pytest.fail))
    assert caught.value is error
    assert failing.opened == 1


def test_number_of_tries_is_limited() -> None:
    slept: list[float] = []
    failing = Failing(*[OSError(str(number)) for number in range(10)])
    with pytest.raises(OSError, match="3"):
        next(retry_loader(failing, retries=3, wait=40, log=lambda _text: None, sleep=slept.append))
    assert slept == [40, 60, 60]
    with pytest.raises(OSError, match="4"):
        next(retry_loader(failing, retries=0, sleep=pytest.fail))


class Flaky(torch.utils.data.Dataset[int]):
    """Fails at the first read of `index`; shared memory makes this known to all workers."""

    def __init__(self, index: int, times: int, error: Exception) -> None:
        self.index, self.error = index, error
        self.left = torch.tensor([times]).share_memory_()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == self.index and self.left.item() > 0:
            self.left -= 1
            raise self.error
        return index


def opener(dataset: Flaky, workers: int) -> Callable[[int], Iterator[Any]]:
    def open_at(given: int) -> Iterator[Any]:
        rest = torch.utils.data.Subset(dataset, range(given * 2, len(dataset)))
        return iter(torch.utils.data.DataLoader(rest, batch_size=2, num_workers=workers))

    return open_at


@pytest.mark.parametrize("workers", [0, 1])
def test_reopened_loader_repeats_no_batch(workers: int) -> None:
    said: list[str] = []
    open_at = opener(Flaky(5, times=2, error=ConnectionError("peer")), workers)
    batches = [batch.tolist() for batch in retry_loader(open_at, log=said.append, sleep=lambda _s: None)]
    assert batches == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [text.partition(";")[0] for text in said] == ["data: ConnectionError: peer"] * 2
    assert said[1].endswith("; reopening at batch 2 in 2 s, retry 2 of 3")


def test_permanent_errors_are_raised() -> None:
    with pytest.raises(RuntimeError, match="Caught RuntimeError in DataLoader worker"):
        list(retry_loader(opener(Flaky(1, times=1, error=RuntimeError("mistake")), 1), log=pytest.fail))
    with pytest.raises(OSError, match="disk"):
        list(
            retry_loader(
                opener(Flaky(1, times=9, error=OSError("disk")), 0), log=lambda _t: None, sleep=lambda _s: None
            )
        )


# Out of memory. On a CPU it is simulated: a function raises what torch raises above a number of samples.


class Trained:
    """A model in float64, and a forward and backward that runs out of memory above `fits` samples."""

    def __init__(self, fits: int, error: Callable[[str], Exception] = torch.cuda.OutOfMemoryError) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1)).double()
        self.fits, self.error = fits, error
        self.seen: list[int] = []
        self.held: list[weakref.ref[Any]] = []

    def __call__(self, batch: Any, weight: float) -> Any:
        samples = len(batch["inputs"])
        loss = (self.model(batch["inputs"]) - batch["more"][0]).square().mean()
        activations = torch.zeros(3)
        self.held.append(weakref.ref(activations))
        (loss * weight).backward()  # the gradients of a failed attempt are half-made
        if samples > self.fits:
            raise self.error("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 1 GiB.")
        self.seen.append(samples)
        return loss

    def gradients(self) -> list[Any]:
        return [parameter.grad for parameter in self.model.parameters()]


def batch_of(samples: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(samples)
    inputs = torch.randn(samples, 5, generator=generator, dtype=torch.float64)
    targets = torch.randn(samples, 1, generator=generator, dtype=torch.float64)
    return {"inputs": inputs, "more": (targets, "a name", torch.tensor(3.0), torch.zeros(99))}


def whole(*batches: Any) -> tuple[list[float], list[Any]]:
    trained = Trained(fits=10**9)
    losses = [trained(batch, share).item() for batch, share in zip(batches, shares(batches), strict=True)]
    return losses, trained.gradients()


@pytest.mark.parametrize("fits", [1, 2, 3, 5, 12, 13])
def test_parts_give_the_gradients_of_the_whole_batch(fits: int) -> None:
    expected_losses, expected = whole(batch_of(13))
    trained = Trained(fits)
    recover = MicroBatches(13, log=lambda _text: None)
    loss = recover.step(batch_of(13), trained, trained.model.zero_grad)
    assert not loss.requires_grad
    assert loss.item() == pytest.approx(expected_losses[0], rel=1e-12)
    torch.testing.assert_close(trained.gradients(), expected, rtol=1e-12, atol=1e-14)
    assert max(trained.seen) <= fits and sum(trained.seen) == 13


def test_batch_that_fits_is_not_split() -> None:
    _, expected = whole(batch_of(8))
    trained = Trained(fits=8)
    MicroBatches(8, log=pytest.fail).step(batch_of(8), trained, pytest.fail)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(trained.gradients(), expected, strict=True))


def test_smaller_size_is_logged_and_kept() -> None:
    said: list[str] = []
    trained = Trained(fits=3)
    recover = MicroBatches(64, log=said.append)
    recover.step(batch_of(13), trained, trained.model.zero_grad)
    assert recover.size == 3
    tail = "(CUDA out of memory. Tried to allocate 2.00 GiB)"
    assert said == [
        f"out of memory with 13 samples at once; continuing with 6 {tail}",
        f"out of memory with 6 samples at once; continuing with 3 {tail}",
    ]
    recover.step(batch_of(4), trained, pytest.fail)
    assert trained.seen[-2:] == [3, 1]
    assert len(said) == 2


def test_accumulation_repeats_all_batches() -> None:
    expected_losses, expected = whole(batch_of(6), batch_of(13))
    trained = Trained(fits=6)  # the first batch fits, and its gradients are cleared with the second's
    losses = MicroBatches(13, log=lambda _text: None).steps(
        [batch_of(6), batch_of(13)], trained, trained.model.zero_grad
    )
    assert [loss.item() for loss in losses] == pytest.approx(expected_losses, rel=1e-12)
    torch.testing.assert_close(trained.gradients(), expected, rtol=1e-12, atol=1e-14)


def test_failed_attempt_frees_memory() -> None:
    trained = Trained(fits=2)
    alive: list[int] = []

    def zero_grad() -> None:
        trained.model.zero_grad()
        alive.append(sum(reference() is not None for reference in trained.held))

    gc.disable()
    try:
        MicroBatches(8, log=lambda _text: None).step(batch_of(8), trained, zero_grad)
    finally:
        gc.enable()
    assert alive == [0, 0]


def test_sample_that_does_not_fit_is_one_line() -> None:
    trained = Trained(fits=0)
    message = r"^out of memory with 1 of 4 samples at once \(CUDA out[^\n]+smaller model$"
    with pytest.raises(InstrumentError, match=message):
        MicroBatches(4, log=lambda _text: None).step(batch_of(4), trained, trained.model.zero_grad)
    assert all(gradient is None for gradient in trained.gradients())


def test_number_of_halvings_is_limited() -> None:
    said: list[str] = []
    trained = Trained(fits=0)
    with pytest.raises(InstrumentError, match="with 4 of 16 samples"):
        MicroBatches(16, retries=2, log=said.append).step(batch_of(16), trained, trained.model.zero_grad)
    assert len(said) == 2


def test_other_errors_of_the_model_are_raised() -> None:
    trained = Trained(fits=0, error=lambda _text: RuntimeError("shapes do not match"))
    recover = MicroBatches(4, log=pytest.fail)
    with pytest.raises(RuntimeError, match="shapes"):
        recover.step(batch_of(4), trained, pytest.fail)
    assert recover.size == 4


def test_mean_over_labels_is_weighted_by_labels() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 11).double()
    labels = torch.tensor([[1, 2, 3], [-100, -100, -100], [4, -100, -100], [5, 6, -100], [7, 8, 9]])
    batch = {"inputs": torch.randn(5, 3, 5, dtype=torch.float64), "labels": labels}

    def forward_backward(part: Any, weight: float) -> Any:
        if len(part["labels"]) > 1:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        loss = torch.nn.functional.cross_entropy(model(part["inputs"]).flatten(0, 1), part["labels"].flatten())
        (loss * weight).backward()
        return loss

    twin = copy.deepcopy(model)
    expected = torch.nn.functional.cross_entropy(twin(batch["inputs"]).flatten(0, 1), labels.flatten())
    expected.backward()
    recover = MicroBatches(5, count=lambda part: (part["labels"] != -100).sum(), log=lambda _text: None)
    loss = recover.step(batch, forward_backward, model.zero_grad)
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(model.weight.grad, twin.weight.grad, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("CUDA out of memory. Tried to allocate 2 GiB", True),
        ("CUDA error: out of memory", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you tried", True),
        ("mat1 and mat2 shapes cannot be multiplied", False),
    ],
)
def test_every_form_of_out_of_memory_is_recognised(text: str, is_one: bool) -> None:
    assert is_out_of_memory(RuntimeError(text)) is is_one
    assert is_out_of_memory(torch.cuda.OutOfMemoryError(text))
    assert not is_out_of_memory(ValueError(text))


def test_refused_allocation_is_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


def test_zero_samples_per_part_is_one_line() -> None:
    with pytest.raises(ConfigError, match="batch size is 0; it must be at least 1"):
        MicroBatches(0)


@pytest.mark.gpu
def test_real_gpu_out_of_memory_halves_the_batch() -> None:
    free, total = torch.cuda.mem_get_info()
    per_sample = 64 << 20
    batch = {"inputs": torch.ones(64, per_sample // 4 // 16, device="cuda")}
    weight = torch.ones(1, device="cuda", requires_grad=True)
    said: list[str] = []

    def forward_backward(part: Any, share: float) -> Any:
        loss = torch.stack([(part["inputs"] * weight).exp() for _ in range(16)]).mean()
        (loss * share).backward()
        return loss

    def zero_grad() -> None:
        weight.grad = None

    recover = MicroBatches(64, log=said.append)
    torch.cuda.set_per_process_memory_fraction(min(1.0, (4 << 30) / total))
    try:
        loss = recover.step(batch, forward_backward, zero_grad)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert free > 4 << 30
    assert recover.size < 64 and len(said) >= 1
    assert loss.item() == pytest.approx(torch.e, rel=1e-3)
    assert weight.grad is not None and weight.grad.item() == pytest.approx(torch.e, rel=1e-3)

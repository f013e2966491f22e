from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.instrument.models.tiny import (
    DATA,
    NAMES,
    WITHOUT_DRAWS,
    awakened,
    batch,
    build,
    built,
    gradients,
    tiny,
)


@pytest.mark.parametrize("name", NAMES)
def test_loss_is_finite_and_falls(name: str) -> None:
    net, given = built(name), batch(name)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = net(given)
        loss.backward()
        optimizer.step()
        losses.append(loss)
    assert all(loss.shape == () and loss.dtype == torch.float32 for loss in losses)
    assert torch.isfinite(torch.stack(losses)).all()
    assert losses[-1] < losses[5] < losses[0]


@pytest.mark.parametrize("name", NAMES)
def test_every_weight_has_a_gradient(name: str) -> None:
    given = batch(name)
    net = awakened(built(name))
    found = gradients(net, given)
    assert set(found) == {weight for weight, _ in net.named_parameters()}
    assert all(gradient.any() for gradient in found.values())


@pytest.mark.parametrize("name", NAMES)
def test_seed_decides_the_weights(name: str) -> None:
    one, same, other = (built(name, seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


def test_prompt_does_not_change_other_weights() -> None:
    without, with_it = (built(name).state_dict() for name in ("plain", "loop"))
    assert set(with_it) - set(without) == {"inner.prompt"}
    assert all(torch.equal(without[key], with_it[key]) for key in without)


@pytest.mark.parametrize("checkpointing", ["full", "selective"])
@pytest.mark.parametrize("name", NAMES)
def test_checkpointing_changes_neither_loss_nor_gradients(name: str, checkpointing: str) -> None:
    given = batch(name)
    plain, checkpointed = (awakened(built(name, checkpointing=on)) for on in (None, checkpointing))
    assert torch.equal(plain(given), checkpointed(given))
    expected, found = gradients(plain, given), gradients(checkpointed, given)
    assert all(torch.equal(expected[key], found[key]) for key in expected)


def test_checkpointing_saves_less_for_backward() -> None:
    def kept(checkpointing: bool) -> int:
        net, given = built("transformer", layers=4, checkpointing=checkpointing), batch("transformer")
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (sizes.append(t.nbytes), t)[1], lambda t: t):
            net(given)
        return sum(sizes)

    assert kept(True) < kept(False) / 2


def test_selective_checkpointing_repeats_no_matrix_product() -> None:
    def products(checkpointing: str | None) -> int:
        net, given = built("transformer", checkpointing=checkpointing), batch("transformer")
        with Called() as called:
            net(given).backward()
        return called.matrix_products

    assert products("selective") == products(None) < products("full")


class Called(TorchDispatchMode):
    """Records every operation that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.matrix_products = 0

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(function.overloadpacket.__name__)
        self.matrix_products += function.overloadpacket.__name__ in {"mm", "addmm", "bmm"}
        return function(*args, **(kwargs or {}))


# What would make the host wait on a GPU, or draw a number that a replayed graph would repeat.
WAITING = {"_local_scalar_dense", "item", "nonzero", "masked_select", "unique", "equal", "is_nonzero"}
RANDOM = {"rand", "randn", "normal_", "uniform_", "bernoulli_", "native_dropout", "randint", "randperm", "random_"}


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", WITHOUT_DRAWS)
def test_step_neither_synchronizes_nor_draws_random_numbers(name: str, checkpointing: bool) -> None:
    net, given = built(name, checkpointing=checkpointing), batch(name)
    state = torch.get_rng_state()
    with Called() as called:
        net.loss(net.inner, given).backward()
    assert "detach" in called.names  # it does see what runs
    assert not called.names & (WAITING | RANDOM)
    assert torch.equal(torch.get_rng_state(), state)


def test_compiled_model_keeps_the_names_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[tuple[nn.Module, object]] = []
    monkeypatch.setattr(nn.Module, "compile", lambda self, **options: compiled.append((self, options["mode"])))
    net = build(tiny(compile=True, compile_mode="max-autotune"), DATA, "cpu")
    assert compiled == [(net, "max-autotune")]
    assert set(net.state_dict()) == set(build(tiny(), DATA, "cpu").state_dict())
    compiled.clear()
    net = build(tiny(compile="blocks"), DATA, "cpu")
    assert compiled == [(block, "default") for block in net.blocks]


@pytest.mark.parametrize("name", NAMES)
def test_autocast_loss_is_float32_and_close(name: str) -> None:
    net, given = awakened(built(name)), batch(name)
    with torch.autocast("cpu", torch.bfloat16):
        loss = net(given)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, net(given), rtol=0.05, atol=0.05)
    loss.backward()


@pytest.mark.gpu
@pytest.mark.parametrize("name", WITHOUT_DRAWS)
def test_captured_step_replays_to_the_same_loss(name: str) -> None:
    made = built(name, checkpointing=True).cuda()
    net = partial(made.loss, made.inner)
    # More than 3072 tokens: the embedding's backward then takes its other path, which sorts.
    given = {key: value.cuda() for key, value in batch(name, size=300).items()}

    def step() -> Any:
        made.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            loss = net(given)
        loss.backward()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        expected = [step() for _ in range(3)][-1].detach().clone()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    graph.replay()
    torch.testing.assert_close(loss, expected)

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from instrument.models import MODELS, build  # noqa: E402
from instrument.models.batches import SAMPLES  # noqa: E402
from instrument.models.dit import patchify, unpatchify  # noqa: E402
from tests.instrument.models.tiny import DATA, NAMES, awakened, batch, built, gradients, tiny  # noqa: E402

VARIANTS = [*NAMES, "mlm loop", "mlm vectorised", "mlm gated", "mlm gated-scatter"]


def variant(name: str, **chosen: Any) -> Any:
    model, _, prompt = name.partition(" ")
    return tiny(model, prompt=prompt or "none", **chosen)


def test_every_model_has_samples() -> None:
    assert tuple(MODELS) == tuple(SAMPLES) == NAMES


@pytest.mark.parametrize("name", VARIANTS)
def test_loss_is_finite_and_falls(name: str) -> None:
    model = variant(name)
    net, given = built(model), batch(model)
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


@pytest.mark.parametrize("name", VARIANTS)
def test_every_weight_has_a_gradient(name: str) -> None:
    model = variant(name)
    given = batch(model)
    net = awakened(built(model))
    found = gradients(net, given)
    assert set(found) == {weight for weight, _ in net.named_parameters()}
    assert all(gradient.any() for gradient in found.values())


@pytest.mark.parametrize("name", VARIANTS)
def test_seed_decides_the_weights(name: str) -> None:
    one, same, other = (built(variant(name), seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


def test_prompt_does_not_change_other_weights() -> None:
    without, with_it = (built(tiny("mlm", prompt=prompt)).state_dict() for prompt in ("none", "loop"))
    assert set(with_it) - set(without) == {"prompt"}
    assert all(torch.equal(without[key], with_it[key]) for key in without)


@pytest.mark.parametrize("checkpointing", ["full", "selective"])
@pytest.mark.parametrize("name", VARIANTS)
def test_checkpointing_changes_neither_loss_nor_gradients(name: str, checkpointing: str) -> None:
    given = batch(variant(name))
    plain, checkpointed = (awakened(built(variant(name, checkpointing=on))) for on in (None, checkpointing))
    assert torch.equal(plain(given), checkpointed(given))
    expected, found = gradients(plain, given), gradients(checkpointed, given)
    assert all(torch.equal(expected[key], found[key]) for key in expected)


def test_checkpointing_saves_less_for_backward() -> None:
    def kept(checkpointing: bool) -> int:
        model = tiny("transformer", layers=4, checkpointing=checkpointing)
        net, given, sizes = built(model), batch(model), []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (sizes.append(t.nbytes), t)[1], lambda t: t):
            net(given)
        return sum(sizes)

    assert kept(True) < kept(False) / 2


def test_selective_checkpointing_repeats_no_matrix_product() -> None:
    def products(checkpointing: str | None) -> int:
        net, given = built(tiny("transformer", checkpointing=checkpointing)), batch(tiny("transformer"))
        with Called() as called:
            net(given).backward()
        return called.matrix_products

    assert products("selective") == products(None) < products("full")


@pytest.mark.parametrize("attention", ["flash", "math"])
@pytest.mark.parametrize("name", NAMES)
def test_attention_backends_agree(name: str, attention: str) -> None:
    given = batch(tiny(name))
    auto, chosen = (awakened(built(tiny(name, attention=each))) for each in ("auto", attention))
    torch.testing.assert_close(chosen(given), auto(given))
    torch.testing.assert_close(gradients(chosen, given), gradients(auto, given))


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


OPERATIONS = {  # by any of these names, in one version of torch or another
    "flash": {"_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention"},
    "math": {"_softmax", "_safe_softmax"},
}


@pytest.mark.parametrize("attention", OPERATIONS)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_chosen_attention_backend_runs(attention: str, checkpointing: bool) -> None:
    model = tiny("transformer", attention=attention, checkpointing=checkpointing)
    net, given = built(model), batch(model)
    with Called() as forward:
        loss = net(given)
    with Called() as backward:
        loss.backward()
    assert forward.names & OPERATIONS[attention]
    assert bool(backward.names & OPERATIONS[attention]) == checkpointing


# What would make the host wait on a GPU, or draw a number that a replayed graph would repeat.
WAITING = {"_local_scalar_dense", "item", "nonzero", "masked_select", "unique", "equal", "is_nonzero"}
RANDOM = {"rand", "randn", "normal_", "uniform_", "bernoulli_", "native_dropout", "randint", "randperm", "random_"}


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", VARIANTS)
def test_step_neither_synchronizes_nor_draws_random_numbers(name: str, checkpointing: bool) -> None:
    model = variant(name, checkpointing=checkpointing)
    net, given = built(model), batch(model)
    state = torch.get_rng_state()
    with Called() as called:
        net(given).backward()
    assert "detach" in called.names  # it does see what runs
    assert not called.names & (WAITING | RANDOM)
    assert torch.equal(torch.get_rng_state(), state)


def test_new_diffusion_model_predicts_zero() -> None:
    given = batch(tiny("dit"))
    torch.testing.assert_close(built(tiny("dit"))(given), given["noise"].square().mean())
    flow = built(tiny("flow"))(given)
    torch.testing.assert_close(flow, (given["image"] - given["noise"]).square().mean())


def test_backbone_gets_the_interpolated_image() -> None:
    given = batch(tiny("dit"))
    ends = {"dit": (given["image"], given["noise"]), "flow": (given["noise"], given["image"])}
    for name, (at_zero, at_one) in ends.items():
        for time, expected in ((0.0, at_zero), (1.0, at_one)):
            net, seen = built(tiny(name)), []
            net.backbone.register_forward_pre_hook(lambda _module, args, seen=seen: seen.append(args[0]))
            net({**given, "time": torch.full((4,), time)})
            torch.testing.assert_close(seen[0], expected, atol=1e-6, rtol=0)


def test_prediction_depends_on_time_and_label() -> None:
    net, given = awakened(built(tiny("dit"))).backbone, batch(tiny("dit"))
    image, time, label = given["image"], given["time"], given["label"]
    said = net(image, time, label)
    assert said.shape == image.shape
    assert not torch.allclose(said, net(image, 1 - time, label))
    assert not torch.allclose(said, net(image, time, (label + 1) % 7))


def test_patches_round_trip() -> None:
    image = torch.arange(2 * 3 * 8 * 8.0).reshape(2, 3, 8, 8)
    tokens = patchify(image, 2)
    assert tokens.shape == (2, 16, 12)
    assert torch.equal(tokens[1, 5], image[1, :, 2:4, 2:4].flatten())
    assert torch.equal(unpatchify(tokens, 2, 8), image)


def test_compiled_model_keeps_the_names_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[tuple[nn.Module, object]] = []
    monkeypatch.setattr(nn.Module, "compile", lambda self, **options: compiled.append((self, options["mode"])))
    net = build(tiny("transformer", compile=True, compile_mode="max-autotune"), DATA, "cpu")
    assert compiled == [(net, "max-autotune")]
    assert set(net.state_dict()) == set(built(tiny("transformer")).state_dict())
    compiled.clear()
    net = build(tiny("transformer", compile="blocks"), DATA, "cpu")
    assert compiled == [(block, "default") for block in net.blocks]


@pytest.mark.parametrize("name", NAMES)
def test_autocast_loss_is_float32_and_close(name: str) -> None:
    net, given = awakened(built(tiny(name))), batch(tiny(name))
    with torch.autocast("cpu", torch.bfloat16):
        loss = net(given)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, net(given), rtol=0.05, atol=0.05)
    loss.backward()


@pytest.mark.gpu
@pytest.mark.parametrize("attention", ["flash", "efficient", "math"])
@pytest.mark.parametrize("name", VARIANTS)
def test_captured_step_replays_to_the_same_loss(name: str, attention: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA")
    model = variant(name, attention=attention, checkpointing=True)
    torch.manual_seed(0)
    net = build(model, DATA, "cuda", precision="bf16")
    # More than 3072 tokens: the embedding's backward then takes its other path, which sorts.
    given = {key: value.cuda() for key, value in batch(model, size=300).items()}

    def step() -> Any:
        net.zero_grad(set_to_none=True)
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

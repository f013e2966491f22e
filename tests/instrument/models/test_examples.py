"""The models of docs/examples."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from docs.examples import diffusion
from docs.examples.diffusion import CHANNELS, SIDE, patchify, unpatchify
from docs.examples.masked_language import (
    APPLY_PROMPT,
    IGNORED,
    MASK,
    PROMPT_LENGTH,
    PromptTokens,
    Tokens,
    apply_prompt_loop,
    apply_prompt_vectorised,
    loss,
)
from instrument.config.loading import load
from instrument.config.schema import Config, Data
from instrument.trainer.training_run import train
from tests.captures import ROOT
from tests.instrument.models.tiny import awakened, batch, built, config, gradients, tiny

COMMANDS = [
    command
    for name in ("diffusion", "masked_language")
    for command in re.findall(
        r"python -m instrument\.train ((?:.+\\\n)*.+)", (ROOT / "docs" / "examples" / f"{name}.py").read_text()
    )
]


@settings(max_examples=40)
@given(
    rows=st.integers(1, 5),
    prompts=st.integers(1, 4),
    others=st.integers(0, 5),
    width=st.integers(1, 9),
    half=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_loop_and_vectorised_prompts_are_equal(
    rows: int, prompts: int, others: int, width: int, half: bool, seed: int
) -> None:
    drawn = torch.Generator().manual_seed(seed)
    kind, sequence = torch.bfloat16 if half else torch.float32, prompts + others
    hidden = torch.randn(rows, sequence, width, generator=drawn).to(kind).requires_grad_()
    prompt = torch.randn(prompts, width, generator=drawn).to(kind).requires_grad_()
    positions = torch.stack([torch.randperm(sequence, generator=drawn)[:prompts] for _ in range(rows)])
    weights = torch.randn(rows, sequence, width, generator=drawn).to(kind)
    results = []
    for apply in APPLY_PROMPT.values():
        made = apply(hidden, prompt, positions)
        results.append((made, *torch.autograd.grad((made * weights).sum(), (hidden, prompt))))
    for loop, vectorised in zip(*results[:2], strict=True):
        assert torch.equal(loop, vectorised)
    tolerance = 0.2 if half else 1e-4
    for gated, scattered in zip(*results[2:], strict=True):
        torch.testing.assert_close(gated, scattered, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("apply", [apply_prompt_loop, apply_prompt_vectorised])
def test_each_row_has_its_prompt_at_its_positions(apply: object) -> None:
    hidden, prompt = torch.zeros(2, 4, 1), torch.tensor([[7.0], [8.0]])
    made = apply(hidden, prompt, torch.tensor([[0, 3], [2, 1]]))
    assert made.squeeze().tolist() == [[7, 0, 0, 8], [0, 8, 7, 0]]
    assert not hidden.any()


def test_training_is_equal_with_either_form() -> None:
    given = batch("loop")
    loop, vectorised = (awakened(built(form)) for form in ("loop", "vectorised"))
    assert torch.equal(loop(given), vectorised(given))
    one, other = gradients(loop, given), gradients(vectorised, given)
    assert one["inner.prompt"].any()
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.gpu
def test_both_forms_give_the_same_bits_on_a_gpu() -> None:
    drawn = torch.Generator().manual_seed(0)
    hidden, prompt = (torch.randn(*shape, generator=drawn).cuda() for shape in ((8, 32, 64), (16, 64)))
    hidden, prompt = hidden.requires_grad_(), prompt.requires_grad_()
    positions = torch.stack([torch.randperm(32, generator=drawn)[:16] for _ in range(8)]).cuda()
    results = []
    for form in ("loop", "vectorised"):
        made = APPLY_PROMPT[form](hidden, prompt, positions)
        results.append((made, *torch.autograd.grad(made.square().sum(), (hidden, prompt))))
    for loop, vectorised in zip(*results, strict=True):
        assert torch.equal(loop, vectorised)


@pytest.mark.parametrize("kind", [Tokens, PromptTokens])
@pytest.mark.parametrize("length", [20, 100])
def test_only_masked_tokens_are_labels(kind: type[Tokens], length: int) -> None:
    samples = kind(Config(model=tiny(), data=Data(sequence=length)))
    for index in range(20):
        made, again = samples[index], samples[index]
        assert all(torch.equal(made[name], again[name]) for name in made)
        masked = made["labels"] != IGNORED
        assert torch.equal(masked, made["tokens"] == MASK)
        assert 1 <= made["labels"][masked].min() <= max(made["labels"].max(), made["tokens"].max()) < 11
        prompts = made.get("prompt_positions", torch.tensor([], dtype=torch.int64))
        assert len(set(prompts.tolist())) == len(prompts) == (0 if kind is Tokens else PROMPT_LENGTH)
        assert not masked[prompts].any()
        assert masked.sum() == max(1, round(0.15 * (length - len(prompts)))) == loss.count(made)


def test_new_diffusion_model_predicts_zero() -> None:
    image, labels = batch("diffusion")
    model = built("diffusion").inner
    torch.manual_seed(1)
    noise = torch.randn_like(image)
    for function, target in ((diffusion.diffusion, noise), (diffusion.flow, image - noise)):
        torch.manual_seed(1)
        torch.testing.assert_close(function(model, (image, labels)), target.square().mean())


@pytest.mark.parametrize("time", [0.0, 1.0])
def test_model_gets_the_interpolated_image(time: float, monkeypatch: pytest.MonkeyPatch) -> None:
    image, labels = batch("diffusion")
    noise = torch.full_like(image, 5.0)
    monkeypatch.setattr(diffusion, "_drawn", lambda _batch: (image, noise, torch.full((4,), time)))
    for function, ends in ((diffusion.diffusion, (image, noise)), (diffusion.flow, (noise, image))):
        seen: list[torch.Tensor] = []
        function(lambda point, _time, _label, seen=seen: (seen.append(point), point)[1], (image, labels))
        torch.testing.assert_close(seen[0], ends[int(time)], atol=1e-6, rtol=0)


def test_prediction_depends_on_time_and_label() -> None:
    net, (image, label) = awakened(built("diffusion").inner), batch("diffusion")
    time = torch.rand(len(image))
    made = net(image, time, label)
    assert made.shape == image.shape
    assert not torch.allclose(made, net(image, 1 - time, label))
    assert not torch.allclose(made, net(image, time, (label + 1) % 7))


def test_patches_round_trip() -> None:
    image = torch.arange(2 * CHANNELS * SIDE * SIDE * 1.0).reshape(2, CHANNELS, SIDE, SIDE)
    tokens = patchify(image, 2)
    assert torch.equal(tokens[1, SIDE // 2 + 1], image[1, :, 2:4, 2:4].flatten())
    assert torch.equal(unpatchify(tokens, 2, SIDE), image)


@pytest.mark.parametrize("command", COMMANDS)
def test_command_of_an_example_trains(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "examples"))
    words = command.replace("\\\n", " ").split()
    flags = dict(zip((word[2:] for word in words[::2]), words[1::2], strict=True))
    sizes = {"width": 16, "heads": 2, "layers": 1, "sequence": 20, "batch": 2, "samples": 8, "steps": 3}
    outcome = train(load(None, flags | sizes | {"device": "cpu", "progress": False}), lambda _line: None)
    assert len(outcome.losses) == 3 and all(value == value for value in outcome.losses)


def test_documented_commands_are_found() -> None:
    assert len(COMMANDS) == 4
    assert config().model == tiny()

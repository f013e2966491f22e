from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from instrument.models.batches import (  # noqa: E402
    IGNORED,
    MASK,
    DeviceDraws,
    from_image,
    from_inputs,
    from_tokens,
    sample,
)
from tests.instrument.models.tiny import DATA, NAMES, batch, built, tiny  # noqa: E402

IMAGE = {"image": ((4, 8, 8), "float32"), "noise": ((4, 8, 8), "float32")}
POINT = {"time": ((), "float32"), "label": ((), "int64")}
TOKENS = {"tokens": ((12,), "int64"), "labels": ((12,), "int64")}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (tiny("transformer"), {"inputs": ((12, 5), "float32"), "targets": ((12,), "int64")}),
        (tiny("dit"), {**IMAGE, **POINT}),
        (tiny("flow"), {**IMAGE, **POINT}),
        (tiny("mlm"), TOKENS),
        (tiny("mlm", prompt="loop"), {**TOKENS, "prompt_positions": ((3,), "int64")}),
    ],
    ids=lambda value: value.name if hasattr(value, "name") else "",
)
def test_sample_has_the_declared_fields(model: object, expected: object) -> None:
    made = sample(model, DATA, generator())
    assert {key: (tuple(each.shape), str(each.dtype)[6:]) for key, each in made.items()} == expected


@pytest.mark.parametrize("name", NAMES)
def test_sample_depends_on_the_generator_alone(name: str) -> None:
    state = torch.get_rng_state()
    one, same, other = (sample(tiny(name), DATA, generator(seed)) for seed in (1, 1, 2))
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)
    assert torch.equal(torch.get_rng_state(), state)


def test_targets_depend_on_the_first_feature() -> None:
    inputs = torch.tensor([[-9.0], [-0.01], [0.01], [9.0], [float("inf")]])
    assert from_inputs(inputs, tiny("transformer", vocabulary=10))["targets"].tolist() == [0, 4, 5, 9, 9]


@pytest.mark.parametrize("prompt", ["none", "loop", "vectorised"])
@pytest.mark.parametrize("length", [4, 12, 100])
def test_only_masked_tokens_are_labels(prompt: str, length: int) -> None:
    model = tiny("mlm", prompt=prompt)
    for seed in range(20):
        tokens = torch.randint(1, 11, (length,), generator=generator(seed))
        made = from_tokens(tokens, model, generator(seed))
        asked = made["labels"] != IGNORED
        assert torch.equal(asked, made["tokens"] == MASK)
        assert torch.equal(torch.where(asked, made["labels"], made["tokens"]), tokens)
        prompts = made.get("prompt_positions", torch.tensor([], dtype=torch.int64))
        assert len(set(prompts.tolist())) == len(prompts) == (0 if prompt == "none" else 3)
        assert not asked[prompts].any()
        assert asked.sum() == max(1, round(0.15 * (length - len(prompts))))


def test_synthetic_tokens_are_in_the_vocabulary() -> None:
    for vocabulary in (2, 11):
        model = tiny("mlm", vocabulary=vocabulary)
        made = sample(model, DATA, generator())
        assert 0 <= made["tokens"].min() <= made["tokens"].max() < vocabulary
        asked = made["labels"][made["labels"] != IGNORED]
        assert 1 <= asked.min() <= asked.max() < vocabulary


def test_given_image_keeps_its_label_and_gets_noise() -> None:
    image = torch.ones(4, 8, 8, dtype=torch.uint8)
    made = from_image(image, tiny("dit"), generator(), label=5)
    assert made["image"].dtype == torch.float32
    assert made["label"] == 5
    unlabelled = from_image(image, tiny("dit"), generator())
    assert torch.equal(unlabelled["noise"], made["noise"])
    assert 0 <= unlabelled["label"] < 7


@pytest.mark.parametrize(("name", "prompt"), [("dit", "none"), ("flow", "none"), ("mlm", "none"), ("mlm", "gated")])
def test_device_draws_what_the_host_left_out(name: str, prompt: str) -> None:
    model = tiny(name, prompt=prompt, draw="device")
    host, left = batch(tiny(name, prompt=prompt)), batch(model)
    assert set(left) == {"dit": {"image", "label"}, "flow": {"image", "label"}, "mlm": {"tokens"}}[name]
    draws = DeviceDraws(model, seed=3)
    made, again, other = draws(left, 5), draws(left, 5), next(draws.over(iter([left]), 6))
    assert {key: (value.shape, value.dtype) for key, value in made.items()} == {
        key: (value.shape, value.dtype) for key, value in host.items()
    }
    assert all(torch.equal(made[key], again[key]) for key in made)
    assert any(not torch.equal(made[key], other[key]) for key in made)
    assert any(not torch.equal(made[key], DeviceDraws(model, 3, rank=1)(left, 5)[key]) for key in made)
    assert torch.isfinite(built(model)(made))
    if name == "mlm":
        masked = made["tokens"] == MASK
        assert torch.equal(masked, made["labels"] != IGNORED)
        assert torch.equal(torch.where(masked, made["labels"], made["tokens"]), left["tokens"])
        assert masked.sum(1).tolist() == (host["tokens"] == MASK).sum(1).tolist()

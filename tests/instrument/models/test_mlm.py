from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from instrument.models.mlm import APPLY_PROMPT, apply_prompt_loop, apply_prompt_vectorised  # noqa: E402
from tests.instrument.models.tiny import awakened, batch, built, gradients, tiny  # noqa: E402


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
    given = batch(tiny("mlm", prompt="loop"))
    loop, vectorised = (awakened(built(tiny("mlm", prompt=form))) for form in ("loop", "vectorised"))
    assert torch.equal(loop(given), vectorised(given))
    one, other = gradients(loop, given), gradients(vectorised, given)
    assert one["prompt"].any()
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.gpu
def test_both_forms_give_the_same_bits_on_a_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA")
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

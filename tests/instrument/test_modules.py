from __future__ import annotations

import copy
import gc
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from instrument import ranges
from instrument.modules import annotate_module
from tests.instrument.test_ranges import Log, Recorder, assert_nested


def tree(log: Log) -> list[str]:
    """Return the opened ranges in order, indented by the ranges around them on their thread."""
    depth: dict[int, int] = {}
    lines = []
    for what, name, thread in log:
        if what == "push":
            lines.append("  " * depth.get(thread, 0) + name)
        depth[thread] = depth.get(thread, 0) + (1 if what == "push" else -1)
    return lines


def given() -> Tensor:
    """Return an input that requires a gradient."""
    return torch.ones(2, 3, requires_grad=True) * 1


def trained(recorder: Recorder, model: nn.Module, *inputs: Any) -> list[str]:
    """Return the ranges of a forward and a backward pass, as a tree."""
    annotate_module(model)
    model(*(inputs or (given(),))).sum().backward()
    assert_nested(recorder.log)
    return tree(recorder.log)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def test_ranges_nest_like_modules(recorder: Recorder) -> None:
    assert trained(recorder, nn.Sequential(nn.Linear(3, 3), Residual()), torch.ones(2, 3)) == [
        *("Sequential", "  0", "  1", "    1.inner", "      1.inner.0", "      1.inner.1"),
        *("Sequential backward", "  1 backward", "    1.inner backward"),
        *("      1.inner.1 backward", "      1.inner.0 backward", "  0 backward"),
    ]


def test_backward_ends_with_the_input_gradient(recorder: Recorder) -> None:
    layer = nn.Linear(3, 3)
    annotate_module(layer, prefix="layer")
    x = given()
    x.register_hook(lambda _gradient: recorder.log.append(("push", "after", threading.get_ident())))
    y = layer(x)
    loss = y.exp()  # what is not the module's is not in its range
    y.register_hook(lambda _gradient: recorder.log.append(("push", "inside", threading.get_ident())))
    loss.sum().backward()
    words = recorder.words
    assert words.index("push layer backward") < words.index("push inside") < words.index("pop layer backward")
    assert words[:2] == ["push layer", "pop layer"]
    assert recorder.words.count("pop layer backward") == 1


def test_backward_range_is_on_the_autograd_thread(recorder: Recorder) -> None:
    layer = nn.Linear(3, 3)
    annotate_module(layer, prefix="layer")
    loss = layer(given()).sum()
    running = threading.Thread(target=loss.backward)
    running.start()
    running.join()
    here, there = ({thread for _, name, thread in recorder.log if name == each} for each in ("layer", "layer backward"))
    assert here == {threading.get_ident()}
    assert len(there) == 1
    assert here != there
    assert_nested(recorder.log)


def test_module_called_twice_has_two_ranges(recorder: Recorder) -> None:
    layer = nn.Linear(3, 3)
    annotate_module(layer, prefix="layer")
    layer(layer(given()).relu()).sum().backward()
    assert recorder.words == ["push layer", "pop layer"] * 2 + ["push layer backward", "pop layer backward"] * 2


def test_recursive_module_has_nested_ranges(recorder: Recorder) -> None:
    class Down(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Tensor, levels: int) -> Tensor:
            return self(self.linear(x), levels - 1) if levels else self.linear(x)

    assert trained(recorder, Down(), given(), 1) == [
        *("Down", "  linear", "  Down", "    linear"),
        *("Down backward", "  Down backward", "    linear backward", "  linear backward"),
    ]


def test_forward_error_closes_every_range(recorder: Recorder) -> None:
    class Failing(nn.Module):
        def forward(self, _x: Tensor) -> Tensor:
            raise ValueError("no")

    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(Failing()))
    annotate_module(model)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            model(given())
    assert_nested(recorder.log)
    assert tree(recorder.log) == ["Sequential", "  0", "  1", "    1.0"] * 2


def test_early_hook_error_closes_no_range(recorder: Recorder) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("refused")

    model = nn.Sequential(nn.Linear(3, 3))
    annotate_module(model)
    model[0].register_forward_pre_hook(refuse, prepend=True)
    with pytest.raises(ValueError, match="refused"):
        model(given())
    assert recorder.words == ["push Sequential", "pop Sequential"]


def test_ranges_recover_after_backward_error(recorder: Recorder) -> None:
    def refuse(_gradient: Tensor) -> None:
        raise ValueError("refused")

    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    annotate_module(model)
    hidden = model[0](given())
    hidden.register_hook(refuse)
    with pytest.raises(ValueError, match="refused"):
        model[1](hidden).sum().backward()
    model(given()).sum().backward()
    assert_nested(recorder.log)
    assert tree(recorder.log)[-6:] == [
        *("Sequential", "  0", "  1", "Sequential backward", "  1 backward", "  0 backward"),
    ]


@pytest.mark.parametrize("frozen", ["first", "last", "all"])
def test_frozen_parameters_have_no_backward_range(recorder: Recorder, frozen: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1))
    annotate_module(model)
    for layer in {"first": model[:1], "last": model[2:], "all": model}[frozen]:
        layer.requires_grad_(False)
    loss = model(torch.ones(2, 3)).sum()
    if frozen != "all":
        loss.backward()
    assert_nested(recorder.log)
    backward = [line for line in tree(recorder.log) if "backward" in line]
    assert (
        backward
        == {
            "first": ["Sequential backward", "  2 backward", "  1 backward"],
            "last": ["Sequential backward", "  2 backward", "  1 backward", "  0 backward"],
            "all": [],
        }[frozen]
    )


def test_no_backward_range_without_gradients(recorder: Recorder) -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    annotate_module(model)
    with torch.no_grad():
        model(torch.ones(2, 3))
    with torch.inference_mode():
        model(torch.ones(2, 3))
    assert tree(recorder.log) == ["Sequential", "  0"] * 2


@dataclass
class Named:
    hidden: Tensor
    note: str = "a leaf that is not a tensor"


@pytest.mark.parametrize(
    "form",
    [
        lambda h: (h, None),
        lambda h: {"hidden": h, "scale": 2.0},
        lambda h: [[h], "text"],
        lambda h: Named(h),
    ],
    ids=["tuple", "dict", "nested list", "dataclass"],
)
def test_outputs_of_any_form_have_a_backward_range(recorder: Recorder, form: Any) -> None:
    class Formed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, *, x: dict[str, Tensor]) -> Any:
            return form(self.linear(x["x"]))

    model = Formed()
    annotate_module(model)
    out = model(x={"x": given()})
    hidden = out.hidden if isinstance(out, Named) else out["hidden"] if isinstance(out, dict) else out[0]
    (hidden[0] if isinstance(hidden, list) else hidden).sum().backward()
    assert_nested(recorder.log)
    assert tree(recorder.log) == ["Formed", "  linear", "Formed backward", "  linear backward"]


def test_unused_and_late_outputs_leave_one_range(recorder: Recorder) -> None:
    class Three(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.unused = (nn.Linear(3, 3) for _ in range(3))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            early = self.first(x)
            return early, self.second(early), self.unused(x)

    model = Three()
    annotate_module(model)
    early, late, _unused = model(given())
    (early.sum() + late.sum()).backward()
    assert_nested(recorder.log)
    assert tree(recorder.log)[4:] == ["Three backward", "  second backward", "  first backward"]


def test_ranges_of_parallel_towers_do_not_nest(recorder: Recorder) -> None:
    towers = nn.ModuleList(nn.Sequential(nn.Linear(3, 3)) for _ in range(2))
    annotate_module(towers)
    (towers[0](torch.ones(2, 3)) * towers[1](torch.ones(2, 3))).sum().backward()
    assert_nested(recorder.log)
    assert tree(recorder.log)[4:] == ["1 backward", "  1.0 backward", "0 backward", "  0.0 backward"]


def test_identity_and_in_place_modules(recorder: Recorder) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Identity(), nn.Linear(3, 3))
    annotate_module(model)
    model(given()).mul_(2).sum().backward()  # in place on an output, too
    assert_nested(recorder.log)
    assert tree(recorder.log)[5:] == ["Sequential backward", "  3 backward", "  1 backward", "  0 backward"]


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_is_inside_the_backward_range(recorder: Recorder, reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.head = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(checkpoint(self.block, x, use_reentrant=reentrant))

    lines = [line.strip() for line in trained(recorder, Checkpointed())]
    assert lines.count("block") == lines.count("block.0") == 2
    assert lines.count("block backward") == lines.count("block.0 backward") == 1
    assert lines.index("Checkpointed backward") < len(lines) - 1 - lines[::-1].index("block")


def test_two_backward_passes_through_a_graph(recorder: Recorder) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    annotate_module(model, backward=True)
    loss = model(given()).sum()
    loss.backward(retain_graph=True)
    once = tree(recorder.log)[3:]
    recorder.log.clear()
    loss.backward()
    assert tree(recorder.log) == once == ["Sequential backward", "  1 backward", "  0 backward"]
    assert_nested(recorder.log)


def test_gradient_inside_a_forward_stays_inside_it(recorder: Recorder) -> None:
    class Energy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.energy = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            (force,) = torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)
            return force

    assert trained(recorder, Energy())[:3] == ["Energy", "  energy", "  energy backward"]


def test_depth_prefix_and_backward_select_ranges(recorder: Recorder) -> None:
    def names(**chosen: Any) -> list[str]:
        recorder.log.clear()
        model = nn.Sequential(nn.Sequential(nn.Linear(3, 3)))
        annotate_module(model, **chosen)
        model(given()).sum().backward()
        return [line.strip() for line in tree(recorder.log)]

    assert names(depth=0) == ["Sequential", "Sequential backward"]
    assert names(depth=1, backward=False) == ["Sequential", "0"]
    assert names(depth=2, backward=False, prefix="encoder.") == ["encoder", "encoder.0", "encoder.0.0"]


def test_module_ranges_have_their_own_category(recorder: Recorder) -> None:
    annotate_module(nn.Linear(3, 3))
    assert recorder.made == [
        ("Linear", None, None, "module", None),
        ("Linear backward", None, None, "module", None),
    ]


def hooks_on(model: nn.Module) -> list[object]:
    kept = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    flags = ("_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called")
    return [hook for part in model.modules() for name in kept + flags for hook in getattr(part, name).values()]


def test_removal_removes_every_hook(recorder: Recorder) -> None:
    model = nn.Sequential(nn.Linear(3, 3), Residual())
    annotation = annotate_module(model)
    loss = model(given()).sum()
    annotation.remove()
    annotation.remove()
    assert hooks_on(model) == []
    recorder.log.clear()
    loss.backward()
    model(given()).sum().backward()
    assert recorder.log == []


def test_tensors_of_a_step_are_freed(recorder: Recorder) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Identity(), nn.ReLU(inplace=True))
    annotate_module(model)
    x = given()
    node, loss = weakref.ref(x), model(x).sum()
    gc.disable()  # what only a collection frees, memory waits for
    try:
        del x
        loss.backward()
        del loss
        assert node() is None
        abandoned = given()
        node, out = weakref.ref(abandoned), model(abandoned)
        del abandoned, out
        assert node() is None
    finally:
        gc.enable()
    assert recorder.log


def test_gradients_and_deep_copies_do_not_change(recorder: Recorder) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 3), Residual())
    marked = copy.deepcopy(plain)
    annotate_module(marked)
    again = copy.deepcopy(marked)
    for model in (plain, marked, again):
        model(given()).square().sum().backward()
    for one, two, three in zip(plain.parameters(), marked.parameters(), again.parameters(), strict=True):
        assert one.grad is not None
        assert torch.equal(one.grad, two.grad)
        assert torch.equal(one.grad, three.grad)
    assert_nested(recorder.log)


def test_compiled_model_has_no_graph_break(recorder: Recorder) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    annotate_module(model)
    recorder.log.clear()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    x = torch.ones(2, 3)
    compiled(x).sum().backward()
    assert recorder.log == []
    assert torch.equal(compiled(x), model(x))
    assert tree(recorder.log)[:3] == ["Sequential", "  0", "  1"]


def test_torch_profiler_gets_module_ranges_without_nvtx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "nvtx", None)
    model = nn.Sequential(nn.Linear(3, 3))
    annotation = annotate_module(model)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        model(torch.zeros(2, 3)).sum().backward()
    names = [event.name for event in profile.events() if not event.name.startswith(("aten::", "autograd::"))]
    assert [name for name in names if name in ("Sequential", "0", "0 backward")] == ["Sequential", "0", "0 backward"]
    annotation.remove()
    assert hooks_on(model) == []


def test_real_nvtx_accepts_module_ranges() -> None:
    pytest.importorskip("nvtx")
    model = nn.Sequential(nn.Linear(3, 3), Residual())
    annotation = annotate_module(model)
    model(given()).sum().backward()
    annotation.remove()
    assert hooks_on(model) == []


@pytest.mark.gpu
def test_backward_range_is_on_the_autograd_thread_of_a_gpu(recorder: Recorder) -> None:
    model = nn.Sequential(nn.Linear(3, 3), Residual()).cuda()
    annotate_module(model)
    for _ in range(2):
        model(torch.ones(2, 3, device="cuda")).sum().backward()
    assert_nested(recorder.log)
    threads = {thread for _, name, thread in recorder.log if name.endswith(" backward")}
    assert threading.get_ident() not in threads
    assert len(threads) == 1

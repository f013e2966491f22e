"""Under torch.compile, ranges and marks add no graph break and no operator; eager ranges around it stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("nvtx")

from instrument import annotate, annotate_module, mark, phase
from tests.instrument.test_ranges import Recorder

nn = torch.nn
# Dynamo warns about code of torch itself, in some versions.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:TensorFloat32 tensor cores"
)


class Four(nn.Module):
    """Four linear layers; subclasses annotate them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


class InBlocks(Four):
    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            with annotate("layer", color="green", domain="model", payload=4):
                x = layer(x)
        return x


class InPhases(Four):
    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            with phase("forward"), annotate("inner"):
                x = layer(x)
        return x


class Marked(Four):
    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            mark("layer", color="red")
            x = layer(x)
        return x


class Decorated(Four):
    @annotate()
    def forward(self, x: Any) -> Any:
        return self.all_layers(x)

    @phase("layers")
    def all_layers(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


class WithGenerator(Four):
    def forward(self, x: Any) -> Any:
        for layer in self.generated():
            x = layer(x)
        return x

    @annotate("layers")
    def generated(self) -> Iterator[Any]:
        yield from self.layers


def with_modules_annotated() -> Any:
    model = Four()
    annotate_module(model)
    return model


ANNOTATED: list[Callable[[], Any]] = [InBlocks, InPhases, Marked, Decorated, WithGenerator, with_modules_annotated]


def compiled(model: Any) -> tuple[Any, list[list[str]]]:
    """Compile a model in one graph; return it, and the operators of each graph that its calls make."""
    graphs: list[list[str]] = []

    def backend(module: Any, inputs: list[Any]) -> Any:
        graphs.append([str(node.target) for node in module.graph.nodes if node.op.startswith("call")])
        return torch._dynamo.lookup_backend("aot_eager")(module, inputs)

    torch._dynamo.reset()
    return torch.compile(model, backend=backend, fullgraph=True), graphs


def gradients(model: Any, call: Any) -> list[Any]:
    model.zero_grad()
    call(torch.ones(2, 3)).sum().backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("build", ANNOTATED, ids=lambda build: build.__name__)
def test_ranges_do_not_change_the_graph(build: Callable[[], Any]) -> None:
    plain, plain_graphs = compiled(Four())
    model, graphs = compiled(build())
    x = torch.ones(2, 3)
    with torch.no_grad():
        assert torch.equal(model(x), plain(x))
    assert graphs == plain_graphs
    assert len(graphs) == 1 and len(graphs[0]) == 4


@pytest.mark.parametrize("build", ANNOTATED, ids=lambda build: build.__name__)
def test_compiled_model_with_ranges_trains(build: Callable[[], Any]) -> None:
    eager = build()
    model, graphs = compiled(build())
    for expected, got in zip(gradients(eager, eager), gradients(model, model), strict=True):
        torch.testing.assert_close(got, expected)
    assert len(graphs) == 1


def test_ranges_outside_the_compiled_model_are_recorded(recorder: Recorder) -> None:
    model, _graphs = compiled(InBlocks())
    around = phase("forward")
    for _step in range(2):
        with around:
            model(torch.ones(2, 3))
        mark("done")
    assert recorder.words == ["push forward", "pop forward"] * 2
    assert [made[0] for made in recorder.marks] == ["done", "done"]


def test_eager_model_has_its_ranges(recorder: Recorder) -> None:
    InBlocks()(torch.ones(2, 3))
    assert recorder.words == ["push layer", "pop layer"] * 4


@pytest.mark.gpu
@pytest.mark.parametrize("build", ANNOTATED, ids=lambda build: build.__name__)
def test_inductor_compiles_a_model_with_ranges(build: Callable[[], Any]) -> None:
    eager = build().cuda()
    torch._dynamo.reset()
    model = torch.compile(eager, fullgraph=True)
    x = torch.ones(2, 3, device="cuda")
    torch.testing.assert_close(model(x), eager(x), rtol=1e-3, atol=1e-3)

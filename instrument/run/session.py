"""Names the phases of this process, once it imports torch, and of the processes that it spawns."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from instrument.run.live import Live
    from instrument.run.steps import ProgramSteps

# Functions that save a state, beside torch.save.
SAVES = {"safetensors.torch": "save_file", "torch.distributed.checkpoint": "save"}
ROOT = str(Path(__file__).parents[2])


Action = Callable[[ModuleType], None]


@dataclass(frozen=True, slots=True)
class Options:
    """What is recorded.

    Attributes:
        depth: the levels of modules that get ranges; 0 for `forward` alone.
        live: the seconds between two lines of step times; None for no lines.
        traces: whether to record a trace of the step after a slow one.
    """

    depth: int = 0
    live: float | None = None
    traces: bool = False


class Session:
    """The ranges of this process, from its import of torch to `close`."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._steps: ProgramSteps | None = None
        self._live: Live | None = None
        actions: dict[str, Action] = dict.fromkeys(SAVES, self._on_save)
        actions |= {"torch": self._on_torch, "torch._dynamo": _on_dynamo, "multiprocessing.spawn": self._on_spawn}
        AfterImport(actions)

    def close(self) -> None:
        """End the last iteration, and show its times."""
        if self._steps is not None:
            self._steps.close()
        if self._live is not None:
            self._live.close()

    def _on_torch(self, _torch: ModuleType) -> None:
        from instrument.run.live import Live
        from instrument.run.patches import patch_torch
        from instrument.run.steps import ProgramSteps

        if self._options.live is not None or self._options.traces:
            self._live = Live(self._options.live, traces=self._options.traces)
        self._steps = ProgramSteps(self._live)
        patch_torch(self._steps, self._options.depth)

    def _on_save(self, module: ModuleType) -> None:
        from instrument.run.patches import patch_save

        if self._steps is not None:
            patch_save(self._steps, module, SAVES[module.__name__])

    def _on_spawn(self, spawn: ModuleType) -> None:
        """Let processes that are spawned start with a session too: torch.multiprocessing.spawn trains in them."""
        prepare, start = spawn.get_preparation_data, _Start(self._options)

        def get_preparation_data(name: str) -> dict[str, Any]:
            return {"instrument": start, **prepare(name)}

        spawn.get_preparation_data = get_preparation_data  # type: ignore[attr-defined]


class AfterImport(MetaPathFinder):
    """Runs each action once, right after its module's first import; at once if the module is imported already.

    An early import of torch would read settings, such as OMP_NUM_THREADS, that the program sets before its own import.

    Args:
        actions: the action for each full name of a module.
    """

    def __init__(self, actions: dict[str, Action]) -> None:
        self._actions = {name: action for name, action in actions.items() if name not in sys.modules}
        for name in actions.keys() - self._actions.keys():
            actions[name](sys.modules[name])
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Let the other finders find a module, and run its action after its code."""
        action = self._actions.pop(name, None)
        spec = importlib.util.find_spec(name) if action is not None else None
        if action is None or spec is None or spec.loader is None:
            return None
        loader = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # the attribute hid the method of the class
            execute(module)
            action(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


class _Start:
    """Becomes a session where it is unpickled; a process that cannot import this package runs without."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def __reduce__(self) -> tuple[Any, ...]:
        text = (
            f"import sys; sys.path.append({ROOT!r})\n"
            f"try:\n    from instrument.run.session import Options, Session\n    Session({self._options!r})\n"
            "except ImportError:\n    pass\nfinally:\n    sys.path.pop()"
        )
        return exec, (text,)


def _on_dynamo(dynamo: ModuleType) -> None:
    if "instrument.run.patches" in sys.modules:
        from instrument.run.patches import patch_dynamo

        patch_dynamo(dynamo)

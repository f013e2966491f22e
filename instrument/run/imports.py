"""Runs an action when a module has been imported, without importing it earlier than the program does.

An early import of torch would read settings, such as OMP_NUM_THREADS, that the program sets before its own import.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Action = Callable[[ModuleType], None]


class AfterImport(MetaPathFinder):
    """Runs each action once, right after its module's first import; at once if the module is imported already.

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

"""Runs a script or a module as `python` would: the same `__main__`, sys.argv, sys.path, exit code and traceback."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import io
import sys
from collections.abc import Sequence
from importlib.abc import InspectLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType

PACKAGE = str(Path(__file__).parent)  # the folder whose frames no traceback shows
RUNPY = "<frozen runpy>"


def load_script(path: str, arguments: Sequence[str]) -> tuple[ModuleType, CodeType]:
    """Return the main module and code of `python PATH`, and set sys.argv and sys.path for it.

    Raises:
        OSError: the file cannot be read.
        SyntaxError: it is not Python.
    """
    absolute = str(Path.cwd() / path)
    with io.open_code(absolute) as source:
        code = compile(source.read(), absolute, "exec", dont_inherit=True)
    sys.argv[:] = [path, *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(Path(absolute).resolve().parent)
    return _main_module(importlib.machinery.SourceFileLoader("__main__", absolute), absolute), code


def load_module(name: str, arguments: Sequence[str]) -> tuple[ModuleType, CodeType]:
    """Return the main module and code of `python -m NAME`, and set sys.argv for it.

    Raises:
        ImportError: there is no such module, or it is a package that cannot be run.
    """
    spec, main = importlib.util.find_spec(name), name
    if spec is not None and spec.submodule_search_locations is not None:
        main = f"{name}.__main__"
        spec = importlib.util.find_spec(main)
    code = spec.loader.get_code(main) if spec and isinstance(spec.loader, InspectLoader) else None
    if spec is None or code is None:
        package = "" if main == name else f"; {name!r} is a package and cannot be directly executed"
        raise ImportError(f"No module named {main}{package}")
    sys.argv[:] = [spec.origin or name, *arguments]
    module = _main_module(spec.loader, spec.origin, spec.cached)
    module.__spec__, module.__package__ = spec, spec.parent
    return module, code


def run_as_main(module: ModuleType, code: CodeType, *, is_script: bool) -> None:
    """Run code as the program's main module. An exception that leaves it is shown without the frames of this package.

    Args:
        module: the main module, from `load_script` or `load_module`.
        code: its code.
        is_script: whether it is a script, whose tracebacks do not show runpy.
    """
    sys.modules["__main__"] = module
    try:
        exec(code, module.__dict__)
    except SystemExit:
        raise
    except BaseException:
        show_as_python(is_script=is_script)
        raise


def show_as_python(*, is_script: bool) -> None:
    """Remove the frames of this package from the exception that ends the program, when Python shows it."""
    shown = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        _clean(error, set(), is_script=is_script)
        shown(kind, error, error.__traceback__)

    sys.excepthook = show


def _main_module(loader: object, path: str | None, cached: str | None = None) -> ModuleType:
    """Return a new main module. Its loader does not call it `__main__`, so only its names are set."""
    module = ModuleType("__main__")
    attributes = {"__loader__": loader, "__file__": path, "__cached__": cached, "__builtins__": sys.modules["builtins"]}
    module.__dict__.update(attributes)
    if sys.version_info < (3, 14):
        module.__annotations__ = {}
    return module


def _clean(error: BaseException | None, cleaned: set[int], *, is_script: bool) -> None:
    """Clean the traceback of an exception, its causes and its contexts."""
    if error is None or id(error) in cleaned:
        return
    cleaned.add(id(error))
    error.__traceback__ = _without_own(error.__traceback__, is_script=is_script)
    for other in (error.__cause__, error.__context__, *getattr(error, "exceptions", ())):
        _clean(other, cleaned, is_script=is_script)


def _without_own(trace: TracebackType | None, *, is_script: bool) -> TracebackType | None:
    kept = []
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if not (path.startswith(PACKAGE) or (is_script and path == RUNPY)):
            kept.append(trace)
        trace = trace.tb_next
    following = None
    for each in reversed(kept):
        each.tb_next, following = following, each
    return following

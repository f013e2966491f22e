"""Import what a reference such as "package.module:name" names. Every problem is one line."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from instrument.config.schema import Config
from instrument.config.settings import did_you_mean
from instrument.errors import ConfigError, InstrumentError

_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))


def load_reference(setting: str, text: str) -> Any:
    """Return the object that "package.module:name" or "folder/file.py:name" names; `name` may have dots.

    Args:
        setting: the flag that holds the reference, for error messages, such as "--model".
        text: the reference.

    Raises:
        ConfigError: the module cannot be imported, or it has no such name.
    """
    module_name, _, path = text.rpartition(":")
    try:
        value: Any = _imported(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"{setting} {text}: no module named {error.name} in the current folder or the environment; "
                "run the command in the folder of your code, or set PYTHONPATH"
            ) from None
        raise ConfigError(f"{setting} {text}: {error_line(error)}") from error
    except Exception as error:
        raise ConfigError(f"{setting} {text}: the import fails with {error_line(error)}") from error
    for name in path.split("."):
        if not hasattr(value, name):
            hint = did_you_mean(name, tuple(vars(value))) if hasattr(value, "__dict__") else ""
            raise ConfigError(f"{setting} {text}: {module_name} has no {name}{hint}")
        value = getattr(value, name)
    return value


def _imported(name: str) -> Any:
    """Import a module by its name, or by the path of its file."""
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(name).resolve()
    if not path.is_file():
        raise FileNotFoundError(f"{name} does not exist")
    loaded = sys.modules.get(path.stem)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    # Its folder is searched too, so that it imports its neighbours and worker processes import it.
    sys.path.insert(0, str(path.parent))
    return importlib.import_module(path.stem)


def call_reference(setting: str, text: str, function: Any, config: Config) -> Any:
    """Return the result of a factory. It is called with the configuration if a parameter is called `config`.

    Raises:
        ConfigError: the factory raised an exception.
    """
    try:
        return function(config=config) if takes_config(function) else function()
    except InstrumentError:
        raise
    except Exception as error:
        raise ConfigError(f"{setting} {text}: calling it fails with {error_line(error)}") from error


def takes_config(function: Any) -> bool:
    """Return whether a factory has a parameter called `config`."""
    try:
        return "config" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # some built-in functions have no signature
        return False


def error_line(error: BaseException) -> str:
    """Return an exception with the place where it was raised, in one line: "ValueError: no width (mine.py:12)"."""
    message = " ".join(str(error).split())
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    # The user's own line, if there is one, and not torch's that it calls.
    frames = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)] or frames
    last = frames[-1] if frames else None
    if last is None or last.filename == __file__:
        return text
    return f"{text} ({Path(last.filename).name}:{last.lineno})"

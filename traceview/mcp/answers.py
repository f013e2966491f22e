"""What an agent sees of the tools: their arguments and results (tools.toml), and answers of at most MAX_BYTES.

`from_capture` names the keys whose texts come from a capture. Control characters, and format characters such as those
that reverse a line or hide text, are replaced in every text.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.types import CallToolResult, ToolAnnotations
from pydantic import ConfigDict, Field, ValidationError, create_model

from traceview.model.catalogue import read_toml
from traceview.model.units import plain, safe_text

TOOLS = read_toml(Path(__file__).with_name("tools.toml"))
# The types of results by their name in tools.toml.
KINDS: Mapping[str, Any] = {
    "string": str,
    "strings": list[str],
    "reasons": str | list[str],
    "integer": int,
    "integers": list[int],
    "number": float,
    "list": list[Any],
    "object": dict[str, Any],
    "counts": dict[str, int],
    "any": Any,
}
ALWAYS = "cannot_be_answered left_out from_capture"
MAX_BYTES = 4_000
MAX_TEXT = 1_000  # characters of one text
MIN_TEXT = 60
# Keys whose texts are words of traceview. The texts of all others are marked: they can hold a name from the capture.
OWN_KEYS = frozenset(
    (
        *("affects", "cause", "claims", "confidence", "device", "direction", "family", "id", "kind"),
        *("matched_by", "memory", "method", "part", "precision", "profiler", "severity", "source", "status", "table"),
        *("tensor_core", "verdict", "nsys_version", "schema_version"),
    )
)
NAMES_AS_KEYS = ("waits", "waits_for", "host_waits", "host_waits_for")  # objects whose keys are names

Row = Mapping[str, Any]
Answer = dict[str, Any]


def chosen(row: Row, *names: str) -> Answer:
    """Return some values of a row."""
    return {name: row[name] for name in names if name in row}


def matching(rows: Sequence[Row], text: str) -> list[Row]:
    """Return the rows in which a text contains `text`, in any case; all rows if it is empty."""
    wanted = text.casefold()
    return [row for row in rows if not wanted or any(wanted in str(value).casefold() for value in row.values())]


def fitted(answer: Answer, limit: int = MAX_BYTES) -> Answer:
    """Return an answer of at most `limit` bytes as JSON. Values that are null or empty are left out.

    Lists lose their last rows first, then texts their ends. `left_out` has the number of rows that each list lost, and
    `from_capture` the keys whose texts come from a capture.
    """
    answer = _without_empty(answer)
    if marked := sorted(set(_keys_of_names(answer))):
        answer["from_capture"] = marked
    while len(encoded(answer)) > limit and _drop_row(answer):
        pass
    longest, cut = MAX_TEXT, answer
    while len(encoded(cut)) > limit and longest > MIN_TEXT:
        longest //= 2
        cut = _cut_texts(answer, longest)
    return cut


def _keys_of_names(value: Any, key: str = "") -> Iterator[str]:
    """Yield the keys of texts that are not traceview's words; a text in a list has the key of the list."""
    if isinstance(value, Mapping):
        if key in NAMES_AS_KEYS:
            yield key
        for name, inner in value.items():
            yield from _keys_of_names(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _keys_of_names(inner, key)
    elif isinstance(value, str) and key not in OWN_KEYS:
        yield key


def encoded(answer: Answer) -> str:
    """Return an answer as JSON in ASCII."""
    return json.dumps(answer, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def _without_empty(value: Any) -> Any:
    """Return a value without null and empty values; zeros and false stay."""
    if isinstance(value, Mapping):
        kept = {safe_text(key): _without_empty(inner) for key, inner in value.items()}
        return {key: inner for key, inner in kept.items() if inner is not None and inner not in ("", [], {})}
    if isinstance(value, (list, tuple)):
        return [_without_empty(inner) for inner in value]
    if not isinstance(value, str):
        return value
    return safe_text(value if len(value) <= MAX_TEXT else f"{value[:MAX_TEXT]}…")


def _drop_row(answer: Answer) -> bool:
    """Remove the last row of the largest list of rows, and count it; return whether there was one."""
    lists = [(len(encoded({"": rows})), name, rows) for name, rows in _lists(answer) if len(rows) > 1]
    if not lists:
        return False
    _, name, rows = max(lists, key=lambda item: item[0])
    rows.pop()
    answer.setdefault("left_out", {})
    answer["left_out"][name] = answer["left_out"].get(name, 0) + 1
    return True


def _lists(value: Any, name: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Yield every list of objects with its key."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _lists(inner, key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        yield name, value
        for inner in value:
            yield from _lists(inner, name)


def _cut_texts(value: Any, longest: int) -> Any:
    if isinstance(value, dict):
        return {key: _cut_texts(inner, longest) for key, inner in value.items()}
    if isinstance(value, list):
        return [_cut_texts(inner, longest) for inner in value]
    return f"{value[:longest]}…" if isinstance(value, str) and len(value) > longest else value


def first_rows(answer: Answer, name: str, rows: Sequence[Row], count: int) -> Answer:
    """Return an answer with the first rows of a list, and the number of rows that it leaves out."""
    left = {name: len(rows) - count} if len(rows) > count else {}
    return {**answer, name: list(rows[:count]), "left_out": {**answer.get("left_out", {}), **left}}


class AgentTool(Tool):
    """A tool that refuses arguments in words of its own."""

    async def run(self, arguments: dict[str, Any], context: Any, convert_result: bool = False) -> Any:
        """Run the tool. Raises ToolError, which names the argument and the remedy, if an argument does not fit."""
        try:
            self.fn_metadata.validate_arguments(arguments)
        except ValidationError as error:
            raise ToolError(self._refusal(error)) from None
        return await super().run(arguments, context, convert_result)

    def _refusal(self, error: ValidationError) -> str:
        first = error.errors(include_url=False, include_context=True)[0]
        name = plain(".".join(map(str, first["loc"])), 100)
        takes = f"{self.name} takes {', '.join(self.parameters['properties'])}"
        if first["type"] == "extra_forbidden":
            return f"no argument is called {name!r}; {takes}"
        if first["type"] == "missing":
            return f"the argument {name} is missing; {takes}"
        if first["type"] == "literal_error":
            return f"{name}={plain(repr(first['input']), 60)}: choose {first['ctx']['expected']}"
        return f"{name}: {first['msg'].removeprefix('Input ')}; {takes}"


def agent_tool(name: str, function: Callable[..., CallToolResult]) -> Tool:
    """Return a tool with the schemas of its arguments and its result; it takes no other argument."""
    known = f"{TOOLS['results'][name]} {ALWAYS}".split()
    kinds = {key: (kind, text) for kind, keys in TOOLS["keys"].items() for key, text in keys.items()}
    fields: Any = {key: (KINDS[kinds[key][0]] | None, Field(None, description=kinds[key][1])) for key in known}
    result = create_model(f"{name}_result", __config__=ConfigDict(extra="forbid"), **fields)
    signature = inspect.signature(function, eval_str=True)
    function.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[_described(parameter) for parameter in signature.parameters.values()],
        return_annotation=Annotated[CallToolResult, result],
    )
    tool = AgentTool.from_function(function, name=name, annotations=ToolAnnotations(read_only_hint=True))
    model = tool.fn_metadata.arg_model
    model.model_config["extra"] = "forbid"
    model.model_rebuild(force=True)
    tool.parameters = model.model_json_schema(by_alias=True)
    return tool


def _described(parameter: inspect.Parameter) -> inspect.Parameter:
    text = TOOLS["arguments"][parameter.name]
    return parameter.replace(annotation=Annotated[parameter.annotation, Field(description=text)])

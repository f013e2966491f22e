"""Stacks of Python code and of native code: frames without paths, and the threads that the samples belong to.

`function_stacks` makes exact stacks of the calls that torch.profiler records (`with_stack=True`).

File names of frames lose what identifies a machine or its user.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.intervals import Times
from traceview.model.sizes import empty_frame
from traceview.model.stacks import FRAMES, FUNCTION, SAMPLES, STACKS, CallTree, Numbers, node_levels
from traceview.normalise.codes import UNNAMED, categories, texts_of
from traceview.normalise.threads import Threads, process_ids, process_of, without_path
from traceview.normalise.valid_rows import MAX_TIME
from traceview.read import raw

# Everything up to the folder of installed packages, or of Python's own modules.
INSTALLED = re.compile(r"^.*[/\\](?:site|dist)-packages[/\\]")
STANDARD = re.compile(r"^.*[/\\]lib(?:64)?[/\\]python\d+\.\d+[/\\]|^.*[/\\]python\d+\.zip[/\\]", re.IGNORECASE)
# torch.profiler writes paths relative to sys.path, so that only well-known packages can be recognised as libraries.
PACKAGES = re.compile(
    r"^(?:torch|torchvision|torchaudio|torchdata|transformers|accelerate|datasets|tokenizers|timm|lightning|"
    r"pytorch_lightning|deepspeed|triton|jax|jaxlib|flax|tensorflow|keras|numpy|pandas|PIL|cv2|sklearn|scipy|"
    r"ray|dask|vllm|sglang|flashinfer|diffusers|peft|trl|safetensors|huggingface_hub|sympy|matplotlib|requests|"
    r"typing_extensions|_distutils_hack|megatron|apex|xformers|flash_attn|tqdm|wandb|json|logging|threading|multiprocessing|"
    r"concurrent|asyncio|importlib|contextlib|queue|selectors|subprocess|random|typing|functools|enum|re)(?:[/\\]|\.py$)"
)
KEPT_FOLDERS = 1  # folders in the name of a file outside the program's folder


def shown_files(paths: pl.Series, program_folders: frozenset[str]) -> tuple[list[str], list[bool]]:
    """Return the file name to show for each path, and whether it belongs to a library.

    `program_folders` holds the folders of the program's scripts: a file below one of them is named relative to it.
    """
    pairs = [_shown_file(path or "", program_folders) for path in paths.to_list()]
    return [name for name, _ in pairs], [library for _, library in pairs]


def is_library(path: str) -> bool:
    """Return whether a path belongs to an installed package, to Python, or to no file at all."""
    return not path or path.startswith("<") or any(kind.match(path) for kind in (INSTALLED, STANDARD, PACKAGES))


def folder_of(path: str) -> str:
    """Return the folder of a path, with slashes; "" if it has none."""
    return path.replace("\\", "/").rpartition("/")[0]


def _shown_file(path: str, program_folders: frozenset[str]) -> tuple[str, bool]:
    for kind in (INSTALLED, STANDARD):
        inside = kind.match(path)
        if inside:
            return path[inside.end() :].replace("\\", "/"), True
    if is_library(path):
        return path, True
    slashed = path.replace("\\", "/")
    folder = folder_of(slashed)
    while folder:
        if folder in program_folders:
            return slashed[len(folder) + 1 :], False
        folder = folder.rpartition("/")[0]
    if slashed.startswith("/") or ":" in slashed[:3]:
        return "/".join(slashed.split("/")[-1 - KEPT_FOLDERS :]), False
    return slashed, False


LIBRARY_MODULE = r"\.so(?:\.[\d.]+)?$|\.dll$|^\[|vmlinux|^python[\d.]*$"
# Names of libraries that are compiled into the program.
LIBRARY_NAME = r"^(?:std|__gnu_cxx|thrust|cub|cudart)::|^libcudart_static_|^cu(?:da)?[A-Z]|^_start$|^__libc"
BRACKET = re.compile("([<>])")
# Modules and symbols of nsys's own code, and its marks for what it cannot unwind.
NOISE = r"libToolsInjection|^NSYS_OSRT_|^\[(?:Max depth|Unknown|Broken backtraces)\]$"
UNRESOLVED = "(unresolved)"  # a function whose name nsys does not know
SECTIONS = (UNNAMED, "_init", "_fini", "_start")  # starts of sections: the nearest symbol of a stripped function


class StackedCalls(NamedTuple):
    """Calls (start, end, globalTid, STACK_ID) and the frames of their stacks (a table of raw.NATIVE_STACKS)."""

    calls: pl.DataFrame
    chains: pl.DataFrame


def take_stacked_calls(tables: dict[str, pl.DataFrame]) -> list[StackedCalls]:
    """Return the system and CUDA calls that have a stack; remove what only stacks need from `tables`."""
    stacked = []
    for name, chains in ((raw.SYSTEM_CALLS, raw.SYSTEM_STACKS), (raw.RUNTIME, raw.CUDA_STACKS)):
        calls, frames = tables.get(name, pl.DataFrame()), tables.pop(chains, pl.DataFrame())
        if raw.STACK_ID in calls.columns:
            tables[name] = calls.drop(raw.STACK_ID)
            if not frames.is_empty():
                stacked.append(StackedCalls(calls.filter(pl.col(raw.STACK_ID) > 0), frames))
    return stacked


def call_stacks(stacked: StackedCalls, tables: Mapping[str, pl.DataFrame], threads: Threads) -> StackFrames | None:
    """Return frames, stacks and samples of calls; None if there are none."""
    calls = stacked.calls.with_columns(threads.rows(stacked.calls["globalTid"]).alias("thread"))
    has_length = is_time("start") & is_time("end") & (pl.col("end") > pl.col("start"))
    calls = calls.filter(has_length & (pl.col("thread") >= 0))
    if calls.is_empty():
        return None
    frames, stacks, leaf = _native_tree(tables, stacked.chains, calls[raw.STACK_ID])
    located = calls.join(leaf, left_on=raw.STACK_ID, right_on="id", how="inner", maintain_order="left")
    return frames, stacks, _native_samples(located)


def native_stacks(tables: dict[str, pl.DataFrame], threads: Threads) -> StackFrames | None:
    """Return frames, stacks and samples of the CPU sampler, of known threads; None if the capture has none."""
    samples = tables.get(raw.CPU_SAMPLES, pl.DataFrame())
    if samples.is_empty():
        return None
    samples = samples.with_columns(threads.rows(samples["globalTid"]).alias("thread"))
    samples = samples.filter(is_time("start") & (pl.col("thread") >= 0))
    if samples.is_empty():
        return None
    frames, stacks, leaf = _native_tree(tables, tables.get(raw.CPU_STACKS, pl.DataFrame()), samples["id"])
    columns = samples.with_columns(pl.col("start").alias("end")).join(leaf, on="id", how="left", maintain_order="left")
    return frames, stacks, _native_samples(columns.with_columns(pl.col("stack").fill_null(-1)))


def _native_samples(columns: pl.DataFrame) -> pl.DataFrame:
    """Return SAMPLES of columns with start, end, thread and stack."""
    unknown = [pl.lit(None).alias(name) for name in ("python_thread", "holds_gil")]
    return columns.with_columns(unknown).select(list(SAMPLES)).cast(dict(SAMPLES))  # type: ignore[arg-type]


def _native_tree(tables: Mapping[str, pl.DataFrame], chains: pl.DataFrame, used: pl.Series) -> StackFrames:
    """Return frames and stacks of native code, and the innermost node (`stack`) of each chain (`id`) that is used."""
    empty = (empty_frame(FRAMES), empty_frame(STACKS))
    if not chains.is_empty():
        if chains["id"].n_unique() > used.len():
            chains = chains.filter(pl.col("id").is_in(used.implode()))
        if not _is_ordered(chains):
            chains = chains.sort("id", "stackDepth")
        chains = _without_noise(chains, tables)
        if chains["id"].len() > MAX_DEPTH:
            chains = chains.filter(pl.int_range(pl.len()).over("id") < MAX_DEPTH)
    if chains.is_empty():
        return *empty, pl.DataFrame(schema={"id": pl.Int64, "stack": pl.Int32})
    depths = chains.group_by("id", maintain_order=True).len("depth")
    numbers = chains.select(pl.col("symbol", "module")).to_numpy()
    tree = CallTree.from_chains(np.ascontiguousarray(numbers), depths["depth"].cast(pl.Int64).to_numpy())
    symbols, modules = (texts_of(pl.Series(tree.frames[:, column]), dict(tables)) for column in (0, 1))
    names = [UNRESOLVED if symbol in SECTIONS else qualified_name(symbol) for symbol in symbols]
    files = [without_path(module) for module in modules]
    is_library = pl.col("file").str.contains(LIBRARY_MODULE) | pl.col("function").str.contains(LIBRARY_NAME)
    frames = pl.DataFrame({"function": names, "file": files, "line": 0}).with_columns(is_library.alias("library"))
    stacks = pl.DataFrame({"parent": tree.parent, "frame": tree.frame})
    leaf = pl.DataFrame({"id": depths["id"], "stack": tree.leaf})
    return frames.cast(dict(FRAMES)), stacks.cast(dict(STACKS)), leaf  # type: ignore[arg-type]


def qualified_name(symbol: str) -> str:
    """Return `a::B::run` for `void a::B<int>::run<float>(float*) const`: a demangled name without types."""
    return _without_templates(symbol).partition("(")[0].strip().rpartition(" ")[2] or symbol


def _without_templates(symbol: str) -> str:
    """Return a symbol without the text between matching < and >, in one pass however deep they are nested."""
    texts = [[""]]  # outside, and after each < that is open
    for piece in BRACKET.split(symbol):
        if piece == ">" and len(texts) > 1:
            texts.pop()
        elif piece == "<":
            texts.append([piece])
        else:
            texts[-1].append(piece)
    return "".join(piece for text in texts for piece in text)


def _without_noise(chains: pl.DataFrame, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Return chains without frames of the profiler and of nothing; functions without a name in a row become one.

    The symbol of a function without a name is -1.
    """
    strings = tables[raw.STRINGS].unique("id", keep="first")
    numbers = strings.filter(pl.col("value").str.starts_with("0x"))["id"]
    noise = strings.filter(pl.col("value").str.contains(NOISE))["id"]
    symbol = pl.when(pl.col("symbol").is_in(numbers.implode())).then(-1).otherwise(pl.col("symbol").fill_null(-1))
    kept = chains.with_columns(symbol.alias("symbol"), pl.col("module").fill_null(-1)).filter(
        ~pl.col("module").is_in(noise.implode()) & ~pl.col("symbol").is_in(noise.implode())
    )
    is_same = (pl.col("id", "symbol", "module") == pl.col("id", "symbol", "module").shift(1)).name.suffix("_same")
    repeated = pl.all_horizontal(pl.col("id_same", "symbol_same", "module_same")) & (pl.col("symbol") == -1)
    return kept.with_columns(is_same).filter(~repeated.fill_null(False)).select(chains.columns)


def _is_ordered(chains: pl.DataFrame) -> bool:
    """Return whether the frames of each sample come together, the innermost first."""
    number, depth = (chains[name].fill_null(0).to_numpy() for name in ("id", "stackDepth"))
    same = number[1:] == number[:-1]
    return bool((number[1:] >= number[:-1]).all() and (depth[1:][same] >= depth[:-1][same]).all())


MAIN_ROOTS = ("<module>", "_run_module_as_main", "run_path")  # outermost functions of a program's main thread
THREAD_ROOT = "_bootstrap"  # outermost function of a thread of the module threading
AUTOGRAD = "pt_autograd"  # names of PyTorch's threads begin so
THREAD_KEY = ("process", "category")
MOSTLY = 0.5
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
MAX_DEPTH = 1 << 10  # frames of a stack; Python's default limit of recursion is 1000
MAX_PYTHON_THREADS = 1 << 10
TORCH_NAME = re.compile(r"^(?P<file>.+)\((?P<line>\d{1,9})\): (?P<function>.*)$")
FUNCTION_NAME = r"^(.*?)(?::(\d{1,9}))? ([^ ]*)$"

StackFrames = tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]


class ThreadEvidence(NamedTuple):
    """Evidence that assigns numbered Python threads to threads of the system.

    `held` has the times (rows, by start) in which threads held the interpreter lock, if nsys traced it; `callers` has
    the rows of threads that call CUDA, and `names` the name of each thread.
    """

    held: pl.DataFrame
    callers: Sequence[int]
    names: Sequence[str]


def python_stacks(tables: dict[str, pl.DataFrame], threads: Threads, known: ThreadEvidence) -> StackFrames | None:
    """Return frames, stacks and samples of Python; None if the capture has none."""
    samples, stacks, frames = (
        tables.get(name, pl.DataFrame()) for name in (raw.PYTHON_SAMPLES, raw.PYTHON_STACKS, raw.PYTHON_FRAMES)
    )
    in_tree = pl.col("stack").is_between(0, len(stacks) - 1)
    samples = samples.filter(is_time("start") & is_time("end") & in_tree) if len(samples) else samples
    if samples.is_empty() or not _is_tree(stacks, len(frames)):
        return None
    functions, files, lines = _texts(frames, tables)
    parent, frame = stacks["parent"].to_numpy(), stacks["frame"].to_numpy()
    names, library = shown_files(pl.Series(files), _program_folders(files, parent, frame))
    shown = pl.DataFrame({"function": functions, "file": names, "line": lines, "library": library}, schema=dict(FRAMES))
    kinds = root_kinds(_root_functions(functions, parent, frame))[samples["stack"].to_numpy()]
    return shown, stacks.cast(dict(STACKS)), _samples(samples.hstack(kinds), threads, known)  # type: ignore[arg-type]


def joined_stacks(sources: Sequence[StackFrames]) -> StackFrames:
    """Return the stacks of several sources as one, the samples by time."""
    frames, stacks, samples = [], [], []
    frame_count = stack_count = 0
    for own_frames, own_stacks, own_samples in sources:
        moved = pl.when(pl.col("parent") < 0).then(-1).otherwise(pl.col("parent") + stack_count).cast(pl.Int32)
        stacks.append(own_stacks.select(moved.alias("parent"), (pl.col("frame") + frame_count).cast(pl.Int32)))
        inner = pl.when(pl.col("stack") < 0).then(-1).otherwise(pl.col("stack") + stack_count).cast(pl.Int32)
        samples.append(own_samples.with_columns(inner.alias("stack")))
        frames.append(own_frames)
        frame_count += len(own_frames)
        stack_count += len(own_stacks)
    return pl.concat(frames), pl.concat(stacks), pl.concat(samples).sort("start", maintain_order=True)


def is_time(column: str) -> pl.Expr:
    """Return whether a column holds a possible time."""
    return pl.col(column).is_between(-MAX_TIME, MAX_TIME)


def _is_tree(stacks: pl.DataFrame, frames: int) -> bool:
    """Return whether parents precede their children, all frames exist, and stacks have at most MAX_DEPTH frames."""
    if stacks.is_empty() or stacks["parent"].null_count() or stacks["frame"].null_count():
        return False
    parent, frame = stacks["parent"].to_numpy(), stacks["frame"].to_numpy()
    return bool(
        (parent < np.arange(len(parent))).all() and parent.min() >= -1 and 0 <= frame.min() <= frame.max() < frames
    )


def _texts(frames: pl.DataFrame, tables: dict[str, pl.DataFrame]) -> tuple[list[str], list[str], list[int]]:
    """Return the function, the path and the line of each frame. torch.profiler writes them as one text."""
    functions = [html.unescape(text) for text in texts_of(frames["functionId"], tables)]
    known = frames["fileId"].is_not_null().to_list()
    paths = [html.unescape(text) for text in texts_of(frames["fileId"].fill_null(-1), tables)]
    lines = frames["line"].fill_null(0).clip(0, (1 << 31) - 1).to_list()
    for row, has_file in enumerate(known):
        if not has_file:
            match = TORCH_NAME.match(functions[row])
            paths[row] = match["file"] if match else ""
            lines[row] = int(match["line"]) if match else 0
            functions[row] = ADDRESS.sub("", match["function"] if match else functions[row])
    return functions, paths, lines


def _program_folders(paths: Sequence[str], parent: Numbers, frame: Numbers) -> frozenset[str]:
    """Return the folders of the outermost frames that belong to no library: those of the program's scripts."""
    own = np.array([not is_library(path) for path in paths], np.bool_)[frame]
    has_own_caller = np.zeros(len(parent) + 1, np.bool_)
    level = node_levels(parent)
    for depth in range(int(level.max()) + 1):
        rows = np.flatnonzero(level == depth)
        above = parent[rows]
        has_own_caller[rows] = has_own_caller[above] | np.where(above >= 0, own[above], False)
    outermost = np.unique(frame[own & ~has_own_caller[:-1]])
    return frozenset(folder_of(paths[row]) for row in outermost.tolist()) - {""}


def _root_functions(functions: Sequence[str], parent: Numbers, frame: Numbers) -> pl.Series:
    """Return the outermost function of each stack node, as `root`."""
    root = np.arange(len(parent))
    while (inside := parent[root] >= 0).any():
        root = np.where(inside, parent[root], root)
    return pl.Series("root", functions, dtype=pl.String)[frame[root]]


def root_kinds(root: pl.Series) -> pl.DataFrame:
    """Return whether outermost functions are those of a program's main thread, and of threads that Python makes."""
    return pl.DataFrame({"is_main": root.is_in(MAIN_ROOTS), "is_made_by_python": root == THREAD_ROOT})


def _samples(samples: pl.DataFrame, threads: Threads, known: ThreadEvidence) -> pl.DataFrame:
    """Return SAMPLES. nsys numbers Python threads, and does not name their system threads."""
    if samples["category"].null_count() == len(samples):
        thread = threads.rows(samples["globalTid"])
        columns = samples.with_columns(thread.alias("thread"), thread.alias("python_thread"))
        return _typed(columns.filter(pl.col("thread") >= 0))
    columns = samples.with_columns(process_of("globalTid").alias("process"), pl.col("category").fill_null(0))
    groups = (
        columns.group_by("process", "category")
        .agg(pl.col("is_main", "is_made_by_python").mean(), pl.len().alias("count"))
        .sort("count", "process", "category", descending=[True, False, False])[:MAX_PYTHON_THREADS]
    )
    main = groups.filter(pl.col("is_main") > MOSTLY).unique("process", keep="first", maintain_order=True)
    rows = [threads.main_row(process) for process in main["process"].to_list()]
    owners = main.select(*THREAD_KEY, pl.Series("thread", rows, dtype=pl.Int16))
    others = columns.join(owners, on=THREAD_KEY, how="anti")
    owners = pl.concat([owners, _by_lock(others, threads, known.held, rows)])
    rest = groups.join(owners, on=THREAD_KEY, how="anti")
    owners = pl.concat([owners, _by_kind(rest, threads, known, owners["thread"].drop_nulls().to_list())])
    numbers = groups.sort(THREAD_KEY).select(THREAD_KEY).with_row_index("python_thread")
    return _typed(columns.join(owners, on=THREAD_KEY, how="left").join(numbers, on=THREAD_KEY))


def _by_lock(samples: pl.DataFrame, threads: Threads, held: pl.DataFrame, taken: Sequence[int | None]) -> pl.DataFrame:
    """Return the thread of each Python thread: the one that holds the lock in most samples that hold it.

    A thread of the system is one Python thread: the main one of its process, or that of most votes.
    """
    processes = pl.Series(process_ids(threads.global_tid.to_numpy()), dtype=pl.Int32)
    holders = held.select("start", pl.col("end").alias("until"), "thread").with_columns(
        processes.gather(held["thread"].cast(pl.UInt32)).alias("process")
    )
    at = samples.filter(pl.col("holdsGil") > 0).sort("start").select(*THREAD_KEY, "start")
    holding = at.join_asof(holders.sort("start"), on="start", by="process", check_sortedness=False)
    votes = holding.filter(pl.col("start") < pl.col("until")).group_by(*THREAD_KEY, "thread").len("votes")
    elected = votes.join(at.group_by(THREAD_KEY).len("all"), on=THREAD_KEY)
    elected = elected.filter(pl.col("votes") > MOSTLY * pl.col("all"), ~pl.col("thread").is_in(taken))
    order = elected.sort("votes", *THREAD_KEY, descending=[True, False, False])
    return order.unique("thread", keep="first").select(*THREAD_KEY, pl.col("thread").cast(pl.Int16))


def _by_kind(groups: pl.DataFrame, threads: Threads, known: ThreadEvidence, taken: list[int]) -> pl.DataFrame:
    """Return the thread of each Python thread that is the only one of its process and kind, if one such thread is left.

    A thread is made by Python, or by a library as PyTorch's autograd threads are.
    """
    process = process_ids(threads.global_tid.to_numpy())
    rows = [row for row in known.callers if row not in taken and threads.main_row(int(process[row])) != row]
    left = pl.DataFrame(
        {
            "process": process[rows],
            "is_made_by_python": [not known.names[row].startswith(AUTOGRAD) for row in rows],
            "thread": rows,
        },
        schema={"process": pl.Int32, "is_made_by_python": pl.Boolean, "thread": pl.Int16},
    )
    kinds = groups.select(*THREAD_KEY, pl.col("is_made_by_python") > MOSTLY)
    kind = ("process", "is_made_by_python")
    only = (frame.filter(pl.len().over(kind) == 1) for frame in (kinds, left))
    return next(only).join(next(only), on=kind).select(*THREAD_KEY, "thread")


def _typed(columns: pl.DataFrame) -> pl.DataFrame:
    holds = (pl.col("holdsGil") > 0).alias("holds_gil")
    return columns.with_columns(holds).select(list(SAMPLES)).cast(dict(SAMPLES)).sort("start", maintain_order=True)  # type: ignore[arg-type]


def function_stacks(scopes: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame] | None:
    """Return frames, stacks and samples of the functions among model.SCOPES; None if there are none."""
    calls = scopes.filter((pl.col("kind") == FUNCTION) & (pl.col("end") > pl.col("start")))
    if calls.is_empty():
        return None
    calls = calls.sort(pl.col("thread"), pl.col("start"), -pl.col("end"), maintain_order=True)
    thread, start, end = (calls[name].to_numpy() for name in ("thread", "start", "end"))
    row, is_start, level = _boundaries(thread.astype(np.int64), start, end)
    depth = np.empty(len(calls), np.int64)
    depth[row[is_start]] = level[is_start]
    if depth.max() > MAX_DEPTH:
        return None
    parent = _last_at_level(np.flatnonzero(is_start), depth - 1, row, is_start, level)
    code = calls["name"].to_physical().to_numpy().astype(np.int64)
    tree = CallTree.from_calls(parent, code[:, np.newaxis], depth - 1)
    inner = _last_at_level(np.arange(len(row)), level, row, is_start, level)
    time = np.where(is_start, start[row], end[row])
    known = np.flatnonzero((inner[:-1] >= 0) & (time[1:] > time[:-1]))
    samples = pl.DataFrame(
        {
            "start": time[known],
            "end": time[known + 1],
            "thread": thread[inner[known]],
            "python_thread": thread[inner[known]],
            "holds_gil": None,
            "stack": tree.leaf[inner[known]],
        }
    )
    texts = categories(calls["name"])
    frames = _frames([texts[number] for number in tree.frames[:, 0].tolist()])
    stacks = pl.DataFrame({"parent": tree.parent, "frame": tree.frame})
    return frames, stacks.cast(dict(STACKS)), samples.cast(dict(SAMPLES)).sort("start", maintain_order=True)  # type: ignore[arg-type]


def _boundaries(thread: Times, start: Times, end: Times) -> tuple[Times, np.ndarray, Times]:
    """Return the starts and ends of calls by thread and time: the call, whether it starts, and the open calls after it.

    At equal times, ends come before starts. The calls are ordered.
    """
    count = len(start)
    rows = np.arange(count)
    order = np.lexsort((np.repeat([1, 0], count), np.concatenate([start, end]), np.concatenate([thread, thread])))
    is_start = order < count
    row = np.concatenate([rows, rows])[order]
    return row, is_start, np.cumsum(np.where(is_start, 1, -1))


def _last_at_level(at: Times, wanted: Times, row: Times, is_start: np.ndarray, level: Times) -> Times:
    """Return for each boundary `at` the last call before it, or at it, that starts at the wanted level; -1 for 0."""
    result = np.full(len(at), -1, np.int64)
    for depth in range(1, int(wanted.max(initial=0)) + 1):
        some = np.flatnonzero(wanted == depth)
        begins = np.flatnonzero(is_start & (level == depth))
        result[some] = row[begins[np.searchsorted(begins, at[some], side="right") - 1]]
    return result


def _frames(names: list[str]) -> pl.DataFrame:
    groups = pl.Series(names, dtype=pl.String).str.extract_groups(FUNCTION_NAME).struct
    files = groups.field("1").fill_null("")
    return pl.DataFrame(
        {
            "function": groups.field("3").fill_null(pl.Series(names, dtype=pl.String)),
            "file": files,
            "line": groups.field("2").cast(pl.Int64).fill_null(0).clip(0, (1 << 31) - 1).cast(pl.Int32),
            "library": [is_library(file) for file in files.to_list()],
        },
        schema=dict(FRAMES),
    )

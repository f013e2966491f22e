"""Remedies follow the place of the host (an example of each); which gaps of a finding stand for all."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields

import numpy as np
import pytest

from traceview.model.rows import SourceLine
from traceview.pricing import describe
from traceview.pricing.describe import ADVICE, MAKES_BATCHES, _advice, _names_who

PLACES = {
    "fetch (torch/utils/data/_utils/fetch.py:54)": "The main process loads",
    "_next_data (torch/utils/data/dataloader.py:1448) > get (queue.py:180)": "The DataLoader's workers",
    "dumps (json/__init__.py:231) > encode (json/encoder.py:200)": "JSON",
    "GOMP_parallel (libgomp.so.1.0.0) > (unresolved) (libgomp.so.1.0.0)": "The thread waits for other OpenMP",
    "info (logging/__init__.py:1477) > emit (logging/__init__.py:1113)": "Log every N steps, or",
    "log (wandb/sdk/wandb_run.py:388)": "Log metrics",
    "__iter__ (tqdm/std.py:1181)": "Progress bars",
    "__format__ (torch/_tensor.py:933) > _str_intern (torch/_tensor_str.py:426)": "Printing a tensor",
    "sub (re/__init__.py:185)": "Regular expressions",
    "findall (re.py:240)": "Regular expressions",
    "__call__ (transformers/tokenization_utils_base.py:2855)": "Tokenize",
    "open (PIL/Image.py:3250)": "Decode and transform images",
    "save (torch/serialization.py:619)": "Save checkpoints",
    "clip_grad_norm_ (torch/nn/utils/clip_grad.py:30)": "Clip gradients",
    "step (torch/optim/adamw.py:220)": "Use `fused=True`",
    "backward (torch/autograd/__init__.py:200)": "The backward pass",
    "_find_and_load (<frozen importlib._bootstrap>:1176)": "Imports",
    "deepcopy (copy.py:128)": "`copy.deepcopy`",
    "PMPI_Barrier (libmpi.so.40.30.0) > opal_progress (libopen-pal.so.40)": "The thread waits in MPI",
    "GIL": "Another Python thread",
    "wait (threading.py:320)": "A lock",
    "pthread_mutex_lock": "A lock",
    "clock_nanosleep": "The thread sleeps",
    "sem_timedwait": "The thread waits for another",
    "waitpid": "Processes",
    "write": "Output",
    "putc": "Output",
    "getc": "Files",
    "read (data.bin)": "Files",
    "epoll_wait": "Sockets",
    "garbage_collection": "Call `gc.disable()`",
    "compiling": "Compile before the loop",
    "off_cpu": "The thread is not on a CPU",
    "forward (torch/nn/modules/linear.py:120)": "",
    "ioctl": "",
}


@pytest.mark.parametrize(("place", "words"), PLACES.items())
def test_advice_follows_the_place(place: str, words: str) -> None:
    advice = _advice(place)
    assert advice.startswith(words) and bool(advice) == bool(words)


def test_each_remedy_has_an_example() -> None:
    used = {next((key for key, _ in ADVICE if re.search(key, place)), None) for place in PLACES}
    assert used - {None} == {key for key, _ in ADVICE}


@pytest.mark.parametrize(
    ("function", "makes"),
    {"get_batch": True, "collate_fn": True, "Dataset.__getitem__": True, "next_batch": True, "<module>": False}.items(),
)
def test_functions_that_make_batches_are_known_by_name(function: str, makes: bool) -> None:
    assert bool(MAKES_BATCHES.search(function)) == makes


def test_short_gaps_count_if_they_have_much_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe, "MAX_GAPS", 10)
    idle = np.array([0] + [1] * 95 + [100] * 5)
    assert describe._sample_gaps(idle[:8]).tolist() == list(range(1, 8))
    few_long = describe._sample_gaps(idle * np.where(idle == 100, 10, 1))
    assert len(few_long) == 10 and set(range(96, 101)) <= set(few_long.tolist())
    spread = describe._sample_gaps(idle)
    assert spread.tolist() == list(range(1, 101, 10))


@pytest.mark.parametrize(
    ("function", "file", "names"),
    [
        ("ijl_box_uint64", "libjulia-internal.so.1.12.6", False),
        ("julia_ht_keyindex_19726", "mcKyc_0Hvui.so", False),
        ("_init", "tacker", False),
        ("cudart::doLazyInitContextState", "libcutlass.so", False),
        ("c10::cuda::CUDACachingAllocator::Native::malloc", "libc10_cuda.so", False),
        ("at::_ops::to_copy::call", "libtorch_cpu.so", True),
        ("OriFFTKernel::initParams", "tacker", True),
        ("update", "libcurl.so.4", True),
        ("solve", "numpy_array.so", True),
        ("__cudart981", "app", False),
    ],
)
def test_symbols_of_runtimes_are_no_place(function: str, file: str, names: bool) -> None:
    figures = {each.name: 0 for each in fields(SourceLine) if each.default is MISSING}
    assert _names_who(SourceLine(**(figures | {"function": function, "file": file}))) == names  # type: ignore[arg-type]

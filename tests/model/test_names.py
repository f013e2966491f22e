"""Names that mean that data are loaded, by words."""

from __future__ import annotations

import pytest

from traceview.model.names import loading_words


@pytest.mark.parametrize(
    "name",
    [
        *("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "load_batch", "data_load", "Read_File"),
        *("wait_for_batch", "cids.sync.read", "[DALI][Executor] RunCPU", "pt_data_worker", "prefetchNextBatch"),
        *("get_inputs", "decode_images", "tokenizer", "collate", "MPI_File_read"),
    ],
)
def test_loading(name: str) -> None:
    assert loading_words(name)


@pytest.mark.parametrize(
    "name",
    [
        *("thread_pool", "ready", "workload", "offload", "unload", "DistributedDataParallel.forward", "spread"),
        *("load_model_weights", "prefetch_h2d_wq", "layer_3_kv_fetch", "ThreadPredicateMap", "batch_norm", "update"),
        *(
            "step[DECODE bs=4]",
            "token_7_processing",
            "executor_utils::Nvrtc::LoadPTX",
            "Enter Data",
            "workload_balance",
        ),
    ],
)
def test_other_words(name: str) -> None:
    assert loading_words(name) == ""

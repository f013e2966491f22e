"""Names that mean that data are loaded, by words, and names in titles."""

from __future__ import annotations

import pytest

from traceview.model.names import loading_words, title_name, with_title_names


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


def test_names_in_titles_have_at_most_40_letters() -> None:
    long = "cutlass_tensorop_bf16_s16816fprop_optimized_bf16_256x64_32x4_nhwc_align8"
    assert title_name("relu") == "relu"
    assert title_name(long) == "cutlass_tensorop_bf16_s168…4_nhwc_align8"
    assert (
        title_name("Cijk_Alik_Bljk_BBS_BH_" + "AFC1_" * 90 + "MT128x256x32_SN") == "Cijk_Alik_Bljk_BBS_BH MT128x256x32"
    )
    text = f"The GPU waits 2 ms for the host in `{'range of words ' * 3}`, and {long} takes 3 ms of the time of `a`"
    assert with_title_names(text) == (
        "The GPU waits 2 ms for the host in `range of words range of wo…nge of words `, and "
        "cutlass_tensorop_bf16_s168…4_nhwc_align8 takes 3 ms of the time of `a`"
    )

"""Names of kernels that communicate with other GPUs (docs/definitions.md "GPU work")."""

from __future__ import annotations

import polars as pl

# Beginnings of short names: NCCL and its relatives, custom all-reduce of vLLM and SGLang, symmetric memory of PyTorch,
# fused all-reduce of TensorRT-LLM and FlashInfer, all-to-all and expert parallelism of MoE libraries.
COMMUNICATION = (
    r"(?i)^(?:nccl|rccl|nvshmem|mscclpp|cross_device_reduce|multimem_|(?:lamport_style_)?(?:one|two)_?shot_?all_?reduce|"
    "hybridCubeMeshAllReduce|allreduce_fusion_kernel|allreduce_prototype|(?:moe_?)?all_?to_?all|"
    "notify_dispatch|cached_notify|ep_?(?:dispatch|combine)_?(?:inter|intra)_?node)"
)
# Namespaces of libraries of expert parallelism, whose kernels have ordinary short names: dispatch, combine, notify.
EXPERT_PARALLEL = r"\b(?:deep_ep|dpsk::ep|hybrid_ep)::|\b(?:internode|intranode)(?:_ll)?::"


def communicates(short: pl.Series, full: pl.Series) -> pl.Series:
    """Return which kernels communicate, from their short and full names."""
    return short.str.contains(COMMUNICATION) | full.str.contains(EXPERT_PARALLEL)

"""What is left of kernels that move, convert or set data, on hand-made sequences with names of real kernels."""

from __future__ import annotations

import pytest

from tests.pricing.speedups.dense import dense
from tests.pricing.speedups.test_speedups import ADD, BF16_GEMM, COPY, FILL, sequence
from traceview.pricing.speedups import Speedup
from traceview.pricing.speedups.memory import CASTS, CONCATENATE, EMBEDDING, STRIDED_COPY, ZEROED

NATIVE = "void at::native::"
CAST = f"{NATIVE}vectorized_elementwise_kernel<(int)8, at::native::bfloat16_copy_kernel_cuda(at::Base &)>(int)"
UPCAST = f"{NATIVE}unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::Base &)>(int)"
CAT = f"{NATIVE}<unnamed>::CatArrayBatchedCopy<Type<(unsigned int)2>>(T1 *)"
STRIDED = f"{NATIVE}elementwise_kernel<(int)128, void at::native::direct_copy_kernel_cuda(at::Base &)>(int)"
SORT = "void cub::DeviceRadixSortOnesweepKernel<cub::Policy, long, int>(int *)"
GRADIENT = f"{NATIVE}<unnamed>::compute_grad_weight<float, float, int>(int *)"


def marks(speedup: Speedup, names: list[str]) -> list[bool]:
    """Return which kernels become shorter."""
    kernels = sequence(names)
    left: list[bool] = (dense(speedup.estimate(kernels), kernels).middle < 1).tolist()
    return left


@pytest.mark.parametrize(("count", "applies"), [(7, False), (8, True)])
def test_many_fills_in_a_row_set_gradients_to_zero(count: int, applies: bool) -> None:
    names = [ADD, *[FILL] * count, BF16_GEMM, FILL]
    assert isinstance(ZEROED.estimate(sequence(names)), str) is not applies
    if applies:
        assert marks(ZEROED, names) == [False, *[True] * count, False, False]


def test_embedding_gradients_hold_the_sort_of_their_indices() -> None:
    names = [SORT, BF16_GEMM, SORT, COPY, GRADIENT, BF16_GEMM, SORT]
    assert marks(EMBEDDING, names) == [False, False, True, False, True, False, False]


@pytest.mark.parametrize(
    ("speedup", "names"), [(CASTS, [CAST, UPCAST]), (CONCATENATE, [CAT]), (STRIDED_COPY, [STRIDED])]
)
def test_moves_by_name(speedup: Speedup, names: list[str]) -> None:
    everything = [CAST, UPCAST, CAT, STRIDED, ADD, BF16_GEMM]
    assert marks(speedup, everything) == [name in names for name in everything]


def test_moves_below_one_percent_are_no_evidence() -> None:
    assert isinstance(CASTS.estimate(sequence([CAST, BF16_GEMM], [10_000, 10_000_000])), str)
    assert isinstance(CASTS.estimate(sequence([])), str)

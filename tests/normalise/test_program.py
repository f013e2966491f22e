"""The kind of a program: a table of captures with what made them, and hand-made names of programs without a capture."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import polars as pl
import pytest

from tests.build_export import Call, Kernel, build_export
from tests.captures import sample, shared
from traceview.model.program import PLAIN_CUDA, Program
from traceview.normalise.program import ProgramNames, find_program
from traceview.pipeline import open_trace
from traceview.pricing.texts import texts_for

# Captures, and the kind, training and Python that their sources say.
CAPTURES = {
    "h200_serial.sqlite": ("pytorch", True, True),
    "h200_dual.sqlite": ("pytorch", True, True),
    "h200_quad.sqlite": ("pytorch", True, True),
    "h200_ddp2.sqlite": ("pytorch", True, True),
    "h200_cudagraph.sqlite": ("pytorch", True, True),
    "public/nsys2021.2_no_metadata.sqlite": ("cuda", None, False),
    "public/nsys2022.2_mpi_empty_tables.sqlite": ("mpi", None, False),
    "public/nsys2023.4_arm64_jacobi.sqlite": ("cuda", None, False),
    "public/nsys2024.5_hpc_node.sqlite": ("cuda", None, False),
    "public/nsys2026.2_2gpu_nccl.sqlite": ("pytorch", True, True),
}
SAMPLES = {
    "mpi/heat.sqlite": ("openacc", None, False),
    "mpi/ring.sqlite": ("mpi", None, False),
    "mpi/ring_as_2022.4.sqlite": ("mpi", None, False),
    "openacc/heat_as_2023.4.sqlite": ("openacc", None, False),
    "openacc/heat_as_2024.2.sqlite": ("openacc", None, False),
    "ranks/slowgpu_rank0.sqlite.xz": ("pytorch", True, True),
    "scenarios/graph_nodes.sqlite": ("pytorch", False, True),
    "scenarios/managed.sqlite": ("cupy", None, True),
    "scenarios/many_streams.sqlite": ("pytorch", False, True),
    "scenarios/p2p.sqlite": ("cuda", None, True),  # a library's kernel alone: its caller is unknown
    "torch_profiler/graph.json.gz": ("pytorch", True, True),
    "torch_profiler/serial.json.gz": ("pytorch", True, True),
    "trainer/ddp.sqlite": ("pytorch", True, True),
    "trainer/graph.sqlite": ("pytorch", True, True),
}


@pytest.mark.parametrize("name", CAPTURES)
def test_captures(name: str) -> None:
    program = open_trace(shared(name)).program
    assert (program.kind, program.training, program.python) == CAPTURES[name]


@pytest.mark.parametrize("name", SAMPLES)
def test_samples(name: str) -> None:
    program = open_trace(sample(name)).program
    assert (program.kind, program.training, program.python) == SAMPLES[name]


def test_redaction_keeps_the_evidence() -> None:
    original, redacted = (open_trace(path).program for path in (shared("h200_dual.sqlite"), sample("dual.sqlite")))
    assert original == redacted


NOTHING_SHOWN = replace(PLAIN_CUDA, communicates=False, attention=False)
ATEN = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int, T2, T3)"
FIELDS = [field.name for field in fields(ProgramNames)]
ATEN_SHORT = "vectorized_elementwise_kernel"


def program(times: dict[str, int] | None = None, **names: list[str]) -> Program:
    """Return the program of hand-made names; `times` are kernels with the ns that they run."""
    times = times or {}
    fields = {"kernels": list(times)} | names
    texts = [*fields.get("texts", []), *times]
    operations = pl.DataFrame({"name": list(times), "start": [0] * len(times), "end": list(times.values())})
    given = {field: fields.get(field, []) for field in FIELDS} | {"texts": texts}
    series = {field: pl.Series(values, dtype=pl.String) for field, values in given.items()}
    return find_program(ProgramNames(**series), operations.cast({"name": pl.String}), is_torch_trace=False)


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("input_reduce_fusion_3", "jax"),
        ("loop_multiply_fusion", "jax"),
        ("gemm_fusion_dot_3_0", "jax"),
        ("loop_broadcast_fusion__3", "jax"),
        ("wrapped_fusion", "jax"),
        ("trt_volta_h884cudnn_128x128_ldg8_relu_exp_small_nhwc_tn_v1", "tensorrt"),
        ("__myl_FcMulAddTraAddMeaSubMulMea_myl0_12", "tensorrt"),
        ("main_37_gpu", "openacc"),
        ("main_53_gpu__red", "openacc"),
        ("nvkernel_main_F1L85_3", "openmp"),
        ("__omp_offloading_10302_b34a9_main_l20", "openmp"),
        ("add_kernel_0d1d2d3de", "triton"),
        ("triton_poi_fused_add_0", "triton"),
        ("cupy_multiply__float64_float64_float64", "cupy"),
        ("integrate_particles_3f2a1b9c_cuda_kernel_forward", "warp"),
        ("substep_c76_0_kernel_2_range_for", "taichi"),
        ("julia_vadd_1234", "julia"),
        ("saxpy", "cuda"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n", "cuda"),  # cuBLAS, cuDNN and TensorRT all have such kernels
    ],
)
def test_kernels_show_the_kind(kernel: str, kind: str) -> None:
    assert program({kernel: 5}).kind == kind


def test_kernels_with_parameters_are_not_generated_code() -> None:
    texts = ["fusion(float *, int)", "void relax_2_gpu<float>(T1 *)"]
    assert program({"fusion": 5, "relax_2_gpu": 5}, texts=texts) == NOTHING_SHOWN


def test_xla_inside_tensorflow_is_not_jax() -> None:
    texts = ["void tensorflow::functor::ShuffleInTensor3Simple<float>(int)"]
    told = program({"loop_multiply_fusion": 5}, texts=texts, threads=["python3"])
    assert (told.kind, told.frameworks, told.python) == ("tensorflow", ("tensorflow",), True)


def test_modules_of_jit_are_of_jax() -> None:
    """XLA names its threads after TensorFlow in JAX, too."""
    ranges = ["XlaModule:#hlo_module=jit_train_step,program_id=7#"]
    assert program({"loop_multiply_fusion": 5}, threads=["tf_XLAEigen", "python3"], ranges=ranges).kind == "jax"


def test_loaded_library_beside_kernels_of_another() -> None:
    """Samples of the host name the functions of every library, and a collective can come from any program."""
    symbols = ["at::native::add_kernel(at::TensorIteratorBase&)", "/opt/lib/libtorch_cpu.so"]
    assert program({"cupy_add__float32": 5}, texts=symbols).kind == "cupy"
    assert program({"saxpy": 5}, texts=["/opt/lib/pycuda/_driver.cpython-310.so", *symbols]).kind == "pycuda"
    collective = program({"ncclDevKernel_AllReduce_Sum_f32_RING_LL": 5}, texts=["/opt/lib/libtorch_cuda.so"])
    assert (collective.kind, collective.training) == ("pytorch", None)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudapy::__main__::add[abi:v1][abi:c8tJTC_2fWg]", "numba"),
        ("__main__::relax[abi:v1,cw51cXTLSUwv1sDUaKthqaNg]", "numba"),
        ("_ZN8__main__5relaxB2v1B104cw51cXTLSUwv1sDUaKthqaNg", "numba"),
        ("std::__1::fill[abi:v160006](float*, int)", "cuda"),  # libc++
        ("concat[abi:cxx11](std::string)", "cuda"),
    ],
)
def test_tags_of_numba(name: str, kind: str) -> None:
    assert program({"relax": 5}, texts=[name]).kind == kind


def test_gcc_openmp_waits_for_the_context() -> None:
    assert program({"main$_omp_fn$0": 5}, texts=["cuCtxSynchronize"]).kind == "openmp"
    assert program({"main$_omp_fn$0": 5}, texts=["cuStreamSynchronize"]).kind == "openacc"


def test_memory_fill_of_the_compiler_is_not_openacc_beside_openmp() -> None:
    assert program({"nvkernel_main_F1L85_3": 9, "__pgi_uacc_cuda_fill_44_gpu": 1}).frameworks == ("openmp",)


def test_namespaces_of_tensorrt_show_it() -> None:
    assert (
        program({"computeOffsetsKernel": 5}, texts=["void cask_trt::computeOffsetsKernel<false>(T1)"]).kind
        == "tensorrt"
    )


def test_framework_with_most_kernel_time_is_the_kind() -> None:
    engine = "trt_ampere_h1688cudnn_256x64"
    mostly_torch = program({ATEN_SHORT: 90, engine: 10}, texts=[ATEN])
    mostly_engine = program({ATEN_SHORT: 10, engine: 90}, texts=[ATEN])
    assert (mostly_torch.kind, mostly_torch.frameworks) == ("pytorch", ("pytorch", "tensorrt"))
    assert (mostly_engine.kind, mostly_engine.training) == ("tensorrt", False)


def test_training_needs_a_backward_pass() -> None:
    backward = "void at::native::tanh_backward_kernel_cuda<float>(T1)"
    assert program({ATEN_SHORT: 5}, texts=[ATEN]).training is False
    assert program({ATEN_SHORT: 5}, texts=[ATEN, backward]).training is True
    assert program({ATEN_SHORT: 5}, texts=[ATEN], threads=["pt_autograd_0"]).training is True
    assert (
        program({ATEN_SHORT: 5, "crossHadamardKernel": 5, "multi_tensor_apply_kernel": 5}, texts=[ATEN]).training
        is False
    )
    transposed = {ATEN_SHORT: 5, "dgrad_engine": 5}  # a transposed convolution
    assert program(transposed, texts=[ATEN]).training is False
    assert program(transposed | {"wgrad_alg0_engine": 5}, texts=[ATEN]).training is True
    assert program(texts=[ATEN]).training is None  # a CUDA graph hides its kernels


def test_communication_and_attention() -> None:
    alone = program({ATEN_SHORT: 5}, texts=[ATEN])
    assert (alone.communicates, alone.attention) == (False, False)
    server = program({"ncclDevKernel_AllReduce": 5, "flash_fwd_splitkv_kernel": 5}, texts=[ATEN])
    assert (server.communicates, server.attention) == (True, True)
    assert program({"heat": 5}, domains=["MPI"]).communicates is True


def test_servers_that_rename_their_process_are_in_python() -> None:
    assert program({ATEN_SHORT: 5}, texts=[ATEN], threads=["VLLM::EngineCor"]).python
    assert program({ATEN_SHORT: 5}, texts=[ATEN], threads=["pt_main_thread"]).python
    assert not program({ATEN_SHORT: 5}, texts=[ATEN], threads=["serve"]).python  # libtorch


def test_names_of_aten_headers_are_not_evidence(tmp_path: Path) -> None:
    text = "'void at::native::elementwise_kernel<main::{lambda(float, float)#1}, at::detail::Array<char*, 3>>(int)'"
    insert = [f"INSERT INTO StringIds VALUES (901, {text})"]
    export = build_export(tmp_path / "plain.sqlite", kernels=[Kernel()], api=[Call()], statements=insert)
    assert open_trace(export).program == NOTHING_SHOWN


def test_environment_is_not_evidence(tmp_path: Path) -> None:
    environment = "'PATH=/usr/lib/python3.11' || char(0) || 'PRELOAD=/opt/libtorch.so'"
    output = "'/opt/libnvinfer.so' || char(10) || 'libpython3.11'"
    insert = [f"INSERT INTO StringIds VALUES ({id}, {text})" for id, text in ((901, environment), (902, output))]
    export = build_export(tmp_path / "plain.sqlite", kernels=[Kernel()], api=[Call()], statements=insert)
    assert open_trace(export).program == NOTHING_SHOWN


def test_evidence_holds_no_text_of_the_program() -> None:
    told = program(
        {ATEN_SHORT: 5}, texts=[ATEN, "/home/ada/libtorch_cuda.so"], processes=["julia"], ranges=["backward ada"]
    )
    assert told.evidence == (
        "pytorch: kernels of ATen",
        "julia: a process of Julia",
        "training: ranges of a backward pass or an optimizer",
    )


def test_advice_for_gpus_of_amd_names_no_tool_of_nvidia() -> None:
    nothing = ProgramNames(**{field: pl.Series([], dtype=pl.String) for field in FIELDS})
    operations = pl.DataFrame(schema={"name": pl.String, "start": pl.Int64, "end": pl.Int64})
    amd = find_program(nothing, operations, True, ["AMD Instinct MI300X"])
    nvidia = find_program(nothing, operations, True, ["NVIDIA H100"])
    text = "Compute nothing twice. Nsight Compute shows how close it is."
    entry = {"title": "", "cuda": {"fix": text, "command": "ncu COMMAND"}}
    texts = {program.nvidia: texts_for(entry, "", program, {}) for program in (amd, nvidia)}
    shown = {key: (each["advice"], each.code) for key, each in texts.items() if each is not None}
    assert shown == {False: ("Compute nothing twice.", ""), True: (text, "ncu COMMAND")}


def test_program_that_python_started_is_not_in_python() -> None:
    """A made capture of `life`, which a Python script runs; libpython is that of the script."""
    libraries = ["/usr/lib/libpython3.11.so.1.0"]
    started = program({"step": 1}, processes=["life"], texts=libraries)
    unnamed = program({"step": 1}, texts=libraries)
    renamed = program({ATEN_SHORT: 1}, processes=["trainer"], texts=[*libraries, ATEN])
    assert (started.python, unnamed.python, renamed.python) == (False, True, True)

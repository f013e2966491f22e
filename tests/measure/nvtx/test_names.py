"""Which names of ranges belong to libraries. Names are those of a capture of JAX 0.8 on an H200."""

from __future__ import annotations

import polars as pl

from traceview.measure.nvtx import without_library_ranges


def test_compiled_programs_of_jax_may_be_iterations() -> None:
    names = {
        "XlaModule:#hlo_module=jit_step,program_id=12600#": True,
        "XlaModule:#hlo_module=gemm_fusion_dot.250#": False,  # XLA tries a kernel
        "XlaModule:#prefix=args[0],hlo_module=jit_convert_element_type,program_id=8622#": False,
        "Thunk:#hlo_op=command_buffer_1#": False,
    }
    schema = {"name": pl.Enum(list(names)), "domain": pl.Enum(["TSL"])}
    ranges = pl.DataFrame({"name": list(names), "domain": ["TSL"] * len(names)}, schema=schema)
    assert without_library_ranges(ranges)["name"].to_list() == [name for name, own in names.items() if own]

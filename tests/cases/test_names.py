"""Names of kernels that programs do not choose: those of templates, and those of code generators."""

from __future__ import annotations

import pytest

from tests.cases.made import analyzed_case
from traceview.model.rows import KernelUse


def kernels(name: str) -> list[KernelUse]:
    """Return the kernels of a case by launch shape."""
    return list(analyzed_case("nsys", name).devices[0].steady.tables["kernels"].rows)


def test_kernels_of_one_name_have_labels_from_their_template_arguments() -> None:
    labels = {(row.label, row.family) for row in kernels("generic_names") if row.name == "device_kernel"}
    assert labels == {("grouped_gemm GemmKernel", "gemm"), ("FlashAttnFwdSm90", "attention")}


def test_generated_names_are_short() -> None:
    labels = {(row.label, row.family) for row in kernels("tensile_names") if row.name.startswith("Cijk")}
    assert labels == {("Cijk_Alik_Bljk_BBS_BH MT128x256x32", "gemm")}


@pytest.mark.parametrize("name", ["generic_names", "tensile_names"])
def test_titles_have_short_names(name: str) -> None:
    analysis = analyzed_case("nsys", name)
    texts = [analysis.answer.text, *(finding.title for finding in analysis.findings)]
    assert any(row.label in text for text in texts for row in kernels(name)[:1])
    assert all(len(word) <= 40 for text in texts for word in text.split())

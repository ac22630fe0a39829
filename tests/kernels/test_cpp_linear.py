"""Generated products with a constant weight: few rows, many rows, every kind of epilogue."""

from __future__ import annotations

from pathlib import Path

import pytest
from cpp_cases import check, make_site, needs_compiler, random

from offers import why_not
from ridgeline.base.spec import Op
from ridgeline.tactics.cpu.cpp import CppGemm, CppGemv


@pytest.fixture
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tmp_path_factory.getbasetemp()) / "cpp-linear"


@needs_compiler
@pytest.mark.parametrize(
    ("m", "k", "n"), [(1, 1, 1), (1, 3, 7), (1, 256, 512), (3, 17, 100), (7, 130, 33), (8, 64, 1023)]
)
def test_few_rows(cache_dir: Path, m: int, k: int, n: int) -> None:
    inputs = {"x": random(m, k), "w": random(k, n, seed=1), "b": random(n, seed=2), "r": random(m, n, seed=3)}
    ops = [
        Op("MatMul", ("x", "w"), ("a",)), Op("Add", ("a", "b"), ("c",)), Op("Gelu", ("c",), ("d",)),
        Op("Add", ("d", "r"), ("y",)),
    ]  # fmt: skip
    check(CppGemv(cache_dir=cache_dir), make_site(ops, inputs, ["y"], weights=("w", "b")), inputs)


@needs_compiler
@pytest.mark.parametrize(("m", "k", "n"), [(9, 3, 7), (64, 96, 144), (17, 1023, 50), (300, 33, 130)])
def test_many_rows(cache_dir: Path, m: int, k: int, n: int) -> None:
    inputs = {"x": random(m, k), "w": random(n, k, seed=1), "b": random(n, seed=2)}
    gemm = Op("Gemm", ("x", "w", "b"), ("a",), {"transB": 1, "alpha": 0.5, "beta": 2.0})
    site = make_site([gemm, Op("Relu", ("a",), ("y",))], inputs, ["y"], weights=("w",))
    check(CppGemm(cache_dir=cache_dir), site, inputs)


@needs_compiler
def test_batched_rows_and_constant_weight(cache_dir: Path) -> None:
    inputs = {"x": random(2, 3, 40), "s": random(2, 3, 1, seed=2)}
    ops = [Op("MatMul", ("x", "w"), ("a",)), Op("Mul", ("a", "s"), ("y",))]
    site = make_site(ops, inputs, ["y", "a"], constants={"w": random(40, 50, seed=1).numpy()})
    check(CppGemv(cache_dir=cache_dir), site, inputs)


@needs_compiler
def test_refusals(cache_dir: Path) -> None:
    gemv, gemm = CppGemv(cache_dir=cache_dir), CppGemm(cache_dir=cache_dir)
    inputs = {"x": random(4, 6), "w": random(6, 5)}
    product = Op("MatMul", ("x", "w"), ("y",))
    assert why_not(gemm, make_site([product], inputs, ["y"], weights="w")) == "4 rows, want more than 8"
    assert why_not(gemv, make_site([product], inputs, ["y"])) == "the right operand is not a constant weight"
    relu = Op("Relu", ("x",), ("y",))
    assert why_not(gemv, make_site([relu], inputs, ["y"])) == "0 MatMul or Gemm ops, want one"
    before = make_site(
        [Op("Relu", ("x",), ("a",)), Op("MatMul", ("a", "w"), ("y",))], inputs, ["y"], weights="w"
    )
    assert why_not(gemv, before) == "the left operand is not an input of the region"
    half = {"x": inputs["x"].double(), "w": inputs["w"].double()}
    assert (
        why_not(gemv, make_site([product], half, ["y"], weights="w"))
        == "x is float64 and the weight float64, want float32"
    )
    tall = {"x": random(2, 2, 3, 6), "w": inputs["w"], "s": random(2, 1, 1, 5)}
    site = make_site([product, Op("Add", ("y", "s"), ("z",))], tall, ["z"], weights="w")
    assert why_not(gemm, site) == "an epilogue operand broadcasts among the rows"

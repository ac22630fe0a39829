"""Parts of a model compute what the whole computed there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.numpy_helper import from_array
from onnx.reference import ReferenceEvaluator
from surgery_models import BRANCHES, FUNCTIONS, chain, chain_feeds, parse, write

from ridgeline.errors import ModelError, OptionError
from ridgeline.surgery.extract import extract_file


def values(model: onnx.ModelProto, feeds: dict[str, np.ndarray], names: list[str]) -> dict[str, np.ndarray]:
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    del wide.graph.output[:]
    wide.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return dict(zip(names, ReferenceEvaluator(wide).run(None, feeds), strict=True))


@pytest.mark.parametrize(
    ("starts", "ends", "inputs", "nodes"),
    [
        pytest.param(["d"], ["f"], ["d"], 2, id="values"),
        pytest.param(["softmax_3"], ["exp_4"], ["e"], 2, id="nodes"),
        pytest.param([], ["e"], ["a", "b"], 3, id="from the inputs"),
        pytest.param(["f"], [], ["b", "f"], 3, id="to the outputs, which need another input"),
        pytest.param(["d", "b"], ["y", "z"], ["b", "d"], 5, id="several"),
    ],
)
def test_a_part_computes_what_the_whole_did(
    tmp_path: Path, starts: list[str], ends: list[str], inputs: list[str], nodes: int
) -> None:
    model = chain()
    made = extract_file(write(model, tmp_path / "m.onnx"), tmp_path / "p.onnx", starts=starts, ends=ends)
    part = onnx.load(str(tmp_path / "p.onnx"))
    onnx.checker.check_model(part, full_check=True)
    assert [p.name for p in part.graph.input] == inputs == [row.name for row in made.inputs]
    assert made.nodes == nodes == len(part.graph.node)
    outputs = [p.name for p in part.graph.output]
    whole = values(model, chain_feeds(), [*{*inputs, *outputs} - {"a", "b"}]) | chain_feeds()
    got = ReferenceEvaluator(part).run(None, {name: whole[name] for name in inputs})
    for name, array in zip(outputs, got, strict=True):
        np.testing.assert_array_equal(array, whole[name])


def test_what_else_is_needed_is_told(tmp_path: Path) -> None:
    model = write(chain(), tmp_path / "m.onnx")
    made = extract_file(model, tmp_path / "p.onnx", starts=["h"], ends=["y"])
    assert made.notes == ("also an input, since the part needs it: b",)
    assert {row.name: row.is_new for row in made.inputs} == {"b": False, "h": True}
    assert made.inputs[1].type == "float32[N,4,8]"


def test_constants_that_nodes_make_stay_in_the_part(tmp_path: Path) -> None:
    """A weight held by a Constant node, and what is computed of weights alone, are no inputs."""
    text = """<ir_version: 10, opset_import: ["": 20]> g (float[2,4] x) => (float[2,4] y) {
      a = Relu (x)
      w = Constant <value = float[4] {1, 2, 3, 4}> ()
      v = Neg (w)
      m = Mul (a, v)
      y = Exp (m)
    }"""
    made = extract_file(
        write(parse(text), tmp_path / "m.onnx"), tmp_path / "p.onnx", starts=["mul_3"], ends=["exp_4"]
    )
    assert [row.name for row in made.inputs] == ["a"]
    part = onnx.load(str(tmp_path / "p.onnx"))
    (got,) = ReferenceEvaluator(part).run(None, {"a": np.ones((2, 4), np.float32)})
    np.testing.assert_allclose(got[0], np.exp([-1, -2, -3, -4]), rtol=1e-6)


def test_captured_values_count_as_read(tmp_path: Path) -> None:
    model = write(parse(BRANCHES), tmp_path / "m.onnx")
    extract_file(model, tmp_path / "p.onnx", starts=["a"], ends=["y"])
    part = onnx.load(str(tmp_path / "p.onnx"))
    onnx.checker.check_model(part, full_check=True)
    assert {p.name for p in part.graph.input} == {"x", "go", "a"}
    assert [node.op_type for node in part.graph.node] == ["Neg", "If", "Relu"]


def test_only_the_functions_in_use_are_kept(tmp_path: Path) -> None:
    model = write(parse(FUNCTIONS), tmp_path / "m.onnx")
    made = extract_file(model, tmp_path / "p.onnx", starts=[], ends=["b"])
    part = onnx.load(str(tmp_path / "p.onnx"))
    onnx.checker.check_model(part, full_check=True)
    assert sorted(f.name for f in part.functions) == ["sum", "twice"]
    assert made.functions == 2
    (got,) = ReferenceEvaluator(part).run(None, {"x": np.float32([-1, 2, -3, 4])})
    np.testing.assert_array_equal(got, np.float32([2, 4, 6, 8]))


def test_external_data_is_taken_in(tmp_path: Path) -> None:
    model = chain()
    onnx.save(model, str(tmp_path / "m.onnx"), save_as_external_data=True, location="m.bin", size_threshold=0)
    extract_file(tmp_path / "m.onnx", tmp_path / "p.onnx", starts=["d"], ends=["e"])
    (tmp_path / "m.bin").unlink()
    part = onnx.load(str(tmp_path / "p.onnx"))
    np.testing.assert_array_equal(
        onnx.numpy_helper.to_array(part.graph.initializer[0]),
        onnx.numpy_helper.to_array(chain().graph.initializer[0]),
    )


def test_all_unknown_names_are_reported_with_near_ones(tmp_path: Path) -> None:
    model = write(chain(), tmp_path / "m.onnx")
    with pytest.raises(OptionError, match=r"(?s)--from 'softmax_33'; near: softmax_3.*--to 'yy'; near: y"):
        extract_file(model, tmp_path / "p.onnx", starts=["softmax_33"], ends=["yy"])
    assert not (tmp_path / "p.onnx").exists()


@pytest.mark.parametrize(
    ("starts", "ends", "message"),
    [
        (["y"], ["z"], "z does not depend on y"),
        ([], ["a"], "'a' is given to the model"),
        (["h"], ["h"], "nothing lies between"),
    ],
)
def test_cuts_that_make_no_sense(tmp_path: Path, starts: list[str], ends: list[str], message: str) -> None:
    model = write(chain(), tmp_path / "m.onnx")
    with pytest.raises(OptionError, match=message):
        extract_file(model, tmp_path / "p.onnx", starts=starts, ends=ends)


def test_a_place_inside_a_subgraph_names_the_node_around_it(tmp_path: Path) -> None:
    model = write(parse(BRANCHES), tmp_path / "m.onnx")
    with pytest.raises(OptionError, match="inside a subgraph of If 'if_2'"):
        extract_file(model, tmp_path / "p.onnx", starts=["t"], ends=["y"])


def test_an_input_of_unknown_rank_is_refused_with_a_better_place(tmp_path: Path) -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 20]>
    g (float[4] x, int64[K] s) => (float[M] y) { a = Abs (x) b = Reshape (a, s) c = Neg (b) y = Relu (c) }""")
    with pytest.raises(ModelError, match=r"(?s)type of 'c'.*made by Neg"):
        extract_file(write(model, tmp_path / "m.onnx"), tmp_path / "p.onnx", starts=["c"], ends=["y"])


def test_a_weight_may_become_an_input(tmp_path: Path) -> None:
    model = chain()
    model.graph.initializer.append(from_array(np.zeros(3, np.float32), "idle"))
    made = extract_file(write(model, tmp_path / "m.onnx"), tmp_path / "p.onnx", starts=["w", "d"], ends=["e"])
    assert {row.name: row.type for row in made.inputs} == {"d": "float32[N,4,8]", "w": "float32[8,8]"}
    assert made.weights == 0

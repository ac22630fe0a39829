"""Two sides on the same inputs: outputs, tensors by name, the first divergence, NaN, saved outputs."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest

from ridgeline.analyze.compare import Allowed, Comparison
from ridgeline.analyze.compare_command import Request, run_comparison
from ridgeline.analyze.compare_sides import GraphNode
from ridgeline.analyze.open_sides import open_side, split_side
from ridgeline.analyze.saved_outputs import SavedSide, load_outputs, save_outputs
from ridgeline.errors import OptionError

CHAIN = """<ir_version: 10, opset_import: ["": 20]>
g (float[2, 8] x) => (float[2, 8] y)
<float[8, 8] w1, float[8, 8] w2>
{
  [first] a = MatMul(x, w1)
  [bias] b = Add(a, a)
  [gate] c = Tanh(b)
  [second] d = MatMul(c, w2)
  [last] y = Relu(d)
}"""
LOGS = """<ir_version: 10, opset_import: ["": 20]>
g (float[4] x) => (float[4] y)
{
  [log] l = Log(x)
  [twice] t = Add(l, l)
  [wide] e = Exp(t)
  [end] y = Mul(e, x)
}"""


def written(path: Path, text: str, **changes: float) -> Path:
    """The model with seeded weights, some of them multiplied."""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for weight in model.graph.value_info:
        shape = [dim.dim_value for dim in weight.type.tensor_type.shape.dim]
        array = rng.standard_normal(shape) * changes.get(weight.name, 1.0)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), weight.name))
    del model.graph.value_info[:]
    onnx.save(model, path)
    return path


def compared(a: Path | str, b: Path | str, **more: object) -> Comparison:
    allowed = more.pop("allowed", Allowed())
    options = {"level": 0, "progress": False}
    request = Request(str(a), str(b), allowed, options, **more)  # type: ignore[arg-type]
    report = run_comparison(request)
    assert report is not None
    return report


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("chain") / "chain.onnx", CHAIN)


def test_every_tensor_of_an_unfused_runtime_is_compared(chain: Path) -> None:
    report = compared(f"{chain}@floor", chain, with_layers=True, draws=2)
    assert report.passed
    assert [row.value for row in report.layers] == ["a", "b", "c", "d", "y"]
    assert [row.node for row in report.layers] == ["first", "bias", "gate", "second", "last"]
    assert all(row.metrics is not None and row.passed for row in report.layers)
    assert report.first_divergence is None
    assert set(report.outputs[0].every) == {"drawn 0", "drawn 1"}


def test_a_layer_dump_leaves_fusion_alone_and_says_what_is_inside(chain: Path) -> None:
    report = compared(f"{chain}@engine", chain, with_layers=True)
    rows = {row.value: row for row in report.layers}
    hidden = [value for value, row in rows.items() if row.metrics is None]
    assert hidden
    assert all(rows[value].absent_a.startswith("inside ") for value in hidden)
    assert "exist on both sides" in report.notes[0]


def test_unfused_more_tensors_exist(chain: Path) -> None:
    report = compared(f"{chain}@engine", chain, with_layers=True, is_unfused=True)
    assert all(row.metrics is not None for row in report.layers)


def test_steps_of_an_engine_give_what_a_run_gives(chain: Path) -> None:
    side = open_side(f"{chain}@engine", {"level": 0, "without": "ort", "progress": False})
    feeds = side.draw(0)
    assert np.array_equal(side.layers("", feeds)["y"], side.run("", feeds)["y"])


def test_the_first_divergence_names_the_node(chain: Path, tmp_path: Path) -> None:
    other = written(tmp_path / "other.onnx", CHAIN, w2=1.1)
    report = compared(other, chain, with_layers=True)
    assert not report.passed
    assert report.first_divergence is not None
    assert (report.first_divergence.node, report.first_divergence.value) == ("second", "d")
    assert report.outputs[0].metrics is not None
    assert report.outputs[0].metrics.relative_l2 == pytest.approx(0.1, rel=1e-3)


def test_nan_is_traced_to_the_node_that_made_it(tmp_path: Path) -> None:
    model = written(tmp_path / "logs.onnx", LOGS)
    np.savez(tmp_path / "s.npz", x=np.array([-1, 1e30, 2, 3], np.float32))
    report = compared(f"{model}@floor", model, with_layers=True, data=tmp_path / "s.npz")
    origins = [(row.side, row.node, row.nans, row.infs) for row in report.non_finite if row.is_origin]
    assert origins == [("a", "log", 1, 0), ("b", "log", 1, 0)]
    assert {row.node for row in report.non_finite} == {"log", "twice", "wide", "end"}
    assert report.passed  # both have it, at the same places


def test_outputs_without_numbers_are_not_called_the_same(tmp_path: Path) -> None:
    """Equal by definition, but neither no values nor NaN prove anything."""
    model = written(tmp_path / "logs.onnx", LOGS.replace("[4]", "[N]"))
    shapes = {"none": np.zeros(0), "nan": np.full(3, -1.0), "some": np.array([2.0, 3.0])}
    for name, array in shapes.items():
        np.savez(tmp_path / f"{name}.npz", x=array.astype(np.float32))
    found = {name: compared(f"{model}@floor", model, data=tmp_path / f"{name}.npz") for name in shapes}
    assert {name: (each.passed, each.outputs[0].values) for name, each in found.items()} == {
        "none": (False, 0), "nan": (True, 3), "some": (True, 2),
    }  # fmt: skip
    assert "nothing was compared" in found["none"].notes[-1]
    notes = [found[name].outputs[0].note for name in shapes]
    assert [note.split(":")[0] for note in notes] == [
        "empty",
        "NaN or infinite throughout, on both sides",
        "",
    ]


def test_the_rule_may_be_elementwise(chain: Path, tmp_path: Path) -> None:
    other = written(tmp_path / "other.onnx", CHAIN, w2=1.001)
    assert compared(other, chain).passed
    assert not compared(other, chain, allowed=Allowed(atol=1e-6)).passed
    assert compared(other, chain, allowed=Allowed(rtol=0.0011)).passed
    with pytest.raises(OptionError, match="no tolerance"):
        Allowed(rtol=float("nan"))


def test_an_output_that_one_side_lacks_differs(chain: Path, tmp_path: Path) -> None:
    other = written(tmp_path / "other.onnx", CHAIN.replace("=> (float[2, 8] y)", "=> (float[2, 8] d)"))
    report = compared(other, chain)
    assert not report.passed
    assert {row.output: row.note for row in report.outputs} == {"y": "only b has it", "d": "only a has it"}


def test_models_of_other_inputs_are_refused(chain: Path, tmp_path: Path) -> None:
    other = written(tmp_path / "other.onnx", CHAIN.replace("8] x)", "8] z)").replace("(x,", "(z,"))
    with pytest.raises(OptionError, match="do not take the same inputs"):
        compared(other, chain)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_saved_outputs_stand_for_a_side(chain: Path, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"outputs{suffix}"
    request = Request(f"{chain}@floor", None, Allowed(), {}, draws=2, with_layers=True, save_to=file)
    assert run_comparison(request) is None
    report = compared(chain, file, with_layers=True)
    assert report.passed
    assert report.samples == ("drawn 0", "drawn 1")
    assert all(row.metrics is not None for row in report.layers)
    assert "one op at a time" in report.b_who


def test_saved_outputs_of_other_inputs_are_refused(chain: Path, tmp_path: Path) -> None:
    file = tmp_path / "outputs.npz"
    run_comparison(Request(str(chain), None, Allowed(), {}, save_to=file))
    np.savez(tmp_path / "s.npz", x=np.ones((2, 8), np.float32))
    with pytest.raises(OptionError, match=r"no outputs for the inputs of s\.npz"):
        compared(chain, file, data=tmp_path / "s.npz")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_every_type_of_number_is_saved(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"outputs{suffix}"
    made = {
        name: np.array([[0, 1], [1, 0]]).astype(getattr(ml_dtypes, name, None) or name)
        for name in ("float16", "bfloat16", "float8_e4m3fn", "int4", "int64", "uint8", "bool", "float64")
    } | {
        "scalar": np.float32(2.5),
        "empty": np.zeros((0, 3), np.float32),
        "half": np.array(1, ml_dtypes.bfloat16),
    }
    save_outputs(file, {"s": ({"x": np.ones(2)}, made, {})}, label="l", who="w", versions={})
    back = load_outputs(file).run("s", {"x": np.ones(2)})
    assert back.keys() == made.keys()
    for name, array in made.items():
        assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)
        assert np.array_equal(back[name].astype(np.float64), array.astype(np.float64))


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_files_that_hold_something_else_are_refused(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"other{suffix}"
    file.write_bytes(b"\x10\0\0\0\0\0\0\0 nonsense nonsense")
    with pytest.raises(OptionError):
        load_outputs(file)
    with pytest.raises(OptionError):
        load_outputs(tmp_path / f"missing{suffix}")


def test_inputs_that_were_changed_in_the_file_are_found(tmp_path: Path) -> None:
    file = tmp_path / "outputs.npz"
    save_outputs(file, {"s": ({"x": np.ones(2)}, {"y": np.ones(2)}, {})}, label="l", who="w", versions={})
    arrays = dict(np.load(file))
    arrays["input/s/x"] = np.zeros(2)
    np.savez(file, **arrays)
    with pytest.raises(OptionError, match="damaged"):
        load_outputs(file)


def test_saved_outputs_say_what_they_lack() -> None:
    side = SavedSide("f", "w", {}, {})
    assert "not in the file" in side.absent("v", GraphNode("n", "Add", (), ("v",)))


def test_how_sides_are_written(chain: Path, tmp_path: Path) -> None:
    assert split_side(f"{chain}@floor") == (chain, "floor")
    odd = tmp_path / "a@b.onnx"
    odd.write_bytes(chain.read_bytes())
    assert split_side(str(odd)) == (odd, "reference")
    with pytest.raises(OptionError, match="names no way to run") as error:
        split_side(f"{chain}@flor")
    assert "floor" in error.value.help


@pytest.mark.parametrize("text", ["missing.onnx", "missing.onnx@floor", "missing.npz", "missing.ridge"])
def test_a_side_that_is_not_there(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match="does not exist"):
        open_side(text, {})


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_precision_is_a_side(chain: Path, precision: str) -> None:
    report = compared(f"{chain}@{precision}", chain, with_layers=True)
    assert report.passed
    (row,) = report.outputs
    assert row.metrics is not None
    assert 1e-5 < row.metrics.relative_l2 < 1e-2
    assert not compared(f"{chain}@{precision}", chain, allowed=Allowed(1e-6)).passed


@pytest.mark.parametrize(
    "text",
    [
        "g (bfloat16[4] x) => (bfloat16[4] y) { [one] a = Mul(x, x)  [two] y = Relu(a) }",
        "g (float[4] x) => (float[4] y) { a = Cast<to=16>(x) b = Mul(a, a) y = Cast<to=1>(b) }",
    ],
)
def test_tensors_that_onnx_runtime_does_not_hand_out(tmp_path: Path, text: str) -> None:
    model = written(tmp_path / "half.onnx", f'<ir_version: 10, opset_import: ["": 20]>\n{text}')
    report = compared(f"{model}@floor", model, with_layers=True)
    assert report.passed
    assert all(row.metrics is not None for row in report.layers)
    assert "reference evaluator" in report.b_who

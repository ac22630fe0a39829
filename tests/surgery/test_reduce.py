"""The smallest part that fails is found, with the real values at its border, and run once more."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from surgery_models import chain, chain_feeds, write

from ridgeline.errors import ModelError, OptionError
from ridgeline.surgery.check import Outcome, read_command
from ridgeline.surgery.reduce import Reduced, reduce_file


def script(tmp_path: Path, code: str) -> str:
    """A check in Python, quick since it imports little: `ops` of the model, `samples` beside it."""
    path = tmp_path / "check.py"
    path.write_text(
        "import sys, glob\n"
        "content = open(sys.argv[1], 'rb').read()\n"
        "ops = {op for op in ('Add', 'Relu', 'Softmax', 'Exp') if op.encode() in content}\n"
        "samples = sorted(glob.glob(sys.argv[2] + '/*.npz'))\n" + code
    )
    return f"{shlex.quote(sys.executable)} {shlex.quote(str(path))} {{}} {{inputs}}"


def reduced(tmp_path: Path, check: str, **options: object) -> Reduced:
    named = {"timeout_s": None, "match": "", "any_failure": False}
    command = read_command(check, **{k: options.pop(k, v) for k, v in named.items()})  # type: ignore[arg-type]
    model = write(chain(), tmp_path / "m.onnx")
    return reduce_file(model, tmp_path / "r.onnx", command, **options)  # type: ignore[arg-type]


def test_one_bad_op_is_all_that_is_left(tmp_path: Path) -> None:
    made = reduced(tmp_path, script(tmp_path, "sys.exit(7 if 'Softmax' in ops else 0)"))
    assert made.ops == ("Softmax",)
    part = onnx.load(str(tmp_path / "r.onnx"))
    onnx.checker.check_model(part, full_check=True)
    assert [p.name for p in part.graph.input] == ["e"]
    assert made.steps[0].action == "the whole model"
    assert made.steps[-1].action == "the written file"
    assert made.steps[-1].still_fails


def test_a_pair_of_ops_keeps_what_lies_between(tmp_path: Path) -> None:
    made = reduced(tmp_path, script(tmp_path, "sys.exit('Relu' in ops and 'Exp' in ops)"))
    assert made.ops[0] == "Relu"
    assert made.ops[-1] == "Exp"
    assert len(made.ops) < 5, "the Softmax or the MatMul between them can be passed by"


def test_all_samples_are_used_with_the_values_they_had(tmp_path: Path) -> None:
    """Fails only where the second sample's values reach the Softmax."""
    files = []
    for i, scale in enumerate((1.0, 100.0)):
        files.append(tmp_path / f"s{i}.npz")
        np.savez(files[-1], **{n: a * np.float32(scale) for n, a in chain_feeds(batch=i + 1, seed=i).items()})
    code = (
        "import numpy as np\n"
        "largest = max(np.abs(a).max() for s in map(np.load, samples) for a in s.values())\n"
        "sys.exit('Softmax' in ops and len(samples) == 2 and largest > 50)"
    )
    made = reduced(tmp_path, script(tmp_path, code), samples=files)
    assert made.ops == ("Softmax",)
    assert made.samples == 2
    kept = [np.load(tmp_path / "r_inputs" / f"sample_{i:02d}.npz") for i in range(2)]
    weight = onnx.numpy_helper.to_array(chain().graph.initializer[0])
    for i, sample in enumerate(kept):
        given = np.load(files[i])
        want = np.maximum(given["a"] + given["b"], 0) @ weight
        np.testing.assert_allclose(sample["e"], want, rtol=1e-5, atol=1e-4)
        assert sample["e"].shape[0] == i + 1


def test_another_status_is_another_failure(tmp_path: Path) -> None:
    check = script(tmp_path, "sys.exit(3 if 'Exp' in ops else 1)")
    assert reduced(tmp_path, check).ops == ("Exp",)
    non_tensor = reduced(tmp_path, check, any_failure=True)
    assert non_tensor.ops == ("Add",)
    assert any("failed on every part" in note for note in non_tensor.notes)


def test_only_what_matches_is_the_failure(tmp_path: Path) -> None:
    check = script(tmp_path, "print('boom' if 'Exp' in ops else 'other'); sys.exit(1)")
    assert reduced(tmp_path, check, match="bo+m").ops == ("Exp",)


def test_a_hang_is_a_failure_like_any_other(tmp_path: Path) -> None:
    command = read_command("bash -c 'sleep 30; true'", timeout_s=0.2, match="", any_failure=False)
    hung, passed = command.run(tmp_path, tmp_path), Outcome(0, "", 0.1)
    assert hung.status is None
    assert hung.seconds < 20
    assert command.is_same(hung, hung)
    assert not command.is_same(hung, Outcome(1, "", 0.1))
    assert not command.is_same(passed, hung)


def test_a_check_that_passes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="passes on the whole model"):
        reduced(tmp_path, script(tmp_path, "sys.exit(0)"))


def test_a_failure_that_goes_away_is_reported(tmp_path: Path) -> None:
    flag = tmp_path / "runs"
    code = (
        f"import os; n = len(os.listdir({str(flag)!r}))\n"
        f"open({str(flag)!r} + f'/{{n}}', 'w').close(); sys.exit(n < 4)"
    )
    flag.mkdir()
    with pytest.raises(OptionError, match="comes and goes"):
        reduced(tmp_path, script(tmp_path, code), max_checks=4)


def test_checks_are_bounded(tmp_path: Path) -> None:
    made = reduced(tmp_path, script(tmp_path, "sys.exit('Softmax' in ops)"), max_checks=3)
    assert made.checks == 4, "three, and the written file"
    assert any("--max-checks" in note for note in made.notes)


@pytest.mark.parametrize("text", ["", "'open quote"])
def test_commands_that_do_not_read(text: str) -> None:
    with pytest.raises(OptionError):
        read_command(text, timeout_s=None, match="", any_failure=False)


def test_a_command_that_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be started"):
        reduced(tmp_path, "/no/such/program {}")


def test_samples_must_fit_the_model(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", a=chain_feeds()["a"])
    with pytest.raises(OptionError, match="holds no array for 'b'"):
        reduced(tmp_path, "true", samples=[tmp_path / "s.npz"])
    np.savez(tmp_path / "s.npz", **chain_feeds(), bb=np.zeros(1))
    with pytest.raises(OptionError, match="holds 'bb'"):
        reduced(tmp_path, "true", samples=[tmp_path / "s.npz"])
    (tmp_path / "s.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(OptionError, match="does not load as an array"):
        reduced(tmp_path, "true", samples=[tmp_path / "s.npz"])
    np.save(tmp_path / "s.npy", chain_feeds()["a"])
    with pytest.raises(OptionError, match="one array without a name"):
        reduced(tmp_path, "true", samples=[tmp_path / "s.npy"])


def test_the_commands_end_to_end(tmp_path: Path, ridge: Callable[..., tuple[int, str, str]]) -> None:
    model = write(chain(), tmp_path / "m.onnx")
    code, stdout, _ = ridge("extract", model, "--from", "d", "--to", "softmax_3", "-o", "p.onnx", "--json")
    assert code == 0
    assert json.loads(stdout)["nodes"] == 2
    check = script(tmp_path, "sys.exit('Softmax' in ops)")
    code, stdout, stderr = ridge("reduce", "p.onnx", "--check", check, "-o", "r.onnx")
    assert code == 0, stderr
    assert "1 of 2: Softmax" in stdout
    assert "wrote r.onnx" in stderr


def test_an_output_that_nobody_makes_is_said_at_once(tmp_path: Path) -> None:
    model = chain()
    model.graph.output[0].name = "nowhere"
    command = read_command("false", timeout_s=None, match="", any_failure=False)
    with pytest.raises(ModelError, match="nobody makes 'nowhere'"):
        reduce_file(write(model, tmp_path / "m.onnx"), tmp_path / "r.onnx", command)


def test_an_open_dim_written_as_minus_one(tmp_path: Path) -> None:
    model = chain()
    for dim in (port.type.tensor_type.shape.dim[0] for port in model.graph.input):
        dim.dim_value = -1
    command = read_command(
        script(tmp_path, "sys.exit(7 if 'Softmax' in ops else 0)"),
        timeout_s=None,
        match="",
        any_failure=False,
    )
    made = reduce_file(write(model, tmp_path / "m.onnx"), tmp_path / "r.onnx", command)
    assert made.ops == ("Softmax",)
    assert made.samples == 1, "values were recorded"

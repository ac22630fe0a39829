"""Models in which half precision does harm at nodes that are known beforehand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser

ROWS, WIDTH = 4, 32


def planted_model(path: Path, planted: dict[int, float], nodes: int = 300) -> Path:
    """A chain of `nodes` nodes, `node_000` on. Those planted take the sine of large angles `t0`, `t1` ….

    An angle of thousands is off by one or two in half precision, and its sine is another one. Each is
    weighted and added to the result at the end, where nothing damps it.
    """
    shape = f"float[{ROWS}, {WIDTH}]"
    angles = ", ".join(f"{shape} t{i}" for i in range(len(planted)))
    weights = ", ".join(f"float w{i} = {{{weight}}}" for i, weight in enumerate(planted.values()))
    lines = []
    value, sines = "x", []
    ends = 2 * len(planted)
    for i in range(nodes - ends):
        name = f"node_{i:03d}"
        if i in planted:
            k = list(planted).index(i)
            lines.append(f"[{name}] s{k} = Sin(t{k})")
            sines.append(k)
            continue
        made = f"h{i}"
        step = f"Mul({value}, half)" if len(lines) % 2 else f"Add({value}, x)"
        lines.append(f"[{name}] {made} = {step}")
        value = made
    for j, k in enumerate(sines):
        at = nodes - ends + 2 * j
        out = "y" if j == len(sines) - 1 else f"sum{k}"
        lines.append(f"[node_{at:03d}] v{k} = Mul(s{k}, w{k})")
        lines.append(f"[node_{at + 1:03d}] {out} = Add({value}, v{k})")
        value = out
    text = f"""<ir_version: 10, opset_import: ["": 20]>
g ({shape} x, {angles}) => ({shape} y)
<float half = {{0.5}}, {weights}>
{{
{chr(10).join(lines)}
}}"""
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def planted_data(folder: Path, angles: int, samples: int = 2) -> Path:
    """Inputs for it, as .npz files."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(samples):
        x = rng.uniform(0.5, 1.0, (ROWS, WIDTH)).astype(np.float32)
        t = {f"t{k}": rng.uniform(3000, 5000, (ROWS, WIDTH)).astype(np.float32) for k in range(angles)}
        np.savez(folder / f"s{i}.npz", x=x, **t)  # type: ignore[arg-type]
    return folder

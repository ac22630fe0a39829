"""A softmax over the last axis in C++, as one more tactic for ONNX's own op."""

from __future__ import annotations

from ridgeline.plugins import CppTactic, OpSite, register_tactic

SOURCE = """
extern "C" void softmax(const float* x, float* y, int64_t rows, int64_t columns) {
    #pragma omp parallel for num_threads(THREADS) if (THREADS > 1)
    for (int64_t r = 0; r < rows; ++r) {
        const float* in = x + r * columns;
        float* out = y + r * columns;
        float top = in[0];
        for (int64_t c = 1; c < columns; ++c) top = std::max(top, in[c]);
        float sum = 0.0f;
        for (int64_t c = 0; c < columns; ++c) sum += out[c] = std::exp(in[c] - top);
        for (int64_t c = 0; c < columns; ++c) out[c] /= sum;
    }
}
"""


def is_last_axis(at: OpSite) -> str | None:
    """Why not, in words that `ridge explain` will print."""
    x = at.inputs[0]
    if x.dtype != "float32" or not x.numel:
        return f"x is {x}, want float32 with elements"
    if at.attrs["axis"] % len(x.shape) != len(x.shape) - 1:
        return f"softmax over axis {at.attrs['axis']}, want the last"
    return None


def register() -> None:
    """What the entry point names."""
    register_tactic(
        CppTactic(
            "acme.softmax.cpp",
            op="Softmax",
            source=SOURCE,
            function="softmax",
            scalars=lambda at: (at.inputs[0].numel // at.inputs[0].shape[-1], at.inputs[0].shape[-1]),
            when=is_last_axis,
            configs=lambda at: [{"THREADS": n} for n in sorted({at.threads, 1}, reverse=True)],
        )
    )

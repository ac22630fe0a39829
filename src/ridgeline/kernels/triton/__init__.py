"""GPU kernels in Triton: descriptions, compilation without a GPU, launching without Triton."""

"""Engines where PyTorch expects modules: `ridgeline.compile` and the backend of `torch.compile`."""

"""Benchmarks: scripts over the public names of `ridgeline`. Nothing here is imported by the package."""

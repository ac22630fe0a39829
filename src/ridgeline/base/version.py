"""The version of this package, known also where it was never installed; that of pyproject.toml."""

VERSION = "0.1.0"

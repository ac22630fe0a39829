"""What `bench/` writes beside its figures, where only the sources of a package are on the path."""

from __future__ import annotations

import pytest
from bench import models_cpu


def test_a_package_that_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models_cpu, "PACKAGES", ("numpy", "no-such-package"))
    versions = models_cpu.surroundings(threads=1, duration_s=1.0)["versions"]
    assert versions["no-such-package"] == "not installed"
    assert versions["numpy"][0].isdigit()

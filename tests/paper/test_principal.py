"""The baseline of principal components, on the digits that come with scikit-learn."""

from __future__ import annotations

import re

import pytest
import torch

from benchmarks import principal
from damc.data import load_images


def test_it_reconstructs_and_generates(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["principal", "digits", "--images", "500"])
    principal.main()
    said = capsys.readouterr().out
    error, kernel, frechet = (
        float(re.search(rf"{name} ([-.\d]+)", said)[1])  # type: ignore[index]
        for name in ("test MSE", "kernel distance", "Frechet distance")
    )
    x = load_images("digits", split="test").batch(torch.arange(300))
    spread = float((x - x.mean(0)).square().mean())
    assert 0.2 * spread < error < 0.5 * spread  # 8 of 64 dimensions
    assert abs(kernel) < 0.2 and frechet < 8  # of 16 features: the mean image has 16

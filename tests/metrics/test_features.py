from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from damc.errors import BadInput
from damc.metrics.features import inception, pixel_pca


def test_only_the_known_inception_file_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("DAMC_INCEPTION", raising=False)
    with pytest.raises(BadInput, match="no Inception network at .*/.cache/damc/inception"):
        inception()
    opened: list[object] = []
    monkeypatch.setattr(torch.jit, "load", lambda *a, **k: opened.append(a))
    other = tmp_path / "other.pt"
    other.write_bytes(b"TorchScript from somewhere")
    with pytest.raises(BadInput, match="other TorchScript files are not opened"):
        inception(other)
    monkeypatch.setenv("DAMC_INCEPTION", str(other))
    with pytest.raises(BadInput, match="other.pt must be .* with the SHA-256"):
        inception()
    assert opened == []


@pytest.mark.skipif("DAMC_INCEPTION" not in os.environ, reason="DAMC_INCEPTION names no file")
def test_the_real_inception_network() -> None:
    features = inception()
    g = torch.Generator().manual_seed(0)
    x = torch.rand(2, 1, 32, 32, generator=g) * 2 - 1
    y = features(x)
    assert y.shape == (2, 2048)
    assert torch.allclose(y, features(x.expand(-1, 3, -1, -1)))
    assert torch.allclose(features(1.4 * x), features((1.4 * x).clamp(-1, 1)))
    assert (y >= 0).all() and 0.1 < float(y.mean()) < 1
    with pytest.raises(BadInput, match="1 or 3 channels"):
        features(x.expand(-1, 2, -1, -1))


def test_pixel_pca_needs_varied_images_of_one_shape() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.rand(50, 3, 5, 5, generator=g) * 2 - 1
    features = pixel_pca(x, 20)
    assert (features.name, features.dim, features.resize) == ("pixel-PCA-20", 20, "none")
    assert features.hash == pixel_pca(x, 20).hash != pixel_pca(x[:40], 20).hash
    with pytest.raises(BadInput, match="need at least 51 images"):
        pixel_pca(x, 50)
    with pytest.raises(BadInput, match="directions of variation, got 1"):
        pixel_pca(x[:, :1, :1, :1].expand(-1, 3, 5, 5), 20)
    with pytest.raises(BadInput, match=r"shape \(3, 5, 5\)"):
        features(x[:, :1])

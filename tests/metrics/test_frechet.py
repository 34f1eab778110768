from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm

from damc.errors import BadInput, Diverged
from damc.metrics.features import Features, pixel_pca
from damc.metrics.frechet import (
    cached_statistics,
    distances,
    frechet_distance,
    kernel_distance,
    statistics,
)


def draw(*shape: int, seed: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def pictures(n: int, seed: int, spread: float = 0.2) -> torch.Tensor:
    return (draw(n, 1, 6, 6, seed=seed) * spread).tanh().float()


class Count:
    """Features that are the pixels themselves, and remember how many images passed."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += len(x)
        return x.flatten(1)


def flat(network: object = None, hash: str = "0", dim: int = 36) -> Features:
    return Features("flat", dim, network or Count(), "none", hash)  # type: ignore[arg-type]


def scipy_frechet(a: np.ndarray, b: np.ndarray) -> float:
    s_a, s_b = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    root = sqrtm(s_a @ s_b).real
    return float(((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(s_a + s_b - 2 * root))


def test_frechet_distance_of_commuting_gaussians_has_a_closed_form() -> None:
    """With one basis for both, it is |m_a - m_b|^2 + sum (s_a - s_b)^2 over standard deviations."""
    basis = torch.linalg.qr(draw(8, 8, seed=0))[0]
    s_a, s_b = draw(8, seed=1).abs(), draw(8, seed=2).abs()
    m_a, m_b = draw(8, seed=3), draw(8, seed=4)
    found = frechet_distance(m_a, basis * s_a**2 @ basis.T, m_b, basis * s_b**2 @ basis.T)
    expected = (m_a - m_b).square().sum() + (s_a - s_b).square().sum()
    assert found == pytest.approx(float(expected), rel=1e-10)


@pytest.mark.parametrize("n", [400, 40])
def test_frechet_distance_equals_scipy_even_with_singular_covariances(n: int) -> None:
    d = 64
    mix = draw(d, d, seed=0)
    a, b = draw(n, d, seed=1) @ mix, 1.1 * draw(n, d, seed=2) @ mix + 0.1
    found = frechet_distance(a.mean(0), a.T.cov(), b.mean(0), b.T.cov())
    assert found == pytest.approx(scipy_frechet(a.numpy(), b.numpy()), rel=1e-3 if n < d else 1e-8)


def test_statistics_do_not_depend_on_batches_and_keep_their_digits() -> None:
    x = pictures(203, seed=0)
    far = flat(lambda y: y.flatten(1).double() + 1e6)
    for images in (x, [x[:3], x[3:90], x[90:]]):
        found = statistics(images, far, batch_size=32)
        assert found.images == 203
        expected = x.flatten(1).double()
        assert torch.allclose(found.mean - 1e6, expected.mean(0), atol=1e-8)
        assert torch.allclose(found.covariance, expected.T.cov(), rtol=1e-6, atol=1e-9)


def test_kernel_distance_equals_its_double_sum() -> None:
    a, b = draw(17, 4, seed=0), draw(12, 4, seed=1) + 0.5

    def k(x: torch.Tensor, y: torch.Tensor) -> float:
        return float((x @ y / 4 + 1) ** 3)

    within_a = np.mean([k(x, y) for i, x in enumerate(a) for j, y in enumerate(a) if i != j])
    within_b = np.mean([k(x, y) for i, x in enumerate(b) for j, y in enumerate(b) if i != j])
    expected = within_a + within_b - 2 * np.mean([k(x, y) for x in a for y in b])
    value, error = kernel_distance(a, b)
    assert value == pytest.approx(expected, rel=1e-10)

    def jackknife(values: list[float]) -> float:
        n = len(values)
        return (n - 1) / n * float(((np.array(values) - np.mean(values)) ** 2).sum())

    def without(x: torch.Tensor, i: int) -> torch.Tensor:
        return torch.cat([x[:i], x[i + 1 :]])

    variance = jackknife([kernel_distance(without(a, i), b)[0] for i in range(17)])
    variance += jackknife([kernel_distance(a, without(b, i))[0] for i in range(12)])
    assert error == pytest.approx(math.sqrt(variance), rel=1e-8)


def test_kernel_distance_is_unbiased_and_its_error_bar_is_right_where_frechet_is_not() -> None:
    """200 null pairs of 60 points: the mean is 0 within 4 errors; the Frechet distance's is not."""
    kernel, frechet, claimed = [], [], []
    for seed in range(200):
        a, b = draw(60, 5, seed=2 * seed), draw(60, 5, seed=2 * seed + 1)
        value, error = kernel_distance(a, b)
        kernel.append(value)
        claimed.append(error)
        frechet.append(frechet_distance(a.mean(0), a.T.cov(), b.mean(0), b.T.cov()))
    spread = float(np.std(kernel, ddof=1))
    assert abs(np.mean(kernel)) < 4 * spread / math.sqrt(200)
    assert np.mean(frechet) > 10 * np.std(frechet, ddof=1) / math.sqrt(200)
    assert 0.6 < np.mean(claimed) / spread < 2.0


def test_pixel_pca_is_white_on_its_own_images_and_worth_dim_at_the_mean() -> None:
    x = pictures(500, seed=0)
    features = pixel_pca(x, dim=10)
    real = statistics(x, features)
    assert torch.allclose(real.mean, torch.zeros(10, dtype=torch.float64), atol=1e-8)
    assert torch.allclose(real.covariance, torch.eye(10, dtype=torch.float64), atol=1e-8)
    same = statistics(x.mean(0, keepdim=True).expand(60, -1, -1, -1), features)
    frechet, kernel = distances(same, real, split="train")
    assert frechet.value == pytest.approx(10, rel=1e-3)
    assert kernel.value > 5 * (kernel.error or 0)
    big = torch.nn.functional.interpolate(x, scale_factor=8)
    assert pixel_pca(big, dim=10, side=6).network(big) == pytest.approx(
        features.network(x), abs=1e-4
    )


def test_the_record_names_its_features_and_never_calls_them_fid() -> None:
    x = pictures(500, seed=0)
    features = pixel_pca(x, dim=10)
    frechet, kernel = distances(
        statistics(x[:49], features), statistics(x, features), split="first 500"
    )
    assert frechet.name == "pixel-PCA-10 Frechet distance"
    assert kernel.name == "pixel-PCA-10 kernel distance"
    assert (frechet.images, frechet.real_images, frechet.split) == (49, 500, "first 500")
    assert (frechet.features, frechet.features_hash) == ("pixel-PCA-10", features.hash)
    assert "49 images are too few" in frechet.note
    enough, _ = distances(statistics(x[:50], features), statistics(x, features), split="")
    assert enough.note == ""


def test_distances_grow_with_the_difference() -> None:
    real = statistics(pictures(800, seed=0), flat())
    values = [
        [d.value for d in distances(statistics(pictures(800, 1, s), flat()), real, split="")]
        for s in (0.2, 0.3, 0.5)
    ]
    assert values[0][0] < values[1][0] < values[2][0]
    assert values[0][1] < values[1][1] < values[2][1]


def test_real_statistics_are_cached_by_content(tmp_path: Path) -> None:
    x, network = pictures(50, seed=0), Count()
    first = cached_statistics(x, flat(network), tmp_path)
    again = cached_statistics([x[:20], x[20:]], flat(network), tmp_path)
    assert network.seen == 50
    assert torch.equal(first.covariance, again.covariance) and torch.equal(first.kept, again.kept)
    assert (again.images, len(list(tmp_path.iterdir()))) == (50, 1)

    x[3, 0, 0, 0] += 1e-3
    cached_statistics(x, flat(network), tmp_path)
    cached_statistics(x, flat(network, hash="other"), tmp_path)
    assert network.seen == 150
    assert len(list(tmp_path.iterdir())) == 3


def test_a_damaged_cache_file_is_said_and_made_again(tmp_path: Path) -> None:
    x = pictures(50, seed=0)
    first = cached_statistics(x, flat(), tmp_path)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    for damage in (b"", whole[: len(whole) // 2], b"\x80\x04N."):
        file.write_bytes(damage)
        with pytest.warns(UserWarning, match="computed again"):
            again = cached_statistics(x, flat(), tmp_path)
        assert torch.equal(first.covariance, again.covariance)
    assert cached_statistics(x, flat(), tmp_path).images == 50


def test_an_interrupted_write_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", stop)
    with pytest.raises(KeyboardInterrupt):
        cached_statistics(pictures(50, seed=0), flat(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    x = pictures(50, seed=0)
    with pytest.raises(BadInput, match="different weights"):
        distances(statistics(x, flat()), statistics(x, flat(hash="1")), split="")
    with pytest.raises(BadInput, match="at least 3 images"):
        statistics(x[:2], flat())
    with pytest.raises(BadInput, match="at least 3 images"):
        statistics([], flat())
    with pytest.raises(BadInput, match="got an iterator"):
        cached_statistics(iter([x]), flat(), tmp_path)
    with pytest.raises(BadInput, match=r"got \[0, 200\]"):
        statistics((x.abs() > 0.1) * 200.0, flat())
    with pytest.raises(BadInput, match="torch.uint8"):
        statistics(torch.zeros(5, 1, 6, 6, dtype=torch.uint8), flat())
    with pytest.raises(BadInput, match="must have the shape"):
        statistics(x, flat(dim=35))
    with pytest.raises(Diverged, match="not finite"):
        statistics(x, flat(lambda y: y.flatten(1) / 0))

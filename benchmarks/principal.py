"""`python -m benchmarks.principal DATA [--data-root DIR]`: what principal components give.

A baseline for `damc reproduce generation`, in seconds and without a network: as many principal
components as the small preset of DATA has latent dimensions, and ten Gaussians fitted to them.
Distances and errors are measured as in that table.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from sklearn.decomposition import PCA

from damc.amortize.mixture import GaussianMixture
from damc.data import load_images
from damc.learn.presets import find_preset
from damc.metrics.frechet import distances, statistics
from damc.tasks.evaluate import choose_features

_FITTED = 10_000  # training images
_REAL, _UNSEEN = 2000, 1000  # compared with samples, and reconstructed, as in the table
_BATCH = 20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help="svhn, cifar10 or mnist")
    parser.add_argument("--data-root", type=Path, help="folder of the data sets")
    parser.add_argument("--images", type=int, default=1000, help="samples")
    parser.add_argument("--inception", type=Path, help="file; principal components without it")
    options = parser.parse_args()
    train, unseen = (
        load_images(options.data, root=options.data_root, split=split)
        for split in ("train", "test")
    )
    x = train.batch(torch.arange(min(_FITTED, len(train))))
    y = unseen.batch(torch.arange(min(_UNSEEN, len(unseen))))
    d = find_preset(f"{options.data}-small").networks.latent_dim

    start = time.process_time()
    components = PCA(d, whiten=True, svd_solver="randomized", random_state=0)
    z = torch.from_numpy(components.fit_transform(x.flatten(1).numpy()))
    density = GaussianMixture.fit(z, 10)
    seconds = time.process_time() - start

    def decode(points: torch.Tensor) -> torch.Tensor:
        images = torch.from_numpy(components.inverse_transform(points.numpy())).to(x)
        return images.view(-1, *x.shape[1:]).clamp(-1, 1)

    codes = torch.from_numpy(components.transform(y.flatten(1).numpy()))
    error = float((decode(codes) - y).square().mean())
    samples = decode(density.sample(options.images, torch.Generator().manual_seed(0)))
    name = "pixel-pca" if options.inception is None else "inception"
    features = choose_features(name, train, path=options.inception)
    real = statistics([x[:_REAL]], features, batch_size=_BATCH)
    found = statistics([samples], features, batch_size=_BATCH)
    frechet, kernel = distances(found, real, split="train")
    print(f"{options.data}: {d} principal components of {len(x):,} images, {seconds:.1f} CPU s")
    print(f"test MSE {error:.4f}, of {len(y):,} images")
    print(f"kernel distance {kernel.value:.4f}, Frechet distance {frechet.value:.2f}, on {name}")


if __name__ == "__main__":
    main()

"""The moving pictures of the README and of the site's home page.

    python docs/images/animate.py toy      # q(z | x) becomes the exact posterior: toy.gif
    python docs/images/animate.py chain    # Langevin chains on a learned prior: chain.gif

Both go to docs/images unless `--out` names another folder. The first trains a sampler as `damc toy`
does, with half of its chains and a smaller network, for 90 iterations: half a minute on one core.
The second opens the packaged model mnist-small and takes seconds.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from scipy import ndimage
from torch import Tensor

import damc
from damc.toy.experiment import train_sampler
from damc.toy.pictures import density_images, histogram, most_divided
from damc.toy.problem import ToyModel
from damc.toy.settings import ToySettings

if TYPE_CHECKING:
    from PIL.Image import Image

HERE = Path(__file__).parent
HOLD = 2500  # milliseconds that the last frame stays


def animate_toy(iterations: int = 90, shown: int = 4, points: int = 1000) -> list[Image]:
    """Samples of q(z | x) while it learns, above the exact posteriors of the same x.

    Args:
        iterations: of learning.
        shown: how many observations x, those whose posteriors have the most modes.
        points: samples of each.
    """
    settings = replace(ToySettings(), iterations=iterations, batch=250, widths=(64, 128, 128))
    model, data = ToyModel(seed=0), torch.Generator().manual_seed(0)
    _, x = model.draw(8, data)
    exact = density_images(model.grid_posteriors(x))
    chosen = most_divided(exact, shown)
    x, exact = x[chosen], exact[chosen]
    when = {round(iterations ** (k / 27)) for k in range(28)}  # ever longer steps
    frames: list[Image] = []

    def keep(k: int, copy: damc.Amortizer) -> None:
        if k + 1 in when:
            seed = torch.Generator().manual_seed(1)  # the same noise, so that points flow
            found = [copy.sample(points, x=one[None], generator=seed)[:, 0] for one in x]
            frames.append(_toy_frame(found, exact, k + 1))

    train_sampler(model, model, settings, 0, data, keep, progress=False)
    return frames


def animate_chain(steps: int = 480, every: int = 12, chains: int = 24) -> list[Image]:
    """Langevin chains on the prior of mnist-small from N(0, I), decoded on the way."""
    from PIL import Image, ImageDraw

    from damc.app.pictures import sheet

    learner = damc.load("mnist-small")
    seed = torch.Generator().manual_seed(0)
    kernel = damc.Langevin(float(learner.settings.prior_step_size))
    z = torch.randn(chains, learner.model.latent_dim, generator=seed)
    state, frames = kernel.init(z), []
    for done in range(0, steps + 1, every):
        if done:
            state, _ = kernel.run(state, learner.prior, seed, steps=every)
        with torch.no_grad():
            images = sheet(learner.decode(state.z).clamp(-1, 1), 12)
        frame = Image.new("RGB", (images.width, images.height + 20), "white")
        frame.paste(images, (0, 20))
        text = f"{chains} Langevin chains on the learned prior, step {done}"
        ImageDraw.Draw(frame).text((4, 3), text, fill="black", font_size=13)
        frames.append(frame)
    return frames


def write_gif(path: Path, frames: Sequence[Image], milliseconds: int, colors: int) -> None:
    """One file of all frames, in one palette: that of the last."""
    palette = frames[-1].quantize(colors)
    plain = [frame.quantize(palette=palette, dither=0) for frame in frames]
    times = [milliseconds] * (len(plain) - 1) + [HOLD]
    path.parent.mkdir(parents=True, exist_ok=True)
    plain[0].save(
        path, save_all=True, append_images=plain[1:], duration=times, loop=0, optimize=True
    )


def _toy_frame(found: Sequence[Tensor], exact: Tensor, iteration: int) -> Image:
    from matplotlib.figure import Figure
    from PIL import Image

    figure = Figure(figsize=(6.4, 3.5), dpi=100)
    axes: Any = figure.subplots(2, len(found), squeeze=False)
    figure.subplots_adjust(0.09, 0.02, 0.99, 0.9, 0.05, 0.05)
    for column, (z, density) in enumerate(zip(found, exact, strict=True)):
        smooth = [ndimage.gaussian_filter(d.numpy(), 1.5) for d in (histogram(z), density)]
        for ax, values in zip(axes[:, column], smooth, strict=True):
            top = smooth[1].max() ** 0.5  # square roots: faint modes are seen, too
            ax.imshow(values**0.5, origin="lower", vmin=0, vmax=top, cmap="viridis")
            ax.set(xticks=[], yticks=[])
    axes[0, 0].set_ylabel("q(z | x)", fontsize=11)
    axes[1, 0].set_ylabel("exact", fontsize=11)
    title = f"Posteriors of {len(found)} observations: iteration {iteration:,}"
    figure.suptitle(title, x=0.09, ha="left", fontsize=11)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return Image.open(buffer).convert("RGB")


def main() -> None:
    """Makes one of the two."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("which", choices=["toy", "chain"])
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write into")
    parser.add_argument("--iterations", type=int, default=90, help="of the toy")
    options = parser.parse_args()
    path = options.out / f"{options.which}.gif"
    if options.which == "toy":
        write_gif(path, animate_toy(options.iterations), 250, 96)
    else:
        write_gif(path, animate_chain(), 150, 24)
    print(f"{path}  {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()

"""Long chains on the learned prior: do they move to good images, and stay there?"""

from __future__ import annotations

__all__ = ["MARKS", "Look", "Transitions", "transitions"]

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from damc.data import Images
from damc.errors import BadInput, Diverged
from damc.kernels.base import Kernel, State
from damc.kernels.langevin import Langevin
from damc.learn import Learner
from damc.report import plots
from damc.report.page import Section

MARKS = (100, 200, 1000, 2500)
"""Steps at which the chains are compared with data, beside the first and the last."""

_REAL = 1000  # real images compared with
_BATCH = 64  # images decoded or inferred at once


@dataclass(frozen=True)
class Look:
    """Images and energies at one moment, or of data.

    Attributes:
        images: how many.
        pixel_mean: mean over all pixels, in the scale [-1, 1].
        pixel_mean_error: its standard error, from the spread between images.
        pixel_spread: standard deviation over all pixels.
        saturated: share of pixels with ``|x| > 0.99``.
        energy_mean: mean of E(z).
        energy_spread: standard deviation of E(z) between points.
    """

    images: int
    pixel_mean: float
    pixel_mean_error: float
    pixel_spread: float
    saturated: float
    energy_mean: float
    energy_spread: float


@dataclass(frozen=True)
class Transitions:
    """What chains from N(0, I) did under the learned prior.

    Attributes:
        steps: moves of every chain.
        step_size: of the moves.
        looks: by step.
        data: the same of real images and of latent points inferred from them; None without images.
        kept: steps of `energies`.
        energies: E(z) along the chains, (T, B).
        times: steps of `images`.
        images: the first chains decoded, (K, N, C, H, W).
        mixing: effective sample size and R-hat over the second half of the chains; empty where
            they could not be computed, which `note` then explains.
        note: see `mixing`.
    """

    steps: int
    step_size: float
    looks: dict[int, Look]
    data: Look | None
    kept: list[int]
    energies: Tensor
    times: list[int]
    images: Tensor
    mixing: dict[str, float]
    note: str

    @property
    def change(self) -> dict[str, float]:
        """Relative change of the pixels' mean and variance from step 200 to the last.

        The mean is that of the brightness ``(x + 1) / 2``, whose zero is black. Empty for chains
        of at most 200 steps.
        """
        if self.steps <= 200:
            return {}
        then, now = self.looks[200], self.looks[self.steps]
        return {
            "brightness": (now.pixel_mean + 1) / (then.pixel_mean + 1) - 1,
            "variance": (now.pixel_spread / then.pixel_spread) ** 2 - 1,
        }

    def draw(self, folder: str | Path) -> dict[str, Path]:
        """Writes ``strips.png`` and ``energies.png``; gives them by caption."""
        folder = Path(folder)
        strips = plots.strips(self.images, folder / "strips.png", times=self.times)
        reference = None
        if self.data is not None:
            reference = (self.data.energy_mean, self.data.energy_spread)
        lines = plots.traces(
            self.kept, self.energies, folder / "energies.png", "energy", reference=reference
        )
        return {
            "One chain a row, decoded at the steps above.": strips,
            "Energies along every chain, their mean, and those of data.": lines,
        }

    def section(self, pictures: dict[str, Path]) -> Section:
        """The numbers and the pictures of `draw` as a part of the run's report."""
        shown = {f"step {step:,}": _words(look) for step, look in self.looks.items()}
        if self.data is not None:
            shown["data"] = _words(self.data)
        numbers = {f"change since step 200, {key}": value for key, value in self.change.items()}
        shown |= {key: f"{value:.4g}" for key, value in (numbers | self.mixing).items()}
        text = (
            f"Langevin chains of {self.steps:,} steps of size {self.step_size:g} from N(0, I) on "
            "the learned prior. In a model that fits, they reach the energies of data and stay, "
            "and their images do not saturate."
        )
        return Section(f"Chains of {self.steps:,} steps", text, settings=shown, pictures=pictures)


def transitions(
    learner: Learner,
    *,
    steps: int = 200,
    chains: int = 64,
    data: Images | None = None,
    seed: int = 0,
    show: int = 8,
    progress: bool = False,
) -> Transitions:
    """Runs chains from N(0, I) under the learned prior and looks at them on the way.

    Memory grows with the number of steps only through the trace, which keeps at most a few hundred
    points of every chain.

    Args:
        learner: a trained learner of the MCMC family, with an energy.
        steps: moves of every chain; the paper shows 200 and 2,500.
        chains: how many.
        data: images to compare with, the first 1,000 of them.
        seed: of all draws.
        show: how many chains are decoded for the picture.
        progress: show a progress bar.
    """
    if steps < 1 or chains < 2 or show < 1:
        raise BadInput(
            f"steps is {steps}, chains {chains} and show {show}: at least 1, 2 and 1 are wanted"
        )
    if learner.prior is None or learner.prior.energy is None:
        raise BadInput(f"this {learner.name} run has no energy, and so no chains on its prior")
    model, energy = learner.model, learner.prior.energy
    parameter = next(learner.parameters())
    generator = torch.Generator(parameter.device).manual_seed(seed)

    regular = range(0, steps + 1, _spacing(steps))
    times = sorted({round(steps * k / 10) for k in range(11)})
    marks = {0, steps, *(mark for mark in MARKS if mark <= steps)}
    z = torch.empty(chains, model.latent_dim).to(parameter).normal_(generator=generator)
    kernel = Langevin(learner.settings.prior_step_size)
    state = kernel.init(z)
    # Allocated once, for the same reason as in `Kernel.run`.
    trace = torch.empty(len(regular), chains, model.latent_dim)
    energies = torch.empty(len(regular), chains)
    looks, strips = {}, []
    for stop in _bar(sorted({*regular, *times, *marks}), progress):
        state = _move(kernel, state, learner, stop, generator)
        with torch.no_grad():
            e = energy(state.z).flatten().cpu()
        if not bool(torch.isfinite(e).all()):
            raise Diverged(f"energies of the chains are not finite at step {stop}")
        if stop in regular:
            trace[stop // regular.step] = state.z.cpu()
            energies[stop // regular.step] = e
        if stop in marks:
            looks[stop] = _look(_decode(learner, state.z), e)
        if stop in times:
            strips.append(_decode(learner, state.z[:show]))
    seen = None if data is None else _look_at_data(learner, data, generator)
    mixing, note = _mixing(trace, energies)
    return Transitions(
        steps,
        float(learner.settings.prior_step_size),
        looks,
        seen,
        list(regular),
        energies,
        times,
        torch.stack(strips),
        mixing,
        note,
    )


def _spacing(steps: int) -> int:
    """Steps between kept points: 10, as the authors keep, unless that is too few or too many."""
    return max(1, min(steps // 10, max(10, steps // 250)))


def _move(
    kernel: Kernel, state: State, learner: Learner, stop: int, generator: torch.Generator
) -> State:
    """The chains moved on until they have made `stop` steps."""
    start = state.moves
    try:
        return kernel.run(state, learner.prior, generator, steps=stop - start)[0]
    except Diverged as error:
        raise Diverged(f"the chains blew up between steps {start} and {stop}: {error}") from error


def _decode(learner: Learner, z: Tensor) -> Tensor:
    with torch.no_grad():
        images = torch.cat([learner.model.decoder(part).cpu() for part in torch.split(z, _BATCH)])
    if not bool(torch.isfinite(images).all()):
        raise Diverged("decoded images of the chains are not finite")
    return images.clamp(-1, 1)


def _look(x: Tensor, energies: Tensor) -> Look:
    """Numbers of images, (B, C, H, W), and of energies, (B,)."""
    x, e = x.double(), energies.double()
    return Look(
        images=len(x),
        pixel_mean=float(x.mean()),
        pixel_mean_error=float(x.flatten(1).mean(1).std() / len(x) ** 0.5),
        pixel_spread=float(x.std()),
        saturated=float((x.abs() > 0.99).double().mean()),
        energy_mean=float(e.mean()),
        energy_spread=float(e.std()),
    )


def _look_at_data(learner: Learner, data: Images, generator: torch.Generator) -> Look:
    assert learner.prior is not None and learner.prior.energy is not None
    energy = learner.prior.energy
    if len(data) < 2:
        raise BadInput(f"{data.name} has {len(data)} images, but at least 2 are wanted")
    x = data.batch(torch.arange(min(_REAL, len(data))))
    energies = []
    for part in torch.split(x, _BATCH):
        # With noise: a sample of p(z | x), as the chains are samples of p(z), and no mode.
        z = learner.infer(part.to(learner.device), noise=True, generator=generator)
        with torch.no_grad():
            energies.append(energy(z).flatten().cpu())
    return _look(x, torch.cat(energies))


def _mixing(trace: Tensor, energies: Tensor) -> tuple[dict[str, float], str]:
    """ESS and R-hat of the second half of a trace, (T, B, d), and of energies, (T, B)."""
    if importlib.util.find_spec("arviz") is None:
        return {}, "ESS and R-hat need arviz: pip install 'damc[diagnostics]'"
    from damc.metrics.chains import ess, rhat

    half = len(trace) // 2
    z, e = trace[half:], energies[half:, :, None]
    if len(z) < 4:
        return {}, f"ESS and R-hat want at least 4 kept steps, and half of this trace has {len(z)}"
    worth, agreement = ess(z), rhat(z)
    return {
        "kept points": float(z.shape[0] * z.shape[1]),
        "ESS of z, least": float(worth.min()),
        "ESS of z, median": float(worth.median()),
        "R-hat of z, largest": float(agreement.max()),
        "ESS of the energy": float(ess(e)),
        "R-hat of the energy": float(rhat(e)),
    }, ""


def _words(look: Look) -> str:
    return (
        f"pixels {look.pixel_mean:.3f} +- {look.pixel_mean_error:.3f}, "
        f"spread {look.pixel_spread:.3f}, saturated {look.saturated:.1%}; "
        f"energy {look.energy_mean:.4g}, spread {look.energy_spread:.3g}"
    )


def _bar(stops: list[int], show: bool) -> Any:
    from tqdm import tqdm

    return tqdm(stops, desc="chains", disable=not show, dynamic_ncols=True)

"""Long chains on the learned prior: do they reach the energies of data, and stay there?"""

from __future__ import annotations

__all__ = ["MARKS", "Snapshot", "Transitions", "transitions", "transitions_run"]

import importlib.util
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from damc.data import Images
from damc.errors import BadInput, Diverged
from damc.kernels.base import State
from damc.kernels.langevin import Langevin
from damc.latent import EnergyPrior
from damc.learn.learner import Learner
from damc.report import plots
from damc.report.page import Section
from damc.tasks.summarize import Recorded, record
from damc.tasks.trained import Trained

MARKS = (100, 200, 1000, 2500)
"""Steps at which the chains are compared with data, beside the first and the last."""

_REAL = 1000  # real images compared with
_BATCH = 64  # images decoded or inferred at once


@dataclass(frozen=True)
class Snapshot:
    """Images and energies at one step of the chains, or of data.

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
    """How chains from N(0, I) moved on the learned prior.

    Attributes:
        steps: moves of every chain.
        step_size: of the moves.
        snapshots: by step.
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
    snapshots: dict[int, Snapshot]
    data: Snapshot | None
    kept: list[int]
    energies: Tensor
    times: list[int]
    images: Tensor
    mixing: dict[str, float]
    note: str

    def rows(self, data: str = "data") -> dict[str, Snapshot]:
        """Every snapshot by name; that of real images is called `data`."""
        rows = {f"step {step:,}": snapshot for step, snapshot in self.snapshots.items()}
        return rows if self.data is None else {**rows, data: self.data}

    @property
    def change(self) -> dict[str, float]:
        """Relative change of the pixels' mean and variance from step 200 to the last.

        The mean is that of the brightness ``(x + 1) / 2``, whose zero is black. Empty for chains
        of at most 200 steps.
        """
        if self.steps <= 200:
            return {}
        then, now = self.snapshots[200], self.snapshots[self.steps]
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
        shown = {name: _words(snapshot) for name, snapshot in self.rows().items()}
        numbers = {f"change since step 200, {key}": value for key, value in self.change.items()}
        shown |= {key: f"{value:.4g}" for key, value in (numbers | self.mixing).items()}
        text = (
            f"Langevin chains of {self.steps:,} steps of size {self.step_size:g} from N(0, I) on "
            "the learned prior. In a model that fits, they reach the energies of data and stay "
            "there, and their images are no more saturated than data."
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
    """Runs chains from N(0, I) on the learned prior, and measures them along the way.

    At most a few hundred points of every chain are kept.

    Args:
        learner: a trained learner whose prior has an energy.
        steps: moves of every chain; the paper shows 200 and 2,500.
        chains: how many.
        data: images to compare with, the first 1,000 of them.
        seed: of all draws.
        show: how many chains are decoded for the picture.
        progress: show a progress bar.
    """
    for name, value, least in (("steps", steps, 1), ("chains", chains, 2), ("show", show, 1)):
        if value < least:
            raise BadInput(f"{name} must be at least {least}, got {value}")
    model, prior = learner.model, learner.prior
    if model is None or prior is None:
        raise BadInput(
            f"the learner must have a prior with an energy, got {learner.name}, which has no energy"
        )
    step_size = float(learner.settings.prior_step_size)
    kernel = Langevin(step_size)
    parameter = next(learner.parameters())
    generator = torch.Generator(parameter.device).manual_seed(seed)

    regular = range(0, steps + 1, _spacing(steps))
    times = sorted({round(steps * k / 10) for k in range(11)})
    marks = {0, steps, *(mark for mark in MARKS if mark <= steps)}
    z = torch.empty(chains, model.latent_dim).to(parameter).normal_(generator=generator)
    state = kernel.init(z)
    # Allocated once, for the same reason as in `Kernel.run`.
    trace = torch.empty(len(regular), chains, model.latent_dim)
    energies = torch.empty(len(regular), chains)
    snapshots, strips = {}, []
    for stop in _bar(sorted({*regular, *times, *marks}), progress):
        state = _move(kernel, state, prior, stop, generator)
        e = _energies(prior, state.z)
        if not bool(torch.isfinite(e).all()):
            raise Diverged(f"energies of the chains are not finite at step {stop}")
        if stop in regular:
            trace[stop // regular.step] = state.z.cpu()
            energies[stop // regular.step] = e
        if stop in marks:
            snapshots[stop] = _snapshot(_decode(learner, state.z), e)
        if stop in times:
            strips.append(_decode(learner, state.z[:show]))
    seen = None if data is None else _snapshot_of_data(learner, data, generator)
    mixing, note = _mixing(trace, energies)
    return Transitions(
        steps,
        step_size,
        snapshots,
        seen,
        list(regular),
        energies,
        times,
        torch.stack(strips),
        mixing,
        note,
    )


def transitions_run(
    trained: Trained,
    *,
    steps: int = 200,
    chains: int = 64,
    seed: int = 0,
    progress: bool = False,
) -> tuple[Transitions, dict[str, Path], Recorded]:
    """Follows chains on a run's prior; writes ``transitions/STEPS`` inside it and the report.

    Args:
        trained: the run.
        steps, chains, seed, progress: those of `transitions`.

    Returns:
        What was found, the pictures by caption, and the other files.
    """
    start, unseen = time.monotonic(), trained.unseen
    found = transitions(
        trained.learner,
        steps=steps,
        chains=chains,
        data=None if unseen is None else unseen.images,
        seed=seed,
        progress=progress,
    )
    place = f"transitions/{steps}"
    pictures = found.draw(trained.run.path / place)
    kind = "data" if unseen is None else f"data, {unseen.kind}"
    results = {
        "steps": steps,
        "chains": chains,
        "step_size": found.step_size,
        "seed": seed,
        "snapshots": {name: asdict(snapshot) for name, snapshot in found.rows(kind).items()},
        "change_since_200": found.change,
        "mixing": found.mixing,
        "note": found.note,
        "energies": {
            "steps": found.kept,
            "mean": found.energies.mean(1).tolist(),
            "spread": found.energies.std(1).tolist(),
        },
        "seconds": round(time.monotonic() - start, 2),
    }
    return found, pictures, record(trained, place, results, found.section(pictures), unseen)


def _spacing(steps: int) -> int:
    """Steps between kept points: 10, as the authors keep, unless that is too few or too many."""
    return max(1, min(steps // 10, max(10, steps // 250)))


def _move(
    kernel: Langevin, state: State, prior: EnergyPrior, stop: int, generator: torch.Generator
) -> State:
    """The chains moved on until they have made `stop` steps."""
    start = state.moves
    try:
        return kernel.run(state, prior, generator, steps=stop - start)[0]
    except Diverged as error:
        raise Diverged(f"the chains blew up between steps {start} and {stop}: {error}") from error


def _decode(learner: Learner, z: Tensor) -> Tensor:
    assert learner.model is not None
    with torch.no_grad():
        images = torch.cat([learner.model.decoder(part).cpu() for part in torch.split(z, _BATCH)])
    if not bool(torch.isfinite(images).all()):
        raise Diverged("decoded images of the chains are not finite")
    return images.clamp(-1, 1)


def _snapshot(x: Tensor, energies: Tensor) -> Snapshot:
    """Numbers of images, (B, C, H, W), and of energies, (B,)."""
    x, e = x.double(), energies.double()
    return Snapshot(
        images=len(x),
        pixel_mean=float(x.mean()),
        pixel_mean_error=float(x.flatten(1).mean(1).std() / len(x) ** 0.5),
        pixel_spread=float(x.std()),
        saturated=float((x.abs() > 0.99).double().mean()),
        energy_mean=float(e.mean()),
        energy_spread=float(e.std()),
    )


def _snapshot_of_data(learner: Learner, data: Images, generator: torch.Generator) -> Snapshot:
    assert learner.prior is not None
    if len(data) < 2:
        raise BadInput(f"{data.name} must have at least 2 images, got {len(data)}")
    x = data.batch(torch.arange(min(_REAL, len(data))))
    energies = []
    for part in torch.split(x, _BATCH):
        # With noise, if inference has any: a sample of p(z | x), as the chains sample p(z).
        options: dict[str, Any] = {"noise": True} if learner.inference == "chain" else {}
        z = learner.infer(part.to(learner.device), generator=generator, **options)
        energies.append(_energies(learner.prior, z))
    return _snapshot(x, torch.cat(energies))


@torch.no_grad()
def _energies(prior: EnergyPrior, z: Tensor) -> Tensor:
    """E(z) on the CPU, (B,)."""
    assert prior.energy is not None
    e: Tensor = prior.energy(z)
    return e.flatten().cpu()


def _mixing(trace: Tensor, energies: Tensor) -> tuple[dict[str, float], str]:
    """ESS and R-hat of the second half of a trace, (T, B, d), and of energies, (T, B)."""
    if importlib.util.find_spec("arviz") is None:
        return {}, "ESS and R-hat need arviz: pip install 'damc[diagnostics]'"
    from damc.metrics.chains import ess, rhat

    half = len(trace) // 2
    z, e = trace[half:], energies[half:, :, None]
    if len(z) < 4:
        return {}, f"ESS and R-hat need at least 4 kept steps in half of the chain, got {len(z)}"
    n = z.shape[0] * z.shape[1]
    # The estimate exceeds n for chains whose points repel each other; no more is claimed than n.
    size, agreement = ess(z).clamp(max=n), rhat(z)
    return {
        "kept points": float(n),
        "ESS of z, smallest": float(size.min()),
        "ESS of z, median": float(size.median()),
        "R-hat of z, largest": float(agreement.max()),
        "ESS of the energy": min(float(ess(e)), float(n)),
        "R-hat of the energy": float(rhat(e)),
    }, ""


def _words(snapshot: Snapshot) -> str:
    return (
        f"pixels {snapshot.pixel_mean:.3f} +- {snapshot.pixel_mean_error:.3f}, "
        f"spread {snapshot.pixel_spread:.3f}, saturated {snapshot.saturated:.1%}; "
        f"energy {snapshot.energy_mean:.4g}, spread {snapshot.energy_spread:.3g}"
    )


def _bar(stops: list[int], show: bool) -> Any:
    from tqdm.auto import tqdm

    return tqdm(stops, desc="chains", disable=not show, dynamic_ncols=True)

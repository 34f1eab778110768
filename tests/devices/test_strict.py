"""Every learner, sampler and score computes on one device, in 32 bits, and waits for no value."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from damc import HMC, MALA, Amortizer, Langevin, distill
from damc.anomaly.scores import SCORES, score
from damc.errors import BadInput
from damc.inversion.gan import GAN, GANSettings, GANSizes
from damc.inversion.learner import Inversion
from damc.inversion.methods import invert
from damc.inversion.problem import Problem
from damc.inversion.settings import InversionSettings
from damc.kernels.underdamped import Underdamped
from damc.learn import METHODS, Learner, find_method
from tests.devices.strict import DEVICE, Strict, strict_device

READ = {
    "kernels.base:_check",  # once at the end of a chain: whether it is finite
    "learn.starts:known",  # when a mixture is fitted to stored points, at four iterations of a run
    "learn.curvature:posterior_factor",  # at four iterations of a run: whether it is finite
    "kernels.base:__post_init__",  # once for a preconditioner: whether it can be one
    "learn.rae:mixture",  # the density of the codes, fitted once when the decoder has learned
}
"""Where the host may wait for a value."""

CHECKED = {
    "inversion.problem:check_images",  # once for a batch: whether pixels are in range
    "inversion.learner:encode",  # whether codes are finite
    "inversion.methods:descend",
    "inversion.methods:invert",
}

MOVED = {
    "learn.starts:draw",  # numbers of images, to find their chains
    "learn.starts:keep",
    "inversion.stylegan:forward",  # noise, which comes from where the generator is
    "inversion.learner:damc",  # codes that `invert` gives back on the CPU
}
"""Where a tensor may be brought to the device."""

WIDE = {
    "diffusion.denoiser:time_projection",  # sin and cos of large angles, of a few numbers
    "diffusion.denoiser:__init__",
}
"""Where 64 bits are meant."""

SHAPE = (1, 8, 8)


def batch(n: int = 4) -> tuple[Tensor, Tensor, torch.Generator]:
    return torch.empty(n, *SHAPE, device=DEVICE), torch.arange(n), torch.Generator()


def check(mode: Strict, read: set[str] = READ) -> None:
    assert not mode.places("mixed"), mode.faults
    assert mode.places("wide") <= WIDE, mode.faults
    assert mode.places("read") <= read, mode.faults
    assert mode.places("moved") <= MOVED, mode.faults


SHORT = dict.fromkeys(
    ["posterior_steps", "prior_steps", "prior_sample_steps", "inference_steps", "start_steps"], 2
)
"""Chains of two moves: the third makes no other operations."""

SHORT["warm_up"] = 0


def make(method: str, **changes: Any) -> Learner:
    kind = find_method(method)
    known = {field.name for field in fields(kind.settings_type)}
    short = {name: steps for name, steps in SHORT.items() if name in known}
    with torch.device(DEVICE):
        return kind.from_preset("digits-small", **{**short, **changes})


@pytest.mark.parametrize("method", [name for name, kind in METHODS.items() if kind.takes_presets])
def test_a_learner_needs_only_its_device(method: str) -> None:
    x, index, generator = batch()
    with strict_device() as mode:
        learner = make(method)
        for _ in range(2):  # the second has a state: momenta, chains, an EMA copy
            metrics = learner.train().step(x, index, generator)
        assert all(value.device == DEVICE for value in metrics.values())
        learner.eval()
        for source in learner.sources:
            assert learner.sample(3, source=source, generator=generator).device == DEVICE
        if learner.inference is not None:
            for refine in (True, False):
                made = learner.reconstruct(x, refine=refine, generator=generator)
                assert made.device == DEVICE and made.shape == x.shape
        if learner.score is not None:
            assert learner.anomaly_score(x, generator=generator).shape == (4,)
    check(mode)


def test_later_stages_need_only_their_device() -> None:
    """Methods of two stages change at a share of their horizon."""
    x, index, generator = batch()
    for method in ("vae-2stage", "ncp-vae", "damc-vae", "adaptive-ce", "damc"):
        with strict_device() as mode:
            learner = make(method, horizon=4, **({"warm_up": 0.5} if method == "damc" else {}))
            for _ in range(4):
                learner.train().step(x, index, generator)
            learner.eval().sample(3, generator=generator)
        check(mode)


def test_a_gan_needs_only_its_device() -> None:
    sizes = GANSizes(SHAPE, resolution=8, latent_dim=4, style=6, base=64, widest=12)
    x, index, generator = batch()
    with strict_device() as mode:
        with torch.device(DEVICE):
            gan = GAN(sizes, replace(GANSettings(), r1_every=1))
        for _ in range(2):
            gan.train().step(x, index, generator)
        assert gan.eval().sample(3, generator=generator).device == DEVICE
    check(mode)


def test_inversion_needs_only_its_device() -> None:
    x, index, generator = batch()
    with strict_device() as mode:
        with torch.device(DEVICE):
            decoder = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Unflatten(1, SHAPE))
            problem = Problem(decoder, 6, SHAPE, sigma=0.3)
            settings = InversionSettings(warmup_iterations=0, start_steps=2, posterior_steps=2)
            size = 12 if settings.condition == "gradient" else 6
            q = Amortizer(6, nn.Linear(size, 16), embedding=16, capacity=0.25)
            encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 6))
            energy = nn.Sequential(nn.Linear(6, 1), nn.Flatten(0))
            learner = Inversion(problem, encoder, energy, q, settings)
        for _ in range(2):
            learner.train().step(x, index, generator)
        invert(learner.eval(), x, "damc", iterations=2, generator=generator)
    check(mode, READ | CHECKED)


def gaussian(z: Tensor) -> Tensor:
    return -z.square().sum(1) / 2


@pytest.mark.parametrize("kind", [Langevin, MALA, HMC, Underdamped])
def test_a_kernel_needs_only_the_device_of_its_points(kind: Any) -> None:
    with strict_device() as mode:
        z = torch.empty(5, 3, device=DEVICE)
        state, _ = kind(0.1, 4).run(z, gaussian, torch.Generator())
        assert state.z.device == DEVICE and state.z.dtype == torch.float32
    check(mode)


@pytest.mark.parametrize("context", [None, 3])
def test_distilling_and_sampling_need_only_the_device_of_the_amortizer(context: int | None) -> None:
    generator = torch.Generator()
    with strict_device() as mode:
        with torch.device(DEVICE):
            q = Amortizer(2, context)
        x = None if context is None else torch.empty(6, context, device=DEVICE)
        n = 6 if x is None else None
        for solver in ("ancestral", "multistep"):
            assert q.sample(n, x, steps=3, solver=solver, generator=generator).device == DEVICE
        z = torch.empty(6, 2, device=DEVICE)
        q.loss(z, x, generator=generator).mean().backward()
        if context is None:
            short = {"steps": 2}
            distill(
                q,
                gaussian,
                Langevin(0.1, 2),
                iterations=2,
                batch=6,
                sampling=short,
                progress=False,
            )
    check(mode, READ | {"amortize.distillation:distill", "amortize.distillation:take_loss"})


@pytest.mark.parametrize("kind", [kind for kind in SCORES if kind != "calibrated"])
def test_a_score_needs_only_the_device_of_its_network(kind: str) -> None:
    x, _, generator = batch()
    with strict_device() as mode:
        learner = make("damc").eval()
        score(learner, x, kind, generator=generator)
    check(mode)


# The mode itself: what it must catch, it catches.


class Faulty(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault, self.inner = fault, nn.Linear(3, 3, device=DEVICE)
        self.forgotten = torch.ones(3)  # neither a parameter nor a buffer: `.to` leaves it behind

    def forward(self, z: Tensor) -> Tensor:
        z = self.inner(z)
        if self.fault == "constant":
            return z[:, torch.tensor([0, 1, 2])]
        if self.fault == "moved":
            return z * torch.tensor([1.0, 2.0, 3.0]).to(z.device)
        if self.fault == "item":
            return z * z.abs().max().item()
        if self.fault == "bool":
            return z if z.isfinite().all() else -z
        if self.fault == "list":
            return z * len(z.sum(1).tolist())
        if self.fault == "numpy":
            return z * len(z.detach().cpu().numpy())
        if self.fault == "wide":
            return (z.double() * 2).float()
        if self.fault == "forgotten":
            return z * self.forgotten
        return z


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("none", None),
        ("constant", "mixed"),
        ("moved", "moved"),
        ("item", "read"),
        ("bool", "read"),
        ("list", "read"),
        ("numpy", "read"),
        ("wide", "wide"),
        ("forgotten", "mixed"),
    ],
)
def test_a_planted_fault_is_caught(fault: str, kind: str | None) -> None:
    module = Faulty(fault)
    with Strict() as mode:
        try:
            Langevin(0.1, 2).run(
                torch.empty(4, 3, device=DEVICE),
                lambda z: -module(z).square().sum(1),
                torch.Generator(),
            )
        except RuntimeError as error:
            assert "device" in str(error)
            assert kind == "mixed"
    if kind is None:
        check(mode)
    else:
        assert any("test_strict:forward" in place for place in mode.places(kind)), mode.faults
        with pytest.raises(AssertionError):
            check(mode)


def test_parameters_that_a_loss_does_not_reach_are_noticed() -> None:
    """A learner whose networks were replaced would go on training the old ones."""
    learner = find_method("vae").from_preset("digits-small")
    learner.to(DEVICE)  # makes new parameters, as no copy between these devices can share
    x, index, generator = batch()
    with strict_device(), pytest.raises(BadInput, match="must be those of the learner"):
        learner.step(x, index, generator)

"""Inversion against closed forms: with a linear decoder, posteriors are Gaussians one can write."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import damc
from damc.amortize import Amortizer
from damc.errors import BadInput, Diverged
from damc.inversion.learner import CodeEncoder, Inversion
from damc.inversion.methods import METHODS, descend, invert
from damc.inversion.networks import InversionNetworks
from damc.inversion.problem import Problem, StyleCodes
from damc.inversion.settings import InversionSettings
from damc.inversion.stylegan import StyleDecoder
from damc.inversion.stylegan_encoder import StyleEncoder
from damc.inversion.vgg import VGG16
from damc.nets.energy import mlp_energy

D, SHAPE, SIGMA = 6, (1, 4, 5), 0.3
QUICK = InversionSettings(
    encoder_iterations=0,
    warmup_iterations=0,
    posterior_steps=10,
    posterior_step_size=0.5,
    prior_steps=2,
    updates=2,
    ema_rate=0.1,
    ema_every=1,
    start_solver="multistep",
    start_steps=8,
    encoder_rate=1e-2,
    amortizer_rate=3e-3,
    spread=1.0,
)


class Linear(nn.Module):
    """Images A c + b of codes c."""

    def __init__(self) -> None:
        super().__init__()
        # Columns of very different lengths: only a preconditioned step suits them all.
        lengths = torch.tensor([3.0, 1.0, 1.0, 0.3, 0.1, 0.03])
        self.a = nn.Parameter(torch.randn(20, D) / 20**0.5 * lengths)
        self.b = nn.Parameter(torch.randn(20) * 0.1)

    def forward(self, codes: Tensor) -> Tensor:
        return (codes @ self.a.T + self.b).view(-1, *SHAPE)


class Nothing(nn.Module):
    """An energy, or an encoder, that says nothing."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape, self.weight = shape, nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).sum(1).view(-1, *[1] * len(self.shape)) * 0 * self.weight + x.new_zeros(
            len(x), *self.shape
        )


@pytest.fixture
def problem(generator: torch.Generator) -> Problem:
    made = Problem(Linear(), D, SHAPE, sigma=SIGMA).calibrate(generator, probes=4096)
    # Exactly N(0, I), so that the posterior is exactly the closed form.
    made.mean.zero_()
    made.scale.fill_(1)
    return made


def gaussian(problem: Problem, x: Tensor, sigma: float = SIGMA) -> tuple[Tensor, Tensor]:
    """Mean ``(B, D)`` and covariance ``(D, D)`` of p(z | x) under N(0, I)."""
    a, b = problem.decoder.a.double(), problem.decoder.b.double()
    covariance = torch.linalg.inv(torch.eye(D).double() + a.T @ a / sigma**2)
    return (x.flatten(1).double() - b) @ a @ covariance / sigma**2, covariance


def make(problem: Problem, settings: InversionSettings = QUICK, **changes: Any) -> Inversion:
    s = replace(settings, **changes)
    size = 2 * D if s.condition == "gradient" else D
    q = Amortizer(D, nn.Linear(size, 16), embedding=16, capacity=0.25)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(20, D))
    return Inversion(problem, encoder, Nothing(), q, s)


def noisy(problem: Problem, n: int, generator: torch.Generator) -> Tensor:
    x = problem.decode(problem.draw(n, generator)).detach()
    return x + SIGMA * torch.randn(x.shape, generator=generator)


def test_the_preconditioner_is_the_mean_posterior_covariance(problem: Problem) -> None:
    _, covariance = gaussian(problem, torch.zeros(1, *SHAPE))
    eye = torch.eye(D)
    found = problem.stretch(problem.stretch(eye)).double()
    assert torch.allclose(found, covariance, atol=0.06)
    assert not torch.allclose(found, gaussian(problem, torch.zeros(1, *SHAPE), 0.6)[1], atol=0.06)
    assert torch.allclose(problem.squeeze(problem.stretch(eye)), eye, atol=1e-4)


def test_chains_sample_the_closed_form_posterior(
    problem: Problem, generator: torch.Generator
) -> None:
    n, x = 3000, noisy(problem, 1, generator)
    learner = make(problem)
    z = learner.chain(x.expand(n, -1, -1, -1), torch.zeros(n, D), 60, generator=generator).double()

    def worst(sigma: float) -> float:
        mean, covariance = gaussian(problem, x, sigma)
        variance = covariance.diagonal()
        off_mean = (z.mean(0) - mean[0]).abs() / (z.var(0) / n).sqrt()
        # On the preconditioned scale the precision is about 1, and an unadjusted chain of step
        # size s has the variance 1 / (1 - s^2 / 4); the preconditioner's own error is 5% of that.
        inflated = variance / (1 - 0.5**2 / 4)
        off_variance = (z.var(0) / inflated - 1).abs() / ((2 / n) ** 0.5 + 0.01)
        return float(torch.maximum(off_mean, off_variance).max())

    assert worst(SIGMA) < 4.5
    assert worst(1.3 * SIGMA) > 9  # the same draws are no sample of a slightly wider posterior


def test_opt_finds_least_squares_and_lebm_the_posterior_mode(
    problem: Problem, generator: torch.Generator
) -> None:
    x = noisy(problem, 8, generator)
    mean, _ = gaussian(problem, x)
    a, b = problem.decoder.a.double(), problem.decoder.b.double()
    best = torch.linalg.lstsq(a, (x.flatten(1).double() - b).T).solution
    residual = (a @ best + b[:, None] - x.flatten(1).T).square().mean(0)
    options: dict[str, Any] = {"iterations": 600, "rate": 0.05, "generator": generator}
    opt = invert(problem, x, "opt", **options)
    assert torch.allclose(opt.mse.double(), residual, rtol=0.02)
    lebm = invert(make(problem), x, "lebm-1x", **options)
    assert torch.allclose(lebm.codes.double(), mean, atol=0.02)
    assert (opt.codes - mean).abs().max() > 0.5 and bool((lebm.mse > opt.mse).all())


def test_the_amortizer_becomes_the_posterior(problem: Problem, generator: torch.Generator) -> None:
    learner = make(problem, updates=6, p_uncond=0.0)
    learner.encoder = Nothing(D)  # all that q knows of x is then the gradient
    test = noisy(problem, 40, generator)
    mean, covariance = gaussian(problem, test)

    def draws() -> Tensor:
        return learner.start(learner.look(test), 100, generator=generator).double()

    def off(z: Tensor) -> float:
        """Squared error of the means, as a share of what x tells."""
        return float((z.mean(0) - mean).square().sum() / mean.square().sum())

    before = off(draws())
    for _ in range(80):
        learner.step(noisy(problem, 64, generator), torch.arange(64), generator)
    z = draws()
    assert off(z) < 0.15 < 0.5 < before
    ratio = z.std(0).mean(0) / covariance.diagonal().sqrt()
    assert float(ratio.min()) > 0.6 and float(ratio.max()) < 2.5
    assert float((1 / covariance.diagonal().sqrt()).max()) > 5  # as wide as the prior would be


def test_phases_train_one_part_after_the_other(
    problem: Problem, generator: torch.Generator
) -> None:
    learner = make(problem, encoder_iterations=30, warmup_iterations=2)
    learner.prior.energy = energy = mlp_energy(D, (8,))
    learner = Inversion(problem, learner.encoder, energy, learner.amortizer, learner.settings)
    parts = {name: getattr(learner, name) for name in ("problem", "encoder", "prior", "amortizer")}
    known = {
        name: torch.cat([p.detach().flatten() for p in part.parameters()])
        for name, part in parts.items()
    }
    errors, changed = [], []
    for i in range(34):
        if i in (0, 30, 32):
            phase = learner.phase
        errors.append(learner.step(noisy(problem, 32, generator), torch.arange(32), generator))
        if i in (29, 31, 33):
            now = {
                name: torch.cat([p.detach().flatten() for p in part.parameters()])
                for name, part in parts.items()
            }
            changed.append((phase, {n for n in now if not torch.equal(now[n], known[n])}))
            known = now
    assert changed == [
        ("encoder", {"encoder"}),
        ("warm-up", {"prior", "amortizer"}),
        ("damc", {"prior", "amortizer"}),
    ]
    assert errors[29]["code_error"] < 0.7 * errors[0]["code_error"]
    seen = learner.look(noisy(problem, 32, generator))
    z, _ = learner.posterior_chain.move(seen, seen.code, generator)
    start, end = (problem.misfit(seen.x, points).mean() for points in (seen.code, z))
    assert end < start


def test_no_pass_of_the_decoder_is_wasted(problem: Problem, generator: torch.Generator) -> None:
    learner = make(problem, encoder_iterations=0, warmup_iterations=1)
    x, passes = noisy(problem, 8, generator), []
    problem.decoder.register_forward_hook(lambda module, codes, images: passes.append(len(images)))
    for phase in ("warm-up", "damc"):
        passes.clear()
        assert learner.phase == phase
        learner.step(x, torch.arange(8), generator)
        # The gradient that q is conditioned on, and the T moves of the posterior chain.
        assert passes == [8] * (1 + learner.settings.posterior_steps)


def test_every_method_repeats_and_counts(problem: Problem, generator: torch.Generator) -> None:
    learner, x = make(problem), noisy(problem, 5, generator)
    for method in METHODS:
        first, again = (
            invert(learner, x, method, generator=torch.Generator().manual_seed(3)) for _ in range(2)
        )
        assert torch.equal(first.codes, again.codes) and first.codes.shape == (5, D)
        assert torch.equal(first.images, problem.decode(first.codes))
        error = (x - first.images).square().flatten(1).mean(1)
        assert torch.allclose(first.mse, error) and first.mse.mean() < first.start_mse.mean()
    still = invert(learner, x, "enc", iterations=0)
    assert torch.equal(still.codes, learner.encode(x)) and torch.equal(still.mse, still.start_mse)
    drawn = invert(learner, x, "damc", samples=4, generator=generator)
    assert drawn.samples is not None and drawn.samples.shape == (4, 5, D)
    assert drawn.pixel_spread is not None and bool((drawn.pixel_spread > 0).all())
    noise = invert(learner, x, "damc", sampler="langevin", generator=generator)
    assert bool((noise.mse > 0).all())


def test_the_best_candidate_is_taken(problem: Problem, generator: torch.Generator) -> None:
    learner, x = make(problem), noisy(problem, 50, generator)
    one, many = (
        invert(learner, x, candidates=k, iterations=0, generator=generator).mse.mean()
        for k in (1, 16)
    )
    assert many < 0.7 * one


def test_bad_input_is_one_sentence(problem: Problem, generator: torch.Generator) -> None:
    learner, x = make(problem), torch.zeros(2, *SHAPE)
    for words, match in (
        ((problem, x, "enc"), "must have learned parts"),
        ((learner, x, "gan"), "method must be one of .*got 'gan'"),
        (
            (learner, torch.zeros(2, 1, 5, 5), "opt"),
            r"images must have shape \(B, 1, 4, 5\), got \(2, 1, 5, 5\)",
        ),
        ((learner, x + torch.nan, "damc"), "must be finite"),
    ):
        with pytest.raises(BadInput, match=match):
            invert(*words)
    for options, match in (
        ({"method": "enc", "sampler": "langevin"}, "sampler must be 'adam' for the method enc"),
        ({"method": "enc", "samples": 2}, "must be damc to draw posterior samples, got enc"),
        ({"samples": 1}, "at least 2"),
        ({"iterations": -1}, "iterations must be at least 0, got -1"),
        ({"candidates": 0}, "at least 1"),
    ):
        with pytest.raises(BadInput, match=match):
            invert(learner, x, **options)
    for change, match in (
        ({"sampler": "hmc"}, "sampler must be 'langevin' or 'adam', got 'hmc'"),
        ({"p_uncond": 1.5}, "p_uncond must lie in"),
        ({"code_weight": -1.0}, "code_weight must not be negative"),
        ({"spread": 0.0}, "spread must be positive"),
    ):
        with pytest.raises(BadInput, match=match):
            replace(QUICK, **change)
    with torch.no_grad():
        problem.decoder.b.fill_(torch.inf)
    with pytest.raises(Diverged, match="not finite"):
        invert(problem, x, "opt")
    with pytest.raises(Diverged, match="not finite"):
        descend(lambda z: z.sum(1) * torch.inf, torch.ones(1, 2), 3, 0.1)


def style() -> StyleDecoder:
    decoder = StyleDecoder(8, 1, latent_dim=4, style=4, base=64, widest=8, mapping_layers=2)
    decoder.truncation.w_avg.normal_()
    return decoder


def test_a_run_folder_is_all_that_is_needed(tmp_path: Path) -> None:
    decoder, x = style(), torch.rand(20, 1, 6, 6) * 2 - 1
    described = InversionNetworks.describe(
        decoder,
        (1, 6, 6),
        energy={"hidden": [8]},
        amortizer={"embedding": 8, "capacity": 0.25},
    )
    settings = replace(QUICK, encoder_iterations=2, warmup_iterations=2)

    def learner() -> Inversion:
        torch.manual_seed(1)
        problem = described.problem(decoder)
        problem.calibrate(torch.Generator().manual_seed(0), probes=16, codes=50)
        return described.learner(settings, problem)

    options: dict[str, Any] = {"batch": 4, "progress": False, "accelerator": "cpu"}
    whole = damc.fit(learner(), x, iterations=6, run=tmp_path / "whole", **options)
    damc.fit(learner(), x, iterations=3, run=tmp_path / "parts", **options)
    damc.fit(learner(), x, iterations=6, run=tmp_path / "parts", **options)
    loaded = damc.load(tmp_path / "parts")
    assert isinstance(loaded, Inversion)
    state = whole.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in loaded.state_dict().items())
    first, second = (
        invert(parts, x[:3], "damc", iterations=3, generator=torch.Generator().manual_seed(0))
        for parts in (whole.eval(), loaded)
    )
    assert torch.equal(first.codes, second.codes)
    middle = decoder.synthesis(first.codes)[..., 1:7, 1:7]
    assert torch.allclose(first.images, middle, atol=1e-6)
    assert loaded.sample(2).shape == loaded.reconstruct(x[:2]).shape == (2, 1, 6, 6)


def test_codes_of_a_style_decoder(generator: torch.Generator) -> None:
    decoder = style()
    codes = StyleCodes(decoder)
    problem = Problem(codes, codes.dim, codes.shape, draw=codes.draw).calibrate(
        generator, probes=32
    )
    z = problem.draw(4000, generator)
    assert float(z.mean(0).abs().max()) < 0.1 and 0.9 < float(z.std(0).mean()) < 1.1
    assert torch.allclose(problem.standardize(problem.codes(z)), z, atol=1e-4)
    # `opt` starts between the average code and a random one, as truncation does.
    start = invert(problem, torch.zeros(500, 1, 8, 8), "opt", iterations=0, generator=generator)
    assert 0.6 < float(problem.standardize(start.codes).std(0).mean()) < 0.8
    with pytest.raises(BadInput, match="at most 1x8x8 .*as the decoder makes"):
        StyleCodes(decoder, (1, 9, 9))
    with pytest.raises(BadInput, match="at most 1x8x8 .*as the decoder makes"):
        StyleCodes(decoder, (3, 8, 8))


def test_a_given_encoder_keeps_its_codes(generator: torch.Generator) -> None:
    decoder, encoder = style(), StyleEncoder(8, 1, style=4, base=4, widest=8).eval()
    described = InversionNetworks.describe(decoder, encoder=encoder)
    problem = described.problem(decoder).calibrate(generator, probes=8)
    learner = described.learner(QUICK, problem, encoder)
    x = torch.rand(3, 1, 8, 8)
    found = invert(learner, x, "enc", iterations=0)
    assert torch.allclose(found.codes, encoder(x), atol=1e-4)
    again = InversionNetworks(**described.__dict__).learner(QUICK)
    again.load_state_dict(learner.state_dict())
    assert isinstance(again.encoder, CodeEncoder)


def test_the_perceptual_distance_joins_the_misfit(generator: torch.Generator) -> None:
    decoder, vgg = style(), VGG16(2)
    described = replace(InversionNetworks.describe(decoder, vgg=vgg), perceptual_weight=0.5)
    problem = described.problem(decoder, vgg).calibrate(generator, probes=8)
    x, z = torch.rand(3, 1, 8, 8), problem.draw(3, generator)
    image = problem.decode(z)
    wanted = (x - image).square().mean((1, 2, 3)) + 0.5 * vgg.distance(x, image)
    assert torch.allclose(problem.misfit(x, z), wanted)
    found = invert(problem, x, "opt", iterations=2, generator=generator)
    assert found.perceptual is not None
    assert torch.allclose(found.perceptual, vgg.distance(x, found.images), rtol=1e-4)


def test_the_papers_scale_can_be_built() -> None:
    with torch.device("meta"):
        described = InversionNetworks.describe(StyleDecoder())
        learner = described.learner()
    assert learner.problem.dim == learner.amortizer.dim == 14 * 512
    assert isinstance(learner.encoder, CodeEncoder)
    count = sum(p.numel() for p in learner.encoder.net.parameters())
    assert count == 165_326_848 and described.shape == (3, 256, 256)
    assert described.energy == {"hidden": [512, 512, 512]}

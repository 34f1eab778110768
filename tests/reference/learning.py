"""Algorithm 1 written down plainly: the paper's pseudocode with its layers, loop and optimizers.

Nothing is merged, shared or laid out for speed. Every convolution of the paper's tables is a
convolution, both chains run autograd through the networks, the encoder embeds every image in every
update. It starts from the weights of a `damc.DAMC` and makes the same random draws, so that the
fast path can be held against it in time and in outcome.
"""

from __future__ import annotations

__all__ = ["PlainDAMC", "langevin"]

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from damc.amortize import Amortizer
from damc.learn.damc import DAMC
from damc.nets.decoder import FirstLayer
from tests.reference import sampling as plain

Potential = Callable[[Tensor], Tensor]


def langevin(
    z: Tensor, potential: Potential, step_size: float, steps: int, generator: torch.Generator
) -> Tensor:
    """Moves z by z - (s^2 / 2) grad U(z) + s w, ``steps`` times.

    Args:
        z: starts, ``(B, d)``.
        potential: U = -log p, ``(B, d)`` to ``(B,)``.
        step_size: s.
        steps: T.
        generator: source of all randomness.
    """
    for _ in range(steps):
        z = z.detach().requires_grad_()
        (grad,) = torch.autograd.grad(potential(z).sum(), z)
        noise = torch.randn(*z.shape, generator=generator, dtype=z.dtype)
        z = z.detach() - step_size**2 / 2 * grad + step_size * noise
    return z


class PlainDAMC:
    """One iteration of Algorithm 1 after the other, from the weights that `learner` has now."""

    def __init__(self, learner: DAMC) -> None:
        s = self.settings = learner.settings
        self.decoder = _paper_layers(copy.deepcopy(learner.model.decoder))
        self.energy = copy.deepcopy(learner.model.prior.energy)
        assert self.energy is not None
        self.q = _with_paper_layers(learner.amortizer)
        self.target = _with_paper_layers(learner.target)
        self.iteration = 0
        betas = (s.beta1, 0.999)
        self.optimizers = {
            "decoder": torch.optim.Adam(self.decoder.parameters(), s.decoder_rate, betas),
            "energy": torch.optim.Adam(self.energy.parameters(), s.energy_rate, betas),
            "amortizer": torch.optim.AdamW(
                self.q.parameters(), s.amortizer_rate, betas, weight_decay=s.amortizer_weight_decay
            ),
        }

    def step(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """One iteration on images x ``(B, C, H, W)``; returns the posterior samples."""
        z0 = self.start(x, generator)
        z_pos = self.posterior_chain(z0, x, generator)
        self.update("decoder", self.squared_error(x, z_pos).mean())
        self.learn_amortizer(z_pos, x, generator)
        z_neg = self.prior_chain(z0, generator)
        e_pos, e_neg = self.energy(z_pos), self.energy(z_neg)
        penalty = e_pos.square().mean() + e_neg.square().mean()
        difference = e_pos.mean() - e_neg.mean()
        self.update("energy", difference + self.settings.energy_penalty * penalty)
        self.iteration += 1
        if self.iteration % self.settings.ema_every == 0:
            rate = self.settings.ema_rate
            with torch.no_grad():
                for slow, fast in zip(self.target.parameters(), self.q.parameters(), strict=True):
                    slow.copy_((1 - rate) * slow + rate * fast)
        return z_pos

    def start(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Samples of the averaged sampler, ``(B, d)``, by all its ancestral steps."""
        with torch.no_grad():
            condition = self.target.encoder(x)  # type: ignore[misc]
        return plain.sample(self.target, condition, self.settings.start_steps, generator)

    def prior_chain(self, z0: Tensor, generator: torch.Generator) -> Tensor:
        """Prior chains from z0 and, if the settings say so, as many from noise."""
        s = self.settings
        if s.noise_negatives:
            z0 = torch.cat([z0, torch.randn(*z0.shape, generator=generator, dtype=z0.dtype)])
        return langevin(z0, self.prior, s.prior_step_size, s.prior_steps, generator)

    def posterior_chain(self, z0: Tensor, x: Tensor, generator: torch.Generator) -> Tensor:
        """Posterior chains of x from z0."""
        s = self.settings

        def potential(z: Tensor) -> Tensor:
            return self.squared_error(x, z) / (2 * s.sigma**2) + self.prior(z)

        return langevin(z0, potential, s.posterior_step_size, s.posterior_steps, generator)

    def learn_amortizer(self, z: Tensor, x: Tensor, generator: torch.Generator) -> None:
        """The M updates of the sampler towards z."""
        s = self.settings
        for _ in range(s.updates):
            if s.unconditional == "share":
                loss = self.denoising_loss(z, x, s.p_uncond, generator)
            else:
                loss = self.denoising_loss(z, x, 0.0, generator)
                loss = loss + self.denoising_loss(z, x, 1.0, generator)
            self.update("amortizer", loss)

    def denoising_loss(
        self, z: Tensor, x: Tensor, p_uncond: float, generator: torch.Generator
    ) -> Tensor:
        """Equation 7, with the condition of a share of the batch replaced by the token."""
        q, n = self.q, len(z)
        mask = torch.full((n, 1), float(p_uncond < 1), dtype=z.dtype)
        if 0 < p_uncond < 1:
            order = torch.randperm(n, generator=generator)
            whole = math.floor(p_uncond * n + 1e-9)
            mask[order[:whole]] = 0
            if p_uncond * n > whole + 1e-9:
                mask[order[whole]] = float(
                    torch.rand(1, generator=generator) >= p_uncond * n - whole
                )
        condition = (1 - mask) * q.null
        if p_uncond < 1:
            condition = condition + mask * q.encoder(x)  # type: ignore[misc]
        u = torch.rand(n, generator=generator, dtype=z.dtype)
        eps = torch.randn(*z.shape, generator=generator, dtype=z.dtype)
        alpha, sigma = q.schedule(u[:, None])
        noisy = alpha * z + sigma * eps
        prediction = plain.denoise(q.denoiser, noisy, q.schedule.angle(u), condition)
        return (prediction - eps).square().sum(1).mean() / 2

    def prior(self, z: Tensor) -> Tensor:
        """E(z) + |z|^2 / 2, ``(B,)``."""
        energy: Tensor = self.energy(z) + z.square().sum(1) / 2  # type: ignore[misc]
        return energy

    def squared_error(self, x: Tensor, z: Tensor) -> Tensor:
        """|x - g(z)|^2, ``(B,)``."""
        error: Tensor = (x - self.decoder(z)).square().flatten(1).sum(1)
        return error

    def update(self, name: str, loss: Tensor) -> None:
        """One step of an optimizer down the loss, the gradient's norm cut."""
        optimizer = self.optimizers[name]
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], self.settings.clip)
        optimizer.step()


def _with_paper_layers(amortizer: Amortizer) -> Amortizer:
    q = copy.deepcopy(amortizer)
    assert q.encoder is not None
    q.encoder = _paper_layers(q.encoder)
    return q


def _paper_layers(net: nn.Module) -> nn.Module:
    """The layers as the paper's tables have them, with the same weights: the decoder's first and
    the encoder's last one are convolutions there."""
    if not isinstance(net, nn.Sequential):
        return net
    layers: list[nn.Module] = []
    for layer in net:
        if isinstance(layer, FirstLayer):
            layers += [nn.Unflatten(1, (layer.conv.in_channels, 1, 1)), layer.conv]
        elif isinstance(layer, nn.Linear) and any(isinstance(o, nn.Conv2d) for o in layers):
            layers[-1:] = [_as_convolution(layer, layers), nn.Flatten()]
        else:
            layers.append(layer)
    return nn.Sequential(*layers)


def _as_convolution(linear: nn.Linear, before: list[nn.Module]) -> nn.Conv2d:
    """The linear layer of a whole (square) map as the convolution that it is."""
    channels = [layer for layer in before if isinstance(layer, nn.Conv2d)][-1].out_channels
    side = round((linear.in_features / channels) ** 0.5)
    conv = nn.Conv2d(channels, linear.out_features, side).to(linear.weight)
    conv.weight.data = linear.weight.data.view_as(conv.weight)
    conv.bias = linear.bias
    return conv

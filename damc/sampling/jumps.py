"""Proposals from a mixture of Gaussians that fits the draws themselves.

Local moves never change the share of a mode that they cannot leave, and a preconditioner of all
modes fits none of them. A mixture fitted to the draws proposes points of every mode, in its own
shape; Metropolis accepts them with p's and the mixture's density, so shares are set right and
draws become independent of where they were.
"""

from __future__ import annotations

__all__ = ["MOST", "MixtureProposal", "jump"]

import math

import torch
from torch import Tensor

from damc.density import LogProb, value_and_grad
from damc.diffusion.mixture import BlockMixture
from damc.diffusion.standardize import Standardize
from damc.kernels.base import State
from damc.kernels.hmc import HMC

MOST = 20
"""Dimensions up to which proposals of a mixture are accepted often enough."""
_COMPONENTS = 32
_FITTED = 4000  # points that it is fitted to
_WIDE = 1.2  # the components' standard deviations are larger by this factor


class MixtureProposal:
    """A mixture of Gaussians around points, somewhat wider than they are.

    Args:
        z: points, ``(n, d)``, float64.
        generator: source of all randomness.
    """

    def __init__(self, z: Tensor, generator: torch.Generator | None = None) -> None:
        d = z.shape[1]
        self.scale = Standardize(d).to(z)
        self.scale.fit(z)
        self.mixture = BlockMixture(d, 1, _COMPONENTS).to(z)
        some = torch.randperm(len(z), generator=generator, device=z.device)[:_FITTED]
        self.mixture.fit(self.scale(z[some]), generator)
        self.mixture.variances.mul_(_WIDE**2)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Points, ``(n, d)``."""
        mixture = self.mixture
        shares = mixture.log_weights[0].softmax(0)
        which = torch.multinomial(shares, n, True, generator=generator)
        w = torch.empty(n, self.mixture.size, dtype=shares.dtype, device=shares.device)
        w = w.normal_(generator=generator) * mixture.variances[0, which].sqrt()
        v = mixture.means[0, which] + (mixture.axes[0, which] @ w[..., None])[..., 0]
        return self.scale.inverse(v)

    def log_prob(self, z: Tensor) -> Tensor:
        """Normalized log-density, ``(B, d)`` to ``(B,)``."""
        return self.mixture.log_prob(self.scale(z)) - self.scale.log_scale()


def jump(
    state: State, target: LogProb, proposal: MixtureProposal, generator: torch.Generator | None
) -> tuple[State, float]:
    """One proposal for every point, and the mean acceptance: an independence Metropolis move.

    accept z' ~ g with probability min(1, p(z') g(z) / (p(z) g(z')))
    """
    assert state.log_prob is not None and state.grad is not None
    far = proposal.sample(len(state.z), generator)
    value, grad = value_and_grad(target, far)
    log_ratio = value - proposal.log_prob(far) - state.log_prob + proposal.log_prob(state.z)
    log_ratio = torch.where(log_ratio.isnan(), -math.inf, log_ratio)
    moved, acceptance = HMC(1.0).metropolis(state, State(far, value, grad), log_ratio, generator)
    return moved, float(acceptance.mean())

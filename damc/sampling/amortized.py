"""The amortized sampler of a density: a diffusion model learned from particles and their scores.

Particles z of a density p come with grad log p(z), which a chain needs anyway. Both tell the score
of the noisy points z_u = alpha z + sigma eps that a denoiser learns (with z standardized):

    -sigma grad log p_u(z_u) = E[eps | z_u] = -(sigma / alpha) E[grad log p(z) | z_u],

the first form being the usual target of regression and the second one that of target score matching
(De Bortoli et al. 2024). The mixture of both

    c eps - (1 - c) (sigma / alpha) grad log p(z),    c = sigma^2 / (alpha^2 s^2 + sigma^2),

has the same mean for every c, and no variance at all where p is a Gaussian of variance s^2; 1 / s^2
is taken from the mean square of the gradients. Noise levels are drawn evenly in the log
signal-to-noise ratio, for which the loss is a bound on the likelihood (Kingma et al. 2021).

The denoiser does not begin from nothing: it is that of a mixture of Gaussians fitted to the
particles, or of a product of marginals, whichever is likelier (`damc.diffusion.mixture`), and a
network learns the rest. If the network makes it worse, which particles that it did not see decide,
the mixture stays alone.
"""

from __future__ import annotations

__all__ = [
    "Sampler",
    "amortized",
    "ancestral_paths",
    "learn",
    "network",
    "predictor",
    "standardized",
]

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from damc.amortize import EMA, Amortizer
from damc.density import LogProb
from damc.diffusion.denoiser import epsilon_loss
from damc.diffusion.likelihood import AncestralPaths, Epsilon
from damc.diffusion.mixture import BlockMixture
from damc.diffusion.standardize import Standardize
from damc.errors import BadInput
from damc.kernels.base import State
from damc.kernels.smc import resample
from damc.kernels.straight import Straight
from damc.randomness import derive_seed, global_seed
from damc.sampling.jumps import shapes
from damc.sampling.supports import Support
from damc.sampling.verdict import Evidence, evaluated
from damc.sampling.weights import Weights, weights

_HELD_OUT = 2000  # particles that are not learned from
_FREQUENCIES = 32
_STEPS = 100
_RATE = 1e-3
_WARM_UP = 100
_FITTED = 10_000  # points that mixtures are fitted to
_JUDGED = 4000  # points by which they are judged


@dataclass(frozen=True)
class Sampler:
    """Draws from a density without a chain, and their importance weights.

    Attributes:
        amortizer: the diffusion model, of points in R^k.
        straight: the coordinates in which it models them, if the density is a funnel.
        support: leads from R^k to the density's support.
        target: the log-density on R^k.
        held_out: particles that it did not learn from.
        paths: how it draws.
    """

    amortizer: Amortizer
    target: LogProb = field(repr=False)
    held_out: Tensor = field(repr=False)
    paths: AncestralPaths = field(repr=False)
    straight: Straight | None = field(default=None, repr=False)
    support: Support | None = field(default=None, repr=False)

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Draws, ``(n, d)``, float64."""
        return self._draw(n, generator)[0]

    def weighted(
        self, n: int, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Weights]:
        """Draws ``(n, d)`` and their importance weights, by the density of their paths.

        The weights also tell the evidence, independently of annealing, and its bounds: the lower
        one of these draws and the upper one of particles that were not learned from.
        """
        x, z, log_ratio = self._draw(n, generator)
        held = self.held_out[:n]
        exact = self._target(held) + self._log_ratio(held, generator)
        return x, weights(self._target(z) + log_ratio, exact)

    @torch.no_grad()
    def log_prob(self, x: Tensor) -> Tensor:
        """log q(x), normalized, ``(B,)``, by the probability flow; see `Amortizer.log_prob`."""
        u, log_det = x, x.new_zeros(len(x))
        if self.support is not None:
            u = self.support.inverse(x)
            log_det = self.support(u)[1]
        if self.straight is not None:
            u = self.straight.inverse(u)
            log_det = log_det + self.straight.log_det(u)
        return self.amortizer.log_prob(u).to(x.dtype) - log_det

    def _draw(self, n: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor, Tensor]:
        """Draws on the support and in R^k, and log r - log q of their paths there."""
        if not isinstance(n, int) or n < 1:
            raise BadInput(f"n must be a positive whole number, got {n!r}")
        scale = self.amortizer.standardize
        assert scale is not None
        with torch.no_grad():
            w, log_ratio = self.paths.draw(n, generator)
            z = w @ scale.factor.double().mT + scale.location.double()
            log_ratio = log_ratio + scale.log_scale().double()
            if self.straight is not None:
                log_ratio = log_ratio + self.straight.log_det(z)
                z = self.straight(z)
            return z if self.support is None else self.support(z)[0], z, log_ratio

    @torch.no_grad()
    def _log_ratio(self, z: Tensor, generator: torch.Generator | None) -> Tensor:
        """log r - log q of paths of noising from points in R^k."""
        scale = self.amortizer.standardize
        assert scale is not None
        log_det = scale.log_scale().double()
        if self.straight is not None:
            z = self.straight.inverse(z)
            log_det = log_det + self.straight.log_det(z)
        return self.paths.noised(standardized(self.amortizer, z), generator) + log_det

    @torch.no_grad()
    def _target(self, z: Tensor) -> Tensor:
        value = self.target(z)
        return torch.where(value.isfinite(), value, -math.inf)


def amortized(evidence: Evidence, *, seed: int = 0, progress: bool = False) -> Sampler:
    """A sampler learned from the particles of annealed SMC and of the moves after it."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "amortized"))
    state = _particles(evidence, generator)
    straight = evidence.second.mover.straight
    assert state.log_prob is not None and state.grad is not None
    held_out, rest = state.z[:_HELD_OUT], slice(_HELD_OUT, None)
    learned = State(state.z[rest], state.log_prob[rest], state.grad[rest])
    if straight is not None:
        learned = straight.to_v(learned)
    assert learned.grad is not None
    d = learned.z.shape[1]
    with global_seed(derive_seed(seed, "weights")):
        q = network(d, mixture_of(learned.z, generator))
    learn(q, learned.z, learned.grad, iterations=_iterations(d), batch=1024 if d <= 12 else 512,
          generator=generator, progress=progress)  # fmt: skip
    paths = ancestral_paths(q, learned.z[:4000], generator)
    return Sampler(q, evidence.target, held_out, paths, straight, evidence.support)


def network(dim: int, mixture: BlockMixture | None = None) -> Amortizer:
    """An untrained amortizer of a density's points, of a size that minutes can train, on top of a
    mixture that fits them."""
    widths = (64, 128, 128) if dim <= 12 else (128, 256, 256)
    fourier = _FREQUENCIES if dim <= 12 else max(1, dim // 2)
    shape = None if mixture is None else tuple(mixture.log_weights.shape)
    q = Amortizer(
        dim,
        embedding=8,
        widths=widths,
        residual=False,
        fourier=fourier,
        mixture=shape,  # type: ignore[arg-type]
        standardize=True,
    )
    if mixture is not None:
        assert q.denoiser.mixture is not None
        q.denoiser.mixture.load_state_dict(mixture.state_dict())
    return q


def mixture_of(z: Tensor, generator: torch.Generator | None = None) -> BlockMixture:
    """The likelier of an ordinary mixture and a product of marginals, of points ``(N, d)``.

    Both are fitted to standardized points and judged by points that they were not fitted to.
    """
    d = z.shape[1]
    scale = Standardize(d).to(z.device)
    scale.fit(z)
    v = whitened(scale, z)
    held = _held(len(v))
    judged, fitted = v[:held], v[held : held + _FITTED]
    found = [BlockMixture(d, *shape).to(z.device) for shape in shapes(d)]
    for mixture in found:
        mixture.fit(fitted, generator)
    return max(found, key=lambda mixture: float(mixture.log_prob(judged).mean()))


def _held(n: int) -> int:
    """How many of n points, the first ones, only judge."""
    return min(_JUDGED, n // 5)


def _iterations(dim: int) -> int:
    return 600 if dim <= 12 else 800


def learn(
    q: Amortizer,
    z: Tensor,
    grad: Tensor,
    *,
    iterations: int,
    batch: int,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> None:
    """Trains q on points of a density ``(N, d)`` and the gradients of its logarithm there."""
    from tqdm.auto import tqdm

    scale = q.standardize
    if scale is None:
        raise BadInput("q must be made with standardize=True to learn from particles")
    scale.fit(z)
    v = standardized(q, z).to(scale.factor)
    pull = (grad @ scale.factor.to(grad)).to(scale.factor)
    variance = 1 / pull.square().mean(0).clamp(min=1e-12)  # s^2 of a Gaussian of that gradient
    average = EMA(q, 0.01)
    optimizer = torch.optim.AdamW(q.parameters(), lr=_RATE, betas=(0.9, 0.99), weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda k: min(1.0, (k + 1) / _WARM_UP) * (1 + math.cos(math.pi * k / iterations)) / 2,
    )
    held = _held(len(v))
    for _ in tqdm(range(iterations), desc="amortize", disable=not progress):
        which = torch.randint(held, len(v), (batch,), generator=generator, device=v.device)
        loss = _loss(q, v[which], pull[which], variance, generator)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(q.parameters(), 10.0)
        optimizer.step()
        schedule.step()
        average.update()
    q.load_state_dict(average.module.state_dict())
    _keep_if_better(q, v[:held], pull[:held], variance, generator)


def _loss(
    q: Amortizer, v: Tensor, pull: Tensor, variance: Tensor, generator: torch.Generator | None
) -> Tensor:
    """The mean over points of |eps^ - wanted|^2 / 2, with the target of the module's docstring."""
    assert isinstance(q.null, nn.Parameter)
    angle = _angles(q, len(v), generator).to(v)
    alpha, sigma = angle.cos()[:, None], angle.sin()[:, None]
    eps = torch.empty_like(v).normal_(generator=generator)
    c = sigma.square() / (alpha.square() * variance + sigma.square())
    wanted = c * eps - (1 - c) * (sigma / alpha) * pull
    return epsilon_loss(q.denoiser(alpha * v + sigma * eps, angle, q.null), wanted)


@torch.no_grad()
def _keep_if_better(
    q: Amortizer, v: Tensor, pull: Tensor, variance: Tensor, generator: torch.Generator | None
) -> None:
    """Silences the network if the mixture alone predicts better."""
    if q.denoiser.mixture is None:
        return
    last = q.denoiser.blocks[-1]
    learned = {name: weight.clone() for name, weight in last.state_dict().items()}
    state = None if generator is None else generator.get_state()
    losses = []
    for silent in (False, True):
        if generator is not None and state is not None:
            generator.set_state(state)  # the same noise for both
        for layer in (last.w1_w4, last.w2_w3) if silent else ():
            for weight in layer.parameters():  # type: ignore[union-attr]
                nn.init.zeros_(weight)
        losses.append(float(_loss(q, v, pull, variance, generator)))
    if losses[0] <= losses[1]:
        last.load_state_dict(learned)


def ancestral_paths(
    q: Amortizer, z: Tensor, generator: torch.Generator | None = None, x: Tensor | None = None
) -> AncestralPaths:
    """Paths of q with variances fitted to points z ``(n, d)``, of contexts x if there are any."""
    ends = (q.schedule.b, q.schedule.a + q.schedule.b)
    with torch.no_grad():
        return AncestralPaths.fit(predictor(q, x), standardized(q, z), ends, _STEPS, generator)


def predictor(q: Amortizer, x: Tensor | None = None) -> Epsilon:
    """The denoiser of q given x, from and to float64."""
    condition = q.null if x is None else q.embed(x)
    dtype = q.denoiser.fourier.dtype

    def epsilon(v: Tensor, angle: Tensor) -> Tensor:
        eps: Tensor = q.denoiser(v.to(dtype), angle.to(dtype), condition)
        return eps.to(v.dtype)

    return epsilon


def standardized(q: Amortizer, z: Tensor) -> Tensor:
    """L^-1 (z - m) in float64, ``(B, d)``; z itself if q does not standardize."""
    return z.double() if q.standardize is None else whitened(q.standardize, z)


def whitened(scale: Standardize, z: Tensor) -> Tensor:
    """L^-1 (z - m) in float64, ``(B, d)``."""
    centered = (z.double() - scale.location.double()).mT
    factor = scale.factor.double()
    v: Tensor = torch.linalg.solve_triangular(factor, centered, upper=False)
    return v.mT


def _angles(q: Amortizer, n: int, generator: torch.Generator | None) -> Tensor:
    """One of each of n equal parts of the range of log signal-to-noise ratios, as angles."""
    part = torch.arange(n) + torch.rand(n, generator=generator)
    low, high = q.schedule.lambda_min, q.schedule.lambda_max
    return torch.exp(-(low + (high - low) * part / n) / 2).atan()


def _particles(evidence: Evidence, generator: torch.Generator) -> State:
    """All particles of all sweeps in random order, islands in proportion to their weights."""
    states, islands = evidence.states, evidence.island_weights
    each = len(states[0].z) // len(islands)
    log_weights = islands.repeat_interleave(each).repeat(len(states))
    index = resample(log_weights[None], generator)[0]
    index = index[torch.randperm(len(index), generator=generator)]
    grads = [state.grad for state in states if state.grad is not None]
    return State(
        torch.cat([state.z for state in states])[index],
        torch.cat([evaluated(state) for state in states])[index],
        torch.cat(grads)[index],
    )

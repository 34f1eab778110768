"""An amortized posterior: draws of p(z | x) for any observation x, each with its own verdict."""

from __future__ import annotations

__all__ = ["AmortizedPosterior"]

import math
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from damc.amortize import Amortizer, History
from damc.density import LogProb, Target, as_log_prob, value_and_grad
from damc.errors import BadInput
from damc.kernels.base import State
from damc.kernels.hmc import HMC
from damc.kernels.mover import Budget, Mover, Possible
from damc.kernels.reference import Reference
from damc.kernels.smc import Annealed, anneal, resample
from damc.randomness import derive_seed
from damc.sampling.amortized import ancestral_paths
from damc.sampling.check import whole
from damc.sampling.draws import Draws
from damc.sampling.guard import guarded
from damc.sampling.jumps import MOST, MixtureProposal, jump
from damc.sampling.observations import Conditional, as_observation
from damc.sampling.stored import networks, part, read, write
from damc.sampling.supports import as_support
from damc.sampling.weights import effective_size, weights
from damc.sampling.whiten import Whiten

_BLOCKS = (3, 3, 6, 12, 24, 48, 96)  # moves after which draws are compared with those before
_SHIFT = 3.0  # standard deviations of equal draws' mean rank: what a block may change
_JUMPED = 0.3  # acceptance of jumps from which on their proposal is kept
_FIRST = 1000  # points of q that are moved first, if jumps can make the rest
_KINDS = [(1, 1), (1, 8), (1, 32)]  # mixtures that propose jumps
_FORGOTTEN = 5.0  # accepted jumps of a draw, after which it has forgotten what it was copied from
_PARTICLES = (512, 4096)  # of the annealing that checks the draws; more of them if it disagrees
_LIKE = 1000  # draws that the variances of paths are fitted to


@dataclass(frozen=True)
class AmortizedPosterior:
    """What `damc.sample` returns when it is given a context.

    Attributes:
        target: log p(z, x).
        amortizer: q(v | x), a diffusion model of whitened points.
        whiten: v = L(x)^-1 (u - m(x)); u are the unconstrained coordinates of z.
        u, x: some of the pairs that it learned from, ``(N, free)`` and ``(N, k)``.
        history: of the distillation.
        gradient_calls: of the training, counted for each point.
        seed: of the training.
    """

    target: Conditional
    amortizer: Amortizer
    whiten: Whiten
    u: Tensor = field(repr=False)
    x: Tensor = field(repr=False)
    history: History = field(repr=False)
    gradient_calls: int
    seed: int

    def draws(
        self,
        x: Tensor,
        n: int = 10_000,
        *,
        refine: bool = True,
        weigh: bool = False,
        check: bool = True,
        seed: int = 0,
    ) -> Draws:
        """Draws from the posterior of one observation.

        Points of q(z | x) are moved by Hamiltonian Monte Carlo on p(z | x), preconditioned by their
        own covariance, and by proposals of a mixture that fits them (`damc.sampling.jumps`), until
        further moves do not change them. A thousand of them are moved first: where proposals of
        their mixture are accepted often, copies of these make the other draws by such jumps alone,
        each accepted about five times, which costs a fraction of moving all. A small annealing
        that starts at all points that the sampler learned from, and knows nothing of q, must agree
        with them.

        Args:
            x: the observation, of the shape of one context.
            n: how many draws.
            refine: move the draws; without it they are those of q alone, and not trusted unless
                they are weighed.
            weigh: draw along paths whose density is known, and from it importance weights,
                Pareto-smoothed (`damc.diffusion.likelihood.AncestralPaths`). They give the
                evidence, and choose the draws that are moved in proportion to them, so that the
                masses of separate modes are set right; without `refine` they are the draws'
                weights. Paths have 100 steps instead of 10.
            check: compare with the annealing.
            seed: of everything random.
        """
        number = whole(n)
        if number is None or number < 100:
            raise BadInput(f"n must be a whole number of at least 100, got {n!r}")
        n = number
        observed = as_observation(x, self.target.shape)
        generator = torch.Generator().manual_seed(derive_seed(seed, "draws"))
        budget = Budget()
        target = Possible(lambda u: self.target(u, observed.expand(len(u), -1)))
        few = refine and not weigh and n > _FIRST and self.u.shape[1] <= MOST
        found = self._found(observed, _FIRST if few else n, weigh, target, budget, generator)
        if refine:
            _refine(found, target, budget, generator)
        if few and not _spread(found, n, target, budget, generator):
            found = self._found(observed, n, weigh, target, budget, generator)
            _refine(found, target, budget, generator)
        annealed = None
        for particles in _PARTICLES if check else ():
            annealed = self._anneal(particles, target, budget, generator)
            if found.agrees(annealed):
                break
        trusted, report = found.verdict(refine, weigh, annealed)
        evidence, error = found.evidence
        if annealed is not None and annealed.finished and (not weigh or found.k > 0.7):
            evidence, error = annealed.log_evidence, annealed.log_evidence_error
        return Draws(
            self.target.points(found.state.z),
            found.log_weights,
            evidence,
            error,
            found.ess,
            trusted,
            report,
            budget.spent,
            checks=found.checks,
        )

    def _found(
        self,
        observed: Tensor,
        n: int,
        weigh: bool,
        target: LogProb,
        budget: Budget,
        generator: torch.Generator,
    ) -> _Found:
        """Draws of q, evaluated, and weighed if asked for."""
        u, log_ratio = self._proposed(observed, n, weigh, generator)
        value, grad = value_and_grad(target, u)
        budget.spend(n)
        found = _Found(State(u, value, grad))
        found.checks["impossible"] = float((value == -math.inf).double().mean())
        if found.checks["impossible"] == 1:
            raise BadInput("log_prob must be finite at some draws of q(z | x), got none for this x")
        if weigh:
            found.weigh(log_ratio)
        return found

    @torch.no_grad()
    def _proposed(
        self, observed: Tensor, n: int, weigh: bool, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Points of q, unconstrained in float64, and log r - log q of their paths, or 0."""
        q, log_ratio = self.amortizer, torch.zeros(n, dtype=torch.float64)
        few = min(n, _LIKE) if weigh else n
        v = q.sample(few, x=observed, generator=generator)[:, 0].double()
        mean, factor = self.whiten.frame(observed)
        if weigh:
            v, log_ratio = ancestral_paths(q, v, generator, observed).draw(n, generator)
            log_ratio = log_ratio + self.whiten.log_scale(factor).double()
        return mean.double() + v @ factor[0].double().T, log_ratio

    def save(self, path: str | Path) -> None:
        """Writes ``path.safetensors``, all but the log-density, which `load` wants again."""
        tensors = {"u": self.u, "x": self.x}
        tensors |= {f"whiten.{k}": t for k, t in self.whiten.state_dict().items()}
        tensors |= {f"amortizer.{k}": t for k, t in self.amortizer.state_dict().items()}
        about = {
            "shape": list(self.target.shape),
            "dim": self.target.points(self.u[:1]).shape[1],
            "dtype": str(self.target.dtype).removeprefix("torch."),
            "gradient_calls": self.gradient_calls,
            "seed": self.seed,
            "history": asdict(self.history),
        }
        write(path, tensors, about)

    @classmethod
    def load(cls, path: str | Path, log_prob: Target, *, support: Any = None) -> AmortizedPosterior:
        """Reads what `save` wrote, with the log-density and the support that it was trained for.

        Raises:
            BadInput: if it cannot be read, or belongs to another support.
        """
        tensors, about = read(path)
        bijection = as_support(support, about["dim"])
        free = about["dim"] if bijection is None else bijection.free
        u, x = tensors["u"], tensors["x"]
        if u.shape[1] != free:
            raise BadInput(f"support must leave {u.shape[1]} free coordinates, got {free}")
        dtype = getattr(torch, about["dtype"])
        target = Conditional(
            guarded(as_log_prob(log_prob), dtype),
            tuple(about["shape"]),
            bijection,
            dtype,
        )
        whiten, q = networks(free, x.shape[1])
        whiten.load_state_dict(part(tensors, "whiten."))
        q.load_state_dict(part(tensors, "amortizer."))
        whiten.requires_grad_(False)
        history = History(**about["history"])
        return cls(target, q, whiten, u, x, history, about["gradient_calls"], about["seed"])

    @cached_property
    def _reference(self) -> Reference:
        found = Reference.fit(self.u, 1.3)
        if found is None:
            raise BadInput("the points of the context must spread in every direction")
        return found

    def _anneal(
        self, particles: int, target: LogProb, budget: Budget, generator: torch.Generator
    ) -> Annealed:
        """Particles of the posterior that owe nothing to q."""
        return anneal(
            target, self._reference, particles=particles, ess=0.7, budget=budget,
            generator=generator,
        )  # fmt: skip


class _Found:
    """Draws on their way."""

    def __init__(self, state: State) -> None:
        assert state.log_prob is not None
        self.state, self.log_weights = state, torch.zeros_like(state.log_prob)
        self.evidence = (math.nan, math.inf)
        self.k = math.nan
        self.ess = float(len(state.z))
        self.copied = 0  # of how many others the draws are copies that jumped
        self.elsewhere = False  # whether an annealing ended elsewhere that knows nothing of q
        self.checks: dict[str, float] = {}
        leapfrogs = max(3, round(2 * state.z.shape[1] ** 0.25))
        self.mover = Mover(HMC(1.0, leapfrogs=leapfrogs, target_acceptance=None))

    def weigh(self, log_ratio: Tensor) -> None:
        """Weights of the draws, smoothed, with mean weight 1, and the evidence."""
        assert self.state.log_prob is not None
        found = weights(self.state.log_prob + log_ratio)
        self.k, self.log_weights = found.k_hat, found.log_weights
        self.evidence = (found.log_evidence, found.log_evidence_error)
        self.checks |= {"pareto k": self.k, "effective share": found.ess / len(log_ratio)}

    def agrees(self, annealed: Annealed) -> bool:
        """Whether the draws are as close to the annealing's particles as noise lets them be."""
        weights = self.log_weights if bool(self.log_weights.any()) else None
        shift = differ(self.state, annealed.state, weights)
        worth = len(annealed.state.z) / 4  # resampled particles are worth fewer
        noise = math.sqrt(1 / 12 / worth)
        self.checks["annealed shift"] = shift
        self.checks["log evidence error"] = annealed.log_evidence_error
        self.elsewhere = shift > 0.05 + 4 * noise
        return annealed.finished and not self.elsewhere

    def verdict(self, refine: bool, weigh: bool, annealed: Annealed | None) -> tuple[bool, str]:
        """Whether every check passed, and one sentence that says why or why not."""
        c, n = self.checks, len(self.state.z)
        gap = math.nan
        if annealed is not None and annealed.finished and weigh and self.k < 0.7:
            gap = abs(annealed.log_evidence - self.evidence[0])
            c["evidence gap"] = gap
        reasons = [
            (not refine and not weigh, "they are those of q alone, neither weighed nor moved"),
            (c["impossible"] > 0.5, f"{c['impossible']:.0%} of q's draws are impossible"),
            (c.get("shift", 0) > 0.02 + 4 / math.sqrt(6 * n),
             f"further moves still change them, by {c.get('shift', 0):.2f} of all ranks"),
            (c.get("still", 0) > 0.02, f"{c.get('still', 0):.0%} of them could not be moved"),
            (c.get("acceptance", 1) < 0.2,
             f"the kernel accepts only {c.get('acceptance', 1):.0%} of its moves"),
            (not refine and self.k > 0.7,
             f"the weights have tails too heavy for a mean (Pareto k {self.k:.2f})"),
            (annealed is not None and not annealed.finished,
             "the annealing that checks them did not reach the posterior"),
            (self.elsewhere,
             "an annealing that knows nothing of q ends elsewhere, by "
             f"{c.get('annealed shift', 0):.2f} of all ranks"),
            (gap > 0.5 + 4 * c.get("log evidence error", 0),
             f"weights and annealing disagree on the evidence, by {gap:.2f}"),
        ]  # fmt: skip
        failed = [sentence for wrong, sentence in reasons if wrong]
        if failed:
            return False, f"do not trust these draws: {'; '.join(failed)}"
        how = f"{n:,} draws of q, {'moved until they stay' if refine else 'weighed'}"
        if self.copied:
            how = f"{n:,} draws by jumps of {self.copied:,} of q, moved until they stay"
        against = "" if annealed is None else ", and an annealing that knows nothing of q agrees"
        return True, f"all checks passed: {how}{against}"


def _refine(found: _Found, target: LogProb, budget: Budget, generator: torch.Generator) -> None:
    """Moves the draws until a further block of moves, as long as all before, changes nothing."""
    state, n = found.state, len(found.state.z)
    assert state.log_prob is not None and state.grad is not None
    log_weights = torch.where(state.log_prob > -math.inf, found.log_weights, -math.inf)
    found.ess = effective_size(log_weights)
    index = resample(log_weights[None], generator)[0]
    state = State(state.z[index], state.log_prob[index], state.grad[index])
    found.log_weights = torch.zeros_like(found.log_weights)
    d = state.z.shape[1]
    start, jumped = state, 0.0
    for moves in _BLOCKS:
        before = state
        state, accepted = found.mover.move(state, target, (moves, moves), budget, generator)
        if d <= MOST:
            if jumped < _JUMPED:  # fitted to what moves have made better since
                proposal = MixtureProposal(state.z, generator, _KINDS)
            state, jumped = jump(state, target, proposal, generator, moves)
            budget.spend(moves * n)
        shift = differ(state, before)
        if before is not start and shift < _SHIFT / math.sqrt(6 * n):
            break
    found.checks |= {
        "moves": float(state.moves),
        "acceptance": accepted,
        "jumps": jumped,
        "shift": shift,
        "still": float((state.z == start.z).all(1).double().mean()),
        "q shift": differ(state, start),
    }
    found.state = state


def _spread(
    found: _Found, n: int, target: LogProb, budget: Budget, generator: torch.Generator
) -> bool:
    """Makes n draws of the moved ones, by jumps; False, and nothing made, if too few are accepted.

    Every draw begins as a copy and jumps until it has forgotten which. The draws after half of the
    jumps must not differ from those after all.
    """
    few = found.state
    proposal = MixtureProposal(few.z, generator, _KINDS)
    few, accepted = jump(few, target, proposal, generator)
    budget.spend(len(few.z))
    if accepted < _JUMPED:
        return False
    assert few.log_prob is not None and few.grad is not None
    index = torch.arange(n, device=few.z.device) % len(few.z)
    copies = State(few.z[index], few.log_prob[index], few.grad[index], moves=few.moves)
    jumps = math.ceil(_FORGOTTEN / 2 / accepted)
    half, _ = jump(copies, target, proposal, generator, jumps)
    state, accepted = jump(half, target, proposal, generator, jumps)
    budget.spend(2 * jumps * n)
    jumped = float((state.z != copies.z).any(1).double().mean())
    # A move frees those that no jump does, since the mixture is too thin where they are.
    state, _ = found.mover.move(state, target, (1, 1), budget, generator, adapt=False)
    shift = differ(state, half)
    if shift > _SHIFT / math.sqrt(6 * n):
        return False
    found.checks |= {"moves": float(state.moves), "jumps": accepted, "shift": shift}
    found.state, found.log_weights = state, state.z.new_zeros(n)
    found.ess, found.copied = jumped * n, len(few.z)
    return True


def differ(a: State, b: State, log_weights: Tensor | None = None) -> float:
    """The largest difference of mean ranks, as a share of all ranks, between two sets of points.

    Over the coordinates, their distances from the center and the log-density. It is the area under
    the ROC curve less one half: 0 for equal distributions, at most 0.5.

    Args:
        a, b: points with their log-density.
        log_weights: of the points of `a`.
    """
    assert a.log_prob is not None and b.log_prob is not None
    center = torch.cat([a.z, b.z]).median(0).values
    f, g = (
        torch.cat([s.z, (s.z - center).abs(), s.log_prob[:, None]], 1).T.contiguous()  # type: ignore[index]
        for s in (a, b)
    )
    ordered = g.sort(1).values
    below = torch.searchsorted(ordered, f) + torch.searchsorted(ordered, f, right=True)
    area = below.double() / (2 * g.shape[1])
    w = torch.full_like(area[0], 1 / len(area[0]))
    if log_weights is not None:
        w = torch.softmax(log_weights.double(), 0)
    return float((area @ w - 0.5).abs().max())

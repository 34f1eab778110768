"""`damc.sample`: draws from any density in one call, with evidence, weights and a verdict.

A pilot finds where the density is, annealed SMC carries particles there twice (the second time from
a reference that fits what the first one found), ascents from scattered starts hunt for regions that
both missed, particles that cannot leave their modes jump between them, more moves of the kernel
refine them, and the verdict says whether all of this agrees; see `damc.sampling.stages` and
`damc.sampling.verdict`. `damc.sampling.amortized` makes a sampler of the particles.
"""

from __future__ import annotations

__all__ = ["sample"]

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

import torch
from tqdm.auto import tqdm

from damc.density import LogProb, Target
from damc.errors import BadInput
from damc.kernels.mover import Budget, Possible, possible
from damc.kernels.smc import joined
from damc.randomness import derive_seed
from damc.sampling.amortized import amortized
from damc.sampling.check import checked, checked_seed, positive, positive_number
from damc.sampling.draws import Draws
from damc.sampling.jumps import bridge
from damc.sampling.observations import check_alone
from damc.sampling.refine import Pool, chosen, pool_of, refine, tails
from damc.sampling.stages import Work, annealings, approach, from_peaks, integrable, slopes_of
from damc.sampling.supports import as_support
from damc.sampling.verdict import Evidence, evaluated, lost_paths, verdict
from damc.sampling.watch import Watched
from damc.sampling.weights import effective_size

if TYPE_CHECKING:
    from damc.sampling.posterior import AmortizedPosterior


@overload
def sample(
    log_prob: Target,
    dim: int,
    n: int = ...,
    *,
    context: None = ...,
    support: Any = ...,
    seed: int = ...,
    gradients: int | None = ...,
    minutes: float = ...,
    amortize: bool = ...,
    resume: Draws | None = ...,
    progress: bool = ...,
    device: torch.device | str = ...,
) -> Draws: ...


@overload
def sample(
    log_prob: Target,
    dim: int,
    n: int = ...,
    *,
    context: object,
    support: Any = ...,
    seed: int = ...,
    gradients: int | None = ...,
    minutes: float = ...,
    progress: bool = ...,
) -> AmortizedPosterior: ...


def sample(
    log_prob: Target,
    dim: int,
    n: int = 10_000,
    *,
    context: Any = None,
    support: Any = None,
    seed: int = 0,
    gradients: int | None = None,
    minutes: float = 5.0,
    amortize: bool = False,
    resume: Draws | None = None,
    progress: bool = False,
    device: torch.device | str = "cpu",
) -> Draws | AmortizedPosterior:
    """Draws from any continuous density, given by its unnormalized log-density.

    With a context, the log-density is log p(z, x), and what comes back is one sampler of the
    posteriors of all x; see `damc.sampling.conditional`.

    Args:
        log_prob: ``(B, dim)`` to ``(B,)``, in torch operations; it is given float64 points if it
            can take them. -inf and NaN mean that a point is impossible.
        dim: size of a point.
        n: number of draws; with a context it is not used, as each call of ``draws`` has its own.
        context: of a conditional log-density, ``(z, x)`` to ``(B,)``: a simulator
            ``(n, generator) -> (z, x)``, pairs of tensors (z, x), or observations x ``(N, ...)``.
        support: a constraint of `torch.distributions.constraints`, or a list of them; see
            `damc.sampling.supports`.
        seed: of everything random; a run that `minutes` does not cut short repeats bit for bit.
        gradients: approximate limit on gradients of the log-density, counted for each point; the
            pilot run is never left out and takes about ten thousand.
        minutes: approximate limit on the computing time, without that of `amortize`; other work on
            the same processor does not count.
        amortize: train `Draws.sampler` at once, and let the verdict use its importance weights.
        resume: draws of an earlier call for the same density, from which sampling continues with a
            new budget: its particles are kept, and as many new ones are added. Neither this nor
            `amortize` can be combined with a context.
        progress: show a bar.
        device: where the points are, with which `log_prob` is called, and the draws; it must be one
            with float64. It must be left out with a context.

    Returns:
        The draws, or with a context an `AmortizedPosterior`, whose ``draws(x)`` are those of one
        observation. Look at `Draws.trusted` and `Draws.report` before you use them.

    Raises:
        BadInput: if an argument is not what it must be.
        Diverged: if the log-density is finite nowhere that was tried.

    Example:
        >>> draws = sample(lambda z: -(z - 50).square().sum(1) / 200, dim=2, n=1000)
        >>> draws.trusted, draws.samples.shape
        (True, torch.Size([1000, 2]))
    """
    dim, n = positive(dim=dim, n=n)
    seed = checked_seed(seed)
    positive_number(minutes=minutes, gradients=math.inf if gradients is None else gradients)
    if context is not None:
        if torch.device(device).type != "cpu":
            raise BadInput(f"device must be left out with a context, got {device!r}")
        if amortize or resume is not None:
            name = "amortize" if amortize else "resume"
            raise BadInput(f"{name} must be left out with a context, which always trains anew")
        from damc.sampling.conditional import amortize as amortize_posterior

        return amortize_posterior(log_prob, dim, context, support=support, seed=seed,
                                  minutes=minutes, gradients=gradients,
                                  progress=progress)  # fmt: skip
    check_alone(log_prob)
    bijection = as_support(support, dim)
    earlier = None if resume is None else _earlier(resume, dim)
    calls = 0 if earlier is None else earlier.calls
    generator = _generator(device)
    generator.manual_seed(derive_seed(seed, "sample", calls) if calls else seed)
    density, guard = checked(log_prob, dim, bijection, generator)
    target = Watched(density, mapped=bijection is not None)
    if earlier is not None:
        _check_same(earlier, target.target)
    with tqdm(unit=" gradients", unit_scale=True, total=gradients, disable=not progress) as bar:
        clock = torch.device(device).type != "cpu"
        budget = Budget(gradients or math.inf, 60 * minutes, watch=bar.update, clock=clock)
        work = Work(target, bijection, budget, generator, bar.set_description)
        if earlier is None:
            first, found, reference = approach(work, dim if bijection is None else bijection.free)
        else:
            first, found, reference = earlier.first, earlier.found, earlier.reference
        slopes = slopes_of(work, first.state)
        runs = [] if earlier is None else [run for run in earlier.runs if run.finished]
        jumping = None
        if integrable(slopes):
            runs, jumping = annealings(work, first, reference, runs)
        annealed = joined(runs or [first])
        work.stage("refine")
        jumps, start = jumping or (None, annealed.state)
        second = replace(annealed, state=start)
        states, accepted = refine(target, n, second, budget, generator, jumps)
        if budget.hurried:
            work.notes.append(f"{minutes:g} minutes left time for {len(states)} sweeps of moves")
        if jumps is not None:
            second = replace(second, island_evidence=bridge(
                jumps, Possible(target), states, len(second.island_evidence), budget, generator
            ))  # fmt: skip
        pool = tails(target, n, second, states, slopes[0], budget, generator) or pool_of(states)
        second = replace(second, island_evidence=second.island_evidence + pool.unseen)
        if integrable(slopes):
            slopes = slopes_of(work, states[-1])
            found = from_peaks(work, found)
    spent = budget.spent + (0 if earlier is None else earlier.gradient_calls)
    lost = lost_paths(found, second)
    evidence = Evidence(target.target, bijection, found, first, reference, runs, annealed, jumps,
                        second, states, accepted, lost, *slopes, budget, spent, calls + 1,
                        (*work.notes, *guard.notes), target.infinite,
                        guard.precision, pool.unseen_error)  # fmt: skip
    draws = _draws(n, evidence, pool, generator)
    return _with_sampler(draws, seed, progress) if amortize else draws


def _generator(device: torch.device | str) -> torch.Generator:
    """A generator on the device that the user named."""
    try:
        return torch.Generator(device)
    except RuntimeError as error:
        first = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
        raise BadInput(
            f"device must be one that torch has here, got {device!r}: {first}"
        ) from error


def _draws(n: int, evidence: Evidence, pool: Pool, generator: torch.Generator) -> Draws:
    """n draws of the pool, with their verdict."""
    second, support = evidence.second, evidence.support
    z, weights = chosen(pool, n, evidence.island_weights, generator)
    trusted, report, checks = verdict(evidence)
    return Draws(
        z if support is None else support(z)[0],
        weights,
        second.log_evidence if second.finished else math.nan,
        evidence.log_evidence_error if second.finished else math.inf,
        min(effective_size(weights), checks["ess"]),
        trusted,
        report,
        evidence.gradient_calls,
        checks=checks,
        islands=len(second.island_evidence),
        evidence=evidence,
    )


def _with_sampler(draws: Draws, seed: int, progress: bool) -> Draws:
    """The draws with their sampler, and a verdict that uses its importance weights."""
    assert draws.evidence is not None
    sampler = amortized(draws.evidence, seed=seed, progress=progress)
    generator = torch.Generator().manual_seed(derive_seed(seed, "weights of the sampler"))
    _, weights = sampler.weighted(2000, generator=generator)
    trusted, report, checks = verdict(draws.evidence, weights)
    judged = replace(draws, trusted=trusted, report=report, checks=checks)
    judged.__dict__["sampler"] = sampler  # where its cached property looks first
    return judged


def _earlier(resume: Draws, dim: int) -> Evidence:
    if not isinstance(resume, Draws) or resume.evidence is None:
        raise BadInput(f"resume must be draws of an earlier call, got {type(resume).__name__}")
    if resume.samples.shape[1] != dim:
        raise BadInput(f"resume must be draws of dimension {dim}, got {resume.samples.shape[1]}")
    return resume.evidence


def _check_same(earlier: Evidence, target: LogProb) -> None:
    """Refuses to go on with particles of another density."""
    state = earlier.states[-1]
    some = slice(None, None, max(1, len(state.z) // 64))
    now, before = possible(target, state.z[some])[0], evaluated(state)[some]
    if not torch.allclose(now, before, 1e-3, 1e-3):
        raise BadInput(
            "resume must be draws of the same log_prob and support, got draws at which log_prob "
            "has other values now"
        )

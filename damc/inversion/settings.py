"""Every choice of learning to invert a decoder."""

from __future__ import annotations

__all__ = ["InversionSettings"]

from dataclasses import dataclass

from damc.learn.settings import check_settings


@dataclass(frozen=True)
class InversionSettings:
    """Every choice of learning to invert; the authors' code as defaults unless a comment says so.

    docs/conventions.md says where the paper and its code differ.
    """

    encoder_iterations: int = 5000  # first the encoder learns; 0 for one that is given
    warmup_iterations: int = 5000  # then chains start at its code, for the amortizer's warm-up
    code_weight: float = 1.0  # the encoder's loss: squared error of codes, a mean over them,
    image_weight: float = 10.0  # and the misfit of g(encoder(x)), of drawn and of real images
    sampler: str = "langevin"  # the paper's; "adam" is the authors' code, noiseless, no energy
    posterior_steps: int = 30  # T of the posterior chain; the authors' Adam makes 100
    posterior_step_size: float = 0.3  # s of "langevin", on the preconditioned scale
    adam_rate: float = 0.01  # step of "adam", in standardized codes
    prior_steps: int = 60
    prior_step_size: float = 0.4
    noise_negatives: bool = True  # as many prior chains from N(0, I) as from q(z | x)
    energy_penalty: float = 1.0  # weight of mean E^2 over both kinds of samples
    relative: bool = True  # q models z minus the encoder's code; False, the authors': z itself
    spread: float = 0.3  # what that difference is divided by, about its size
    condition: str = "gradient"  # q sees the encoder's code and log p(x | z)'s gradient there;
    # "code", the authors': the code alone
    updates: int = 1  # M gradient steps of the amortizer
    p_uncond: float = 0.2
    ema_rate: float = 0.005
    ema_every: int = 10
    start_solver: str = "ancestral"
    start_steps: int = 100
    encoder_rate: float = 1e-4
    energy_rate: float = 1e-4
    amortizer_rate: float = 2e-4
    decay: str = "step"
    horizon: int = 1  # of decay = "cosine"
    clip: float = 100.0

    def __post_init__(self) -> None:
        check_settings(self)

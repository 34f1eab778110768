"""An energy that is a sum of energies, of which some are finished: a product of density ratios."""

from __future__ import annotations

__all__ = ["Ratios"]

from typing import Any

import torch
from torch import Tensor, nn

from damc.fast.gradients import Evaluation, Pull, pullback, rule


class Ratios(nn.Module):
    """E(z) = E_1(z) + ... + E_k(z) of the k stages that are finished; 0 while there is none.

    Each exp(-E_i) is an estimated ratio of densities, so exp(-E) is their product.

    Args:
        energies: one for each stage, modules from z ``(B, d)`` to ``(B,)``.
    """

    count: Tensor

    def __init__(self, *energies: nn.Module) -> None:
        super().__init__()
        self.energies = nn.ModuleList(energies)
        # In the state dict, so that loaded weights know their stage; and as a number, since
        # reading a tensor in every move of a chain would stall a GPU.
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.finished = 0
        self.register_load_state_dict_post_hook(_read_count)  # type: ignore[no-untyped-call]

    def finish(self, stages: int) -> None:
        """Lets the first so many ratios make up the energy."""
        if stages != self.finished:
            self.count.fill_(stages)
            self.finished = stages

    def forward(self, z: Tensor) -> Tensor:
        """Energies ``(B,)`` of latent points z ``(B, d)``."""
        total = z.new_zeros(len(z))
        for energy in self.energies[: self.finished]:
            total = total + energy(z)
        return total


@rule(Ratios)
def _written_out(ratios: Ratios) -> Evaluation:
    """The sum of the finished energies, and the sum of their gradients."""
    energies = [pullback(energy) for energy in ratios.energies[: ratios.finished]]

    def evaluate(z: Tensor) -> tuple[Tensor, Pull]:
        values, pulls = z.new_zeros(len(z)), []
        for energy in energies:
            value, pull = energy(z)
            values = values + value
            pulls.append(pull)

        def pull_all(grad: Tensor) -> Tensor:
            total = torch.zeros_like(z)
            for pull in pulls:
                total += pull(grad.clone())  # a pull may overwrite what it is given
            return total

        return values, pull_all

    return evaluate


def _read_count(ratios: nn.Module, _: Any) -> None:
    """Takes the number of finished stages from the weights that were loaded."""
    assert isinstance(ratios, Ratios)
    ratios.finished = int(ratios.count)

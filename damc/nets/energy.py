"""Energies of latent points: E(z) = -f(z), which corrects N(0, I) into the learned prior.

The prior of the paper is p(z) proportional to exp(-E(z)) N(z; 0, I) (Pang et al. 2020, "Learning
Latent Space Energy-Based Prior Model"; Yu et al. 2023, "Learning Energy-Based Prior Model with
Diffusion-Amortized MCMC", table of the energy score network).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm as normalize_spectrum

from damc.fast.gradients import Evaluation, Pull, pullback, rule
from damc.nets.mlp import check_positive, mlp

__all__ = ["Energy", "mlp_energy"]


class Energy(nn.Module):
    """A network with one output, read as an energy: lower is likelier.

    Args:
        net: a module from latent points `(B, d)` to `(B, 1)`.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, z: Tensor) -> Tensor:
        """Energies `(B,)` of latent points `z: (B, d)`."""
        energy: Tensor = self.net(z).squeeze(-1)
        return energy


@rule(Energy)
def _written_out(energy: Energy) -> Evaluation:
    evaluate_net = pullback(energy.net)

    def evaluate(z: Tensor) -> tuple[Tensor, Pull]:
        y, pull = evaluate_net(z)
        return y.squeeze(-1), lambda grad: pull(grad.unsqueeze(-1))

    return evaluate


def mlp_energy(
    latent_dim: int,
    hidden: Sequence[int] = (200, 200),
    activation: str = "lrelu",
    spectral_norm: bool = False,
    slope: float = 0.2,
) -> Energy:
    """The energy network of the paper: a small MLP from `z: (B, d)` to `E(z): (B,)`.

    The defaults are the paper's for images. Decoder inversion used `hidden=(512, 512, 512)` (the
    paper's table says two layers, its code builds three); LEBM used `activation="gelu"`.

    Args:
        latent_dim: dimension d of z.
        hidden: sizes of the hidden layers; with `()` the energy is linear in z.
        activation: name of the activation between layers, see `damc.nets.ACTIVATIONS`.
        spectral_norm: divide every weight matrix by its largest singular value, so that E is
            Lipschitz; power iteration advances with each forward pass in training mode.
        slope: negative slope of "lrelu".
    """
    check_positive(latent_dim=latent_dim, hidden=hidden)
    net = mlp((latent_dim, *hidden, 1), activation, slope=slope)
    if spectral_norm:
        for layer in net:
            if isinstance(layer, nn.Linear):
                normalize_spectrum(layer)
    return Energy(net)

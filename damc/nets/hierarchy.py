"""Decoders with several layers of latent variables, for short-run inference with L = 5.

z = (z_1, ..., z_L) is one vector, top part first. Features pass down the layers with skip
connections, and each part joins at its own layer:

    u_l = h_(l-1) + P_l z_l,    h_l = u_l + B_l(u_l),    h_0 = 0,    g(z) = head(h_L).

Nijkamp et al., "Learning Multi-layer Latent Variable Model via Variational Optimization of Short
Run MCMC for Approximate Inference", ECCV 2020.
"""

from __future__ import annotations

__all__ = ["Hierarchy", "conv_hierarchy", "layer_sizes", "mlp_hierarchy"]

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from damc.errors import BadInput
from damc.fast.gradients import Evaluation, Pull, pullback, rule
from damc.nets.decoder import Crop
from damc.nets.mlp import check_positive, mlp

_PAPER = (64, 64, 64, 96, 128)
"""Sizes of the paper's five parts, top first, where a single layer would have 100."""


def layer_sizes(latent_dim: int) -> tuple[int, ...]:
    """The paper's five parts in proportion to the latent size that a single layer has.

    >>> layer_sizes(100), layer_sizes(8)
    ((64, 64, 64, 96, 128), (5, 5, 5, 8, 10))
    """
    check_positive(latent_dim=latent_dim)
    return tuple(max(1, round(latent_dim * size / 100)) for size in _PAPER)


class Hierarchy(nn.Module):
    """The layers above as a decoder from `z: (B, sum of sizes)`.

    Args:
        sizes: of the parts z_l, top first.
        projections: P_l, from `(B, sizes[l])` to features.
        blocks: B_l, from features to features.
        head: from features to images.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        projections: Sequence[nn.Module],
        blocks: Sequence[nn.Module],
        head: nn.Module,
    ) -> None:
        super().__init__()
        check_positive(sizes=sizes)
        if not len(sizes) == len(projections) == len(blocks) > 0:
            raise BadInput(
                f"got {len(sizes)} sizes, {len(projections)} projections and {len(blocks)} blocks; "
                "a hierarchy needs one of each for every layer"
            )
        self.sizes = list(sizes)
        self.projections, self.blocks = nn.ModuleList(projections), nn.ModuleList(blocks)
        self.head = head

    def forward(self, z: Tensor) -> Tensor:
        """Images `(B, C, H, W)` of latent points `z: (B, d)`."""
        h: Tensor | None = None
        parts = torch.split(z, self.sizes, 1)
        layers = zip(parts, self.projections, self.blocks, strict=True)
        for part, project, block in layers:
            u = project(part) if h is None else h + project(part)
            h = u + block(u)
        image: Tensor = self.head(h)
        return image


@rule(Hierarchy)
def _written_out(net: Hierarchy) -> Evaluation:
    """The same layers, and back: du_l = dh_l + B_l' dh_l,  dz_l = P_l' du_l,  dh_(l-1) = du_l."""
    projections = [pullback(project) for project in net.projections]
    blocks = [pullback(block) for block in net.blocks]
    head = pullback(net.head)

    def evaluate(z: Tensor) -> tuple[Tensor, Pull]:
        h: Tensor | None = None
        pulls = []
        for part, project, block in zip(
            torch.split(z, net.sizes, 1), projections, blocks, strict=True
        ):
            projected, to_part = project(part)
            u = projected if h is None else h + projected
            y, through_block = block(u)
            h = u + y
            pulls.append((to_part, through_block))
        assert h is not None
        image, to_features = head(h)

        def pull(grad: Tensor) -> Tensor:
            grad = to_features(grad)
            parts = []
            for to_part, through_block in reversed(pulls):
                grad = grad + through_block(grad.clone())  # a pull may overwrite what it is given
                parts.append(to_part(grad.clone()))
            return torch.cat(parts[::-1], 1)

        return image, pull

    return evaluate


def conv_hierarchy(sizes: Sequence[int], shape: Sequence[int], width: int = 64) -> Hierarchy:
    """Features are maps of half the image's size, as in the paper's decoder.

    A projection is linear and then a transposed convolution of kernel 5, a block a pair of
    convolutions of kernels 5 and 3 with GELU, the head a transposed convolution of kernel 4 and
    tanh; no normalization.

    Args:
        sizes: of the parts of z, top first.
        shape: (C, H, W) of the images.
        width: channels of the features.
    """
    channels, high, wide = shape
    check_positive(shape=shape, width=width)
    low, narrow = (math.ceil(high / 4), math.ceil(wide / 4)), max(1, width // 8)
    projections = [
        nn.Sequential(
            nn.Linear(size, narrow * low[0] * low[1]),
            nn.Unflatten(1, (narrow, *low)),
            nn.ConvTranspose2d(narrow, width, 5, 2, 2, output_padding=1),
        )
        for size in sizes
    ]
    blocks = [
        nn.Sequential(
            nn.GELU(),
            nn.Conv2d(width, width, 5, padding="same"),
            nn.GELU(),
            nn.Conv2d(width, width, 3, padding="same"),
        )
        for _ in sizes
    ]
    end = nn.ConvTranspose2d(width, channels, 4, 2, 1)
    return Hierarchy(
        sizes, projections, blocks, nn.Sequential(nn.GELU(), end, Crop((high, wide)), nn.Tanh())
    )


def mlp_hierarchy(sizes: Sequence[int], width: int, head: nn.Module) -> Hierarchy:
    """Features are vectors, for networks that a CPU should run fast.

    Args:
        sizes: of the parts of z, top first.
        width: of the features.
        head: any decoder from `(B, width)` to images.

    >>> g = mlp_hierarchy((2, 3), 8, mlp([8, 4]))
    >>> sum(g.sizes), [tuple(p.shape) for p in g.projections.parameters()]
    (5, [(8, 2), (8,), (8, 3), (8,)])
    """
    check_positive(width=width)
    blocks = [nn.Sequential(nn.GELU(), *mlp((width, width, width), "gelu")) for _ in sizes]
    return Hierarchy(sizes, [nn.Linear(size, width) for size in sizes], blocks, head)

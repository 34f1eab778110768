"""Networks that begin as a principal component analysis of the images.

In seconds, principal components reconstruct color images as well as a small network does after
minutes of training; a network that begins with them has only to learn what is not linear. A signal
s passes a LeakyReLU unharmed if two units carry it, s and -s:

    lrelu(s) - lrelu(-s) = (1 + slope) s.

So the first 2 r units of every layer carry the r signals, and the others begin as they were.
"""

from __future__ import annotations

__all__ = ["begin_as_pca", "check_layers"]

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from damc.errors import BadInput
from damc.nets.decoder import Crop

_REST = 0.1  # what is left of the random weights of the units that carry signals
_BRIGHTEST = 0.95  # pixels are clamped to this before tanh is inverted
_EXTRA, _ROUNDS = 16, 4  # of the randomized method
_LEAST = 1e-4  # standard deviation of a component, as a share of the first's


@torch.no_grad()
def begin_as_pca(encoder: nn.Module, head: nn.Linear, decoder: nn.Module, x: Tensor) -> None:
    """Sets weights so that head(lrelu(encoder(x))) are the principal components of x, each with
    unit variance, and the decoder their linear regression of atanh x.

    Args:
        encoder: linear layers with LeakyReLU between them, after layers without weights.
        head: from embeddings to z.
        decoder: `mlp_decoder`, or `mlp_conv_decoder` of "shuffle" rows, ending with tanh.
        x: images in [-1, 1], ``(N, C, H, W)``; few of them have fewer components.

    Raises:
        BadInput: if the networks are of other kinds, or narrower than 2 d.
    """
    slope = check_layers(encoder, head, decoder)
    free, dense = _encoder_layers(encoder)
    pixels = nn.Sequential(*free)(x)
    mean = pixels.mean(0)
    directions, spread = _components(pixels - mean, head.out_features)
    project = directions / spread[:, None]
    r = len(project)
    if not r:
        return
    z = (pixels - mean) @ project.mT
    one = torch.eye(r).to(x)
    first, *rest = dense
    _write(first, project, -project @ mean, slope, paired=(False, True))
    for layer in rest:
        _write(layer, one, None, slope, paired=(True, True))
    _write(head, one, None, slope, paired=(True, False))
    target = torch.atanh(x.clamp(-_BRIGHTEST, _BRIGHTEST))
    offset = target.mean(0, keepdim=True)
    effects = torch.einsum("nr,nchw->rchw", z, target - offset) / (len(z) - 1)
    _write_decoder(decoder, torch.cat([effects, offset]), slope)


def check_layers(encoder: nn.Module, head: nn.Linear, decoder: nn.Module) -> float:
    """The slope of the networks' LeakyReLUs; `BadInput` if they cannot begin linear."""
    _, dense = _encoder_layers(encoder)
    linear, maps = _decoder_layers(decoder)
    d = head.out_features
    narrow = min(layer.out_features for layer in (*dense, *linear[:-1]))
    slopes = {
        m.negative_slope
        for net in (encoder, decoder)
        for m in net.modules()
        if isinstance(m, nn.LeakyReLU)
    }
    paired = all(m.in_channels > 1 for m in maps if isinstance(m, nn.Conv2d))
    if len(slopes) != 1 or narrow < 2 * d or not paired:
        raise BadInput(
            "linear_start needs LeakyReLU of one slope and layers at least twice as wide as z, "
            f"got slopes {sorted(slopes)} and {narrow} units for {d} latent dimensions"
        )
    return slopes.pop()


def _encoder_layers(encoder: nn.Module) -> tuple[list[nn.Module], list[nn.Linear]]:
    """Layers without weights, and the linear ones after them."""
    layers = _flat(encoder)
    free = [*layers]
    while free and not isinstance(free[-1], nn.Flatten | nn.AdaptiveAvgPool2d):
        free.pop()
    dense = layers[len(free) :]
    if not _alternate(dense) or any(True for m in free for _ in m.parameters()):
        raise _unsuited("encoder", encoder)
    return free, [m for m in dense if isinstance(m, nn.Linear)]


def _decoder_layers(decoder: nn.Module) -> tuple[list[nn.Linear], list[nn.Module]]:
    """The linear layers, and those after them up to tanh, without activations."""
    layers = _flat(decoder)
    last = max((k for k, m in enumerate(layers) if isinstance(m, nn.Linear)), default=-1)
    dense, maps = layers[: last + 1], layers[last + 1 :]
    known = nn.LeakyReLU | nn.Unflatten | nn.PixelShuffle | nn.Tanh | Crop
    fits = all(isinstance(m, known) or type(m) is nn.Conv2d for m in maps)
    if not _alternate(dense) or not fits or not any(isinstance(m, nn.Tanh) for m in maps):
        raise _unsuited("decoder", decoder)
    linear = [m for m in dense if isinstance(m, nn.Linear)]
    return linear, [m for m in maps if not isinstance(m, nn.LeakyReLU | nn.Tanh)]


def _write_decoder(decoder: nn.Module, target: Tensor, slope: float) -> None:
    """From the image back to z: what each layer has to give, and its weights for it.

    Args:
        decoder: to be written.
        target: what tanh gets, ``(r + 1, C, H, W)``: the effect of each component, and the offset.
        slope: of the LeakyReLUs.
    """
    linear, maps = _decoder_layers(decoder)
    for layer in reversed(maps):
        if isinstance(layer, Crop):
            target = _uncropped(target, layer, maps)
        elif isinstance(layer, nn.PixelShuffle):
            target = F.pixel_unshuffle(target, layer.upscale_factor)
        elif isinstance(layer, nn.Conv2d):
            basis = _basis(target, layer.in_channels // 2)
            _write(layer, basis, None, slope, paired=(True, False))
            signals = torch.einsum("nchw,ck->nkhw", target, basis)
            target = torch.cat([signals, -signals], 1)
            missing = layer.in_channels - target.shape[1]
            target = F.pad(target, (0, 0, 0, 0, 0, missing))
    r = len(target) - 1
    *hidden, last = linear
    one = torch.eye(r).to(target)
    for k, layer in enumerate(hidden):
        _write(layer, one, None, slope, paired=(k > 0, True))
    effects, offset = target[:r].flatten(1).mT, target[r].flatten()
    _write(last, effects, offset, slope, paired=(bool(hidden), False))


def _write(
    layer: nn.Module,
    matrix: Tensor,
    offset: Tensor | None,
    slope: float,
    *,
    paired: tuple[bool, bool],
) -> None:
    """Makes signals out of signals, by a matrix ``(out, in)`` and an offset ``(out,)``.

    Args:
        layer: linear, or a convolution, of which this is the middle of the kernel.
        matrix: see above.
        offset: see above; None is zero.
        slope: of the LeakyReLU before the layer.
        paired: whether signals come, and go, as two units each.
    """
    assert isinstance(layer, nn.Linear | nn.Conv2d) and layer.bias is not None
    come, go = paired
    offset = matrix.new_zeros(len(matrix)) if offset is None else offset
    if come:
        matrix = torch.cat([matrix, -matrix], 1) / (1 + slope)
    if go:
        matrix, offset = torch.cat([matrix, -matrix]), torch.cat([offset, -offset])
    outs, ins = matrix.shape
    weight = layer.weight
    weight[:outs] *= _REST
    if isinstance(layer, nn.Conv2d):
        high, wide = weight.shape[2:]
        weight[:outs, :ins, high // 2, wide // 2] += matrix
    else:
        weight[:outs, :ins] += matrix
    layer.bias[:outs] = offset


def _components(centered: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The principal directions of rows ``(N, D)``, ``(r, D)``, and standard deviations ``(r,)``.

    By a randomized range finder with power iterations (Halko, Martinsson and Tropp 2011), the same
    every time.
    """
    n, size = centered.shape
    k = min(most + _EXTRA, n, size)
    g = torch.Generator().manual_seed(0)
    probe = torch.randn(size, k, generator=g).to(centered)
    for _ in range(_ROUNDS):
        probe = torch.linalg.qr(centered.mT @ (centered @ probe))[0]
    _, values, rows = torch.linalg.svd(centered @ probe, full_matrices=False)
    spread = values[:most] / max(n - 1, 1) ** 0.5
    kept = spread > _LEAST * spread[:1]
    return (rows @ probe.mT)[:most][kept], spread[kept]


def _basis(target: Tensor, most: int) -> Tensor:
    """Orthonormal channels, ``(C, k)``, that hold most of a target ``(r + 1, C, H, W)``."""
    rows = target.transpose(0, 1).flatten(1)
    vectors: Tensor = torch.linalg.eigh(rows @ rows.mT)[1]
    return vectors[:, -most:]


def _uncropped(target: Tensor, crop: Crop, maps: list[nn.Module]) -> Tensor:
    """A target of the whole map, of which the decoder shows the middle: edges are repeated."""
    unflatten = next(m for m in maps if isinstance(m, nn.Unflatten))
    scale = 1
    for m in maps:
        scale *= m.upscale_factor if isinstance(m, nn.PixelShuffle) else 1
    sides = [int(side) * scale for side in unflatten.unflattened_size[1:]]
    high, wide = (side - size for side, size in zip(sides, crop.size, strict=True))
    around = (wide // 2, wide - wide // 2, high // 2, high - high // 2)
    return F.pad(target, around, mode="replicate")


def _flat(net: nn.Module) -> list[nn.Module]:
    """The layers of nested sequences, in order."""
    if not isinstance(net, nn.Sequential):
        return [net]
    return [layer for part in net for layer in _flat(part)]


def _alternate(layers: list[nn.Module]) -> bool:
    """Whether these are linear layers with LeakyReLU between them."""
    kinds = (nn.Linear, nn.LeakyReLU)
    fit = all(isinstance(m, kinds[k % 2]) for k, m in enumerate(layers))
    return fit and len(layers) % 2 == 1


def _unsuited(role: str, net: nn.Module) -> BadInput:
    return BadInput(
        f"linear_start needs a fully connected {role}, or a decoder of linear layers and shuffled "
        f"convolutions, got {type(net).__name__}"
    )

"""Networks that stand still: their output, and gradients at the output pulled back to the input.

A chain evaluates the same networks dozens of times between two changes of their weights, and wants
gradients to the latent points alone. `pullback` prepares a network for that: linear layers,
convolutions and activations are written out without a graph, with the weights laid out once as the
products read them fastest; every other layer is left to autograd.
"""

from __future__ import annotations

__all__ = ["Evaluation", "Pull", "pullback", "without_shuffle"]

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from damc.fast.convolutions import convolution, pixel_shuffle, transposed_convolution

Pull = Callable[[Tensor], Tensor]
"""From a gradient at the output, which it may overwrite, to that at the input; called once."""

Evaluation = Callable[[Tensor], tuple[Tensor, Pull]]
"""From an input to the output there and its `Pull`."""


def pullback(net: nn.Module) -> Evaluation:
    """`net` as it is now, ready to be evaluated many times.

    Later changes of the weights may or may not show. A module may bring its own `pullback()`.

    Example:
        >>> y, pull = pullback(nn.Linear(2, 1, bias=False))(torch.ones(3, 2))
        >>> pull(torch.ones(3, 1)).shape
        torch.Size([3, 2])
    """
    layers = list(_flat(net))
    maps = _maps(layers)
    stages: list[Evaluation] = []
    rest: list[nn.Module] = []  # consecutive layers that are left to autograd
    owned = False  # whether nobody else will read what the next layer is given
    for place, layer in enumerate(layers):
        stage = maps.get(place) or _written_out(layer, owned)
        owned = stage is not None and type(layer) in _LINEAR
        if stage is None:
            rest.append(layer)
            continue
        if rest:
            stages.append(_by_autograd(nn.Sequential(*rest)))
            rest = []
        stages.append(stage)
    if rest:
        stages.append(_by_autograd(nn.Sequential(*rest)))
    return stages[0] if len(stages) == 1 else _chain(stages)


def without_shuffle(net: nn.Sequential) -> tuple[nn.Sequential, int]:
    """`net` less the pixel shuffle that it ends with, and that one's factor; 1 if it has none.

    Pointwise layers may follow. What is left gives the same numbers in the order of
    `F.pixel_unshuffle`: whoever compares pixels brings the other side into that order once,
    instead of every image into its own.
    """
    layers = list(_flat(net))
    last = len(layers) - 1
    while last > 0 and type(layers[last]) in _POINTWISE:
        last -= 1
    shuffle = layers[last] if layers else None
    if not isinstance(shuffle, nn.PixelShuffle):
        return net, 1
    return nn.Sequential(*layers[:last], *layers[last + 1 :]), shuffle.upscale_factor


def _maps(layers: list[nn.Module]) -> dict[int, Evaluation]:
    """Linear layers that make maps, and the unflattening after them, by their places.

    The outputs are computed in the order in which maps lie in memory, channels last, so that
    nothing is copied on the way to a convolution. Pointwise layers between the two do not mind.
    """
    stages = {}
    for place, layer in enumerate(layers):
        source = place - 1
        while source > 0 and type(layers[source]) in _POINTWISE:
            source -= 1
        linear = layers[source]
        if not (_makes_maps(layer) and source >= 0 and type(linear) is nn.Linear):
            continue
        size = tuple(layer.unflattened_size)  # type: ignore[arg-type]
        order = torch.arange(linear.out_features).view(size).permute(1, 2, 0).flatten()
        stages[source] = _linear(linear, order)
        stages[place] = _unflattened(size)
    return stages


def _makes_maps(layer: nn.Module) -> bool:
    """Whether it lays rows out as maps of several channels."""
    if type(layer) is not nn.Unflatten or layer.dim != 1 or len(layer.unflattened_size) != 3:
        return False
    return layer.unflattened_size[0] > 1 and min(layer.unflattened_size) > 0


def _unflattened(size: tuple[int, ...]) -> Evaluation:
    """Maps ``(B, C, H, W)`` of rows that hold their pixels one after the other."""
    channels, high, wide = size

    def evaluate(h: Tensor) -> tuple[Tensor, Pull]:
        y = h.view(-1, high, wide, channels).permute(0, 3, 1, 2)
        return y, lambda grad: grad.permute(0, 2, 3, 1).reshape(h.shape)

    return evaluate


def _written_out(layer: nn.Module, owned: bool) -> Evaluation | None:
    own = getattr(layer, "pullback", None)
    if own is not None:
        return own()  # type: ignore[no-any-return]
    if type(layer) in _BY_RESULT:
        return _by_result(layer, owned)
    rule = _RULES.get(type(layer))
    return None if rule is None else rule(layer)


def _flat(net: nn.Module) -> Iterator[nn.Module]:
    if type(net) is not nn.Sequential:
        yield net
        return
    for layer in net:
        yield from _flat(layer)


def _chain(stages: list[Evaluation]) -> Evaluation:
    def evaluate(h: Tensor) -> tuple[Tensor, Pull]:
        pulls = []
        for stage in stages:
            h, pull = stage(h)
            pulls.append(pull)

        def pull_through(grad: Tensor) -> Tensor:
            for pull in reversed(pulls):
                grad = pull(grad)
            return grad

        return h, pull_through

    return evaluate


def _by_autograd(net: nn.Module) -> Evaluation:
    def evaluate(h: Tensor) -> tuple[Tensor, Pull]:
        with torch.enable_grad():
            h = h.detach().requires_grad_()
            y = net(h)
        return y.detach(), lambda grad: torch.autograd.grad(y, h, grad)[0]

    return evaluate


def _linear(layer: nn.Linear, order: Tensor | None = None) -> Evaluation:
    """y = W h + b, so the gradient at h is W^T times that at y; its rows in `order`, if given."""
    weight = layer.weight.detach()
    bias = None if layer.bias is None else layer.bias.detach()
    if order is not None:
        order = order.to(weight.device)
        weight, bias = weight[order], None if bias is None else bias[order]
    # Few rows times a matrix stored column by column: 1.2 to 1.4 times faster on a CPU.
    columns = weight.t().contiguous()

    def evaluate(h: Tensor) -> tuple[Tensor, Pull]:
        y = h @ columns
        if bias is not None:
            y += bias  # `addmm` would first write the bias out for every row
        return y, lambda grad: grad @ weight

    return evaluate


def _by_result(layer: nn.Module, owned: bool) -> Evaluation:
    """An activation whose slope can be told from its result, which takes the place of its input
    if that is `owned`: half of the memory to pass through."""
    overwrite, slope_times = _BY_RESULT[type(layer)]

    def evaluate(h: Tensor) -> tuple[Tensor, Pull]:
        y = overwrite(layer, h) if owned else layer(h)
        return y, lambda grad: slope_times(layer, grad, y)

    return evaluate


def _activation(slope_times: Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]) -> _Rule:
    """A rule from ``slope_times(layer, grad, h, y)``, the gradient at h given that at y = f(h)."""

    def rule(layer: nn.Module) -> Evaluation:
        def evaluate(h: Tensor) -> tuple[Tensor, Pull]:
            y = layer(h)
            return y, lambda grad: slope_times(layer, grad, h, y)

        return evaluate

    return rule


def _reshape(layer: nn.Module) -> Evaluation:
    def evaluate(h: Tensor) -> tuple[Tensor, Pull]:
        return layer(h), lambda grad: grad.reshape(h.shape)

    return evaluate


_LINEAR = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)  # their pulls read no output
_POINTWISE = (nn.LeakyReLU, nn.ReLU, nn.Tanh, nn.SiLU, nn.GELU)
_Rule = Callable[..., Evaluation | None]
_aten = torch.ops.aten
_RULES: dict[type[nn.Module], _Rule] = {
    nn.Linear: _linear,
    nn.Flatten: _reshape,
    nn.Unflatten: _reshape,
    nn.Conv2d: convolution,
    nn.ConvTranspose2d: transposed_convolution,
    nn.PixelShuffle: pixel_shuffle,
    nn.SiLU: _activation(lambda layer, g, h, y: _aten.silu_backward(g, h)),
    nn.GELU: _activation(
        lambda layer, g, h, y: _aten.gelu_backward(g, h, approximate=layer.approximate)
    ),
}
_BY_RESULT: dict[type[nn.Module], tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    nn.LeakyReLU: (
        lambda layer, h: F.leaky_relu_(h, layer.negative_slope),
        lambda layer, g, y: _aten.leaky_relu_backward(
            g, y, layer.negative_slope, True, grad_input=g
        ),
    ),
    nn.ReLU: (
        lambda layer, h: h.relu_(),
        lambda layer, g, y: _aten.threshold_backward(g, y, 0, grad_input=g),
    ),
    nn.Tanh: (
        lambda layer, h: h.tanh_(),
        lambda layer, g, y: _aten.tanh_backward(g, y, grad_input=g),
    ),
}

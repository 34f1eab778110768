"""Networks with frozen weights: their output, and gradients at it pulled back to the input.

A chain evaluates the same networks dozens of times between two changes of their weights, and wants
gradients to the latent points alone. `pullback` prepares a network for that: linear layers,
convolutions and activations are written out without a graph, with the weights packed once as the
products read them fastest. Every other layer is left to autograd, and so is a layer that is not
quite what its type says: a subclass, one with hooks (weight norm, spectral norm and pruning are
hooks or other types), one whose `forward` was replaced.
"""

from __future__ import annotations

__all__ = ["Evaluation", "Pull", "has_rule", "is_plain", "pullback", "rule", "without_shuffle"]

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from damc.fast.convolutions import convolution, pixel_shuffle, transposed_convolution

Pull = Callable[[Tensor], Tensor]
"""From a gradient at the output, which it may overwrite, to that at the input; called once."""

Evaluation = Callable[[Tensor], tuple[Tensor, Pull]]
"""From an input to the output there and its `Pull`."""

_Rule = TypeVar("_Rule", bound=Callable[..., Evaluation | None])


def rule(kind: type[nn.Module]) -> Callable[[_Rule], _Rule]:
    """Registers how a layer of exactly this type is written out; None leaves one to autograd.

    The rule is given a layer that `is_plain`, and answers for the layers inside it.
    """

    def register(write_out: _Rule) -> _Rule:
        _RULES[kind] = write_out
        return write_out

    return register


def is_plain(layer: nn.Module) -> bool:
    """Whether calling the layer does what its type's `forward` does, and nothing else."""
    hooks = (
        layer._forward_hooks,
        layer._forward_pre_hooks,
        layer._backward_hooks,
        layer._backward_pre_hooks,
    )
    everywhere = _has_any_global_hook()  # type: ignore[no-untyped-call]
    return not (any(hooks) or "forward" in vars(layer) or everywhere)


def has_rule(net: nn.Module) -> bool:
    """Whether `pullback` would write out any layer of it; if not, autograd serves as well."""
    known = _RULES.keys() | _BY_RESULT.keys()
    return any(type(layer) in known and is_plain(layer) for layer in _flat(net))


def pullback(net: nn.Module) -> Evaluation:
    """`net` as it is now, ready to be evaluated many times.

    Later changes of the weights may or may not show.

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


def without_shuffle(net: nn.Module) -> tuple[nn.Module, int]:
    """`net` less the pixel shuffle that it ends with, and that one's factor; 1 if it has none.

    Pointwise layers may follow. What is left gives the same numbers in the order of
    `F.pixel_unshuffle`: whoever compares pixels brings the other side into that order once,
    instead of every image into its own.
    """
    layers = list(_flat(net))
    last = len(layers) - 1
    while last > 0 and _is_pointwise(layers[last]):
        last -= 1
    shuffle = layers[last] if layers else None
    if type(shuffle) is not nn.PixelShuffle or not is_plain(shuffle):
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
        while source > 0 and _is_pointwise(layers[source]):
            source -= 1
        linear = layers[source]
        if not (_makes_maps(layer) and source >= 0 and type(linear) is nn.Linear):
            continue
        if not is_plain(linear):
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
    return is_plain(layer) and layer.unflattened_size[0] > 1 and min(layer.unflattened_size) > 0


def _unflattened(size: tuple[int, ...]) -> Evaluation:
    """Maps ``(B, C, H, W)`` of rows that hold their pixels one after the other."""
    channels, high, wide = size

    def evaluate(h: Tensor) -> tuple[Tensor, Pull]:
        y = h.view(-1, high, wide, channels).permute(0, 3, 1, 2)
        return y, lambda grad: grad.permute(0, 2, 3, 1).reshape(h.shape)

    return evaluate


def _written_out(layer: nn.Module, owned: bool) -> Evaluation | None:
    if not is_plain(layer):
        return None
    if type(layer) in _BY_RESULT:
        return _by_result(layer, owned)
    write_out = _RULES.get(type(layer))
    return None if write_out is None else write_out(layer)


def _is_pointwise(layer: nn.Module) -> bool:
    return type(layer) in _POINTWISE and is_plain(layer)


def _flat(net: nn.Module) -> Iterator[nn.Module]:
    if type(net) is not nn.Sequential or not is_plain(net):
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

        def pull(grad: Tensor) -> Tensor:
            if not y.requires_grad:  # constant, as far as torch knows
                return torch.zeros_like(h)
            return torch.autograd.grad(y, h, grad, materialize_grads=True)[0]

        return y.detach(), pull

    return evaluate


def _linear(layer: nn.Linear, order: Tensor | None = None) -> Evaluation:
    """y = W h + b, so the gradient at h is W^T times that at y; its rows in `order`, if given."""
    weight = layer.weight.detach()
    bias = None if layer.bias is None else layer.bias.detach()
    if order is not None:
        order = order.to(weight.device)
        weight, bias = weight[order], None if bias is None else bias[order]

    def evaluate(h: Tensor) -> tuple[Tensor, Pull]:
        # Both ways read one copy of the weights: a second one, laid out for the way there, gains
        # nothing on a product and halves what a cache holds.
        return F.linear(h, weight, bias), lambda grad: grad @ weight

    return evaluate


def _by_result(layer: nn.Module, owned: bool) -> Evaluation:
    """An activation whose slope can be told from its result, which takes the place of its input
    if that is `owned`: half of the memory to pass through."""
    overwrite, slope_times = _BY_RESULT[type(layer)]

    def evaluate(h: Tensor) -> tuple[Tensor, Pull]:
        y = overwrite(layer, h) if owned else layer(h)
        return y, lambda grad: slope_times(layer, grad, y)

    return evaluate


def _tanh_(h: Tensor) -> Tensor:
    """tanh h = 2 sigmoid(2 h) - 1, in the place of h.

    torch's sigmoid of 32-bit numbers on a CPU is six times as fast as its tanh, which takes a
    third of the time of all pointwise layers in a chain; the difference is a rounding error of 1.
    """
    if h.dtype != torch.float32 or not h.is_cpu:
        return h.tanh_()
    return h.mul_(2).sigmoid_().mul_(2).sub_(1)


def _activation(
    slope_times: Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor],
) -> Callable[[nn.Module], Evaluation]:
    """A rule from ``slope_times(layer, grad, h, y)``, the gradient at h given that at y = f(h)."""

    def write_out(layer: nn.Module) -> Evaluation:
        def evaluate(h: Tensor) -> tuple[Tensor, Pull]:
            y = layer(h)
            return y, lambda grad: slope_times(layer, grad, h, y)

        return evaluate

    return write_out


def _reshape(layer: nn.Module) -> Evaluation:
    def evaluate(h: Tensor) -> tuple[Tensor, Pull]:
        return layer(h), lambda grad: grad.reshape(h.shape)

    return evaluate


_LINEAR = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)  # their pulls read no output
_POINTWISE = (nn.LeakyReLU, nn.ReLU, nn.Tanh, nn.SiLU, nn.GELU)
_aten = torch.ops.aten
_RULES: dict[type[nn.Module], Callable[..., Evaluation | None]] = {
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
        lambda layer, h: _tanh_(h),
        lambda layer, g, y: _aten.tanh_backward(g, y, grad_input=g),
    ),
}

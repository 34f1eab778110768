"""`damc.sample` makes every tensor on the device of its points.

torch's `meta` device has no values to anneal by, so this looks at how tensors are made instead: one
that is made without naming a device is on the CPU, wherever the points are.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import damc
from damc.errors import BadInput

ROOT = str(Path(damc.__file__).parent)
NAMES = ("arange", "empty", "eye", "full", "linspace", "logspace", "normal", "ones", "rand")
NAMES += ("randint", "randn", "randperm", "tensor", "tril_indices", "zeros")
MAKERS = {getattr(torch, name) for name in NAMES}


class Made(TorchFunctionMode):
    """Counts where damc makes tensors without naming a device."""

    def __init__(self) -> None:
        super().__init__()
        self.places: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in MAKERS and kwargs.get("device") is None:
            frame = sys._getframe(1)
            while frame.f_code.co_filename.endswith(("overrides.py", "_jit_internal.py")):
                assert frame.f_back is not None
                frame = frame.f_back
            if frame.f_code.co_filename.startswith(ROOT):
                self.places[f"{Path(frame.f_code.co_filename).stem}:{frame.f_code.co_name}"] += 1
        return func(*args, **kwargs)


def banana(z: Tensor) -> Tensor:
    assert z.device.type == "cpu"
    return -z[:, 0].square() / 2 - (z[:, 1] - z[:, 0].square()).square() / 2


def test_tensors_are_made_where_the_points_are() -> None:
    with Made() as made:
        draws = damc.sample(banana, dim=2, n=500, gradients=60_000)
    assert draws.samples.shape == (500, 2)
    assert not made.places


def test_a_tensor_on_the_wrong_device_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from damc.sampling import check

    source = Path(check.__file__).read_text().replace(", device=generator.device", "")
    assert source != Path(check.__file__).read_text()
    planted: dict[str, Any] = {"__name__": "planted"}
    exec(compile(source, check.__file__, "exec"), planted)
    with Made() as made:
        planted["checked"](banana, 2, None, torch.Generator())
    assert made.places == {"check:checked": 1}


@pytest.mark.parametrize("device", ["nowhere", "cuda:99"])
def test_a_device_that_is_not_there(device: str) -> None:
    with pytest.raises(BadInput, match="device must be one that torch has here, got"):
        damc.sample(banana, dim=2, device=device)

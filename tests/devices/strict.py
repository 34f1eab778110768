"""A device without a GPU: torch's `meta` device under a mode that finds what a GPU would suffer by.

Tensors on `meta` have shapes and types and no values, so a whole iteration of any learner takes
milliseconds. `Strict` watches every operation and keeps, with the line of damc that made it:

    mixed      tensors of two devices in one operation; a number in a CPU tensor of no dimension is
               what torch allows, and so is allowed
    moved      a tensor copied to the device: a constant that was made in the wrong place
    read       a value that the host waits for: `.item()`, `.cpu()`, `.tolist()`, `bool(tensor)`
    wide       a result of 64 bits, where all that went in has 32
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import damc

DEVICE = torch.device("meta")
ROOT = str(Path(damc.__file__).parent)


class Strict(TorchDispatchMode):
    """Finds faults; values that are read are ones, so that whatever is checked to be finite is.

    Attributes:
        faults: how often each was seen, as (kind, "module:function", operation).
    """

    def __init__(self) -> None:
        super().__init__()
        self.faults: Counter[tuple[str, str, str]] = Counter()

    def places(self, kind: str) -> set[str]:
        """The functions of damc, "module:function", with this kind of fault."""
        return {where for found, where, _ in self.faults if found == kind}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        ours = [t for t in tensors if t.device == DEVICE]
        others = [t for t in tensors if t.device != DEVICE and t.ndim > 0]
        name = func.overloadpacket.__name__
        if ours and name in ("_local_scalar_dense", "item", "is_nonzero", "equal"):
            self._keep("read", name)
            return _one(ours[0].dtype)
        if name in ("_to_copy", "copy_"):
            target = kwargs.get("device") if name == "_to_copy" else args[0].device
            if ours and target is not None and torch.device(target) != DEVICE:
                self._keep("read", name)
                dtype = kwargs.get("dtype") or args[-1].dtype
                return torch.ones(args[-1].shape, dtype=dtype)
            if others and target is not None and torch.device(target) == DEVICE:
                self._keep("moved", name)
                return func(*args, **kwargs)
        if ours and others:
            self._keep("mixed", name)
        if ours and name.startswith("exponential"):  # which `meta` cannot draw from a generator
            kwargs = {**kwargs, "generator": None}
        result = func(*args, **kwargs)
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        narrow = all(t.dtype != torch.float64 for t in tensors)
        if narrow and any(t.dtype == torch.float64 and t.device == DEVICE for t in outputs):
            self._keep("wide", name)
        return result

    def _keep(self, kind: str, name: str) -> None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            file, function = frame.f_code.co_filename, frame.f_code.co_name
            if file.startswith(ROOT):
                module = file[len(ROOT) + 1 : -len(".py")].replace(os.sep, ".")
                break
            if os.path.basename(file).startswith("test_"):  # noqa: PTH119
                module = os.path.basename(file)[: -len(".py")]  # noqa: PTH119
                break
            frame = frame.f_back
        else:
            module, function = "outside", "damc"
        self.faults[kind, f"{module}:{function}", name] += 1


def _one(dtype: torch.dtype) -> Any:
    if dtype == torch.bool:
        return True
    return 1.0 if dtype.is_floating_point else 1


@contextmanager
def strict_device() -> Iterator[Strict]:
    """The mode, and what `meta` lacks of an accelerator: fused and foreach optimizers, autocast."""
    adam, clip, autocast = torch.optim.Adam, nn.utils.clip_grad_norm_, torch.is_autocast_enabled
    init = adam.__init__

    def plain(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **{**options, "fused": False, "foreach": False})

    def no_foreach(parameters: Any, most: float, foreach: bool | None = None) -> Tensor:
        return clip(parameters, most, foreach=False)

    def never_on_meta(kind: str = "cpu") -> bool:
        return kind != DEVICE.type and autocast(kind)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adam, "__init__", plain)
        patch.setattr(nn.utils, "clip_grad_norm_", no_foreach)
        patch.setattr(torch, "is_autocast_enabled", never_on_meta)
        with Strict() as mode:
            yield mode

"""Checkpoints of the authors' training script, `ITERATION.pth.tar`, as run folders of damc.

Such a file is a dict with the state dicts of the decoder (`G_state_dict`), the energy
(`E_state_dict`), the amortizer (`Q_state_dict`) and its EMA copy (`Q_dummy_state_dict`), three
optimizers and `iter`. damc builds the same networks, but holds some of their tensors in one:
`rules` lists, for every tensor of a learner, those that it is made of.
"""

from __future__ import annotations

__all__ = ["Conversion", "authors_learner", "convert_checkpoint", "fill_learner", "rules"]

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from damc.errors import BadInput
from damc.inversion.checkpoint import load_tensors
from damc.learn.damc import DAMC
from damc.learn.presets import Preset, find_preset
from damc.train.origin import Origin
from damc.train.run import Run

CHOICES: dict[str, dict[str, Any]] = {
    "svhn": {},
    "celeba64": {},
    "cifar10": {"prior_sample_step_size": 1.6},
    "celebahq256": {},
    "mnist": {"test_steps": 5},
}
"""What the authors' evaluation scripts choose otherwise than their training, by preset."""

NETWORKS = {
    "model.decoder.": "G_state_dict",
    "model.prior.energy.": "E_state_dict",
    "amortizer.": "Q_state_dict",
    "target.": "Q_dummy_state_dict",
}
"""Where the tensors of a learner are in a checkpoint, by how their names begin."""

UNUSED = {"xemb"}
"""A token that the authors' network has and never uses."""

_BLOCKS = (
    *(f"p.in_layers.{i}" for i in range(3)),
    "p.mid_layers.0",
    *(f"p.out_layers.{i}" for i in range(3)),
)


@dataclass(frozen=True)
class Conversion:
    """What `convert_checkpoint` wrote.

    Attributes:
        run: the run folder.
        iteration: of the checkpoint.
        tensors: how many of the authors' tensors were mapped.
        numbers: how many numbers they hold together.
        unused: what else the file holds.
    """

    run: Path
    iteration: int
    tensors: int
    numbers: int
    unused: tuple[str, ...]


def convert_checkpoint(
    source: str | Path,
    preset: str,
    run: str | Path,
    *,
    heldout: int | None = None,
    data_root: Path | None = None,
    **changes: Any,
) -> Conversion:
    """Turns a checkpoint of the authors into a run folder, from which every command works.

    The file is read with `weights_only=True`, which builds tensors and runs nothing. The run has
    the authors' null condition and their choices for sampling. It can be trained further, with
    fresh optimizers.

    Args:
        source: the file.
        preset: which of the paper's presets it is of, such as "svhn".
        run: the run folder to make.
        heldout: the digit that an anomaly model was trained without.
        data_root: folder of the named data sets, remembered for later commands.
        **changes: settings that differ, such as sigma.
    """
    source, found = Path(source), find_preset(preset)
    if found.name not in CHOICES:
        raise BadInput(f"preset must be one of {', '.join(CHOICES)}, got {preset!r}")
    if not source.is_file():
        raise BadInput(f"FILE must be a checkpoint of the authors, got no file at {source}")
    checkpoint = _states(load_tensors(source), source)
    learner = authors_learner(found, _capacity(checkpoint["Q_state_dict"]), **changes)
    tensors = fill_learner(learner, checkpoint, str(source))
    learner.iteration = checkpoint["iter"]
    origin = Origin(found.data, found.networks.shape, heldout, False, data_root)
    folder = Run.create(
        run,
        {
            "learner": learner.name,
            "preset": found.name,
            "config": learner.config,
            "data": {
                "name": found.data,
                "shape": list(found.networks.shape),
                "heldout": heldout,
                "resize": False,
            },
            "training": {"batch": found.batch, "seed": 1, "flip": found.flip},
            "converted": source.name,
        },
    )
    with folder.lock():
        folder.save(learner.iteration, learner.state_dict(), learner.resume_state())
    origin.remember(folder.path, looked=False)
    numbers = sum(
        t.numel()
        for place in NETWORKS.values()
        for name, t in checkpoint[place].items()
        if name not in UNUSED
    )
    unused = sorted(
        f"{key}[{name}]" for key in NETWORKS.values() for name in checkpoint[key] if name in UNUSED
    )
    others = sorted({*checkpoint} - {*NETWORKS.values(), "iter"})
    return Conversion(folder.path, learner.iteration, len(tensors), numbers, (*unused, *others))


def authors_learner(preset: Preset, capacity: float = 1.0, **changes: Any) -> DAMC:
    """A learner with the authors' networks, null condition and sampling choices."""
    options = {**preset.networks.amortizer, "null": "noise", "capacity": capacity}
    networks = replace(preset.networks, amortizer=options)
    choices = {**CHOICES.get(preset.name, {}), **changes}
    return DAMC.from_preset(replace(preset, networks=networks), **choices)


def rules(learner: DAMC) -> dict[str, tuple[str, ...]]:
    """For every tensor of a learner, the authors' tensors that are its rows, in order.

    The names on the right are those inside the state dict that `NETWORKS` gives.
    """
    found: dict[str, tuple[str, ...]] = {}
    for key in learner.state_dict():
        start = next(start for start in NETWORKS if key.startswith(start))
        found[key] = _sources(key[len(start) :], start, learner)
    return found


def fill_learner(
    learner: DAMC, checkpoint: Mapping[str, Mapping[str, Tensor]], source: str
) -> set[str]:
    """Loads a checkpoint; returns the names of the authors' tensors that were used.

    Raises:
        BadInput: names the first tensor that is missing, of another shape, or unknown.
    """
    state: dict[str, Tensor] = {}
    used: set[str] = set()
    shapes = {key: t.shape for key, t in learner.state_dict().items()}
    for key, names in rules(learner).items():
        where = next(place for start, place in NETWORKS.items() if key.startswith(start))
        rows = _rows(key, len(names), shapes[key], learner)
        parts = []
        for name, count in zip(names, rows, strict=True):
            wanted = (count, *shapes[key][1:]) if shapes[key] else ()
            parts.append(_taken(checkpoint[where], name, wanted, f"{where} of {source}"))
            used.add(f"{where}[{name}]")
        state[key] = torch.cat(parts) if len(parts) > 1 else parts[0]
    for place in NETWORKS.values():
        for name in checkpoint[place]:
            if f"{place}[{name}]" not in used and name not in UNUSED:
                raise BadInput(f"{place} of {source} must have no other tensors, got {name}")
    learner.load_state_dict(state)
    return used


def _sources(name: str, start: str, learner: DAMC) -> tuple[str, ...]:
    """The authors' names of the tensor `name` of the network under `start`."""
    if start == "model.decoder.":
        return (f"gen.{name.replace('conv.', '')}",)
    if start == "model.prior.energy.":
        return (name.replace("net.", "ebm."),)
    part, _, rest = name.partition(".")
    if part == "null":
        return (f"prior_emb.{rest}",)
    if part == "encoder":
        index, kind = rest.split(".")
        encoder = learner.amortizer.encoder
        assert isinstance(encoder, torch.nn.Sequential)
        # Their last layer is a convolution; ours is that of the flattened map, one place later.
        last = len(encoder) - 1
        return (f"encoder.net.{last - 1 if int(index) == last else index}.{kind}",)
    if rest == "fourier":
        return ("p.B",)
    if time := re.fullmatch(r"time\.(\d)\.(\w+)", rest):
        return (f"p.time_mlp.{int(time[1]) + 1}.{time[2]}",)
    if context := re.fullmatch(r"context\.(\w+)", rest):
        return tuple(f"{block}._layer_ctx.1.{context[1]}" for block in _BLOCKS)
    inside = re.fullmatch(r"blocks\.(\d)\.(.+)", rest)
    assert inside is not None, name
    block = _BLOCKS[int(inside[1])]
    return {
        "w1_w4.weight": (f"{block}._layer.0.weight", f"{block}._skip.weight"),
        "w1_w4.bias": (f"{block}._layer.0.bias", f"{block}._skip.bias"),
        "w2_w3.weight": (f"{block}._hyper_gate.weight", f"{block}._hyper_bias.weight"),
        "b2": (f"{block}._hyper_gate.bias",),
    }[inside[2]]


def _rows(key: str, parts: int, shape: torch.Size, learner: DAMC) -> list[int]:
    """How many rows of a tensor each of its parts has."""
    if ".context." in key:
        return list(learner.amortizer.denoiser.widths)
    return [shape[0] // parts] * parts if shape else [1] * parts


def _taken(state: Mapping[str, Tensor], name: str, shape: tuple[int, ...], where: str) -> Tensor:
    given = state.get(name)
    if given is None:
        raise BadInput(f"{where} must have {name} of shape {shape}, got no such tensor")
    flat = given.flatten(1) if given.ndim == 4 and len(shape) == 2 else given
    if flat.shape != shape:
        raise BadInput(f"{where} must have {name} of shape {shape}, got {tuple(given.shape)}")
    if not bool(torch.isfinite(flat).all()):
        raise BadInput(f"{where} must have finite values in {name}, got NaN or infinity")
    return flat.float()


def _states(found: Any, source: Path) -> dict[str, Any]:
    """The checkpoint, if it has the authors' layout; data-parallel prefixes are taken off."""
    wanted = (*NETWORKS.values(), "iter")
    if not isinstance(found, Mapping) or not all(key in found for key in wanted):
        keys = ", ".join(map(str, found)) if isinstance(found, Mapping) else type(found).__name__
        missing = [key for key in wanted if not isinstance(found, Mapping) or key not in found]
        raise BadInput(
            f"{source} must be a checkpoint of the authors' script, which has "
            f"{', '.join(missing)}, got {keys:.200}"
        )
    states = dict(found)
    for place in NETWORKS.values():
        state = states[place]
        if not isinstance(state, Mapping) or not all(
            isinstance(tensor, Tensor) for tensor in state.values()
        ):
            raise BadInput(f"{place} of {source} must be tensors by name, got something else")
        states[place] = {name.removeprefix("module."): t for name, t in state.items()}
    if not isinstance(states["iter"], int) or states["iter"] < 0:
        raise BadInput(f"iter of {source} must be a number of iterations, got {states['iter']!r}")
    return states


def _capacity(state: Mapping[str, Tensor]) -> float:
    """The width factor of the denoiser, as its first block has it; 1 is the paper's network."""
    first = state.get(f"{_BLOCKS[0]}._layer.0.bias")
    return 1.0 if first is None or not first.numel() else first.numel() / 128

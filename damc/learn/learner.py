"""The interface of everything that learns: one `step`, the optimizers it owns, its state."""

from __future__ import annotations

__all__ = ["Learner", "Rate", "count"]

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from damc.errors import BadInput, Diverged, Unable

if TYPE_CHECKING:
    from damc.nets.networks import Networks

Metrics = dict[str, Tensor]
Self = TypeVar("Self", bound="Learner")


@dataclass(frozen=True)
class Rate:
    """A learning rate and how it falls.

    "step" is the paper's: times 0.99 every 1,000 iterations, not below `floor`. "cosine" falls
    along half a cosine to `floor` at iteration `horizon` and stays there. Both depend on the
    iteration alone, so that a resumed run goes on with the same rate.
    """

    rate: float
    decay: str = "step"
    horizon: int = 1
    floor: float = 1e-5

    def at(self, iteration: int) -> float:
        """The rate of an iteration, counted from 0."""
        floor = min(self.floor, self.rate)
        if self.decay == "step":
            return max(self.rate * 0.99 ** (iteration // 1000), floor)
        if self.decay == "cosine":
            done = min(iteration / self.horizon, 1.0)
            return floor + (self.rate - floor) * (1 + math.cos(done * math.pi)) / 2
        raise BadInput(f"decay must be 'step' or 'cosine', got {self.decay!r}")


class Learner(nn.Module):
    """One way of learning a model of images, with its networks, optimizers and counters.

    A subclass writes `build`, from described networks, `step`, which does one iteration, and what
    it can of `sample`, `infer`, `reconstruct` and `anomaly_score`. Its networks are submodules, so
    that `state_dict` holds all weights; `resume_state` holds everything else that the next
    iteration depends on.

    Attributes:
        name: by which `LEARNERS` knows it.
        about: one line for `damc methods`.
        settings_type: a frozen dataclass of its choices; names that it shares with Algorithm 1's
            settings take their values from a preset.
        takes_presets: whether `build` takes the networks of any preset.
    """

    name: ClassVar[str]
    about: ClassVar[str] = ""
    settings_type: ClassVar[Any]
    takes_presets: ClassVar[bool] = True
    iteration: int
    model: Any  # a LatentModel, or None

    def __init__(self, settings: Any = None, networks: Networks | None = None) -> None:
        super().__init__()
        self.settings = settings
        self.networks = networks
        self.iteration = 0
        self.__dict__["model"] = None  # where a subclass has no property of that name
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.rates: dict[str, Rate] = {}
        self.clip: float = 100.0
        self.synchronize: Callable[[list[Tensor]], None] | None = None
        """Averages gradients over processes; the training loop sets it when there are several."""

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return next((weight.device for weight in self.parameters()), torch.device("cpu"))

    @property
    def sources(self) -> tuple[str, ...]:
        """Its ways of drawing samples, its own first; if there are several, `sample` has an
        argument `source`."""
        return ("model",)

    @property
    def inference(self) -> str | None:
        """How latent points of images are found."""
        if type(self).reconstruct is Learner.reconstruct:
            return None
        return "chain" if hasattr(self, "refine") else "encoder"

    @property
    def score(self) -> str | None:
        """What `anomaly_score` is."""
        return None if type(self).anomaly_score is Learner.anomaly_score else "own"

    @classmethod
    def build(cls: type[Self], networks: Networks, settings: Any) -> Self:
        """A fresh learner with these networks and these settings."""
        raise NotImplementedError

    @classmethod
    def from_preset(cls: type[Self], preset: str, **changes: Any) -> Self:
        """A learner set up by name (see `damc.learn.presets`), with settings changed by keyword.

        Example:
            >>> from damc import DAMC
            >>> DAMC.from_preset("digits-small", sigma=0.5).model.sigma
            0.5
        """
        from damc.learn.presets import find_preset

        return find_preset(preset).learner(cls.name, **changes)  # type: ignore[return-value]

    @property
    def config(self) -> dict[str, Any]:
        """Plain values from which `from_config` builds this learner again."""
        networks = None if self.networks is None else asdict(self.networks)
        return {"networks": networks, "settings": asdict(self.settings)}

    @classmethod
    def from_config(cls: type[Self], config: dict[str, Any]) -> Self:
        """The learner that `config` describes, with fresh weights."""
        from damc.nets.networks import Networks

        if config.get("networks") is None:
            raise BadInput(
                "this run was trained with networks of your own: build the same learner and "
                "call its load_state_dict with the weights"
            )
        return cls.build(Networks(**config["networks"]), cls.settings_type(**config["settings"]))

    def step(self, x: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Metrics:
        """One learning iteration.

        Args:
            x: images, ``(B, C, H, W)`` in [-1, 1].
            index: their places in the data set, ``(B,)``, for learners that keep something for
                each image.
            generator: source of all randomness.

        Returns:
            Scalars that tell how it went, as tensors (reading them is left to the caller).
        """
        raise NotImplementedError

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Images drawn from the model, ``(n, C, H, W)``."""
        raise Unable(f"{self.name} cannot sample")

    def infer(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Latent points of images, ``(B, d)``."""
        raise Unable(f"{self.name} has no inference")

    def reconstruct(
        self, x: Tensor, *, refine: bool = True, generator: torch.Generator | None = None
    ) -> Tensor:
        """Images as the model sees them, of the shape of x; `refine` False is at first sight.

        Refining a reconstruction for the very image repairs what is unusual about an anomaly.
        """
        raise Unable(f"{self.name} has no inference, so it cannot reconstruct")

    def anomaly_score(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """How unusual images are, ``(B,)``; higher is more anomalous."""
        raise Unable(f"{self.name} has no anomaly score")

    def own(self, name: str, optimizer: torch.optim.Optimizer, rate: Rate) -> None:
        """Registers an optimizer under a name that `update` uses."""
        self.optimizers[name] = optimizer
        self.rates[name] = rate

    def update(self, name: str, loss: Tensor) -> Tensor:
        """One gradient step of the optimizer `name` down `loss`; returns the gradient's norm.

        The norm is cut to `clip`. Over several processes the gradients are averaged first.
        Parameters that the loss does not depend on stay as they are.
        """
        optimizer = self.optimizers[name]
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        for p, gradient in zip(parameters, gradients, strict=True):
            p.grad = gradient
        if self.synchronize is not None:
            self.synchronize([p.grad for p in parameters if p.grad is not None])
        norm = nn.utils.clip_grad_norm_(parameters, self.clip, foreach=True)
        rate = self.rates[name].at(self.iteration)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        for p in parameters:
            p.grad = None
        return norm

    def resume_state(self) -> dict[str, Any]:
        """What the next iteration depends on besides the weights."""
        return {
            "iteration": self.iteration,
            "optimizers": {name: o.state_dict() for name, o in self.optimizers.items()},
        }

    def load_resume_state(self, state: dict[str, Any]) -> None:
        """Takes back what `resume_state` gave."""
        self.iteration = state["iteration"]
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])

    def check(self, metrics: Metrics) -> dict[str, float]:
        """The metrics as numbers; raises `Diverged` naming the first that is not finite."""
        names = list(metrics)
        values = torch.stack([metrics[name].detach().float() for name in names]).tolist()
        for name, value in zip(names, values, strict=True):
            if not abs(value) < float("inf"):
                raise Diverged(f"{name} is {value} at iteration {self.iteration}")
        return dict(zip(names, values, strict=True))


def count(parameters: Iterable[Tensor]) -> int:
    """How many numbers a network learns."""
    return sum(p.numel() for p in parameters)

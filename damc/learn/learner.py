"""The interface of everything that learns: one `step`, what it can do, its state."""

from __future__ import annotations

__all__ = ["Learner"]

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from damc.data import Images, load_images
from damc.errors import BadInput, Diverged, Unable
from damc.fast.memory import draw_by_parts, map_by_parts
from damc.latent import EnergyPrior, LatentModel, check_model
from damc.learn.optimizers import Optimizers
from damc.learn.parts import Chain, Metrics
from damc.learn.presets import Preset, Recipe, find_preset
from damc.learn.settings import check_names
from damc.learn.sharing import Shared, describe
from damc.learn.sizing import preset_for
from damc.learn.sources import Draw, Infer, noise_inference, prior_draws
from damc.nets.networks import Networks
from damc.report.figures import images
from damc.report.history import TrainingHistory

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Learner(Shared):
    """One way of learning a model of images, with its networks, optimizers and counters.

    A subclass writes `build`, which sets it up, and `step`, one iteration, and declares what it can
    do: the ways of drawing in `draws`, and by the class attributes below. Its networks are
    submodules, so that `state_dict` holds all weights; `resume_state` holds everything else that
    the next iteration depends on.

    Args:
        settings: the method's choices, of `settings_type`.
        networks: the description from which the networks were built, kept in `config`.
        model: decoder, prior and sigma, if the method has all three.

    Attributes:
        name: by which `LEARNERS` knows it.
        about: one line for `damc methods`.
        settings_type: a frozen dataclass of its choices.
        recipe_settings: choices that a preset's recipe gives, beside those of whole groups.
        takes_presets: whether `build` takes the networks of any preset.
        inference: "chain" if `infer` makes posterior moves and takes `steps`, "encoder" if it is
            one pass, None if there is none.
        score: what `anomaly_score` is, or None: "joint", -log p~(z, x); "bound" on -log p(x);
            "energy" of x; "reconstruction".
        stage_learners: attributes that are learners themselves, the one with the model first.
        chains: those that `step` runs, by name.
        history: what was logged in training.
    """

    name: ClassVar[str]
    about: ClassVar[str] = ""
    settings_type: ClassVar[Any]
    recipe_settings: ClassVar[tuple[str, ...]] = ()
    takes_presets: ClassVar[bool] = True
    inference: ClassVar[str | None] = None
    score: ClassVar[str | None] = None
    stage_learners: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        settings: Any = None,
        networks: Networks | None = None,
        model: LatentModel | None = None,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.networks = networks
        self.optimizers = Optimizers() if settings is None else Optimizers(settings.clip)
        self.chains: dict[str, Chain] = {}
        self.history = TrainingHistory()
        if model is not None:
            self._modules["model"] = model  # behind the property of that name

    @classmethod
    def settings_from(cls, recipe: Recipe) -> Any:
        """The method's settings for a preset: the groups that its `settings_type` inherits directly
        and its `recipe_settings`, as the recipe has them; all others are the defaults."""
        groups = [group for group in cls.settings_type.__bases__ if issubclass(Recipe, group)]
        single = {name: getattr(recipe, name) for name in cls.recipe_settings}
        return cls.settings_type(**recipe.block(*groups, **single))

    @classmethod
    def build(cls, networks: Networks, settings: Any) -> Self:
        """A fresh learner with these networks and these settings."""
        raise NotImplementedError

    @classmethod
    def from_preset(cls, preset: str | Preset, **changes: Any) -> Self:
        """A learner of a preset, with settings changed by keyword.

        Example:
            >>> from damc import DAMC
            >>> DAMC.from_preset("digits-small", sigma=0.5).model.sigma
            0.5
        """
        found = find_preset(preset) if isinstance(preset, str) else preset
        if not cls.takes_presets:
            raise BadInput(f"a method that takes presets is needed, got {cls.name!r}")
        check_names(changes, cls.settings_type)
        settings = replace(cls.settings_from(found.recipe), **changes)
        return cls.build(found.networks, settings)

    @classmethod
    def for_data(cls, data: Any, **changes: Any) -> Self:
        """A learner whose networks and settings are sized by images, with settings changed.

        Args:
            data: `damc.data.Images`, or what `damc.data.load_images` takes; pictures of several
                sizes are taken as brought to one, as `load_images(data, size="auto")` does.
            changes: settings by name.

        Example:
            >>> import torch
            >>> from damc import DAMC
            >>> DAMC.for_data(torch.rand(100, 3, 48, 64)).networks.latent_dim
            8
        """
        images = data if isinstance(data, Images) else load_images(data, size="auto")
        return cls.from_preset(preset_for(images.shape, len(images)), **changes)

    @property
    def config(self) -> dict[str, Any]:
        """Plain values from which `from_config` builds this learner again."""
        settings = asdict(self.settings)
        if self.networks is None:
            return {"networks": None, "modules": describe(self), "settings": settings}
        return {"networks": asdict(self.networks), "settings": settings}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The learner that `config` describes, with fresh weights."""
        if config.get("networks") is None:
            raise BadInput(
                "this run was trained with networks of your own: build the same learner and give "
                "it as learner=, or --module PACKAGE.MODULE:FACTORY on the command line"
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
            Scalars that say how it went, as tensors (reading them is left to the caller).
        """
        raise NotImplementedError

    @property
    def amortized(self) -> bool:
        """Whether an amortizer infers, so that `first_guess` is a cheap and random one."""
        return False

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return next((weight.device for weight in self.parameters()), torch.device("cpu"))

    @property
    def model(self) -> Any:
        """The `LatentModel`: decoder, prior and sigma; None for methods without one."""
        if self.stage_learners:
            return getattr(self, self.stage_learners[0]).model
        return self._modules.get("model")

    @property
    def prior(self) -> EnergyPrior | None:
        """The learned prior exp(-E(z)) N(z; 0, I); None for methods that learn no energy of z."""
        if self.model is None or self.model.prior.energy is None:
            return None
        prior: EnergyPrior = self.model.prior
        return prior

    def draws(self) -> Mapping[str, Draw]:
        """The ways of drawing latent points that there are by now, the best first.

        By default Langevin on the prior's energy, if it has one, and N(0, I).
        """
        return {} if self.model is None else prior_draws(self.model, self.settings)

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of `draws`; empty if the method cannot sample."""
        return tuple(self.draws())

    @torch.no_grad()
    def sample(
        self,
        n: int,
        *,
        source: str | None = None,
        steps: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Images of the model, ``(n, C, H, W)``.

        Args:
            n: how many.
            source: one of `sources`, the first by default. "amortizer" is q(z) decoded; "energy"
                is Langevin dynamics on the prior from N(0, I); "gaussian" is N(0, I) decoded,
                which shows what a learned prior adds.
            steps: Langevin moves, where the source makes any.
            generator: source of all randomness.
        """
        return map_by_parts(self.decode, self.sample_latent(n, source, steps, generator))

    @torch.no_grad()
    def sample_latent(
        self,
        n: int,
        source: str | None = None,
        steps: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Latent points by one of the ways of `sample`, ``(n, d)``."""
        draws = self.draws()
        if not draws:
            raise Unable(f"{self.name} cannot sample")
        source = next(iter(draws)) if source is None else source
        if source not in draws:
            ways = " or ".join(draws)
            raise BadInput(f"source of {self.name} must be {ways}, got {source!r}")
        draw = draws[source]
        return draw_by_parts(lambda k: draw(k, steps, generator), n)

    def plot(
        self,
        n: int = 16,
        *,
        source: str | None = None,
        columns: int = 8,
        generator: torch.Generator | None = None,
        path: str | Path | None = None,
    ) -> Figure:
        """Samples as a matplotlib figure; `sample` explains the arguments, `path` saves it."""
        samples = self.sample(n, source=source, generator=generator)
        return images(samples, columns=columns, path=path)

    def decode(self, z: Tensor) -> Tensor:
        """Images of latent points z ``(B, d)``."""
        images: Tensor = self.model.decoder(z)
        return images

    def inferences(self) -> Mapping[str, Infer]:
        """The ways of inferring latent points of images that there are by now, the best first.

        By default, for `inference` by chains, `inference_steps` posterior moves from N(0, I).
        """
        if self.inference != "chain":
            return {}
        s = self.settings
        return {"gaussian": noise_inference(self.model, s.posterior_step_size, s.inference_steps)}

    @torch.no_grad()
    def infer(
        self,
        x: Tensor,
        *,
        source: str | None = None,
        steps: int | None = None,
        noise: bool = False,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Latent points of images, ``(B, d)``.

        Args:
            x: images, ``(B, C, H, W)`` in [-1, 1].
            source: one of `inferences`, the first by default. "amortizer" starts at q(z | x),
                "gaussian" at N(0, I); "encoder" is one pass.
            steps: Langevin moves on p(z | x), where `inference` is "chain"; 0 leaves the start as
                it is; the settings' number by default.
            noise: False moves to the posterior's nearest mode (as the authors' evaluation does),
                True samples; where `inference` is "chain".
            generator: source of all randomness.
        """
        ways = self.inferences()
        if not ways:
            raise Unable(f"{self.name} has no inference")
        source = next(iter(ways)) if source is None else source
        if source not in ways:
            raise BadInput(f"source of inference must be {' or '.join(ways)}, got {source!r}")
        return ways[source](x, steps, noise, generator)

    def first_guess(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Latent points of images before they are refined, ``(B, d)``."""
        return self.infer(x, generator=generator)

    @torch.no_grad()
    def reconstruct(
        self,
        x: Tensor,
        *,
        refine: bool = True,
        steps: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Images of inferred points, of the shape of x.

        Args:
            x: images, ``(B, C, H, W)`` in [-1, 1].
            refine: False decodes `first_guess`: for anomaly detection, since refining the latent
                points of an anomaly repairs what is unusual about it.
            steps: as in `infer`.
            generator: source of all randomness.
        """
        if self.inference is None:
            raise Unable(f"{self.name} has no inference, so it cannot reconstruct")
        if refine:
            return self.decode(self.infer(x, steps=steps, generator=generator))
        return self.decode(self.first_guess(x, generator))

    @torch.no_grad()
    def anomaly_score(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """How unusual images are, ``(B,)``; higher is more anomalous.

        By default the joint -log p~(z, x) at inferred z, the paper's score.
        """
        if self.score != "joint":
            raise Unable(f"{self.name} has no anomaly score")
        score: Tensor = -self.model.log_joint(self.infer(x, generator=generator), x)
        return score

    @property
    def initial_images(self) -> int:
        """How many images `initialize` wants before the first iteration; none by default."""
        return 0

    def initialize(self, x: Tensor) -> None:
        """Sets initial weights by images x ``(N, C, H, W)``; `fit` calls it once, if wanted."""

    def check_networks(self, x: Tensor) -> None:
        """Raises `BadInput` if a module does not fit the images x ``(B, C, H, W)`` or another."""
        if type(self.model) is LatentModel:
            check_model(self.model, x)

    def update(self, name: str, loss: Tensor) -> Tensor:
        """One step of the optimizer `name` down `loss`; returns the norm of the gradient."""
        return self.optimizers.step(name, loss, self.iteration)

    def resume_state(self) -> dict[str, Any]:
        """What the next iteration depends on besides the weights."""
        kept = {name: chain.starts.state() for name, chain in self.chains.items()}
        return {
            "iteration": self.iteration,
            "optimizers": self.optimizers.state(),
            "chains": {name: state for name, state in kept.items() if state},
            **{name: getattr(self, name).resume_state() for name in self.stage_learners},
        }

    def load_resume_state(self, state: dict[str, Any]) -> None:
        """Restores what `resume_state` returned."""
        self.iteration = state["iteration"]
        self.optimizers.load_state(state["optimizers"])
        for name, kept in state.get("chains", {}).items():
            self.chains[name].starts.load_state(kept)
        for name in self.stage_learners:
            getattr(self, name).load_resume_state(state[name])

    def average_gradients(self, average: Callable[[list[Tensor]], None] | None) -> None:
        """Lets every update average its gradients over processes first."""
        self.optimizers.average = average
        for name in self.stage_learners:
            getattr(self, name).average_gradients(average)

    def check(self, metrics: Metrics) -> dict[str, float]:
        """The metrics as numbers; raises `Diverged` naming the first that is not finite."""
        names = list(metrics)
        values = torch.stack([metrics[name].detach().float() for name in names]).tolist()
        for name, value in zip(names, values, strict=True):
            if not math.isfinite(value):
                raise Diverged(f"{name} is {value} at iteration {self.iteration}")
        return dict(zip(names, values, strict=True))

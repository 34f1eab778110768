"""`Draws`: what `damc.sample` returns."""

from __future__ import annotations

__all__ = ["Draws"]

import math
import pickle
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from damc.errors import BadInput
from damc.kernels.smc import ISLANDS
from damc.sampling.amortized import Sampler, amortized
from damc.sampling.check import positive
from damc.sampling.verdict import Evidence


@dataclass(frozen=True, eq=False, repr=False)
class Draws:
    """Draws from a density, and how far they can be trusted.

    They can be pickled; without `evidence`, if the log-density cannot be (a lambda, for instance).

    Attributes:
        samples: ``(n, d)``, float64.
        log_weights: ``(n,)``, with mean weight 1 over all that were made. Draws of one island share
            theirs, unless tails are heavy: then those in the tails are more, and weigh less.
        log_evidence: log Z, the log of the integral of the density.
        log_evidence_error: its standard error.
        ess: how many independent draws they are worth.
        trusted: whether every check passed.
        report: one sentence that says why, or why not.
        gradient_calls: gradients of the log-density, counted for each point.
        checks: the figures behind the verdict.
        islands: groups of draws that are independent of each other, in equal parts in order.
        evidence: all that was found, which a resumed call goes on from.
    """

    samples: Tensor
    log_weights: Tensor
    log_evidence: float
    log_evidence_error: float
    ess: float
    trusted: bool
    report: str
    gradient_calls: int
    checks: dict[str, float] = field(default_factory=dict)
    islands: int = ISLANDS
    evidence: Evidence | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        n, d = self.samples.shape
        verdict = "trusted" if self.trusted else "not trusted"
        return (
            f"Draws({n:,} in {d} dimension{'s' * (d > 1)}, {verdict}, ess {self.ess:,.0f}, log "
            f"evidence {self.log_evidence:.3f} +- {self.log_evidence_error:.3f}: {self.report})"
        )

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        try:
            pickle.dumps(self.evidence)
        except (pickle.PicklingError, AttributeError, TypeError):  # as a lambda raises
            state["evidence"] = None
            state.pop("sampler", None)
        return state

    @cached_property
    def sampler(self) -> Sampler:
        """An amortized sampler of the same density: any number of new, independent draws.

        It is trained on the particles when it is first asked for, which takes a minute or two;
        ``damc.sample(..., amortize=True)`` trains it at once.
        """
        if self.evidence is None:
            raise BadInput("the sampler must be learned from particles, and these draws have none")
        return amortized(self.evidence)

    def to_arviz(self) -> Any:
        """The draws as arviz's `InferenceData`, an island being a chain.

        Fewer draws than islands are one chain.
        """
        try:
            import arviz
        except ImportError as error:
            raise BadInput(
                "to_arviz needs arviz, which is not installed: pip install 'damc[diagnostics]'"
            ) from error
        chains = self.islands if len(self.samples) >= self.islands else 1
        each = len(self.samples) // chains
        z = self.samples[: each * chains].view(chains, each, -1).numpy(force=True)
        weights = self.log_weights[: each * chains].view(chains, each).numpy(force=True)
        return arviz.from_dict({"z": z}, sample_stats={"log_weight": weights})

    def plot(self, most: int = 5) -> Any:
        """Pairs of the first coordinates, their traces and the weights, as a matplotlib figure."""
        from matplotlib.figure import Figure

        (most,) = positive(most=most)
        k = min(most, self.samples.shape[1])
        figure = Figure(figsize=(2.2 * (k + 1), 2.2 * (k + 1)), layout="constrained")
        axes = figure.subplots(k + 1, k + 1, squeeze=False)
        z = self.samples[:, :k].numpy(force=True)
        weights = self.log_weights.exp().numpy(force=True)
        bins = min(60, max(10, round(math.sqrt(len(z)))))
        size = min(12.0, max(1.0, 5000 / len(z)))
        for i in range(k):
            for j in range(k):
                if i == j:
                    axes[i, i].hist(z[:, i], bins=bins, weights=weights, density=True)
                elif i > j:
                    axes[i, j].scatter(z[:, j], z[:, i], s=size, alpha=0.3, linewidths=0)
                else:
                    axes[i, j].set_axis_off()
            axes[i, k].plot(z[:, i], linewidth=0.2)
            axes[i, k].set_title(f"z{i}, island by island", fontsize=7)
            axes[k, i].set_axis_off()
        axes[k, k].hist(self.log_weights.numpy(force=True), bins=30)
        axes[k, k].set_title("log-weights", fontsize=7)
        figure.suptitle(self.report, fontsize=8, wrap=True)
        return figure

"""A mixture of Gaussians with full covariances: a density for codes that are already there."""

from __future__ import annotations

__all__ = ["GaussianMixture"]

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class GaussianMixture:
    """p(z) = sum_k w_k N(z; m_k, L_k L_k^T).

    Args:
        weights: w, ``(K,)``, adding up to one.
        means: m, ``(K, d)``.
        factors: L, lower triangular, ``(K, d, d)``.
    """

    weights: Tensor
    means: Tensor
    factors: Tensor

    @classmethod
    def fit(
        cls,
        z: Tensor,
        components: int,
        *,
        iterations: int = 30,
        start: GaussianMixture | None = None,
    ) -> GaussianMixture:
        """The mixture that expectation-maximization of scikit-learn finds, the same every time.

        Args:
            z: points, ``(N, d)``.
            components: K at most; a component needs more than d points to have a covariance, so
                few points get fewer.
            iterations: of expectation-maximization, at most.
            start: where it begins, if it has as many components; by default at points that are far
                from each other (k-means++).
        """
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.mixture import GaussianMixture as Fit
        from threadpoolctl import threadpool_limits

        k = max(1, min(components, len(z) // (z.shape[1] + 1)))
        points = z.detach().double().cpu().numpy()
        # A floor under every variance, on the scale of the codes.
        floor = max(1e-6, 1e-4 * float(points.var(0).mean()))
        begin = {}
        if start is not None and int((start.weights > 0).sum()) == k == len(start.weights):
            inverse = torch.linalg.inv(start.factors.double().cpu())
            begin = {
                "weights_init": (start.weights / start.weights.sum()).double().cpu().numpy(),
                "means_init": start.means.double().cpu().numpy(),
                "precisions_init": (inverse.mT @ inverse).numpy(),
            }
            begin["weights_init"] /= begin["weights_init"].sum()
        fit = Fit(
            k,
            covariance_type="full",
            max_iter=iterations,
            reg_covar=floor,
            random_state=0,
            init_params="random_from_data" if begin else "k-means++",
            **begin,
        )
        # Its libraries would take every core, whatever torch was told.
        with threadpool_limits(torch.get_num_threads()), warnings.catch_warnings():
            # Stopping early leaves a density that is normalized and only a little less likely.
            warnings.simplefilter("ignore", ConvergenceWarning)
            fit.fit(points)
        factors = torch.linalg.cholesky(torch.as_tensor(fit.covariances_))
        return cls(
            torch.as_tensor(fit.weights_).to(z),
            torch.as_tensor(fit.means_).to(z),
            factors.to(z),
        )

    def log_prob(self, z: Tensor) -> Tensor:
        """log p(z), normalized, ``(B,)`` of z ``(B, d)``."""
        centered = (z - self.means[:, None]).mT  # (K, d, B)
        white = torch.linalg.solve_triangular(self.factors, centered, upper=False)
        log_scale = self.factors.diagonal(dim1=1, dim2=2).log().sum(1)
        log_peak = self.weights.log() - log_scale - z.shape[1] * math.log(2 * math.pi) / 2
        log_each: Tensor = log_peak[:, None] - white.square().sum(1) / 2
        return log_each.logsumexp(0)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n draws, ``(n, d)``."""
        k = torch.multinomial(self.weights, n, replacement=True, generator=generator)
        w = self.means.new_empty(n, self.means.shape[1], 1).normal_(generator=generator)
        return self.means[k] + (self.factors[k] @ w).squeeze(2)

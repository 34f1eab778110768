"""Gaussian linear regressions and the logistic regression of German credit."""

from __future__ import annotations

__all__ = ["MODELS"]

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.posteriors import tensor

Prior = Callable[[Tensor, Tensor], Tensor]  # of beta (B, p) and sigma (B,)


def _regression(x: Tensor, y: Tensor, prior: Prior) -> Any:
    """y ~ N(x beta, sigma), parameters (beta, sigma), in the coordinates (beta, log sigma)."""
    q, r = torch.linalg.qr(x)
    b = torch.linalg.solve_triangular(r, (q.T @ y)[:, None], upper=True)[:, 0]
    return _from_statistics(r, b, float((y - x @ b).square().sum()), len(y), prior)


def _from_statistics(r: Tensor, b: Tensor, residual: float, n: int, prior: Prior) -> Any:
    """The same from the QR factor of x, the least-squares fit and its sum of squares."""
    p = len(b)

    def log_prob(u: Tensor) -> Tensor:
        beta, log_sigma = u[:, :p], u[:, p]
        squares = residual + ((beta - b) @ r.T).square().sum(1)
        likelihood = -n * log_sigma - squares / 2 * torch.exp(-2 * log_sigma)
        return likelihood + prior(beta, log_sigma.exp()) + log_sigma

    def parameters(u: Tensor) -> Tensor:
        return torch.cat([u[:, :p], u[:, p:].exp()], 1)

    return p + 1, log_prob, parameters


def flat(beta: Tensor, sigma: Tensor) -> Tensor:
    return 0 * sigma


def half_cauchy(scale: float) -> Prior:
    return lambda beta, sigma: -torch.log1p((sigma / scale).square())


def _columns(*columns: Tensor) -> Tensor:
    return torch.stack([torch.ones_like(columns[0]), *columns], 1)


def _kidscore_interaction(d: dict[str, Any]) -> Any:
    hs, iq = tensor(d["mom_hs"]), tensor(d["mom_iq"])
    return _regression(_columns(hs, iq, hs * iq), tensor(d["kid_score"]), half_cauchy(2.5))


def _kidscore_mom_work(d: dict[str, Any]) -> Any:
    work = tensor(d["mom_work"])
    levels = [(work == k).double() for k in (2, 3, 4)]
    return _regression(_columns(*levels), tensor(d["kid_score"]), flat)


def _logearn_interaction(d: dict[str, Any]) -> Any:
    height, male = tensor(d["height"]), tensor(d["male"])
    return _regression(_columns(height, male, height * male), tensor(d["earn"]).log(), flat)


def _earn_height(d: dict[str, Any]) -> Any:
    return _regression(_columns(tensor(d["height"])), tensor(d["earn"]), flat)


def _logmesquite(d: dict[str, Any]) -> Any:
    names = ("diam1", "diam2", "canopy_height", "total_height", "density")
    logs = [tensor(d[name]).log() for name in names]
    return _regression(_columns(*logs, tensor(d["group"])), tensor(d["weight"]).log(), flat)


def _nes(d: dict[str, Any]) -> Any:
    age = tensor(d["age_discrete"])
    x = _columns(
        tensor(d["real_ideo"]),
        tensor(d["race_adj"]),
        *[(age == k).double() for k in (2, 3, 4)],
        tensor(d["educ1"]),
        tensor(d["gender"]),
        tensor(d["income"]),
    )
    return _regression(x, tensor(d["partyid7"]), flat)


def _blr(d: dict[str, Any]) -> Any:
    def prior(beta: Tensor, sigma: Tensor) -> Tensor:
        return -(beta.square().sum(1) + sigma.square()) / 200

    return _regression(tensor(d["X"]), tensor(d["y"]), prior)


def _kilpisjarvi(d: dict[str, Any]) -> Any:
    mean = tensor([d["pmualpha"], d["pmubeta"]])
    sd = tensor([d["psalpha"], d["psbeta"]])

    def prior(beta: Tensor, sigma: Tensor) -> Tensor:
        return -((beta - mean) / sd).square().sum(1) / 2

    return _regression(_columns(tensor(d["x"])), tensor(d["y"]), prior)


def _diamonds(d: dict[str, Any]) -> Any:
    """The data are 5,000 rows by 24 centered columns, kept as sufficient statistics."""

    def prior(beta: Tensor, sigma: Tensor) -> Tensor:
        b, intercept = beta[:, :24], beta[:, 24]
        t = -2 * (
            torch.log1p(((intercept - 8) / 10).square() / 3)
            + torch.log1p((sigma / 10).square() / 3)
        )
        return t - b.square().sum(1) / 2

    factor, b = tensor(d["factor"]), tensor(d["least_squares"])
    return _from_statistics(factor, b, d["residual"], d["N"], prior)


def _german_credit(d: dict[str, Any]) -> Any:
    x, y = tensor(d["X_raw"]), tensor(d["y"])
    x = torch.cat([torch.ones(len(x), 1, dtype=x.dtype), x / x.std(0, correction=0)], 1)
    sign = (1 - 2 * y)[:, None] * x

    def log_prob(w: Tensor) -> Tensor:
        prior = -w.square().sum(1) / 200 - 25 * math.log(10 * math.sqrt(2 * math.pi))
        return F.logsigmoid(w @ sign.T).sum(1) + prior

    return 25, log_prob, lambda w: w


MODELS = {
    "kidiq-kidscore_interaction": _kidscore_interaction,
    "kidiq_with_mom_work-kidscore_mom_work": _kidscore_mom_work,
    "earnings-logearn_interaction": _logearn_interaction,
    "earnings-earn_height": _earn_height,
    "mesquite-logmesquite": _logmesquite,
    "nes1980-nes": _nes,
    "sblrc-blr": _blr,
    "kilpisjarvi_mod-kilpisjarvi": _kilpisjarvi,
    "diamonds-diamonds": _diamonds,
    "german_credit": _german_credit,
}

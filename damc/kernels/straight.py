"""Changes of coordinates z = z(v) in which a kernel moves more easily."""

from __future__ import annotations

__all__ = ["Straight", "Straightened"]

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from damc.density import LogProb, value_and_grad
from damc.kernels.base import State


class Straight(ABC):
    """The map from v to z, both ``(B, d)``: a subclass writes it, its inverse and its gradients."""

    @abstractmethod
    def __call__(self, v: Tensor) -> Tensor:
        """z."""

    @abstractmethod
    def inverse(self, z: Tensor) -> Tensor:
        """v."""

    @abstractmethod
    def log_det(self, v: Tensor) -> Tensor:
        """log |det dz/dv|, ``(B,)``."""

    @abstractmethod
    def pull(self, v: Tensor, grad: Tensor) -> Tensor:
        """The gradient to v of f(z(v)) + log |det dz/dv|, where `grad` is that of f to z."""

    @abstractmethod
    def push(self, v: Tensor, pulled: Tensor) -> Tensor:
        """The inverse of `pull`."""

    def to_v(self, state: State) -> State:
        """A state of z as one of v."""
        assert state.log_prob is not None and state.grad is not None
        v = self.inverse(state.z)
        return state._replace(
            z=v, log_prob=state.log_prob + self.log_det(v), grad=self.pull(v, state.grad)
        )

    def to_z(self, state: State) -> State:
        """A state of v as one of z."""
        assert state.log_prob is not None and state.grad is not None
        v = state.z
        return state._replace(
            z=self(v), log_prob=state.log_prob - self.log_det(v), grad=self.push(v, state.grad)
        )

    def target(self, log_prob: LogProb) -> Straightened:
        """The density of v when `log_prob` is that of z."""
        return Straightened(self, log_prob)


@dataclass(frozen=True)
class Straightened:
    """The log-density of v, of one of z."""

    map: Straight
    log_prob: LogProb

    def __call__(self, v: Tensor) -> Tensor:
        return self.log_prob(self.map(v)) + self.map.log_det(v)

    def value_and_grad(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Both."""
        value, grad = value_and_grad(self.log_prob, self.map(v))
        return value + self.map.log_det(v), self.map.pull(v, grad)

"""What a trained model is for: each task takes a learner and gives tensors, pictures, numbers."""

from __future__ import annotations

"""Gradients and products without a graph: optional, behind one protocol, `value_and_grad`."""

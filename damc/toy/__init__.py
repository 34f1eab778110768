"""The two-dimensional example of the paper, beside its exact posterior."""

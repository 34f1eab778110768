"""Components that several tabs have."""

from __future__ import annotations

__all__ = ["model_choice", "picture", "seed_choice"]

from typing import Any

from damc.app.models import Models


def model_choice(models: Models) -> Any:
    """A choice among the models, or how to open one."""
    import gradio as gr

    if not models.names:
        gr.Markdown("**No model is open.** Train one and start the page with it: `damc app RUN`.")
    first = models.names[0] if models.names else None
    return gr.Dropdown(models.names, value=first, label="Model", visible=bool(models.names))


def picture(label: str) -> Any:
    """A place for a picture; no button sends it elsewhere."""
    import gradio as gr

    return gr.Image(
        label=label,
        format="png",
        interactive=False,
        buttons=["download", "fullscreen"],
        alt_text=label,
        elem_classes="damc-picture",
    )


def seed_choice() -> Any:
    """A slider for the seed."""
    import gradio as gr

    return gr.Slider(0, 999, 0, step=1, label="Seed")

"""The tab *Reconstruct*: posterior samples of a drawn digit or of a picture, and their spread."""

from __future__ import annotations

__all__ = ["reconstruct_tab"]

from typing import Any

from damc.app import latent, words
from damc.app.events import handler
from damc.app.models import Models
from damc.app.pictures import heat, sheet
from damc.app.uploads import read_picture
from damc.app.widgets import model_choice, picture, seed_choice
from damc.errors import BadInput


def reconstruct_tab(models: Models) -> None:
    """Builds the tab."""
    import gradio as gr

    gr.Markdown(
        "Take the brush and draw a digit, or choose a picture: samples of its posterior p(z | x), "
        "decoded, and where they differ."
    )
    model = model_choice(models)
    with gr.Row():
        with gr.Column():
            pad = gr.Sketchpad(
                label="Draw a digit",
                elem_id="drawing",
                type="numpy",
                height=320,
                canvas_size=(280, 280),
                brush=gr.Brush(default_size=12, colors=["#000000"], color_mode="fixed"),
                layers=False,
                sources=(),
                transforms=(),
            )
            drawn = gr.Button("Reconstruct the drawing", variant="primary")
        with gr.Column():
            file = gr.File(
                label="A picture of your own",
                file_types=["image"],
                height=160,
                elem_id="own-picture",
            )
            invert = gr.Checkbox(False, label="Invert: take light for dark")
            chosen = gr.Button("Reconstruct the picture", variant="primary")
    with gr.Row():
        n = gr.Slider(4, 32, 8, step=4, label="Posterior samples")
        steps = gr.Slider(0, 200, 10, step=5, label="Langevin steps")
        seed = seed_choice()
    said = gr.HTML()
    with gr.Row():
        three = picture("Image, posterior mean, spread")
        many = picture("Posterior samples")

    def answer(learner: Any, x: Any, n: int, steps: int, seed: int) -> tuple[Any, Any, str]:
        import torch

        found = latent.posterior_samples(learner, x, int(n), int(steps), int(seed))
        color = [image.expand(-1, 3, -1, -1) for image in (found.x, found.mean)]
        spread = heat(found.mean, found.spread, low=0.0)
        text = (
            f"squared error of the mean {found.mse:.4f} per pixel in [-1, 1]; the samples lie "
            f"{found.distance:.2f} as far apart as those of the prior"
        )
        return sheet(torch.cat([*color, spread])), sheet(found.samples, 4), words.paragraph(text)

    def drawing(tab: str, name: str, pad: Any, *rest: int) -> tuple[Any, Any, str]:
        with models.open(name).use() as learner:
            return answer(learner, latent.as_digit(_ink(pad), latent.shape_of(learner)), *rest)

    def chosen_file(
        tab: str, name: str, file: Any, invert: bool, *rest: int
    ) -> tuple[Any, Any, str]:
        if file is None:
            raise BadInput("a picture must be chosen first, got none")
        pixels = read_picture(str(file)).pixels
        with models.open(name).use() as learner:
            x = latent.as_image(pixels, latent.shape_of(learner), bool(invert))
            return answer(learner, x, *rest)

    outputs = [three, many, said]
    drawn.click(handler(drawing), [model, pad, n, steps, seed], outputs)
    chosen.click(handler(chosen_file), [model, file, invert, n, steps, seed], outputs)


def _ink(pad: Any) -> Any:
    """How much was drawn at each place, ``(H, W)``: the opacity of the strokes."""
    import numpy as np

    layers = [] if pad is None else [layer for layer in pad["layers"] if layer is not None]
    if not layers or layers[0].ndim != 3 or layers[0].shape[2] != 4:
        raise BadInput("a digit must be drawn first, got an empty drawing")
    return np.max([layer[..., 3] for layer in layers], axis=0)

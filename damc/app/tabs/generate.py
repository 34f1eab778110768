"""The tab *Generate*: samples by the amortizer beside those by the energy, and chains to watch."""

from __future__ import annotations

__all__ = ["generate_tab"]

from collections.abc import Iterator
from typing import Any

from damc.app import latent, words
from damc.app.events import handler, stop_job, stream
from damc.app.jobs import Job, Jobs
from damc.app.models import Models
from damc.app.pictures import sheet
from damc.app.widgets import model_choice, picture, seed_choice

_COLUMNS = 8


def generate_tab(models: Models, jobs: Jobs) -> None:
    """Builds the tab."""
    import gradio as gr

    gr.Markdown(
        "Images of a trained model, drawn in two ways: by the amortizer q(z), and by Langevin "
        "dynamics on the learned energy. *Walk along a chain* shows the second way step by step."
    )
    model = model_choice(models)
    with gr.Row():
        n = gr.Slider(4, latent.MOST_IMAGES, 32, step=4, label="Images")
        steps = gr.Slider(0, 500, 60, step=10, label="Langevin steps")
        seed = seed_choice()
    with gr.Row():
        draw = gr.Button("Generate", variant="primary", min_width=100)
        go = gr.Button("Walk along a chain", min_width=100)
        stop = gr.Button("Stop", min_width=100)
    said = gr.HTML()
    with gr.Row():
        left = picture("Amortizer")
        right = picture("Energy")

    def generate(tab: str, name: str, n: int, steps: int, seed: int) -> tuple[Any, Any, str]:
        with models.open(name).use() as learner:
            found = latent.compare_sources(learner, int(n), int(steps), int(seed))
        pictures = [sheet(images, _COLUMNS) for images in found.values()]
        text = " and ".join(f"{len(x)} by the {source}" for source, x in found.items())
        return pictures[0], pictures[1] if len(pictures) > 1 else None, words.paragraph(text)

    def walk(tab: str, name: str, n: int, steps: int, seed: int) -> Iterator[tuple[Any, str]]:
        def work(job: Job) -> None:
            with models.open(name).use() as learner:
                for found in latent.walk(learner, int(n), max(1, int(steps)), int(seed)):
                    job.say(found)

        for step, energy, images in jobs.start(tab).watch(work):
            text = f"step {step} of {int(steps)} from N(0, I), mean energy {energy:.2f}"
            yield sheet(images, _COLUMNS), words.bar(step / max(1, int(steps)), text)

    inputs = [model, n, steps, seed]
    draw.click(handler(generate), inputs, [left, right, said])
    go.click(stream(walk, outputs=2, note=1), inputs, [right, said])
    stop.click(stop_job(jobs), None, said, queue=False)

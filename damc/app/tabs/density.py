"""The tab *Density*: a typed log-density of two variables, sampled in several ways."""

from __future__ import annotations

__all__ = ["density_tab"]

from collections.abc import Iterator
from typing import Any

from damc.app import words
from damc.app.densities import EXAMPLES, explore
from damc.app.events import stop_job, stream
from damc.app.expressions import FUNCTIONS
from damc.app.jobs import Jobs
from damc.app.pictures import density_panels
from damc.app.widgets import picture, seed_choice


def density_tab(jobs: Jobs) -> None:
    """Builds the tab."""
    import gradio as gr

    gr.Markdown(
        "Pick or type the log of a density of x and y, up to a constant: annealed SMC, plain MCMC "
        "chains and an amortized sampler are compared with the exact density on a grid. Functions: "
        f"{', '.join(FUNCTIONS)}."
    )
    with gr.Row():
        chosen = gr.Dropdown(list(EXAMPLES), value="banana", label="Example")
        seed = seed_choice()
    text = gr.Textbox(EXAMPLES["banana"], label="log p(x, y)", lines=2, max_lines=6)
    with gr.Row():
        run = gr.Button("Sample it", variant="primary", min_width=100)
        stop = gr.Button("Stop", min_width=100)
    said = gr.HTML()
    shown = picture("The exact density, and samples")
    listed = gr.HTML()

    def sampling(tab: str, text: str, seed: int) -> Iterator[tuple[Any, Any, str]]:
        yield words.bar(0.02, "looking for the density"), None, ""
        for seen in jobs.start(tab).watch(lambda job: explore(text, int(seed), job)):
            bar = words.bar(seen.progress, seen.doing)
            yield bar, density_panels(seen), words.density_table(seen)

    chosen.change(lambda name: EXAMPLES.get(name, ""), chosen, text, queue=False)
    run.click(stream(sampling, outputs=3), [text, seed], [said, shown, listed])
    stop.click(stop_job(jobs), None, said, queue=False)

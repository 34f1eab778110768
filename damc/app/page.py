"""The page itself: four tabs around the functions of this package, and how it is served.

gradio is imported when the page is built, since it comes with an extra.
"""

from __future__ import annotations

__all__ = ["build", "serve"]

import os
from collections.abc import Callable
from typing import Any

from damc.app.jobs import Jobs
from damc.app.models import Models
from damc.app.tabs.anomalies import anomalies_tab
from damc.app.tabs.density import density_tab
from damc.app.tabs.generate import generate_tab
from damc.app.tabs.reconstruct import reconstruct_tab
from damc.app.uploads import MOST_BYTES, MOST_SIDE

_STYLE = """
.damc-table { overflow-x: auto; margin-bottom: 0.8rem; }
.damc-table table { border-collapse: collapse; font-size: 0.9rem; width: auto; }
.damc-table table, .damc-table tr, .damc-table th, .damc-table td { border: 0 !important; }
.damc-table th, .damc-table td { text-align: left; padding: 0.3rem 1.2rem 0.3rem 0.2rem;
  border-bottom: 1px solid var(--border-color-primary) !important; }
.damc-table .damc-number { text-align: right; font-variant-numeric: tabular-nums; }
.damc-marked td { font-weight: 600; }
.damc-failure { color: #b3261e; font-weight: 600; }
.dark .damc-failure { color: #ff897d; }
.damc-picture img { padding: 2.4rem 0.6rem 0.6rem; } /* below its label */
.damc-note progress { width: 8rem; height: 0.6rem; margin-right: 0.4rem; appearance: none; }
.damc-note progress::-webkit-progress-bar { background: #e4e4e7; border-radius: 0.3rem; }
.damc-note progress::-webkit-progress-value { background: #6366f1; border-radius: 0.3rem; }
.damc-note progress::-moz-progress-bar { background: #6366f1; }
"""
_FONT = ("system-ui", "sans-serif")  # none that a browser would have to fetch from elsewhere


def serve(
    models: Models,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    open_browser: bool = False,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serves the page until it is interrupted.

    Args:
        models: that it offers.
        host: address to listen at; the default is for this machine alone.
        port: the first that is free from 7860 on if not given.
        open_browser: show it in a browser.
        ready: called with the page's address once it can be opened.
    """
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    import gradio as gr
    from PIL import Image

    page = build(models)
    # Drawings reach gradio as pictures that it decodes itself.
    Image.MAX_IMAGE_PIXELS = MOST_SIDE**2 // 2
    _, url, _ = page.queue(default_concurrency_limit=4, max_size=64).launch(
        server_name=host,
        server_port=port,
        inbrowser=open_browser,
        max_file_size=MOST_BYTES,
        state_session_capacity=200,
        theme=gr.themes.Default(primary_hue="indigo", font=_FONT, font_mono=("monospace",)),
        css=_STYLE,
        footer_links=["settings"],
        run_history=False,
        enable_monitoring=False,
        share=False,
        ssr_mode=False,
        quiet=True,
        prevent_thread_lock=True,
    )
    ready(url)
    page.block_thread()


def build(models: Models) -> Any:
    """The page, as gradio's `Blocks`."""
    import gradio as gr

    jobs = Jobs()
    with gr.Blocks(title="damc", delete_cache=(1800, 3600), analytics_enabled=False) as page:
        gr.Markdown(
            "# damc\nSampling and learning with diffusion-amortized MCMC: a short Markov chain "
            "starts where a small diffusion model left off, and the diffusion model learns where "
            "the chain ended."
        )
        with gr.Tabs():
            with gr.Tab("Generate"):
                generate_tab(models, jobs)
            with gr.Tab("Reconstruct"):
                reconstruct_tab(models)
            with gr.Tab("Anomalies"):
                anomalies_tab(jobs)
            with gr.Tab("Density"):
                density_tab(jobs)
    return page

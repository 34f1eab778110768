"""The page itself: four tabs of gradio components around the functions of this package.

gradio is imported when the page is built, since it comes with an extra.
"""

from __future__ import annotations

__all__ = ["build", "serve"]

import html
import os
from collections.abc import Callable, Iterator
from typing import Any

from damc.app import anomalies, latent, words
from damc.app.densities import EXAMPLES, explore
from damc.app.expressions import FUNCTIONS
from damc.app.jobs import Job, Jobs, Stopped
from damc.app.models import Models
from damc.app.pictures import density_panels, heat, sheet
from damc.app.uploads import MOST_BYTES, MOST_FILES, MOST_SIDE, read_picture
from damc.errors import BadInput, Diverged

_STYLE = """
.damc-table { overflow-x: auto; }
.damc-table table { border-collapse: collapse; font-size: 0.9rem; }
.damc-table th, .damc-table td { text-align: left; padding: 0.2rem 0.8rem 0.2rem 0; }
.damc-marked td { font-weight: 600; }
.damc-failure { color: #b3261e; font-weight: 600; }
.damc-picture img { padding-top: 2.2rem; } /* below its label */
.damc-note progress { width: 8rem; vertical-align: middle; }
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
        theme=gr.themes.Default(font=_FONT, font_mono=("monospace",)),
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

    jobs, detectors = Jobs(), dict[str, Any]()
    with gr.Blocks(title="damc", delete_cache=(1800, 3600), analytics_enabled=False) as page:
        gr.Markdown(
            "# damc\nSampling and learning with diffusion-amortized MCMC: a short Markov chain "
            "starts where a small diffusion model left off, and the diffusion model learns where "
            "the chain ended."
        )
        with gr.Tabs():
            with gr.Tab("Generate"):
                _generate_tab(models, jobs)
            with gr.Tab("Reconstruct"):
                _reconstruct_tab(models)
            with gr.Tab("Anomalies"):
                _anomalies_tab(jobs, detectors)
            with gr.Tab("Density"):
                _density_tab(jobs)
        page.unload(_forget(jobs, detectors))
    return page


def _generate_tab(models: Models, jobs: Jobs) -> None:
    import gradio as gr

    gr.Markdown(
        "Images of a trained model, drawn in two ways: by the amortizer q(z), and by Langevin "
        "dynamics on the learned energy."
    )
    model = _model_choice(models)
    with gr.Row():
        n = gr.Slider(4, latent.MOST_IMAGES, 16, step=4, label="Images")
        steps = gr.Slider(0, 500, 60, step=10, label="Langevin steps of the energy")
        seed = gr.Number(0, label="Seed", precision=0, minimum=0)
    with gr.Row():
        draw = gr.Button("Generate", variant="primary")
        go = gr.Button("Walk along a chain")
        stop = gr.Button("Stop")
    with gr.Row():
        left = _picture("Amortizer")
        right = _picture("Energy")
    said = gr.HTML()

    def generate(tab: str, name: str, n: int, steps: int, seed: int) -> tuple[Any, Any, str]:
        with models.open(name).use() as learner:
            found = latent.compare_sources(learner, int(n), int(steps), int(seed))
        pictures = [sheet(images, 4) for images in found.values()]
        text = " and ".join(f"{len(x)} by the {source}" for source, x in found.items())
        return pictures[0], pictures[1] if len(pictures) > 1 else None, words.paragraph(text)

    def walk(tab: str, name: str, n: int, steps: int, seed: int) -> Iterator[tuple[Any, str]]:
        def work(job: Job) -> None:
            with models.open(name).use() as learner:
                for found in latent.walk(learner, int(n), max(1, int(steps)), int(seed)):
                    job.say(found)

        for step, energy, images in jobs.start(tab).watch(work):
            text = f"step {step} of {int(steps)} from N(0, I), mean energy {energy:.2f}"
            yield sheet(images, 4), words.bar(step / max(1, int(steps)), text)

    inputs = [model, n, steps, seed]
    draw.click(_handler(generate), inputs, [left, right, said])
    go.click(_stream(walk), inputs, [right, said])
    stop.click(_stop(jobs), None, said, queue=False)


def _reconstruct_tab(models: Models) -> None:
    import gradio as gr

    gr.Markdown(
        "Take the brush and draw a digit, or choose a picture: samples of its posterior p(z | x), "
        "decoded, and where they differ."
    )
    model = _model_choice(models)
    with gr.Row():
        with gr.Column():
            pad = gr.Sketchpad(
                label="Draw a digit",
                type="numpy",
                height=320,
                canvas_size=(280, 280),
                brush=gr.Brush(default_size=22, colors=["#000000"], color_mode="fixed"),
                layers=False,
                sources=(),
                transforms=(),
            )
            drawn = gr.Button("Reconstruct the drawing", variant="primary")
        with gr.Column():
            file = gr.File(label="A picture of your own", file_types=["image"], height=160)
            invert = gr.Checkbox(False, label="Invert: take light for dark")
            chosen = gr.Button("Reconstruct the picture")
    with gr.Row():
        n = gr.Slider(4, 32, 8, step=4, label="Posterior samples")
        steps = gr.Slider(0, 200, 10, step=5, label="Langevin steps on the posterior")
        seed = gr.Number(0, label="Seed", precision=0, minimum=0)
    with gr.Row():
        three = _picture("Image, posterior mean, spread")
        many = _picture("Posterior samples")
    said = gr.HTML()

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

    def picture(tab: str, name: str, file: Any, invert: bool, *rest: int) -> tuple[Any, Any, str]:
        if file is None:
            raise BadInput("a picture must be chosen first, got none")
        pixels = read_picture(str(file)).pixels
        with models.open(name).use() as learner:
            x = latent.as_image(pixels, latent.shape_of(learner), bool(invert))
            return answer(learner, x, *rest)

    drawn.click(_handler(drawing), [model, pad, n, steps, seed], [three, many, said])
    chosen.click(_handler(picture), [model, file, invert, n, steps, seed], [three, many, said])


def _anomalies_tab(jobs: Jobs, detectors: dict[str, Any]) -> None:
    """`detectors` holds the one that each browser tab has fitted, by the tab's name."""
    import gradio as gr

    gr.Markdown(
        "Give a folder of normal pictures, then others to score: how unusual each is, how often "
        f"normal ones look as unusual, and where. At most {MOST_FILES:,} pictures, "
        f"{MOST_BYTES / 2**20:g} MB each; they stay on this machine and are deleted after an hour. "
        "*Example* fits a detector to handwritten sevens and scores other digits."
    )
    with gr.Row():
        with gr.Column():
            folder = gr.File(label="Folder of normal pictures", file_count="directory", height=160)
            share = gr.Slider(
                0.8, 0.99, 0.95, step=0.01, label="Share of normal pictures below the threshold"
            )
            with gr.Row():
                fit = gr.Button("Fit a detector", variant="primary")
                example = gr.Button("Example")
                stop = gr.Button("Stop")
        with gr.Column():
            files = gr.File(label="Pictures to score", file_count="multiple", height=160)
            score = gr.Button("Score", variant="primary")
    said = gr.HTML()
    shown = _picture("Each picture above its heat map")
    listed = gr.HTML()

    def show(found: anomalies.Found, fitted: Any) -> tuple[Any, str]:
        import torch

        order, rows = found.detection.order[:16], []
        for start in range(0, len(order), 8):
            part = order[start : start + 8]
            x = found.images[part].expand(-1, 3, -1, -1)
            over = heat(found.images, found.maps)[part]
            blank = torch.ones(8 - len(part), *x.shape[1:])  # so that rows stay below each other
            rows += [x, blank, over, blank] if start else [x, *[blank] * bool(len(order) > 8), over]
        picture = sheet(torch.cat(rows), min(8, len(order)))
        return picture, words.scores_table(found.detection, fitted.false_alarms_)

    def fitting(tab: str, paths: Any, share: float) -> Iterator[tuple[str, Any, str]]:
        def work(job: Job) -> None:
            fitted = anomalies.fit_detector(
                list(paths or ()), job, quantile=float(share), progress=_teller(job)
            )
            job.say(fitted)

        yield from told(tab, work)

    def trying(tab: str, share: float) -> Iterator[tuple[str, Any, str]]:
        def work(job: Job) -> None:
            job.say(anomalies.example(job, quantile=float(share), progress=_teller(job)))

        yield from told(tab, work)

    def told(tab: str, work: Callable[[Job], None]) -> Iterator[tuple[str, Any, str]]:
        for found in jobs.start(tab).watch(work):
            if isinstance(found, str):
                yield found, gr.skip(), gr.skip()
                continue
            fitted, others = found if isinstance(found, tuple) else (found, [])
            detectors[tab] = fitted
            text = words.paragraph(
                f"fitted to {len(fitted.decision_scores_):,} pictures of "
                f"{'x'.join(map(str, fitted.scaling_.shape))} numbers; threshold "
                f"{fitted.threshold_:.3f}"
            )
            ends = show(anomalies.score(fitted, others), fitted) if others else (None, "")
            yield text, *ends

    def scoring(tab: str, paths: Any) -> tuple[Any, str]:
        fitted = detectors.get(tab)
        return show(anomalies.score(fitted, list(paths or ())), fitted)

    outputs = [said, shown, listed]
    fit.click(_stream(fitting), [folder, share], outputs)
    example.click(_stream(trying), [share], outputs)
    score.click(_handler(scoring), [files], [shown, listed])
    stop.click(_stop(jobs), None, said, queue=False)


def _density_tab(jobs: Jobs) -> None:
    import gradio as gr

    gr.Markdown(
        "Pick or type the log of a density of x and y, up to a constant: annealed SMC, plain MCMC "
        "chains and an amortized sampler are compared with the exact density on a grid. Functions: "
        f"{', '.join(FUNCTIONS)}."
    )
    with gr.Row():
        chosen = gr.Dropdown(list(EXAMPLES), value="banana", label="Example")
        seed = gr.Number(0, label="Seed", precision=0, minimum=0)
    text = gr.Textbox(EXAMPLES["banana"], label="log p(x, y)", lines=2, max_lines=6)
    with gr.Row():
        run = gr.Button("Sample it", variant="primary")
        stop = gr.Button("Stop")
    said = gr.HTML()
    shown = _picture("The exact density, and samples")
    listed = gr.HTML()

    def sampling(tab: str, text: str, seed: int) -> Iterator[tuple[Any, Any, str]]:
        yield words.bar(0.02, "looking for the density"), None, ""
        for seen in jobs.start(tab).watch(lambda job: explore(text, int(seed), job)):
            bar = words.bar(seen.progress, seen.doing)
            yield bar, density_panels(seen), words.density_table(seen)

    chosen.change(lambda name: EXAMPLES.get(name, ""), chosen, text, queue=False)
    run.click(_stream(sampling), [text, seed], [said, shown, listed])
    stop.click(_stop(jobs), None, said, queue=False)


def _model_choice(models: Models) -> Any:
    import gradio as gr

    if not models.names:
        gr.Markdown("**No model is open.** Train one and start the page with it: `damc app RUN`.")
    first = models.names[0] if models.names else None
    return gr.Dropdown(models.names, value=first, label="Model", visible=bool(models.names))


def _picture(label: str) -> Any:
    """A place for a picture; no button sends it elsewhere."""
    import gradio as gr

    buttons = ["download", "fullscreen"]
    return gr.Image(
        label=label,
        format="png",
        interactive=False,
        buttons=buttons,
        alt_text=label,
        elem_classes="damc-picture",
    )


def _ink(pad: Any) -> Any:
    """How much was drawn at each place, ``(H, W)``: the opacity of the strokes."""
    import numpy as np

    layers = [] if pad is None else [layer for layer in pad["layers"] if layer is not None]
    if not layers or layers[0].ndim != 3 or layers[0].shape[2] != 4:
        raise BadInput("a digit must be drawn first, got an empty drawing")
    return np.max([layer[..., 3] for layer in layers], axis=0)


def _teller(job: Job) -> Callable[[float, str], None]:
    return lambda share, doing: job.say(words.bar(share, doing))


def _stop(jobs: Jobs) -> Any:
    def stop(tab: str) -> str:
        jobs.stop(tab)
        return words.paragraph("stopped")

    return _handler(stop)


def _forget(jobs: Jobs, detectors: dict[str, Any]) -> Any:
    def forget(tab: str) -> None:
        jobs.stop(tab)
        detectors.pop(tab, None)

    return _handler(forget)


def _handler(function: Callable[..., Any]) -> Any:
    """A function of the browser tab's name and values, as gradio calls it."""
    import gradio as gr

    def call(request: gr.Request, *values: Any) -> Any:
        try:
            return function(str(request.session_hash), *values)
        except (BadInput, Diverged) as error:
            raise _as_words(error) from error

    call.__annotations__["request"] = gr.Request
    return call


def _stream(function: Callable[..., Iterator[Any]]) -> Any:
    """The same of a function that yields; a job that was stopped just ends."""
    import gradio as gr

    def call(request: gr.Request, *values: Any) -> Iterator[Any]:
        try:
            yield from function(str(request.session_hash), *values)
        except Stopped:
            return
        except (BadInput, Diverged) as error:
            raise _as_words(error) from error

    call.__annotations__["request"] = gr.Request
    return call


def _as_words(error: Exception) -> Exception:
    import gradio as gr

    found: Exception = gr.Error(html.escape(str(error)), print_exception=False)
    return found

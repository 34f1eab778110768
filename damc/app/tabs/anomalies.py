"""The tab *Anomalies*: fit a detector to a folder that was dropped, score other pictures."""

from __future__ import annotations

__all__ = ["anomalies_tab"]

from collections.abc import Callable, Iterator
from typing import Any

from damc.app import anomalies, words
from damc.app.events import handler, stop_job, stream, teller
from damc.app.jobs import Job, Jobs
from damc.app.pictures import above_maps
from damc.app.recent import Recent
from damc.app.uploads import MOST_BYTES, MOST_FILES
from damc.app.widgets import picture

_DETECTORS = 50  # that are kept, one for each of the browser tabs used last


def anomalies_tab(jobs: Jobs) -> None:
    """Builds the tab."""
    import gradio as gr

    detectors = Recent[Any](_DETECTORS)  # the one that each browser tab has fitted
    gr.Markdown(
        "Give a folder of normal pictures, then others to score: how unusual each is, how often "
        f"normal ones look as unusual, and where. At most {MOST_FILES:,} pictures, "
        f"{MOST_BYTES / 2**20:g} MB each; they stay on this machine and are deleted after an hour. "
        "*Example* fits a detector to handwritten sevens and scores other digits."
    )
    with gr.Row():
        with gr.Column():
            folder = gr.File(
                label="Folder of normal pictures",
                file_count="directory",
                height=160,
                elem_id="normal-pictures",
            )
            share = gr.Slider(
                0.8, 0.99, 0.95, step=0.01, label="Share of normal pictures below the threshold"
            )
            with gr.Row():
                fit = gr.Button("Fit", variant="primary", min_width=100)
                example = gr.Button("Example", min_width=100)
                stop = gr.Button("Stop", min_width=100)
        with gr.Column():
            files = gr.File(
                label="Pictures to score",
                file_count="multiple",
                height=160,
                elem_id="other-pictures",
            )
            score = gr.Button("Score", variant="primary")
    said = gr.HTML()
    shown = picture("Each picture above its heat map")
    listed = gr.HTML()

    def show(found: anomalies.Found, fitted: Any) -> tuple[Any, str]:
        order = found.detection.order[:16].tolist()
        both = above_maps(found.images, found.maps, order)
        return both, words.scores_table(found.detection, fitted.false_alarms_)

    def fitting(tab: str, paths: Any, share: float) -> Iterator[tuple[str, Any, str]]:
        def work(job: Job) -> None:
            job.say(
                anomalies.fit_detector(
                    list(paths or ()), job, quantile=float(share), progress=teller(job)
                )
            )

        yield from told(tab, work)

    def trying(tab: str, share: float) -> Iterator[tuple[str, Any, str]]:
        def work(job: Job) -> None:
            job.say(anomalies.example(job, quantile=float(share), progress=teller(job)))

        yield from told(tab, work)

    def told(tab: str, work: Callable[[Job], None]) -> Iterator[tuple[str, Any, str]]:
        for found in jobs.start(tab).watch(work):
            if isinstance(found, str):
                yield found, gr.skip(), gr.skip()
                continue
            fitted, others = found if isinstance(found, tuple) else (found, [])
            detectors.put(tab, fitted)
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
    fit.click(stream(fitting, outputs=3), [folder, share], outputs)
    example.click(stream(trying, outputs=3), [share], outputs)
    score.click(handler(scoring), [files], [shown, listed])
    stop.click(stop_job(jobs), None, said, queue=False)

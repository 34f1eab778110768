"""What stands between gradio and the functions of this package: who asks, and errors in words."""

from __future__ import annotations

__all__ = ["handler", "stop_job", "stream", "teller"]

import html
from collections.abc import Callable, Iterator
from typing import Any

from damc.app import words
from damc.app.jobs import Job, Jobs, Stopped
from damc.errors import BadInput, Diverged


def handler(function: Callable[..., Any]) -> Any:
    """A function of the browser tab's name and values, as gradio calls it."""
    import gradio as gr

    def call(request: gr.Request, *values: Any) -> Any:
        try:
            return function(str(request.session_hash), *values)
        except (BadInput, Diverged) as error:
            raise _in_words(error) from error

    call.__annotations__["request"] = gr.Request
    return call


def stream(function: Callable[..., Iterator[Any]], *, outputs: int, note: int = 0) -> Any:
    """The same of a function that yields values of so many outputs.

    A job that was stopped says so in the output number `note` and leaves the others as they are.
    """
    import gradio as gr

    def call(request: gr.Request, *values: Any) -> Iterator[Any]:
        try:
            yield from function(str(request.session_hash), *values)
        except Stopped:
            last = [gr.skip() for _ in range(outputs)]
            last[note] = words.paragraph("stopped")
            yield tuple(last)
        except (BadInput, Diverged) as error:
            raise _in_words(error) from error

    call.__annotations__["request"] = gr.Request
    return call


def teller(job: Job) -> Callable[[float, str], None]:
    """A progress function that shows a bar."""
    return lambda share, doing: job.say(words.bar(share, doing))


def stop_job(jobs: Jobs) -> Any:
    """What a Stop button calls; that the job has stopped is said by the job's own stream."""
    import gradio as gr

    def stop(tab: str) -> Any:
        return gr.skip() if jobs.stop(tab) else words.paragraph("nothing runs")

    return handler(stop)


def _in_words(error: Exception) -> Exception:
    import gradio as gr

    found: Exception = gr.Error(html.escape(str(error)), print_exception=False)
    return found

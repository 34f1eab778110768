"""`damc app`."""

from __future__ import annotations

__all__ = ["App"]

import importlib.util
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from damc.cli.console import say, use_threads
from damc.cli.options import Option


@dataclass(frozen=True)
class App:
    """Serve a web page on this machine: generate, reconstruct, find anomalies, sample a density.

    Models that come with damc are offered after the runs that are given.
    """

    runs: Annotated[tuple[Path, ...], Option("[RUN ...]", positional=True)] = ()
    """Run folders that `damc train` made."""

    host: Annotated[str, Option("ADDRESS")] = "127.0.0.1"
    """Address to listen at; the default is for this machine alone."""

    port: Annotated[int | None, Option("PORT")] = None
    """Port to listen at; the first that is free from 7860 on if not given."""

    open: bool = False
    """Show the page in a browser."""

    threads: Annotated[int | None, Option("N")] = None
    """Processor threads; torch's choice if not given."""

    def run(self) -> None:
        """Serves until Ctrl-C."""
        from damc.errors import BadInput

        if importlib.util.find_spec("gradio") is None:
            raise BadInput("damc app needs gradio, which is not installed: pip install 'damc[app]'")
        if self.port is not None and not 0 < self.port < 65536:
            raise BadInput(f"port must lie between 1 and 65535, got {self.port}")
        try:  # a server that cannot listen would be waited for
            family, *_ = socket.getaddrinfo(self.host, self.port or 0)[0]
            socket.create_server((self.host, self.port or 0), family=family).close()
        except OSError as error:
            where = self.host if self.port is None else f"{self.host}, port {self.port}"
            raise BadInput(f"could not listen at {where}: {error.strerror or error}") from error
        use_threads(self.threads)
        from damc.app.models import Models
        from damc.app.page import serve

        models = Models(self.runs)
        for folder in self.runs:
            models.open(models.name_of(folder))  # a folder that is no run is an error now
        if not models.names:
            say("no model is open: damc app RUN opens one; two of the four tabs do without")
        serve(
            models,
            host=self.host,
            port=self.port,
            open_browser=self.open,
            ready=lambda url: say(f"{url}  the page; Ctrl-C ends it"),
        )

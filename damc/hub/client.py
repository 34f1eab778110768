"""The Hugging Face Hub: models down, models up.

huggingface_hub, the extra ``damc[hub]``, does the talking: it keeps downloads in its cache, from
where they load without a network, and reads HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE.
"""

from __future__ import annotations

__all__ = ["download", "is_repository", "upload"]

import os
import re
from pathlib import Path
from typing import Any

from damc.errors import BadInput
from damc.hub.published import FILES


def is_repository(name: str) -> bool:
    """Whether a name has the form "owner/name" of the Hub.

    >>> is_repository("owner/name"), is_repository("./name"), is_repository("a/b/c")
    (True, False, False)
    """
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name) is not None


def download(repository: str, *, revision: str | None = None, token: str | None = None) -> Path:
    """The folder of a model of the Hub in the cache; without a network, what is there already.

    Args:
        repository: "owner/name".
        revision: a branch, tag or commit; the newest of the main branch by default.
        token: of the Hub; by default the one you logged in with.
    """
    hub = _huggingface_hub(repository)
    try:
        folder = hub.snapshot_download(
            repository,
            revision=revision,
            token=token,
            allow_patterns=list(FILES),
            endpoint=_variable("HF_ENDPOINT"),
            cache_dir=_variable("HF_HUB_CACHE"),
        )
    except Exception as error:  # every failure of the network or the Hub ends here
        if not _is_refusal(error):
            raise
        raise BadInput(
            f"source must be a folder, the name of a packaged model or a repository of the Hub, "
            f"got {repository!r}, which could not be fetched: {_first_sentence(error)}"
        ) from error
    return Path(folder)


def upload(
    folder: str | Path,
    repository: str,
    *,
    private: bool = False,
    message: str | None = None,
    token: str | None = None,
) -> str:
    """Uploads a folder as a model; returns the address of the commit.

    Args:
        folder: a published model.
        repository: "owner/name"; it is made if it is not there.
        private: make it private.
        message: of the commit.
        token: of the Hub; by default the one you logged in with.
    """
    if not is_repository(repository):
        raise BadInput(f"repository must be 'owner/name', got {repository!r}")
    api = _huggingface_hub(repository).HfApi(_variable("HF_ENDPOINT"), token)
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        commit = api.upload_folder(
            folder_path=str(folder),
            repo_id=repository,
            allow_patterns=list(FILES),
            commit_message=message or "Upload a model of damc",
        )
    except Exception as error:
        if not _is_refusal(error):
            raise
        raise BadInput(
            f"repository must be one that you may write to, got {repository!r}, and the Hub "
            f"answered: {_first_sentence(error)}"
        ) from error
    return str(commit.commit_url)


def _huggingface_hub(repository: str) -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise BadInput(
            f"there is no folder {repository}, and to look for it on the Hub huggingface_hub must "
            "be installed: pip install 'damc[hub]'"
        ) from error
    return huggingface_hub


def _variable(name: str) -> str | None:
    """An environment variable as it is now; huggingface_hub reads it once, when it is imported."""
    return os.environ.get(name) or None


def _is_refusal(error: Exception) -> bool:
    """Whether the Hub or the network said no, rather than damc being wrong."""
    named = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, OSError) or bool(
        named & {"HfHubHTTPError", "HTTPError", "HFValidationError", "LocalEntryNotFoundError"}
    )


def _first_sentence(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__

"""Downloads models by their names on the Hugging Face Hub into the local cache (pasta/engine/snapshots.py)."""

import threading
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from pasta.engine.snapshots import MODEL_WEIGHTS
from pasta.errors import UserError, first_line

#: How long the Hub may take to say what files a model has, in seconds. Its own client tries for minutes.
ANSWER_S = 10.0
#: Files of a model, its tokenizer and its draft heads, other than weights.
_SMALL = (".json", ".txt", ".model", ".jinja")
#: How the names of Mistral's weights begin in its own form, which lie beside those that transformers reads.
_OTHER_FORM = "consolidated"


def download(name: str, key: str, *, weights: bool) -> Path:
    """Download a model into the local cache, or all of it but its weights; returns the directory.

    Shows its progress where ``HF_HUB_DISABLE_PROGRESS_BARS`` does not hide it. Raises ``UserError``, naming ``key``:
    within ``ANSWER_S`` if the Hub does not answer.
    """
    from httpx2 import HTTPError
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    missing = f"{key}: {name!r} is neither a directory here nor whole in the local Hugging Face cache"
    try:
        info = _answer(name)
        files = [each.rfilename for each in info.siblings or ()]
        return Path(snapshot_download(name, allow_patterns=list(_wanted(files, weights))))
    except OfflineModeIsEnabled:
        raise UserError(f"{missing}, and HF_HUB_OFFLINE forbids to download it") from None
    except GatedRepoError:
        raise UserError(
            f"{missing}, and the Hub gives it only to those who have accepted its terms (HF_TOKEN)"
        ) from None
    except RepositoryNotFoundError:
        raise UserError(
            f"{missing}, and the Hub has no model of that name that this HF_TOKEN may read"
        ) from None
    except (HfHubHTTPError, HTTPError, OSError, ValueError) as error:
        raise UserError(f"{missing}, and it cannot be downloaded ({first_line(error)})") from None


def _answer(name: str) -> Any:
    """Ask the Hub about a model. Raises ``TimeoutError`` after ``ANSWER_S``: the client may try to connect for that
    long at each of the Hub's addresses."""
    from huggingface_hub import HfApi

    answer: Future[Any] = Future()

    def ask() -> None:
        try:
            answer.set_result(HfApi().model_info(name, timeout=ANSWER_S))
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name="hub", daemon=True).start()
    try:
        return answer.result(ANSWER_S)
    except TimeoutError:
        raise TimeoutError(f"the Hub has not answered for {ANSWER_S:.0f} s") from None


def _wanted(files: Iterable[str], weights: bool) -> Iterable[str]:
    """The files of the model in a repository, without other formats and folders."""
    top = {file for file in files if "/" not in file}
    yield from (file for file in sorted(top) if file.endswith(_SMALL))
    if not weights:
        return
    top = {file for file in top if not file.startswith(_OTHER_FORM)}
    suffixes = (Path(file).suffix for file in MODEL_WEIGHTS)
    suffix = next((suffix for suffix in suffixes if any(file.endswith(suffix) for file in top)), "")
    yield from (file for file in sorted(top) if suffix and file.endswith(suffix))

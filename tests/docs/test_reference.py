"""Doc strings render to pages."""

import subprocess
import sys

import pytest

from tests.support.paths import ROOT

AS_MAKE_DOCS = "from pasta.engine import *; from pdoc.__main__ import cli; cli()"
WARNINGS_ARE_ERRORS = ["-W", "error::UserWarning", "-W", "error::RuntimeWarning:pdoc"]


def test_make_docs_runs_what_is_tested():
    assert AS_MAKE_DOCS in (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.slow
def test_doc_strings_render_without_a_warning(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            *WARNINGS_ARE_ERRORS,
            "-c",
            f"import gc; gc.disable(); {AS_MAKE_DOCS}",  # a fifth sooner
            "--no-show-source",  # colouring it is a quarter of the work, and no doc string is rendered there
            "--output-directory",
            tmp_path,
            "pasta",
            "serve",
            "jobs",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Warn" not in done.stderr
    for page in (
        "pasta/lang",
        "pasta/placement",
        "pasta/engine",
        "serve/interpreter/dispatch",
        "jobs/submit",
    ):
        assert (tmp_path / f"{page}.html").is_file(), page

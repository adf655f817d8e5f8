"""Files are there whole or not at all, also where the disk is full."""

import subprocess
import sys

import pytest

from pasta.files import write_whole


def test_a_directory_is_made_for_a_file(tmp_path):
    write_whole(tmp_path / "new" / "file", "text")
    assert (tmp_path / "new" / "file").read_text() == "text"


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    write_whole(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "new \ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_the_system_refuses_to_write_is_one_line_and_leaves_nothing(tmp_path):
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from pasta.entrypoint import run_main\n"
        "from pasta.files import write_whole\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "run_main(lambda: write_whole(Path(sys.argv[1]), 'x' * 5000))\n"
    )
    path = tmp_path / "file"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == f"error: {str(path)!r}: cannot be written (File too large)\n"
    assert done.returncode == 2
    assert not list(tmp_path.iterdir())

"""Files are there whole or not at all, also where the disk is full."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pasta.errors import CutShort, UserError
from pasta.files import (
    check_beside,
    check_directory,
    check_replaced,
    full_disk_told,
    read_lines,
    read_text,
    write_whole,
)


def test_a_directory_is_made_for_a_file(tmp_path):
    write_whole(tmp_path / "new" / "file", "text")
    assert (tmp_path / "new" / "file").read_text() == "text"


def test_a_link_stays_and_the_file_that_it_leads_to_is_written(tmp_path):
    (tmp_path / "link").symlink_to("file")
    for text in ("made", "changed"):
        write_whole(tmp_path / "link", text)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "file").read_text() == text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    # As a device is: root would have a file named /dev/null from then on.
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(fifo, "text")
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)
    assert fifo.is_fifo()


def test_what_stdout_is_piped_into_is_written_to(tmp_path):
    code = "from pathlib import Path\nfrom pasta.files import write_whole\nwrite_whole(Path('/proc/self/fd/1'), 'text')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("text", "")


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    write_whole(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "new \ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["/", "", "dir", "a" * 300, "file/in"])
def test_a_place_where_no_file_can_be_is_named(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dir").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        write_whole(Path(name), "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dir", "file"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nothing", "key: nothing: no such file; expected a text"),
        ("file/in", "key: file/in: no such file"),
        ("dir", "key: dir: cannot be read (Is a directory)"),
        ("loop", "key: loop: cannot be read (Too many levels of symbolic links)"),
        ("a" * 300, "cannot be read (File name too long)"),
        ("a\0b", "key: 'a\\x00b': cannot be read (embedded null byte)"),
        ("bytes", "key: bytes: cannot be read (byte 2 is not UTF-8 text)"),
        ("a\nb", "key: 'a\\nb': no such file"),
    ],
)
def test_what_the_system_refuses_to_read_is_one_line(tmp_path, monkeypatch, name, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dir").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "bytes").write_bytes(b"a\xff")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UserError) as caught:
        read_text(Path(name), key="key", expected="a text")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_text_is_read_without_a_byte_order_mark(tmp_path):
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfa\r\n")
    assert read_text(tmp_path / "a") == "a\r\n"
    assert [*read_lines(tmp_path / "a")] == [b"\xef\xbb\xbfa\r\n"]


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


@pytest.mark.parametrize("check", [check_directory, check_beside])
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("file/in", "Not a directory"),
        ("file/in/new", "Not a directory"),
        ("loop/in", "Too many levels of symbolic links"),
        ("gone/in", "No such file or directory"),
        ("a" * 256, "File name too long"),
        ("new/" + "é" * 128 + "/new", "File name too long"),
        ("new/" * 1000 + "new", "File name too long"),
    ],
)
def test_a_place_where_no_directory_can_be_is_named(tmp_path, monkeypatch, check, name, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").symlink_to("nothing")
    found = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError) as caught:
        check(Path(name), "key")
    assert str(caught.value) == (
        f"key: {name}: cannot be written ({reason}); expected a directory to write in, or a place for a new one"
    )
    assert sorted(tmp_path.rglob("*")) == found


@pytest.mark.parametrize("check", [check_directory, check_beside])
def test_a_directory_that_nobody_may_write_to_is_named(tmp_path, check):
    (tmp_path / "locked").mkdir(mode=0o500)
    user = os.geteuid()
    os.seteuid(user or 65534)  # root may write everywhere
    try:
        with pytest.raises(UserError, match=r"key: .*locked/new: cannot be written \(Permission denied\)"):
            check(tmp_path / "locked" / "new", "key")
    finally:
        os.seteuid(user)


def test_a_file_system_that_is_read_only_is_told_as_that(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    with pytest.raises(UserError, match=r"new: cannot be written \(Read-only file system\)"):
        check_directory(tmp_path / "new", "key")


@pytest.mark.parametrize("name", [".", "dir", "dir/new/newer", "a" * 255, "link/new"])
def test_a_directory_that_is_there_or_can_be_made_passes(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dir").mkdir()
    (tmp_path / "link").symlink_to("dir")
    check_directory(Path(name), "key")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["dir", "link"]


@pytest.mark.parametrize("name", [".", "/", "..", "a/.."])
def test_what_is_put_in_place_of_a_directory_has_a_name(name):
    with pytest.raises(UserError, match=r"key: .*: expected a name, not a directory that is always there"):
        check_beside(Path(name), "key")


def test_what_takes_a_directory_s_place_is_no_mount_point_and_no_link(tmp_path, monkeypatch):
    """Else the error comes when hours of work are to be put in place."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    with pytest.raises(
        UserError, match=rf"^output_dir: .*/link: is a link, .* in {tmp_path}/disk, or another$"
    ):
        check_replaced(tmp_path / "link", "output_dir")
    check_replaced(tmp_path / "disk", "output_dir")
    check_replaced(tmp_path / "link" / "out", "output_dir")
    monkeypatch.setattr("os.path.ismount", lambda path: path == tmp_path / "disk")
    with pytest.raises(
        UserError, match=r"^output_dir: .*/disk: is a mount point, and a finished directory is renamed"
    ):
        check_replaced(tmp_path / "disk", "output_dir")


@pytest.mark.parametrize(
    ("free", "error", "why"),
    [
        (
            0,
            RuntimeError("basic_ios::clear: iostream error"),
            "basic_ios::clear: iostream error",
        ),  # torch.save's
        (1 << 40, OSError(errno.ENOSPC, "No space left on device"), "[Errno 28] No space left on device"),
        (
            1 << 40,  # safetensors' file, made as long as it will be, is gone
            Exception("I/O error: No space left on device (os error 28)"),
            "I/O error: No space left on device (os error 28)",
        ),
    ],
)
def test_what_fails_on_a_full_disk_is_told_as_that(tmp_path, monkeypatch, free, error, why):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    with pytest.raises(CutShort) as raised, full_disk_told(tmp_path / "run", "run_dir"):
        raise error
    assert str(raised.value) == f"run_dir: {tmp_path}/run: no room is left on its disk ({why})"


@pytest.mark.parametrize(("free", "error"), [(1 << 40, RuntimeError("a bug")), (0, UserError("a mistake"))])
def test_another_error_is_not_told_as_a_full_disk(tmp_path, monkeypatch, free, error):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    with pytest.raises(type(error), match=f"^{error}$"), full_disk_told(tmp_path / "run", "run_dir"):
        raise error

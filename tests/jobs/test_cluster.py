"""How a job finds or starts Ray, and the version of its code."""

import signal
import socket
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
import ray

from jobs import pool, sft
from jobs.cluster import _object_store, check_address, code_version, ray_cluster, takes_gpus
from pasta.errors import UserError
from pasta.stages.workers import LightWorkersSection, WorkersSection
from serve.ray_start import ROOT, free_port, start_ray

TOO_SLOW = "The current node timed out during startup. This could happen because …"


class Starts:
    """Stands in for ``ray.init``: a machine too busy to start Ray in time cannot be had on demand."""

    def __init__(self, *errors: str) -> None:
        self.errors = list(errors)
        self.calls: list[dict[str, object]] = []

    def __call__(self, **options: object) -> None:
        self.calls.append(options)
        if self.errors:
            raise Exception(self.errors.pop(0))


@pytest.fixture
def starts(monkeypatch):
    def use(*errors: str) -> Starts:
        monkeypatch.setattr(ray, "init", found := Starts(*errors))
        return found

    return use


@pytest.mark.parametrize("folder", ["my projects", "it's", "a(b)", "a&b"])
def test_a_path_by_which_ray_cannot_start_workers_is_refused(starts, monkeypatch, folder):
    init = starts()
    monkeypatch.setattr("sys.executable", f"/home/{folder}/.venv/bin/python")
    with pytest.raises(
        UserError, match=r"bin/python: Ray cannot start workers by a path with .* in it; move"
    ):
        start_ray(lambda: None, address="local")
    assert not init.calls
    start_ray(lambda: None, address="10.0.0.1:6379")  # whose workers have a Python of their own
    monkeypatch.setattr("sys.executable", "/home/José/pasta~2/[new]/.venv/bin/python")
    start_ray(lambda: None, address="local")
    assert len(init.calls) == 2


def test_ray_that_was_too_slow_is_started_once_more(starts):
    init, retries = starts(TOO_SLOW), []
    start_ray(lambda: retries.append("once"), num_cpus=2)
    assert init.calls == [{"num_cpus": 2}] * 2
    assert retries == ["once"]


def test_ray_that_is_too_slow_twice_is_one_line(starts):
    init = starts(TOO_SLOW, TOO_SLOW)
    with pytest.raises(
        UserError, match=r"^Ray did not start in two times 30 s: [^\n]*few processes \(ulimit -u\)$"
    ):
        start_ray(lambda: None)
    assert len(init.calls) == 2


def test_a_directory_too_long_for_ray_s_sockets_is_one_line(starts, monkeypatch):
    init = starts("validate_socket_filename failed: AF_UNIX path length cannot exceed 107 bytes: /scratch/…")
    monkeypatch.setenv("RAY_TMPDIR", "/scratch/of/somebody")
    with pytest.raises(
        UserError, match=r"^TMPDIR: /scratch/of/somebody: too long .* at most 39 bytes: export RAY_T"
    ):
        start_ray(lambda: pytest.fail("tried again"))
    assert len(init.calls) == 1


def test_a_full_disk_of_temporary_files_is_told_before_ray_waits_for_them(starts, monkeypatch):
    init = starts()
    monkeypatch.setenv("RAY_TMPDIR", "/scratch")
    monkeypatch.setattr(
        "shutil.disk_usage", lambda path: SimpleNamespace(free=4096 if path == "/scratch" else 1 << 30)
    )
    with pytest.raises(UserError, match=r"^TMPDIR: /scratch: no room is left on its disk"):
        start_ray(lambda: None, address="local")
    assert not init.calls


def test_a_machine_without_memory_for_ray_is_one_line(starts):
    starts(
        "After taking into account …, the amount of memory on this node available for tasks and actors (-0.09 GB)"
    )
    with pytest.raises(
        UserError, match=r"^Ray did not start: too little of this machine's memory [^\n]* is free"
    ):
        start_ray(lambda: pytest.fail("tried again"))


def test_another_failure_is_not_tried_again(starts):
    init = starts("no space left on device")
    with pytest.raises(Exception, match="no space left"):
        start_ray(lambda: pytest.fail("tried again"))
    assert len(init.calls) == 1


@pytest.mark.parametrize(
    ("objects", "shared", "memory", "megabytes"),
    [
        (0, 1e9, 1e10, 210),
        (6e8, 1e9, 1e10, 810),
        (6e8, 7e8, 1e10, 700),
        (6e8, 1e9, 2e9, 600),
        (6e8, 6e7, 1e10, 210),
    ],
)
def test_an_object_store_has_room_for_a_policy_s_weights_if_the_machine_has(
    monkeypatch, objects, shared, memory, megabytes
):
    """Ray writes what has no room to disk at each batch, and ends the job where that is almost full."""
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=int(shared)))
    monkeypatch.setattr("pasta.engine.memory.machine_memory", lambda: int(memory))
    assert round(_object_store(int(objects)) / 1e6) == megabytes


@pytest.fixture
def listening():
    """The address of somebody who listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    "address", ["nonsense", "127.0.0.1", "nonsense://", "a:b", "127.0.0.1:99999", "::1:6379", " "]
)
def test_an_address_that_no_cluster_can_have_is_one_line(address):
    with pytest.raises(UserError) as caught:
        check_address(address)
    told = f"--address: {address!r}, expected host:port, ray://host:port or auto"
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_cluster_that_does_not_listen_is_one_line_at_once(scheme):
    address = f"{scheme}127.0.0.1:{free_port()}"
    with pytest.raises(UserError) as caught:
        check_address(address)
    assert str(caught.value) == (
        f"--address: {address} cannot be reached (Connection refused); is the cluster running?"
    )


def test_an_address_of_the_environment_is_named_by_its_variable(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "nonsense")
    with pytest.raises(UserError, match="RAY_ADDRESS: 'nonsense', expected host:port"):
        check_address(None)


def test_a_cluster_that_ray_does_not_find_is_one_line(monkeypatch):
    def refuse(**options):
        raise ConnectionError("Could not find any running Ray instance.\nPlease specify")

    monkeypatch.setattr(ray, "init", refuse)
    told = "--address: auto: Could not find any running Ray instance."
    with pytest.raises(UserError) as caught, ray_cluster("auto", 1):
        pass
    assert str(caught.value) == told


def test_an_error_of_a_connection_in_the_job_itself_stays_what_it_is(starts, listening):
    starts()
    with pytest.raises(ConnectionError, match="the teacher's"), ray_cluster(listening, 1):
        raise ConnectionError("the teacher's")


def test_a_job_looks_for_its_cluster_before_it_makes_data(tmp_path, monkeypatch):
    address = f"127.0.0.1:{free_port()}"
    config = str(ROOT / "configs/sft/atlas-twin.yaml")
    monkeypatch.setattr("sys.argv", ["jobs.sft", "--config", config, "--address", address])
    monkeypatch.setattr(sft, "run", lambda *_, **__: pytest.fail("the job began"))
    with pytest.raises(UserError, match="cannot be reached"):
        sft.main()


@pytest.mark.parametrize("address", ["http://127.0.0.1:8265", "https://cluster.example"])
def test_the_address_of_a_job_server_is_no_cluster_to_join(monkeypatch, address):
    monkeypatch.setenv("RAY_ADDRESS", address)
    with (
        pytest.raises(UserError, match=r"is where jobs are submitted \(python -m jobs.submit\)"),
        ray_cluster(None, 1),
    ):
        pass


def test_a_submitted_job_joins_the_cluster_that_it_was_submitted_to(monkeypatch, starts, listening):
    monkeypatch.setenv("RAY_ADDRESS", listening)
    init = starts()
    with ray_cluster(None, 2):
        pass
    (options,) = init.calls
    assert options["address"] == listening
    assert options["num_cpus"] is None


def test_without_an_address_the_cluster_is_the_job_s_own(monkeypatch, starts):
    """Whatever Ray runs on this machine already."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    init = starts()
    with ray_cluster(None, 2):
        pass
    (options,) = init.calls
    assert options["address"] == "local"
    assert options["num_cpus"] == 2


@pytest.mark.e2e
@pytest.mark.slow
# In short waits, as jobs do: Python does not wake from one that begins just as a signal comes.
@pytest.mark.parametrize(
    "wait",
    [
        "while True:\n        time.sleep(0.1)",
        # as Ray Train's wait for its controller does
        "try:\n        while True: time.sleep(0.1)\n    except SystemExit:\n        sys.exit(1)",
    ],
)
def test_sigterm_ends_a_job_quietly_and_its_ray_with_it(wait: str):
    code = (
        "import sys, time\nfrom jobs.cluster import ray_cluster\n"
        f"with ray_cluster(None, 1):\n    print('ready', flush=True)\n    {wait}"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        try:
            assert job.stdout is not None
            assert job.stdout.readline() == "ready\n"
            started = psutil.Process(job.pid).children(recursive=True)
            job.terminate()
            _, said = job.communicate(timeout=120)
        finally:
            job.kill()
    assert job.returncode == 128 + signal.SIGTERM
    assert "SIGTERM" not in said
    assert started
    assert not psutil.wait_procs(started, timeout=60)[1]


def test_where_there_is_no_working_tree_the_environment_says_what_code_runs(monkeypatch):
    monkeypatch.setenv("PASTA_CODE_VERSION", "v1.2-3-gabcdef")
    assert code_version() == "v1.2-3-gabcdef"


@pytest.fixture
def gpus(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def there_are(count: int) -> None:
        monkeypatch.setattr(
            ray, "cluster_resources", lambda: {"CPU": 8.0} | ({"GPU": count} if count else {})
        )

    return there_are


@pytest.mark.parametrize(
    ("count", "use_gpu", "taken"), [(2, "auto", True), (0, "auto", False), (2, False, False)]
)
def test_workers_take_gpus_where_there_are_any(gpus, count, use_gpu, taken):
    gpus(count)
    assert takes_gpus(WorkersSection(num_workers=2, use_gpu=use_gpu), None, together=2) is taken


@pytest.mark.parametrize(
    ("count", "use_gpu", "together", "says"),
    [
        (0, True, 2, "2 processes take a GPU each, and this machine has 0"),
        (1, "auto", 2, "2 processes take a GPU each, and this machine has 1"),
        (0, True, 1, "1 process takes a GPU, and this machine has 0"),
    ],
)
def test_workers_that_would_wait_for_gpus_of_this_machine_for_ever_are_refused(
    gpus, count, use_gpu, together, says
):
    gpus(count)
    workers = WorkersSection(num_workers=2, use_gpu=use_gpu)
    with pytest.raises(UserError) as error:
        takes_gpus(workers, None, together=together)
    expected = "expected at most as many, or workers.use_gpu: false"
    assert str(error.value) == f"workers.num_workers: {says}; {expected}"


def test_a_cluster_may_still_get_the_gpus_that_workers_wait_for(gpus):
    gpus(0)
    assert takes_gpus(WorkersSection(num_workers=8, use_gpu=True), "10.0.0.1:6379", together=8) is True


def test_a_local_ray_has_as_many_cpus_as_workers_reserve(monkeypatch):
    """It had one for each worker, and those that reserve two waited for ever."""

    def start(address, num_cpus, threads):
        raise UserError(f"{num_cpus} CPUs")

    monkeypatch.setattr(pool, "ray_cluster", start)
    workers = LightWorkersSection(num_workers=3, cpus=2.5)
    with pytest.raises(UserError, match=r"^8 CPUs$"):
        pool.run_shards(lambda: None, dict.fromkeys(range(9)), lambda *_: None, workers)


def test_a_share_of_a_cpu_that_ray_cannot_count_is_refused():
    """It ended in Ray's stack trace."""
    assert LightWorkersSection(cpus=0.3333).cpus == 0.3333
    with pytest.raises(ValueError, match=r"cpus 0\.33333: expected at most 4 decimals"):
        LightWorkersSection(cpus=0.33333)

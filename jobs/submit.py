"""Send a job to a Ray cluster, follow its log, and end with its exit code:

    python -m jobs.submit sft --config configs/sft/atlas-twin.yaml --storage /mnt/pasta --address http://HEAD:8265
    python -m jobs.submit list
    python -m jobs.submit tail ID
    python -m jobs.submit stop ID

The job's configuration is checked before anything is sent. Sent are the folders configs, jobs, platform and serve, and
the values of the variables that --env names. Ctrl-C leaves the job running. docs/jobs.md says the rest.
"""

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jobs.job_server import API_SERVER, JobServer, exit_code, outcome
from jobs.submission import JOBS, Submission, prepare_submission
from pasta.entrypoint import EXIT_INTERRUPTED, CommandParser, run_main
from pasta.errors import UserError

LIST, TAIL, STOP = "list", "tail", "stop"


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    options, rest = parser().parse_known_args(arguments)
    if options.command in JOBS:
        return submit(options, rest, environ)
    if rest:
        parser().error(f"unrecognized arguments: {' '.join(rest)}")
    server = JobServer(options.address, environ)
    if options.command == LIST:
        print_jobs(server.jobs())
        return 0
    if options.command == TAIL:
        return print_log(server, options.id)
    ended = server.stop(options.id, not options.no_wait, print_note)
    if ended.status.is_terminal():
        print_note(f"job {options.id}: {outcome(ended)}")
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line. Options of the job itself are left over: the job's own parser reads them."""
    made = CommandParser(prog="python -m jobs.submit", description=__doc__, allow_abbrev=False)
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    common = CommandParser(add_help=False)
    common.add_argument(
        "--address", help=f"the cluster's dashboard, such as http://127.0.0.1:8265 (default: {API_SERVER})"
    )
    for job in JOBS:
        epilog = f"All other options are those of python -m jobs.{job}, which --help there lists."
        _submit_options(
            commands.add_parser(
                job, help=f"send jobs.{job}", parents=[common], epilog=epilog, allow_abbrev=False
            )
        )
    commands.add_parser(LIST, help="list submitted jobs", parents=[common], allow_abbrev=False)
    for name, what in ((TAIL, "follow a job's log to its end"), (STOP, "end a job")):
        command = commands.add_parser(name, help=what, parents=[common], allow_abbrev=False)
        command.add_argument("id", type=_sent_id, metavar="ID", help="what list shows")
        if name == STOP:
            command.add_argument("--no-wait", action="store_true", help="do not wait until it has ended")
    return made


def _submit_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--config", type=Path, help="the job's YAML file")
    add(
        "--storage",
        metavar="DIR",
        help="where the nodes share storage: paths that begin with runs/ begin with DIR/runs/ there",
    )
    add(
        "--env",
        dest="variables",
        action="append",
        default=[],
        metavar="NAME",
        help="send this variable of the environment; may be repeated",
    )
    add("--id", help="the job's id (default: made from job, name and time)")
    add("--detach", action="store_true", help="end when the job is sent")
    add("--check", action="store_true", help="only print what would be sent")
    for name, kind, what in (
        ("num-cpus", float, "CPUs"),
        ("num-gpus", float, "GPUs"),
        ("memory", int, "bytes of memory"),
    ):
        add(
            f"--entrypoint-{name}",
            type=kind,
            metavar="N",
            help=f"{what} to reserve for the job's driver; without any it runs on the head node",
        )
    add(
        "--entrypoint-resources",
        type=_resource,
        action="append",
        default=[],
        metavar="NAME=N",
        help="custom resources to reserve for it; may be repeated",
    )


def submit(options: argparse.Namespace, rest: Sequence[str], environ: Mapping[str, str]) -> int:
    """Check, send and follow a job; returns its exit code, or 130 after Ctrl-C, which it outlives."""
    submission = prepare_submission(
        options.command,
        rest,
        config=options.config,
        storage=options.storage,
        variables=options.variables,
        environ=environ,
        id=options.id,
    )
    needed = resources(options)
    for note in submission.notes:
        print_note(f"note: {note}")
    if options.check:
        print_plan(submission, needed)
        return 0
    server = JobServer(options.address, environ)
    print_note(f"job {submission.id}: sending to {server.address}")
    try:
        server.submit(submission, needed, print_note)
    except KeyboardInterrupt:
        print_note(
            f"interrupted while sending; if it came through, {again(server, STOP, submission.id)} ends it"
        )
        return EXIT_INTERRUPTED
    print_note(f"job {submission.id}: sent; {submission.entrypoint}")
    if options.detach:
        print_note(f"{again(server, TAIL, submission.id)} follows it")
        return 0
    return print_log(server, submission.id)


def print_log(server: JobServer, job: str) -> int:
    """Print a job's log until it ends, and return its exit code; Ctrl-C detaches."""
    try:
        info = server.follow(job, partial(print, end="", flush=True), print_note)
    except KeyboardInterrupt:
        print_note(
            f"detached: job {job} goes on; {again(server, TAIL, job)} follows it again, "
            f"{again(server, STOP, job)} ends it"
        )
        return EXIT_INTERRUPTED
    print_note(f"job {job}: {outcome(info)}")
    return exit_code(info)


def resources(options: argparse.Namespace) -> dict[str, Any]:
    """The driver's reservations, as Ray's client names them. Raises UserError for amounts that are not positive, or
    without an end."""
    amounts: dict[str, Any] = {
        f"entrypoint_{name}": getattr(options, f"entrypoint_{name}")
        for name in ("num_cpus", "num_gpus", "memory")
    }
    given = {name: amount for name, amount in amounts.items() if amount is not None}
    for name, amount in given.items():
        if not 0 < amount < float("inf"):
            raise UserError(f"--{name.replace('_', '-')} {amount}: expected a positive number")
    if options.entrypoint_resources:
        given["entrypoint_resources"] = dict(options.entrypoint_resources)
    return given


def print_plan(submission: Submission, needed: Mapping[str, Any]) -> None:
    """Print what would be sent: of variables, their names."""
    print(f"command    {submission.entrypoint}")
    print(f"code       {submission.runtime_env['working_dir']}, without what .rayignore and .gitignore name")
    print(f"variables  {', '.join(sorted(submission.runtime_env['env_vars']))}")
    reserved = ", ".join(f"{name.removeprefix('entrypoint_')} {amount}" for name, amount in needed.items())
    print(f"driver     {reserved or 'on the head node, with nothing reserved'}")


def print_jobs(jobs: Sequence[Any]) -> None:
    """Print a table of jobs."""
    if not jobs:
        print("no jobs")
        return
    rows = [("ID", "STATUS", "BEGAN", "MINUTES", "COMMAND")]
    for job in jobs:
        began = (job.start_time or 0) / 1000
        ended = job.end_time / 1000 if job.end_time else time.time()
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(began))
        rows.append((job.submission_id, str(job.status), when, f"{(ended - began) / 60:.1f}", job.entrypoint))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        cells = [text.ljust(width) for text, width in zip(row[:4], widths, strict=True)]
        print("  ".join([*cells, row[4]]))


def again(server: JobServer, command: str, job: str) -> str:
    """The command line that does ``command`` to a job."""
    return f"python -m jobs.submit {command} {job} --address {server.address}"


def print_note(line: str) -> None:
    """Print to stderr: stdout is for the job's log."""
    print(line, file=sys.stderr, flush=True)


def _sent_id(text: str) -> str:
    # Ray's client puts it into a URL as it is: the server would answer about another path, which looks like a lost
    # connection.
    if found := set("/?#%").intersection(text):
        raise argparse.ArgumentTypeError(f"{text!r}, expected an id as list shows it, without {min(found)!r}")
    return text


def _resource(text: str) -> tuple[str, float]:
    name, _, amount = text.partition("=")
    try:
        number = float(amount)
    except ValueError:
        number = 0.0
    if not name or not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}, expected NAME=N with a positive number")
    return name, number


if __name__ == "__main__":
    run_main(main)

"""Jobs over two nodes, one of which dies in the middle: they end as if it had not. Real Ray, tiny models."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs import annotate
from jobs.checkpoint_list import FILE
from pasta.config import load_config
from pasta.data.sources import plan_shards
from pasta.data.tokenizers import find_tokenizer
from pasta.training.save import CARD
from tests.jobs.test_annotate import write_config as annotate_config
from tests.support.jobs import Job, registered_step
from tests.support.nodes import Node, Nodes
from tests.training.runs import sft_dict
from tests.training.runs import write_config as sft_config

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def dashboard() -> bool:
    """Whether the head has one: on a cluster that it has joined, Ray Train asks it."""
    return False


@pytest.fixture
def nodes(dashboard: bool) -> Iterator[Nodes]:
    """A head with room for one worker; the other one needs a node more.

    A cluster for each test: for some seconds Ray would put workers on a node that the test before has killed.
    """
    with Nodes(num_cpus=1, dashboard=dashboard) as nodes:
        yield nodes


@pytest.fixture
def other(nodes: Nodes) -> Node:
    """The node that will die."""
    return nodes.add(num_cpus=1)


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """What all nodes share."""
    return tmp_path


@pytest.mark.parametrize("dashboard", [True])
def test_training_goes_on_from_its_last_checkpoint_when_another_node_has_come(
    nodes: Nodes, other: Node, storage: Path
) -> None:
    """Its checkpoints are where a URL says."""
    config = sft_dict(storage, max_steps=60) | {"checkpoints": (storage / "bucket").as_uri()}
    job = Job("sft", sft_config(storage, config), environment=nodes.environment)
    try:
        job.wait_for(lambda: registered_step(storage, "bucket/tiny-*") is not None)
        assert other.workers("RayTrainWorker")
        assert nodes.head.workers("RayTrainWorker")
        nodes.kill(other)
        step = registered_step(storage, "bucket/tiny-*")
        replacement = nodes.add(num_cpus=1)
        job.wait_for(lambda: bool(replacement.workers("RayTrainWorker")))
        job.wait_for(lambda: "training resumed at step" in job.output)
        assert job.end() == 0, job.output
    finally:
        job.close()
    (line,) = [line for line in job.lines if "training resumed at step" in line]
    assert step is not None
    assert int(line.split("resumed at step ")[1].split(";")[0]) >= step
    card = json.loads((storage / "model" / CARD).read_text())
    assert card["figures"]["steps"] == 60
    assert not [*(storage / "runs").rglob(FILE)]


def test_annotation_ends_on_the_nodes_that_are_left_with_all_of_its_records(
    nodes: Nodes, other: Node, storage: Path
) -> None:
    path = annotate_config(
        storage,
        data__source={"path": "atlas", "records": 3000, "seed": 1},
        data__annotator="atlas",
        data__tokenizer="atlas",
        data__shard_records=50,
    )
    job = Job("annotate", path, environment=nodes.environment)
    try:
        job.wait_for(
            lambda: bool(other.workers("_Worker")) and len([*storage.glob(".out.*.partial/shard-*.json")]) > 3
        )
        nodes.kill(other)
        assert not (storage / "out").exists()
        assert job.end() == 0, job.output
    finally:
        job.close()
    summary = json.loads((storage / "out" / "summary.json").read_text())
    assert summary["records"] == 3000
    assert contents(storage / "out") == contents(alone(path, storage / "alone"))


def contents(directory: Path) -> dict[str, str]:
    """The records that an annotation has left, by file."""
    return {file.name: file.read_text() for file in sorted(directory.glob("*.jsonl"))}


def alone(path: Path, directory: Path) -> Path:
    """The same shards in this process, one after another."""
    config = load_config(path, annotate.AnnotateConfig)
    directory.mkdir()
    find_tokenizer(config.data.tokenizer).save_pretrained(directory / annotate.TOKENIZER)
    shards = plan_shards(config.data.source, config.data.shard_records)
    work = annotate.make_worker(config.data, directory, 1)
    for shard in shards:
        work(shard)
    return directory

"""Training data on disk: examples from the atlas or from a JSONL file, packed into rows. Made once, then found again.

A prepared directory holds ``train/`` and, if asked for, ``eval/`` (Arrow), ``tokenizer/``, and ``manifest.json`` with
its figures. It is named after a fingerprint of everything that it was made from, and appears only when it is complete.
"""

import hashlib
import itertools
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pasta.data import atlas
from pasta.data.annotate.finished import check_all_shards
from pasta.data.atlas.corpus import atlas_answers
from pasta.data.atlas_keys import ATLAS, MAX_SHARDS, SHARD_DOCUMENTS
from pasta.data.encoding import (
    BLOCK_ANSWERS,
    COUNTS,
    Encoded,
    annotated,
    in_processes,
    make_encoder,
    make_examples,
    read_answers,
)
from pasta.data.linearise import Example
from pasta.data.packing import join_saved, save_packed
from pasta.data.sections import DataSection
from pasta.errors import UserError
from pasta.files import ANNOTATED, annotated_files, full_disk_told, writing
from pasta.lang import Codec
from pasta.lang.positions import DEFAULT
from pasta.lang.tokenizer import stored_scheme
from pasta.rows import read_json
from pasta.stages.progress import Progress

TOKENIZER_DIR = "tokenizer"
# A change of the columns or of what they mean makes older directories stale.
FORMAT = 2
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared directory and its figures; tokens count prompts and responses, targets the rows with loss.

    ``num_too_long`` and ``num_eval_too_long`` are the answers above ``max_length`` that are left out of training and of
    the held-out data, in ``mode: both`` each form for itself. ``num_eval_trained`` held-out documents have a prompt
    that is trained on, too. Of ``num_chunks`` chunks of a file or a stage, ``num_other_lengths`` have another length in
    this tokenizer than their estimates say; both are 0 for the atlas and in ``mode: sequential``. What data of earlier
    commits did not count is 0.
    """

    path: Path
    num_documents: int
    num_rows: int
    num_tokens: int
    num_targets: int
    num_too_long: int
    num_eval_rows: int
    reused: bool
    num_eval_too_long: int = 0
    num_eval_trained: int = 0
    num_chunks: int = 0
    num_other_lengths: int = 0


def prepare_data(
    options: DataSection, tokenizer: Any, cache_dir: Path, num_processes: int = 1, name: str = "data"
) -> Prepared:
    """Make the packed data set of ``options`` under ``cache_dir``, or find it made before. Where there is much of it,
    says after ``name`` how far it is.

    Raises UserError for a missing, empty or broken JSONL file.
    """
    write = partial(_write, options, tokenizer, num_processes, name)
    path, counts, reused = prepare_once(cache_dir / _fingerprint(options, tokenizer), tokenizer, write)
    return Prepared(path=path, reused=reused, **counts)


def prepare_once(
    target: Path, tokenizer: Any, write: Callable[[Path], dict[str, int]]
) -> tuple[Path, dict[str, int], bool]:
    """The directory ``target`` with what ``write`` puts into it, its counts, and whether it had been made before.

    It also holds the tokenizer and a ``manifest.json`` of the counts, and appears only when it is complete. Where
    ``write`` fails, no directory stays that was not there.
    """
    manifest = target / "manifest.json"
    if manifest.is_file():
        return target, read_json(manifest), True
    staging = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(staging, ignore_errors=True)
    made = [directory for directory in staging.parents if not directory.exists()]
    with writing(staging):
        staging.mkdir(parents=True)
    try:
        with full_disk_told(target, "run_dir"):  # which holds all that is prepared
            tokenizer.save_pretrained(staging / TOKENIZER_DIR)
            counts = write(staging)
            (staging / "manifest.json").write_text(json.dumps(counts, indent=2) + "\n", encoding="utf-8")
        try:
            staging.rename(target)
        except OSError:
            # Another process made the same data in the meantime.
            if not manifest.is_file():
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        for directory in made:
            with suppress(OSError):  # it holds the data, or something of another process
                directory.rmdir()
    return target, counts, False


def data_files(source: Path) -> list[Path]:
    """The JSONL files of ``source``: itself, or the shards in a stage directory that jobs.annotate has made.

    Raises UserError if there are none, or not all of a stage's.
    """
    files = annotated_files(source)
    if not files:
        raise UserError(
            f"data.source: {source}: no {ANNOTATED} in it; expected a stage directory of jobs.annotate, a JSONL file "
            "or 'atlas'"
        )
    check_all_shards(source, "data.source")
    return files


def _write(
    options: DataSection, tokenizer: Any, num_processes: int, name: str, directory: Path
) -> dict[str, int]:
    if options.source == ATLAS:
        return _write_atlas(options, tokenizer, num_processes, name, directory)
    files = data_files(Path(options.source))
    # Before the work, which takes a while: a line that is broken.
    found = sum(1 for _ in map(annotated, itertools.islice(read_answers(files), options.documents)))
    if not found:
        raise UserError(f"data.source: {options.source}: no annotated answers in it")
    if (cut := found - options.eval_documents) < 1:
        raise UserError(
            f"data.eval_documents: {options.eval_documents} of {found} answers of {options.source} are "
            f"held out, which leaves none to train on; expected at most {found - 1}"
        )
    rows = itertools.islice(read_answers(files), found)
    counts, prompts = Counter[str](), set[bytes]()
    blocks = range(0, cut, BLOCK_ANSWERS)
    progress = Progress(name, cut, "answers") if len(blocks) > 1 else None
    make = partial(make_encoder, options, tokenizer)

    def examples() -> Iterator[Example]:
        taken = ((first, list(itertools.islice(rows, min(BLOCK_ANSWERS, cut - first)))) for first in blocks)
        for encoded in in_processes(make, taken, min(num_processes, len(blocks))):
            counts.update(encoded.counts)
            prompts.update(encoded.prompts)
            yield from encoded.examples
            if progress is not None:
                progress.add(encoded.counts["num_documents"])

    num_rows = _save(examples(), options, counts, directory / "train")
    left = list(rows)
    held_out = make()((cut, left)) if left else Encoded([], Counter(), [])
    return {
        **{key: counts[key] for key in COUNTS},
        **{key: counts[key] + held_out.counts[key] for key in ("num_chunks", "num_other_lengths")},
        "num_rows": num_rows,
        "num_eval_rows": save_packed(held_out.examples, options.row_length, directory / "eval"),
        "num_eval_too_long": held_out.counts["num_too_long"],
        "num_eval_trained": sum(prompt in prompts for prompt in held_out.prompts),
    }


def _save(
    examples: Iterable[Example], options: DataSection, counts: Mapping[str, int], directory: Path
) -> int:
    """Save the rows of examples, whose making fills ``counts``; returns how many rows there are."""
    num_rows = save_packed(examples, options.row_length, directory)
    if not num_rows:
        raise UserError(
            f"data.source: {options.source}: no example to train on: all "
            f"{counts['num_too_long']} are longer than data.max_length={options.max_length}"
        )
    return num_rows


def _write_atlas(
    options: DataSection, tokenizer: Any, num_processes: int, name: str, directory: Path
) -> dict[str, int]:
    """The training rows, made in shards: shard i has a seed of its own, so that any number of processes agree."""
    assert options.documents is not None
    firsts = range(0, options.documents, SHARD_DOCUMENTS)
    sizes = [min(SHARD_DOCUMENTS, options.documents - first) for first in firsts]
    assert len(sizes) <= MAX_SHARDS
    shards = [directory / f"shard-{index}" for index in range(len(sizes))]
    tasks = zip(range(len(sizes)), sizes, shards, strict=True)
    progress = Progress(name, options.documents, "answers") if len(sizes) > 1 else None
    counts = Counter[str]()
    for found in in_processes(
        partial(_make_shards, options, tokenizer), tasks, min(num_processes, len(sizes))
    ):
        counts.update(found)
        if progress is not None:
            progress.add(found["num_documents"])
    join_saved(shards, directory / "train")
    held_out = Counter[str]()
    num_eval_rows = 0
    if options.eval_documents:
        codec = Codec(tokenizer)
        # The seed is the data's own: twins see the same held-out tasks.
        answers = atlas_answers(
            options.seed, "heldout", options.eval_documents, codec=codec, talk=options.talk
        )
        examples = make_examples(answers, codec, options, held_out)
        num_eval_rows = save_packed(examples, options.row_length, directory / "eval")
    return {
        **{key: counts[key] for key in (*COUNTS, "num_rows")},
        "num_eval_rows": num_eval_rows,
        "num_eval_too_long": held_out["num_too_long"],
    }


def _make_shards(
    options: DataSection, tokenizer: Any
) -> Callable[[tuple[int, int, Path]], Mapping[str, int]]:
    codec = Codec(tokenizer)

    def work(task: tuple[int, int, Path]) -> Mapping[str, int]:
        index, size, directory = task
        answers = atlas_answers(
            options.seed * MAX_SHARDS + index,
            "train",
            size,
            codec=None if options.mode == "sequential" else codec,
            mixture=options.mixture,
            echo=options.echo,
            talk=options.talk,
        )
        counts = Counter[str]()
        num_rows = _save(make_examples(answers, codec, options, counts), options, counts, directory)
        return {**counts, "num_rows": num_rows}

    return work


def _fingerprint(options: DataSection, tokenizer: Any) -> str:
    values = {"format": FORMAT, **asdict(options)}
    del values["eval_answers"]
    if options.syncs:
        del values["syncs"]
    if options.source == ATLAS:
        values["world"] = _tree_digest(Path(atlas.__file__).parent)
    else:
        try:
            digest = hashlib.sha256()
            for path in data_files(Path(options.source)):
                with path.open("rb") as file:
                    while block := file.read(_BLOCK_BYTES):
                        digest.update(block)
            values["content"] = digest.hexdigest()
        except OSError:
            raise UserError(
                f"data.source: {options.source}: no such file; expected 'atlas' or a JSONL file"
            ) from None
    return data_fingerprint(values, tokenizer)


def data_fingerprint(values: dict[str, Any], tokenizer: Any) -> str:
    """The name of data that depend on ``values`` and on a tokenizer: on its vocabulary and rules, template, special
    tokens and rule of positions."""
    values |= {"vocabulary": sorted(tokenizer.get_vocab().items()), "chat_template": tokenizer.chat_template}
    values["special_tokens"] = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    if (backend := getattr(tokenizer, "backend_tokenizer", None)) is not None:
        rules = json.loads(backend.to_str())
        # The others are how it was last used.
        values["rules"] = [rules[name] for name in ("model", "normalizer", "pre_tokenizer", "post_processor")]
    if (scheme := stored_scheme(tokenizer)) != DEFAULT:
        values["positions"] = scheme
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def _tree_digest(root: Path) -> str:
    """A digest of the atlas' code, facts and words: a change of any makes other tasks."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.suffix in {".py", ".csv", ".toml"}:
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()

"""Training data on disk: examples from the atlas or from a JSONL file, packed into rows. Made once, then found again.

A prepared directory holds ``train/`` and, if asked for, ``eval/`` (Arrow), ``tokenizer/``, and ``manifest.json`` with
its figures. It is named after a fingerprint of everything that it was made from, and appears only when it is complete.
"""

import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from datasets import concatenate_datasets, load_from_disk

from pasta.data import atlas
from pasta.data.annotate.finished import check_all_shards
from pasta.data.atlas.corpus import Annotated, atlas_answers
from pasta.data.atlas.plan import token_counter
from pasta.data.atlas_keys import ATLAS, MAX_SHARDS, SHARD_DOCUMENTS
from pasta.data.linearise import FORMS, Example, make_example, without_syncs
from pasta.data.packing import to_dataset
from pasta.data.sections import DataSection
from pasta.errors import UserError
from pasta.files import ANNOTATED, annotated_files, full_disk_told, writing
from pasta.interpreter import IGNORE
from pasta.lang import Codec, CodecError, parse
from pasta.lang.document import in_tens
from pasta.lang.positions import DEFAULT
from pasta.lang.tokenizer import stored_scheme
from pasta.rows import asked, messages_of, placed, prompt_of, read_json, read_rows, text_of

TOKENIZER_DIR = "tokenizer"
# A change of the columns or of what they mean makes older directories stale.
FORMAT = 1
_ROW = '{"messages": [{"role", "content"}], "annotated": text}'


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


def prepare_data(options: DataSection, tokenizer: Any, cache_dir: Path, num_processes: int = 1) -> Prepared:
    """Make the packed data set of ``options`` under ``cache_dir``, or find it made before.

    Raises UserError for a missing, empty or broken JSONL file.
    """
    write = partial(_write, options, tokenizer, num_processes)
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


def read_jsonl(path: Path) -> Iterator[Annotated]:
    """Messages and annotated answers of a JSONL file of ``{"messages": [...], "annotated": text form}``, or with
    ``"prompt"``, a text, for a single message.

    Raises UserError, naming the line, for a line that is not such an object.
    """
    for place, row in read_rows(path, key="data.source", expected="'atlas' or a JSONL file", row=_ROW):
        with placed(place):
            messages, text = asked(prompt_of(row) or messages_of(row)), text_of(row, "annotated")
        with placed(f"{place}: annotated"):
            document = parse(text)
        yield messages, document


class _Counter:
    """Makes examples of annotated answers that fit a row; counts those that fit and those that do not.

    Iterating raises UserError for an answer that has no tokens, numbered as in the source: ``before`` others stand
    there before these.
    """

    def __init__(
        self, annotated: Iterable[Annotated], codec: Codec, options: DataSection, before: int = 0
    ) -> None:
        self._annotated = annotated
        self._before = before
        self._codec = codec
        self._options = options
        self.counts = {"num_documents": 0, "num_tokens": 0, "num_targets": 0, "num_too_long": 0}

    def __iter__(self) -> Iterator[Example]:
        counts = self.counts
        for messages, document in self._annotated:
            counts["num_documents"] += 1
            if not self._options.syncs:
                document = without_syncs(document)
            for form in FORMS[self._options.mode]:
                try:
                    example = make_example(self._codec, messages, document, form)
                except CodecError as error:
                    raise UserError(
                        f"data.source: {self._options.source}: answer {self._before + counts['num_documents']}: {error}"
                    ) from None
                if len(example) > self._options.max_length:
                    counts["num_too_long"] += 1
                    continue
                counts["num_tokens"] += len(example)
                counts["num_targets"] += sum(label != IGNORE for label in example.shift_labels)
                yield example


def _write(options: DataSection, tokenizer: Any, num_processes: int, directory: Path) -> dict[str, int]:
    codec, train, held_out, num_eval_trained = Codec(tokenizer), directory / "train", None, 0
    documents: list[Annotated] = []
    if options.source == ATLAS:
        counts = _write_atlas(options, tokenizer, train, num_processes)
        if options.eval_documents:
            # The seed is the data's own: twins see the same held-out tasks.
            tasks = atlas_answers(
                options.seed, "heldout", options.eval_documents, codec=codec, talk=options.talk
            )
            held_out = _Counter(tasks, codec, options)
    else:
        files = data_files(Path(options.source))
        read = itertools.chain.from_iterable(read_jsonl(path) for path in files)
        documents = list(itertools.islice(read, options.documents))
        if not documents:
            raise UserError(f"data.source: {options.source}: no annotated answers in it")
        if (cut := len(documents) - options.eval_documents) < 1:
            raise UserError(
                f"data.eval_documents: {options.eval_documents} of {len(documents)} answers of {options.source} are "
                f"held out, which leaves none to train on; expected at most {len(documents) - 1}"
            )
        counts = _save(_Counter(documents[:cut], codec, options), options, train)
        if cut < len(documents):
            held_out = _Counter(documents[cut:], codec, options, before=cut)
            trained = {json.dumps(messages) for messages, _ in documents[:cut]}
            num_eval_trained = sum(json.dumps(messages) in trained for messages, _ in documents[cut:])
    num_eval_rows = num_eval_too_long = 0
    if held_out is not None:
        rows = to_dataset(held_out, options.row_length)
        num_eval_rows, num_eval_too_long = len(rows), held_out.counts["num_too_long"]
        if num_eval_rows:
            rows.save_to_disk(str(directory / "eval"))
    estimated = () if options.mode == "sequential" else [document for _, document in documents]
    chunks = [chunk for document in estimated for chunk in document.chunks()]
    count_tokens = token_counter(codec)
    return {
        **counts,
        "num_rows": len(load_from_disk(str(train))),
        "num_eval_rows": num_eval_rows,
        "num_eval_too_long": num_eval_too_long,
        "num_eval_trained": num_eval_trained,
        "num_chunks": len(chunks),
        "num_other_lengths": sum(chunk.tokens != in_tens(count_tokens(chunk.items)) for chunk in chunks),
    }


def _save(examples: _Counter, options: DataSection, directory: Path) -> dict[str, int]:
    rows = to_dataset(examples, options.row_length)
    if not len(rows):
        raise UserError(
            f"data.source: {options.source}: no example to train on: all "
            f"{examples.counts['num_too_long']} are longer than data.max_length={options.max_length}"
        )
    rows.save_to_disk(str(directory))
    return examples.counts


def _write_atlas(options: DataSection, tokenizer: Any, directory: Path, num_processes: int) -> dict[str, int]:
    """The training rows, made in shards: shard i has a seed of its own, so that any number of processes agree."""
    assert options.documents is not None
    sizes = [
        min(SHARD_DOCUMENTS, options.documents - first)
        for first in range(0, options.documents, SHARD_DOCUMENTS)
    ]
    assert len(sizes) <= MAX_SHARDS
    shards = [directory.parent / f"shard-{index}" for index in range(len(sizes))]
    write = partial(_write_shard, options, tokenizer)
    workers = min(num_processes, len(sizes))
    if workers > 1:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            counts = list(pool.map(write, range(len(sizes)), sizes, shards))
    else:
        counts = list(map(write, range(len(sizes)), sizes, shards))
    concatenate_datasets([load_from_disk(str(shard)) for shard in shards]).save_to_disk(str(directory))
    for shard in shards:
        shutil.rmtree(shard)
    return {key: sum(count[key] for count in counts) for key in counts[0]}


def _write_shard(
    options: DataSection, tokenizer: Any, index: int, size: int, directory: Path
) -> dict[str, int]:
    codec = Codec(tokenizer)
    tasks = atlas_answers(
        options.seed * MAX_SHARDS + index,
        "train",
        size,
        codec=None if options.mode == "sequential" else codec,
        mixture=options.mixture,
        echo=options.echo,
        talk=options.talk,
    )
    return _save(_Counter(tasks, codec, options), options, directory)


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
                digest.update(path.read_bytes())
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

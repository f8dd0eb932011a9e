"""What is fuzzed: functions of bytes that anybody may have written.

Each returns quietly where the input is refused by an error that is meant for users. Anything else
that gets out, a round trip that fails included, is a finding. The harness `fuzz_run.py` calls them
under coverage guidance, `test_fuzz_*.py` with what hypothesis makes up.
"""

import io
import json
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from helpers.command import TINY_STUDY
from helpers.making import make_record

from tune_speed.core.comparability import board_key
from tune_speed.core.errors import ConfigError, StorageError, TuneSpeedError
from tune_speed.core.records import Recommended
from tune_speed.study.file import parse_recipe
from tune_speed.study.space import SearchSpace
from tune_speed.study.validation import study_mistakes
from tune_speed.study.yaml import dump_yaml, scan_yaml
from tune_speed.tracking import schema
from tune_speed.tracking.filter.where import Where, parse_where

STUDIES = (
    TINY_STUDY,
    "workload: digits\nrecipe: {model: resnet20, optimizer: {sgd: {lr: 0.1}}, epochs: 1,"
    " batch_size: 25}\nrun: {seed: 1, device: cpu}\n",
    "study: &a x\nworkload: {dataset: {name: image_folder, root: *a, image_size: 8}}\n",
    "recipe: {model: {choices: {resnet20: , timm: {name: resnet18}}}, speedups: {ema: {}}}\n",
    'a: "\\x41\\u263a"\nb: |\n  text\nc: [1e-3, 0x1F, 0o17, .5, true, ~, !!str 5]\n? d\n: <<\n',
    "search: {time_budget: 1h30m, points_to_evaluate: [{optimizer.sgd.lr: 0.1}]}\n",
)
FILTERS = (
    "optimizer=sgd and batch_size>=512",
    "status in (reached, missed) or not (lr > 1e-3)",
    "device ~ 'H200' and slowdown is not none",
    '"optimizer.sgd.lr" = 0.1',
    "n != 5 and study == 'it''s'",
    "a.b-c not in (1, true, 'x')",
)

FAVOURITE = Recommended(trial_id="t0000", runs=4, hits=3, expected_s=2.5)
KEY = board_key(make_record())
TAGS = {
    **schema.pack_record(make_record()),
    **schema.pack_favourites([FAVOURITE], KEY),
    schema.FACTS: json.dumps(schema.facts_of(make_record())),
}
TAG_READERS = (schema.unpack_record, schema.unpack_favourites, schema.unpack_facts)


def read_yaml(data: bytes) -> None:
    """Reads YAML and writes it again."""
    try:
        source = scan_yaml(data.decode("utf-8", "replace"), file="fuzz.yaml")
    except ConfigError as error:
        assert str(error).isprintable()
        return
    assert all(str(problem).isprintable() for problem in source.problems)
    if not source.problems and source.tree is not None:
        assert scan_yaml(dump_yaml(source.tree)).tree == source.tree


def read_study(data: bytes) -> None:
    """Reads a study file, as `search` and `train` do."""
    text = data.decode("utf-8", "replace")
    try:
        source = scan_yaml(text, file="fuzz.yaml")
    except ConfigError:
        return
    mistakes = list(study_mistakes(source, check_data=False))
    for mistake in mistakes:
        shown = str(mistake.problem(source))
        assert shown.isprintable(), shown
    if not mistakes and not source.problems:
        SearchSpace.from_tree(source.tree["recipe"])
    with suppress(TuneSpeedError):
        parse_recipe(text, file="fuzz.yaml", check_data=False)


def read_filter(data: bytes) -> None:
    """Reads a filter, and asks it of a trial and of a store."""
    try:
        where = parse_where(data.decode("utf-8", "replace"))
    except ConfigError as error:
        assert str(error)
        return
    _ask(where)


def _ask(where: Where) -> None:
    record = _record()
    with suppress(ConfigError):  # A name may mean several settings.
        where.matches(record)
    with suppress(ConfigError):
        where.check([record])
    assert where.fields


@cache
def _record() -> Any:
    recipe = {"optimizer": {"sgd": {"lr": 0.1, "momentum": 0.9}}, "batch_size": 64, "compile": True}
    return make_record(params={"optimizer.sgd.lr": 0.1}).model_copy(update={"recipe": recipe})


def read_tags(data: bytes) -> None:
    """Reads what MLflow says of a trial and of a search, each tag with the same text."""
    text = data.decode(errors="replace")
    for read in TAG_READERS:
        read(dict.fromkeys(TAGS, text))


def _opens(log: Any) -> Any:
    return lambda folder: log(folder / "ledger.jsonl")


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def read_ledger(data: bytes) -> None:
    """Reads a study's ledger, a certification's and an ablation's."""
    from tune_speed.experiments.ablation.result import AblationLedger
    from tune_speed.experiments.certification.schedule import CertifyLedger
    from tune_speed.tuning.driver import ledger

    path = Path(_folder().name) / "ledger.jsonl"
    for read in (ledger.Ledger, _opens(CertifyLedger), _opens(AblationLedger)):
        path.write_bytes(data)
        try:
            with patch.object(ledger, "BALLAST_BYTES", 1), read(path.parent):
                pass
        except StorageError as error:
            assert f"{path}:" in str(error)


def ledgers() -> Iterator[bytes]:
    """Yields ledgers as drivers write them, in small."""
    record = make_record("t0000").model_dump(mode="json")
    proposed = {"event": "proposed", "trial_id": "t0000", "params": {"lr": 0.1}, "seed": 1}
    events = [
        {"event": "study", "study": "s", "workload_hash": "ab", "protocol_version": 1},
        {"event": "warm_start", "study": "old", "trials": []},
        proposed | {"reason": "first", "cost": [1.0, 2.0]},
        {"event": "interrupted", "trial_id": "t0000", "reason": "Ctrl-C"},
        {"event": "finished", "record": record},
    ]
    begin = {"event": "begin", "workload": "digits"}
    turn = {"event": "run", "stage": "final", "round": 1, "name": "a", "seed": 1, "record": record}
    tuned = {"event": "tuned", "arm": "a", "factor": 0.5, "seed": 1, "record": record}
    facts = {"event": "described", "name": "a", "facts": {}, "is_last": True}
    certified = [begin, facts, turn]
    ablated = [begin, tuned, {"event": "ran", "arm": "a", "block": 1, "record": record}]
    for some in (events[:3], [*events[:1], events[4]], events, certified, ablated):
        yield b"".join(json.dumps(event).encode() + b"\n" for event in some)


def read_checkpoint(data: bytes) -> None:
    """Reads a checkpoint: as it is, and as a payload whose digest is right."""
    from tune_speed.training.checkpoint.checkpoints import load, progress_of
    from tune_speed.training.checkpoint.store import BadCheckpoint, peek, split

    for content in (data, whole_checkpoint(data)):
        with suppress(BadCheckpoint):
            peek(content[:200_000])
        try:
            header, payload = split(content)
            assert len(payload) >= header.num_bytes
            state = load(payload)
        except BadCheckpoint as error:
            assert str(error)
            continue
        with suppress(ValueError, KeyError, TypeError):
            progress_of(state)


def whole_checkpoint(payload: bytes) -> bytes:
    """Returns a checkpoint whose form is right, whatever its payload is."""
    from tune_speed.training.checkpoint.store import Header, head

    header = Header(
        identity={"study": "s", "seed": "0"},
        step=1,
        num_steps=2,
        recipe={"batch_size": 25},
        first_batch_size=25,
        started_at="2026-01-01T00:00:00+00:00",
        num_bytes=len(payload),
    )
    return head(header, io.BytesIO(payload)) + payload


@cache
def saved_state() -> bytes:
    """Returns a payload as runs write it, in small."""
    import torch

    state = {
        "weights": {"a": torch.arange(6.0).reshape(2, 3)},
        "optimizer": {
            "state": {0: {"momentum_buffer": torch.ones(2)}},
            "param_groups": [{"lr": 1}],
        },
        "progress": "{}",
        "scores": None,
        "ranks": [{"buffers": {}, "random": {"cpu": torch.zeros(4, dtype=torch.uint8)}}],
    }
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()

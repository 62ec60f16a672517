"""Location of weights: from a --ckpt string to a file and the config beside it, downloaded if necessary."""

import json
import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from vitcli.errors import VitError, WeightsError
from vitcli.output.atomic import load_json
from vitcli.output.progress import Progress
from vitcli.weights.download import CARD, fetch_address, fetch_repository
from vitcli.weights.files import (
    StoredTensors,
    as_weights_error,
    attribute_errors_to,
    file_error,
    no_repeated_keys,
    read_stored,
)
from vitcli.weights.names import (
    DEMO,
    FILE_NAMES,
    FORMATS,
    INDEX,
    WEIGHTS_NAMES,
    check_local,
    registered,
    resolve,
    suggest,
)  # fmt: skip

LAYERED = "layered_at_the_end"  # in the metadata of a run whose checkpoints have an ordinary head
CHECKPOINT = r"checkpoints/step_\d{7}"  # a folder from which a run can resume
DEMO_FOLDER = Path(__file__).parent.parent / "demo_weights"


class WeightsSource(NamedTuple):
    """A weights file and the configs beside it.

    Attributes:
        config: the config.json of timm or Hugging Face, or {}.
        preprocessor: Hugging Face's preprocessor_config.json, or {}.
        tag: of a timm repository on the Hub, or "".
        name: of the repository, or the address; "" for a local file.
        card: the README.md of its folder or repository, which need not be there.
    """

    file: Path
    config: dict
    preprocessor: dict
    format: str
    tag: str
    name: str = ""
    card: Path | None = None


def locate(ckpt: str, progress: Progress, *, with_note: bool = True) -> WeightsSource:
    """Return the file behind any form of --ckpt, downloaded if necessary.

    Args:
        progress: shows a download, and `with_note` how a short name was read.
    """
    reference = resolve(ckpt)
    if with_note and reference.note and os.environ.get("RANK", "0") == "0":
        progress.note(reference.note)
    match reference.kind:
        case "demo":
            if not DEMO_FOLDER.is_dir():
                raise file_error("this installation has no demo weights", fix="install the released package")
            return _in_folder(DEMO_FOLDER, format=DEMO)
        case "hub":
            try:
                file = fetch_repository(reference.place, reference.revision, reference.file, progress)
            except WeightsError as error:
                if reference.place.startswith("timm/") and not reference.network:  # unknown to this timm
                    error.message += suggest(reference.place)
                raise
            configs, card = _configs(file.parent), file.parents[reference.file.count("/")] / CARD
            return WeightsSource(file, *configs, "hub repository", reference.tag, reference.place, card)
        case "address":
            try:
                file = fetch_address(reference.place, progress)
            except VitError as error:
                if reference.also:
                    error.fix += f"; timm has the same weights: {reference.also}"
                raise
            config = _timms_config(reference.network)
            return WeightsSource(file, config, {}, FORMATS[file.suffix], reference.tag, reference.place)
    path = Path(ckpt)
    check_local(path)
    if path.is_dir():
        return _in_folder(path, format="timm folder")
    # A config.json beside a file of any other name may belong to another file
    has_config = path.name.removesuffix(INDEX) in WEIGHTS_NAMES
    format = FORMATS.get(path.suffix, "list of shards")
    configs = _configs(path.parent) if has_config else ({}, {})
    return WeightsSource(path, *configs, format, "", card=path.with_name(CARD) if has_config else None)


def read_source(source: WeightsSource, *, values: bool = True) -> StoredTensors:
    """Read a file as `read_stored` does; errors in a downloaded one name its place, to delete it there."""
    if not source.name:
        return read_stored(source.file, values=values)
    with attribute_errors_to(str(source.file)):
        return read_stored(source.file, values=values)


def _timms_config(network: str) -> dict[str, Any]:
    """Return the config.json that timm's weights at an address of their own would have beside them."""
    if not network:
        return {}
    known = registered(network)
    config = {"architecture": known.architecture, "num_classes": known.num_classes}
    return config | {"pretrained_cfg": json.loads(json.dumps(asdict(known), default=str))}


def _in_folder(folder: Path, *, format: str) -> WeightsSource:
    check_local(folder)
    file = next(folder / name for name in FILE_NAMES if (folder / name).is_file())
    config, preprocessor = _configs(folder)
    if not config and re.fullmatch(CHECKPOINT, "/".join(folder.resolve().parts[-2:])):
        averaged = folder / "average.safetensors"  # which the run evaluates and, at its end, publishes
        file = averaged if averaged.is_file() else file
        return WeightsSource(file, _config_of_run(folder.resolve()), {}, format, "")
    is_foreign = format == "timm folder" and "model_type" in config
    format = "Hugging Face folder" if is_foreign else format
    return WeightsSource(file, config, preprocessor, format, "", card=folder / CARD)


def _config_of_run(checkpoint: Path) -> dict:
    """Return the config.json of the run that saved a checkpoint, with the checkpoint's own step, or {}."""
    config, _ = _configs(checkpoint.parents[1])
    vit = config.get("vit")
    if not isinstance(vit, dict) or not isinstance(vit.get("metadata"), dict):
        return {}
    metadata = {key: value for key, value in vit["metadata"].items() if key != "top1"}  # of the end
    metadata["steps"] = int(checkpoint.name.removeprefix("step_"))
    changed = {"metadata": metadata}
    if metadata.pop(LAYERED, False) and isinstance(arch := vit.get("architecture"), dict):
        changed["architecture"] = {key: value for key, value in arch.items() if key != "head_layers"}
    return config | {"vit": vit | changed}


def _configs(folder: Path) -> tuple[dict, dict]:
    """Read config.json and preprocessor_config.json; {} for one that is missing or of some other tool."""
    config, preprocessor = (_json(folder / f"{name}.json") for name in ("config", "preprocessor_config"))
    is_known = isinstance(config.get("architecture"), str) or isinstance(config.get("model_type"), str)
    return (config if is_known else {}), preprocessor


def _json(path: Path) -> dict:
    if not path.is_file():
        return {}
    with as_weights_error(path.name):
        stored = load_json(path, object_pairs_hook=no_repeated_keys)
    return stored if isinstance(stored, dict) else {}

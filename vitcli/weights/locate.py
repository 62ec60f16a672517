"""Location of weights: from a --ckpt string to a file and the config beside it, local or on the Hub."""

import json
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from vitcli.errors import nearest, reason_of
from vitcli.weights.files import FORMATS, as_weights_error, file_error, no_repeated_keys

DEMO_FOLDER = Path(__file__).parent.parent / "demo_weights"
FORMS = "a run folder, a .safetensors, .npz or .pth file, timm/NAME.TAG, hf-hub:OWNER/NAME, or demo"
WEIGHTS_FILES = ("model.safetensors", "pytorch_model.bin")


class WeightsSource(NamedTuple):
    """A weights file and the configs beside it.

    Attributes:
        config: the config.json of timm or Hugging Face, or {}.
        preprocessor: Hugging Face's preprocessor_config.json, or {}.
        tag: of a timm repository on the Hub, or "".
    """

    file: Path
    config: dict
    preprocessor: dict
    format: str
    tag: str


def names_weights(ckpt: str) -> bool:
    """Return whether this is a form of --ckpt and not a model name."""
    is_form = ckpt == "demo" or ckpt.startswith(("hf-hub:", "timm/")) or Path(ckpt).suffix in FORMATS
    return is_form or Path(ckpt).exists()


def locate(ckpt: str) -> WeightsSource:
    """Return the file behind any form of --ckpt, downloaded from the Hub if necessary."""
    if ckpt == "demo":
        if not DEMO_FOLDER.is_dir():
            raise file_error("this installation has no demo weights", fix="install the released package")
        return _in_folder(DEMO_FOLDER, format="demo", tag="")
    path = Path(ckpt)
    if ckpt.startswith("hf-hub:") or (ckpt.startswith("timm/") and not path.exists()):
        repository, _, revision = ckpt.removeprefix("hf-hub:").partition("@")
        tag = repository.partition(".")[2] if repository.startswith("timm/") else ""
        return _in_folder(_download(repository, revision or None), format="hub repository", tag=tag)
    if path.is_dir():
        return _in_folder(path, format="timm folder", tag="")
    if not path.exists():
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        hint = nearest(path.name, siblings)
        raise file_error(f"there is no {ckpt}{hint}", fix=f"--ckpt takes {FORMS}")
    if path.suffix == ".onnx":
        fix = "run it with onnxruntime, or name the run folder that it was exported from"
        raise file_error(f"{path.name} is an exported graph, which holds no weights to load", fix=fix)
    if path.suffix not in FORMATS:
        raise file_error(f"{path.name} has no suffix of a weights file", fix=f"--ckpt takes {FORMS}")
    # A config.json beside a file of any other name may belong to another file
    configs = _configs(path.parent) if path.name in WEIGHTS_FILES else ({}, {})
    return WeightsSource(path, *configs, FORMATS[path.suffix], "")


def _in_folder(folder: Path, *, format: str, tag: str) -> WeightsSource:
    file = next((folder / name for name in WEIGHTS_FILES if (folder / name).is_file()), None)
    if file is None:
        fix = "let the run finish first; its checkpoints/ are only for resuming"
        raise file_error(f"the folder has no {' and no '.join(WEIGHTS_FILES)}", fix=fix)
    config, preprocessor = _configs(folder)
    is_foreign = format == "timm folder" and "model_type" in config
    return WeightsSource(file, config, preprocessor, "Hugging Face folder" if is_foreign else format, tag)


def _configs(folder: Path) -> tuple[dict, dict]:
    """Read config.json and preprocessor_config.json; {} for one that is missing or of some other tool."""
    config, preprocessor = (_json(folder / f"{name}.json") for name in ("config", "preprocessor_config"))
    is_known = isinstance(config.get("architecture"), str) or isinstance(config.get("model_type"), str)
    return (config if is_known else {}), preprocessor


def _json(path: Path) -> dict:
    if not path.is_file():
        return {}
    with as_weights_error(path.name):
        stored = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=no_repeated_keys)
    return stored if isinstance(stored, dict) else {}


def _download(repository: str, revision: str | None) -> Path:
    """Download the repository's config and weights; return their folder in the Hub's cache."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        config = hf_hub_download(repository, "config.json", revision=revision)
        try:
            hf_hub_download(repository, "model.safetensors", revision=revision)
        except EntryNotFoundError:  # also raised offline, for what is not in the cache
            hf_hub_download(repository, "pytorch_model.bin", revision=revision)
        with suppress(EntryNotFoundError):
            hf_hub_download(repository, "preprocessor_config.json", revision=revision)
    except Exception as error:  # of the Hub or the connection, or for an invalid name: no common type
        fix = "check the name and the connection; offline, only the Hub's cache is available"
        message = f"could not download {repository} from the Hub: {reason_of(error)}"
        raise file_error(message, fix=fix) from error
    return Path(config).parent

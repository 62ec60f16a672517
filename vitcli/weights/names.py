"""What a --ckpt string names: a local file, a repository of the Hub, or an address; no torch.

A local file or folder of that name always wins. timm is loaded only for names that may be timm's.
"""

import os
import re
from collections import defaultdict
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from vitcli.distributed import startup
from vitcli.errors import WeightsError, nearest, nearest_path
from vitcli.io.credentials import with_credentials
from vitcli.io.files import package_folder
from vitcli.models.variants import VARIANTS, Variant, find_variant, variant_of_timm
from vitcli.output.run_folder import ARMS, DRAWS, RECIPE, SUMMARY, checkpoint_folders
from vitcli.output.text import first_few
from vitcli.weights.authors_catalog import FILES, STORAGE, authors_files, find_authors_file

if TYPE_CHECKING:  # timm takes seconds
    from timm.models import PretrainedCfg

FORMATS = {
    ".safetensors": "safetensors",
    ".npz": "official npz",
    ".pth": "pth",
    ".pt": "pth",
    ".bin": "pth",
    ".tar": "pth",  # .pth.tar, as training scripts call checkpoints
}
INDEX = ".index.json"  # the end of the name of a list of shards
WEIGHTS_NAMES = ("model.safetensors", "pytorch_model.bin")  # in a folder or repository
FILE_NAMES = tuple(f"{name}{end}" for name in WEIGHTS_NAMES for end in ("", INDEX))
GRAPHS = (".onnx", ".pt2", ".pte")  # which vit export writes and nothing reads as a --ckpt
ENDINGS = (*FORMATS, INDEX, *GRAPHS)  # of names that are paths
DEMO = "demo"
FRESH = "random"  # untrained weights in the place of a checkpoint, where a command takes such
HUB_PREFIXES = ("hf-hub:", "hf_hub:", "hf://", "hf:")
HUB_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
SIMILAR = 0.75  # names from here on are taken for slips of the pen
REPOSITORY = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
FORMS = (
    "a run folder, a .safetensors, .npz or .pth file, timm/NAME.TAG, hf-hub:OWNER/NAME, ViT-B/16@in21k, "
    "an https:// or gs:// address, or demo; vit models --weights lists known weights"
)


class Reference(NamedTuple):
    """Where the weights of a --ckpt string are.

    Attributes:
        kind: "demo", "local", "hub" or "address".
        place: a path, OWNER/NAME, or an https:// address.
        revision, file: of a repository of the Hub; "" for its main branch, and for the usual files.
        tag: of timm's weights, or "".
        network: timm's name, where only that says what the tensors are; else "".
        note: how a short name was understood, or "".
        also: other weights to take where these cannot be fetched, or "".
    """

    kind: str
    place: str
    revision: str = ""
    file: str = ""
    tag: str = ""
    network: str = ""
    note: str = ""
    also: str = ""


def resolve(ckpt: str) -> Reference:
    """Return what a --ckpt string names, without asking any server.

    Raises:
        WeightsError: it names nothing, or more than one thing.
    """
    ckpt = with_credentials(ckpt)
    if ckpt == DEMO:
        return Reference(DEMO, ckpt)
    if os.path.exists(ckpt):
        return Reference("local", ckpt)
    # Prefixes and addresses
    if prefix := next((prefix for prefix in HUB_PREFIXES if ckpt.startswith(prefix)), ""):
        return _on_the_hub(ckpt.removeprefix(prefix).removeprefix("models/"))
    if "://" in ckpt:
        return _at_address(ckpt)
    # The paper's names, with a pre-training
    name, _, pretraining = ckpt.partition("@")
    if variant := find_variant(name):
        return _of_the_paper(variant, pretraining)
    if re.match(r"(R\d*\+)?(ViT|BiT)-", name):
        raise _nothing(ckpt, nearest(ckpt, FILES) or nearest(name, VARIANTS))
    # Paths that do not exist, and names of timm and of the Hub
    is_path = ckpt.startswith((".", "/", "~", "runs/")) or ckpt.endswith(ENDINGS)
    if is_path or not re.fullmatch(r"[\w./@-]+", ckpt):
        raise _nothing(ckpt)
    if "/" not in name or ckpt.startswith("timm/"):
        return _in_timm(ckpt)
    if not REPOSITORY.fullmatch(name) or Path(ckpt).parent.is_dir():
        raise _nothing(ckpt)
    return _on_the_hub(ckpt)


def check(ckpt: str) -> None:
    """Refuse a string that names nothing, as far as that shows without loading timm, which takes seconds.

    Raises:
        WeightsError: it names nothing.
    """
    if ckpt in (DEMO, FRESH):
        return
    if os.path.exists(ckpt):
        check_local(Path(ckpt))
        return
    name, _, pretraining = ckpt.partition("@")
    if find_variant(name):
        may_be_timms = bool(pretraining) and not find_authors_file(name, pretraining)
    else:
        is_short = re.fullmatch(r"(timm/)?[\w.@-]+", ckpt) is not None
        may_be_timms = is_short and not ckpt.endswith(ENDINGS)
        if may_be_timms and not ckpt.startswith("timm/") and not _resembles_timms(name):
            raise _nothing(ckpt)
    if not may_be_timms:
        resolve(ckpt)


def _resembles_timms(name: str) -> bool:
    """Return whether timm has a network of this name or of a similar one, by its source files."""
    files = (package_folder("timm") / "models").glob("*.py")
    sources = "".join(file.read_text(encoding="utf-8") for file in files)
    network = name.partition(".")[0]
    # A former name stands in quotes, as the key of the present one.
    if network in re.findall(r"[\"'](\w+)[\"']:", sources):
        return True
    return bool(
        get_close_matches(network, re.findall(r"@register_model\ndef (\w+)", sources), n=1, cutoff=SIMILAR)
    )


def check_local(path: Path) -> None:
    """Refuse a file of another kind, and a folder without weights, by their names.

    Raises:
        WeightsError: it holds no weights; without a place.
    """
    if path.is_dir():
        if not any((path / name).is_file() for name in FILE_NAMES):
            raise _no_weights_in(path)
    elif path.suffix in GRAPHS:
        fix = "run it with its runtime, or name the run folder that it was exported from"
        what = f"{path.name} is an exported graph, which holds no weights to load"
        raise WeightsError(what, where="", fix=fix)
    elif path.suffix not in FORMATS and not path.name.endswith(INDEX):
        raise WeightsError(f"{path.name} has no known file ending", where="", fix=f"--ckpt takes {FORMS}")


def _no_weights_in(folder: Path) -> WeightsError:
    """Return the error of a folder without weights: an unfinished run, an arm of a sweep, or no run."""
    names = f"no {' and no '.join(WEIGHTS_NAMES)}"
    if (folder / DRAWS).is_file():
        explain = "vit predict --ckpt RUN IMAGES --why FILE.html"
        fix = f"a few-shot run keeps none: name the ckpt of its recipe.toml, or explain: {explain}"
        return WeightsError(f"the folder has {names}", where="", fix=fix)
    if (folder / RECIPE).is_file():
        newest = next(iter(checkpoint_folders(folder)), None)
        fix = "let the run finish first" + (f", or name its newest checkpoint: {newest}" if newest else "")
        if folder.resolve().parent.name == ARMS and (folder / SUMMARY).is_file():
            fix = f"an arm of a sweep keeps no weights: name the sweep, {folder.resolve().parents[1].name}"
        return WeightsError(f"the folder has {names}", where="", fix=fix)
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    runs = [entry for entry in entries if any((entry / name).is_file() for name in FILE_NAMES)]
    if runs:
        holds, fix = first_few([run.name for run in runs]), f"name one of its runs: --ckpt {runs[0]}"
    else:
        holds, fix = first_few([entry.name for entry in entries]) or "nothing", f"--ckpt takes {FORMS}"
    return WeightsError(f"{folder} is not a run folder: it has {names}; it holds {holds}", where="", fix=fix)


def names_weights(ckpt: str) -> bool:
    """Return whether this is a form of --ckpt and not the bare name of a network."""
    if os.path.exists(ckpt) or ckpt == DEMO:
        return True
    # Of the names with one of these marks, only the paper's ViT-B/16 is a network
    return any(mark in ckpt for mark in "/@:.") and not find_variant(ckpt)


def _on_the_hub(text: str) -> Reference:
    """Return OWNER/NAME, OWNER/NAME@REVISION or either with the path of a file."""
    owner, _, rest = text.partition("/")
    name, _, file = rest.partition("/")
    name, _, revision = name.partition("@")
    repository = f"{owner}/{name}"
    if not REPOSITORY.fullmatch(repository):
        raise WeightsError(
            f"{text!r} is not the name of a repository on the Hub",
            where="",
            fix="OWNER/NAME, such as google/vit-base-patch16-224",
        )
    tag = name.partition(".")[2] if owner == "timm" else ""
    return Reference("hub", repository, revision=revision, file=_checked_file(file), tag=tag)


def _at_address(address: str) -> Reference:
    """Return the reference of a URL; one of the Hub's pages is its repository."""
    parts = _split(address)
    if parts.scheme not in ("https", "http", "gs"):
        message = f"addresses of the kind {parts.scheme}:// are not read"
        raise WeightsError(message, where="", fix="take https:// or gs://, or name a downloaded file")
    hub = urlsplit(os.environ.get("HF_ENDPOINT", "")).netloc
    if parts.netloc in HUB_HOSTS or (hub and parts.netloc == hub):
        return _on_the_hub(_of_page(unquote(parts.path).strip("/").split("/")))
    if parts.path.endswith(INDEX):
        fix = "download it and its shards to one folder, and name that"
        raise WeightsError("an address names one file, and this is a list of several", where="", fix=fix)
    _checked_file(Path(parts.path).name or "/")
    if parts.scheme == "gs":
        address = f"{STORAGE}/{parts.netloc}{parts.path}"
    return Reference("address", address)


def _split(address: str) -> SplitResult:
    """Return the parts of a URL; WeightsError for one that names no host or no file, or a password."""
    try:
        parts = urlsplit(address)
        is_valid = parts.hostname and parts.port != 0 and unquote(parts.path).isprintable()
    except ValueError:  # of the host or the port
        is_valid = False
    if not is_valid:
        raise WeightsError(f"{address!r} is not an address", where="", fix="https://HOST/FOLDER/FILE")
    if parts.username:
        fix = "download the file first and name its path"
        raise WeightsError("addresses with a user name are not read", where="", fix=fix)
    return parts


def _of_page(parts: list[str]) -> str:
    """Return OWNER/NAME@REVISION/FILE of a page of the Hub, by the parts of its path."""
    match parts:
        case [owner, name, "resolve" | "blob" | "raw", revision, *file]:
            return "/".join([owner, f"{name}@{revision}", *file])
        case [owner, name, "tree", revision, *_]:
            return f"{owner}/{name}@{revision}"
        case _:
            return "/".join(parts[:2])


def _checked_file(file: str) -> str:
    """Refuse the name of a file that holds no weights."""
    if file and not file.endswith((*FORMATS, INDEX)):
        fix = f"name a file that ends in {', '.join(FORMATS)}"
        raise WeightsError(f"{Path(file).name or file} has no known file ending", where="", fix=fix)
    return file


def _of_the_paper(variant: Variant, pretraining: str) -> Reference:
    """Return the authors' file of a pre-training, or timm's weights of that tag."""
    file = find_authors_file(variant.name, pretraining)
    if file:
        address = file.address.replace("gs://", f"{STORAGE}/")
        note = f"{variant.name}@{pretraining}: the authors' {file.address}"
        return Reference("address", address, note=note, also=file.in_timm)
    choices = [file.name for file in authors_files(variant.name)]
    if not pretraining:
        such = f", such as {', '.join(choices)}" if choices else ""
        fix = f"name its pre-training too{such}; vit models --weights {variant.name} lists all"
        raise WeightsError(f"{variant.name} names a network and no weights", where="", fix=fix)
    tags = tags_of(variant)
    if pretraining in tags:
        reference = _in_timm(f"timm/{tags[pretraining]}.{pretraining}")
        return reference._replace(note=f"{variant.name}@{pretraining}: {reference.place} on the Hub")
    choices += [f"{variant.name}@{tag}" for tag in tags]
    name = f"{variant.name}@{pretraining}"
    message = f"there are no weights {name}{nearest(name, choices)}"
    fix = f"with its pre-training: {', '.join(choices[:6])}; vit models --weights {variant.name} lists all"
    if not choices:
        fix = f"no weights of {variant.name} are known; name a file"
    raise WeightsError(message, where="", fix=fix)


def tags_of(variant: Variant) -> dict[str, str]:
    """Return timm's tags for weights of the paper's network, each with the timm name at its resolution."""
    tags: dict[str, str] = {}
    for network, known in tags_by_network().items() if variant.is_timms else ():
        for tag in known if variant_of_timm(network) == variant else ():
            tags.setdefault(tag if tag not in tags else f"{tag}_{network.rpartition('_')[2]}", network)
    return tags


def tags_by_network() -> dict[str, list[str]]:
    """Return the tags of timm's weights by timm's name of the network."""
    startup.load()
    import timm

    tags = defaultdict(list)
    for name in timm.list_pretrained():
        network, _, tag = name.partition(".")
        tags[network].append(tag)
    return tags


def _in_timm(ckpt: str) -> Reference:
    """Return the weights of timm/NAME.TAG, NAME.TAG, or NAME with timm's default tag."""
    startup.load()
    import timm

    given, _, revision = ckpt.removeprefix("timm/").partition("@")
    name = timm.models.get_deprecated_models().get(given) or given  # its name now, if timm renamed it
    network, _, tag = name.partition(".")
    is_known = timm.models.is_model_pretrained(name)
    if tag and not is_known and ckpt.startswith("timm/"):
        return _on_the_hub(ckpt)  # they may be newer than this timm
    if not is_known:
        raise _unknown_in_timm(ckpt, network, tag)
    known = registered(name)
    note = ""
    if name != given:
        note = f"{ckpt}: {known.hf_hub_id or known.url}, as timm calls it now"
    elif not tag:
        others = f"timm's default; vit models --weights {network} lists the others"
        note = f"{ckpt}: {known.hf_hub_id or known.url} ({others})"
        variant = variant_of_timm(network)
        papers = authors_files(variant.name) if variant else []
        note += f"; the paper's own: {papers[0].name}" if papers else ""
    tag, reference = known.tag or tag, Reference("address", str(known.url))
    if known.hf_hub_id:
        reference = Reference("hub", known.hf_hub_id, revision, known.hf_hub_filename or "")
    return reference._replace(tag=tag, network=f"{network}.{tag}", note=note)


def registered(name: str) -> "PretrainedCfg":
    """Return what timm's registry says of its weights NETWORK.TAG, or of those that it loads by default."""
    startup.load()
    import timm

    known = timm.models.get_pretrained_cfg(name)
    assert known is not None, f"timm has weights {name}"
    return known


def suggest(name: str) -> str:
    """Return `, did you mean timm/NAME.TAG?` for a mistyped name of timm's weights, or nothing."""
    network, _, tag = name.removeprefix("timm/").partition(".")
    tags = tags_by_network()
    if network not in tags:
        network = next(iter(get_close_matches(network, tags, n=1, cutoff=SIMILAR)), "")
    if not network:
        return ""
    closest = get_close_matches(tag, tags[network], n=1) or [registered(network).tag or ""]
    return f", did you mean 'timm/{network}.{closest[0]}'?"


def _unknown_in_timm(ckpt: str, network: str, tag: str) -> WeightsError:
    import timm

    if tags := tags_by_network().get(network):
        fix = f"of {network} there are: {', '.join(tags)}"
        return WeightsError(f"timm has no weights {network}.{tag}{suggest(ckpt)}", where="", fix=fix)
    if timm.is_model(network):
        fix = f"name a file; --ckpt takes {FORMS}"
        return WeightsError(f"timm has the network {network} and no weights of it", where="", fix=fix)
    return _nothing(ckpt, suggest(ckpt))


def _nothing(ckpt: str, hint: str = "") -> WeightsError:
    """Return the error of a name that is none, with the nearest file, or the nearest known weights."""
    hint = nearest_path(ckpt) or hint or nearest(ckpt, [DEMO])
    message = f"no file, folder or known weights called {ckpt!r}{hint}"
    return WeightsError(message, where="", fix=f"--ckpt takes {FORMS}")

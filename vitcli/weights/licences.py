"""The licence of weights: stated by the run they are of, timm's registry or config, or the card beside them.

A licence is a name as the Hub and timm spell it, such as "cc-by-nc-4.0"; its text is not read. All here is
information about weights, no legal advice.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitcli.output.redaction import public_name
from vitcli.weights.authors_catalog import STORAGE
from vitcli.weights.names import DEMO, registered

if TYPE_CHECKING:
    from vitcli.weights.locate import WeightsSource

KEY = "license"  # in stored metadata, in summary.json and in timm's and the Hub's own files
UNKNOWN = "unknown"
OF_THE_AUTHORS = OF_THE_DEMO = "apache-2.0"  # of google-research/vision_transformer, and of this package
# Their names do not say that they exclude commercial use; their texts do.
NON_COMMERCIAL = {"apple-amlr", "seer-license"}
# Names that the Hub's cards take; others stand there as "other", with the name beside it.
OF_THE_HUB = {
    "apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0",
    "cc-by-nc-4.0", "cc-by-nc-sa-4.0", "cc-by-nc-nd-4.0", "gpl-3.0", "agpl-3.0", "lgpl-3.0", "mpl-2.0",
    "openrail", "openrail++", "apple-ascl", "apple-amlr", "gemma", "other", UNKNOWN,
}  # fmt: skip
LARGEST_CARD = 2**20  # bytes
LONGEST_NAME = 100


def licence_of(source: "WeightsSource", metadata: dict[str, Any], *, model_name: str = "") -> str:
    """Return the name of the licence of weights, UNKNOWN if nobody states it.

    Args:
        source: the file, and what is beside it.
        metadata: stored with the weights by a run or an export of vit; its own statement counts first.
        model_name: NAME.TAG of timm that the user gave for a bare file, or "".
    """
    if source.format == DEMO:
        return OF_THE_DEMO
    config = source.config.get("pretrained_cfg", source.config)
    config = config if isinstance(config, dict) else {}
    network, tag = source.config.get("architecture"), source.tag or config.get("tag")
    is_ours = "vit" in source.config or "trained_by" in metadata
    stated = (
        lambda: _name(metadata.get(KEY)),
        lambda: licence_of_name(metadata.get("from")),
        lambda: _name(config.get(KEY)),
        lambda: _of_card(source.card),
        lambda: "" if is_ours else _of_timm(f"{network}.{tag}") or _of_timm(model_name),
        lambda: licence_of_name(source.name),
    )
    return next((name for state in stated if (name := state())), UNKNOWN)


def licence_of_name(ckpt: object) -> str:
    """Return the licence of weights that are named by timm's name or an address of the authors, or ""."""
    if not isinstance(ckpt, str):
        return ""
    if ckpt.startswith((f"{STORAGE}/vit_models/", f"{STORAGE}/bit_models/", "gs://vit_models/")):
        return OF_THE_AUTHORS
    return OF_THE_DEMO if ckpt == DEMO else _of_timm(public_name(ckpt).removeprefix("timm/"))


def is_non_commercial(licence: str) -> bool:
    """Return whether the name of a licence says, or its text is known to say, that it excludes such use."""
    words = re.split(r"[^a-z]+", licence.lower())
    return licence.lower() in NON_COMMERCIAL or "nc" in words or "noncommercial" in "".join(words)


def note_on(licence: str | None, what: str) -> list[str]:
    """Return a line on a licence that excludes commercial use; none on any other."""
    if licence is None or not is_non_commercial(licence):
        return []
    return [
        f"note: {what} are licensed under {licence}: non-commercial use only, which usually holds for what "
        "is trained from them too"
    ]


def in_card(licence: str | None) -> dict[str, str]:
    """Return the keys of a card's front matter on the Hub; none for an unknown licence."""
    if licence is None or licence == UNKNOWN:
        return {}
    return {KEY: licence} if licence in OF_THE_HUB else {KEY: "other", "license_name": licence}


def _of_timm(name: str) -> str:
    """Return what timm's registry states of NAME.TAG; "" for no such weights."""
    import timm

    if "." not in name or not timm.models.is_model_pretrained(name):
        return ""
    return _name(registered(name).license)


def _of_card(card: Path | None) -> str:
    """Return what the front matter of a card states; "" for none, or one that cannot be read."""
    try:
        if card is None or not card.is_file() or card.stat().st_size > LARGEST_CARD:
            return ""
        from huggingface_hub.repocard import metadata_load

        stated = metadata_load(card)
    except Exception:  # whatever YAML and the disk refuse: a damaged card does not damage the weights
        return ""
    stated = stated or {}
    name = _name(stated.get(KEY))
    return _name(stated.get("license_name")) or name if name in ("", "other") else name


def _name(stated: object) -> str:
    """Return an untrusted statement as one short word, in lower case; "" where it says nothing."""
    if isinstance(stated, list) and stated and all(isinstance(name, str) for name in stated):
        stated = " and ".join(stated)
    if not isinstance(stated, str) or not re.fullmatch(r"[\w.+-][\w.+ -]*", stated.strip()):
        return ""
    name = stated.strip().lower()
    return "" if name in (UNKNOWN, "none") or len(name) > LONGEST_NAME else name

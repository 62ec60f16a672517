"""The README.md of weights of which no run is known: what they are, and how to load them."""

from typing import Any

from vitcli.export.card_parts import metadata
from vitcli.export.card_text import code, paragraph, table
from vitcli.output.redaction import public_name
from vitcli.output.text import size_text

CARD = """{metadata}
# {model}

{facts}

## Intended use and limits

{limits}

{loading}"""


def weights_card(exported: dict[str, Any], loading: str) -> str:
    """The card in Markdown.

    Args:
        exported: what `vit export` says of the timm folder.
        loading: from `loading_text.how_to_load`.
    """
    origin, num_classes = public_name(exported["ckpt"]), exported["num_classes"]
    compared = f"{exported['max_rel_difference']:.2g}, relative, on {exported['num_images']} pictures"
    facts = [
        ("from", code(origin)),
        ("image size", f"{size_text(exported['resolution'])} px; how they are prepared is in config.json"),
        ("classes", str(num_classes) if num_classes else "none: features"),
        ("arithmetic", exported["numerics"]),
        ("largest difference from it", compared),
    ]
    limits = (
        f"No accuracy was measured of this copy, and no licence is stated here: that of {code(origin)} holds."
    )
    return CARD.format(
        metadata=metadata(loads_in_timm=True, is_classifier=num_classes > 0, ckpt=exported["ckpt"]),
        model=exported["model"],
        facts=table(("", ""), facts),
        limits=paragraph(limits),
        loading=loading,
    )

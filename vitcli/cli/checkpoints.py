"""The commands about networks and weights files: models, interpolate-posemb, export."""

from typing import Annotated

import typer

from vitcli.cli import options
from vitcli.output import text

app = typer.Typer()

CkptArgument = Annotated[
    str,
    typer.Argument(metavar="CKPT", help="Anything that --ckpt takes: a file, a run folder, timm/NAME.TAG."),
]


@app.command(epilog="Example: vit models 'R50*' --res 384")
def models(
    pattern: Annotated[
        str | None,
        typer.Argument(
            metavar="PATTERN", help="A name, a part of it, or a glob such as 'BiT*'; all if left out."
        ),
    ] = None,
    res: options.ImageSize = None,
    format: options.ModelsFormat = "table",
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> int:
    """The networks of the paper's tables: parameters, GMACs and tokens at a resolution."""
    if format not in ("table", "markdown"):
        raise typer.BadParameter(f"{format} is neither table nor markdown", param_hint="--format")
    image_size = options.height_and_width(res) or (224, 224)
    from vitcli.models import listing

    found = listing.list_models(pattern, image_size=image_size)
    return text.show(found, as_json, listing.as_markdown if format == "markdown" else listing.as_table)


@app.command(epilog="Example: vit interpolate-posemb vit_b16.npz vit_b16_384.safetensors --res 384")
def interpolate_posemb(
    ckpt: CkptArgument,
    out: Annotated[str, typer.Argument(metavar="OUT", help="A .safetensors file, or an official .npz.")],
    res: options.ImageSize = None,
    method: options.Method = "paper",
    patch_size: options.PatchSize = None,
    model: options.ModelName = None,
    overwrite: options.OverwriteFile = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> int:
    """A checkpoint for another resolution: its position embedding resampled (paper, section 3.2)."""
    image_size = options.height_and_width(res)
    from vitcli.weights.interpolate import as_text, interpolate_posemb

    result = interpolate_posemb(
        ckpt,
        out,
        image_size=image_size,
        method=method,
        patch_size=patch_size,
        model_name=model,
        overwrite=overwrite,
    )
    return text.show(result, as_json, as_text)


@app.command(epilog="Example: vit export runs/pets pets.onnx, or vit export runs/pets --push-to-hub ann/pets")
def export(
    ckpt: CkptArgument,
    out: Annotated[
        str | None,
        typer.Argument(metavar="OUT", help="A .onnx, .npz or .safetensors file, or a folder for timm."),
    ] = None,
    to: options.To = None,
    res: options.ImageSize = None,
    head: options.Head = True,
    names: options.Names = "published",
    images: options.Images = None,
    model: options.ModelName = None,
    push_to_hub: options.PushToHub = None,
    private: options.Private = False,
    revision: options.Revision = None,
    overwrite: options.OverwriteFile = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> int:
    """A checkpoint in another format, read back and compared before it counts; or a run to the Hub."""
    if names not in ("published", "linen", "big_vision"):
        raise typer.BadParameter(f"{names} is not published, linen or big_vision", param_hint="--names")
    if out is None and push_to_hub is None:
        raise typer.BadParameter("name OUT, or --push-to-hub OWNER/NAME", param_hint="OUT")
    if (private or revision is not None) and push_to_hub is None:
        raise typer.BadParameter("it belongs to --push-to-hub", param_hint="--private, --revision")
    from vitcli.export import export as exports
    from vitcli.export import push as pushes

    export_options = exports.ExportOptions(
        to=to,
        model_name=model,
        image_size=options.height_and_width(res),
        head=head,
        names=names,
        images=images or (),
        overwrite=overwrite,
    )
    if push_to_hub is None:
        return text.show(exports.export(ckpt, out, export_options, quiet=quiet), as_json, exports.as_text)
    result = pushes.push(
        ckpt, out, push_to_hub, export_options, private=private, branch=revision, quiet=quiet
    )
    return text.show(result, as_json, pushes.as_text)

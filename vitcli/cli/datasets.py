"""`vit datasets list`, `show` and `check`."""

from pathlib import Path
from typing import Annotated

import typer

from vitcli.cli import complete, inputs, options
from vitcli.cli.help import DATA, MODEL, RUN, group
from vitcli.cli.options import Printing, command, launch, option
from vitcli.errors import VitError

app = group(
    "List data sets; find duplicates, leaks and bad labels.",
    "Examples:\nvit datasets list\nvit datasets check photos/",
)


@command(app, "list", example="vit datasets list")
def datasets_list(printing: Printing) -> int:
    """List the data sets that have an alias, and those with a copy in $VIT_DATA."""
    from vitcli.data import listing

    return printing.show({"datasets": listing.list_datasets()}, listing.list_as_text)


@command(app, "show", example="vit datasets show oxford_pets")
def datasets_show(
    *,
    name: Annotated[str, typer.Argument(autocompletion=complete.datasets, metavar="NAME",
        help="An alias, or demo.")],
    printing: Printing,
) -> int:  # fmt: skip
    """Show what is known about a data set."""
    from vitcli.data import listing

    return printing.show(listing.show(name), listing.show_as_text)


@command(
    app,
    "check",
    example="""\
vit datasets check photos/
vit datasets check photos/ --labels --ckpt vit_b16.npz --out suspects.csv""",
)
def datasets_check(
    *,
    dataset: Annotated[str, typer.Argument(autocompletion=complete.datasets, metavar="DATA",
        help="As for --dataset: an alias, a folder, a Hub id.")],
    against: Annotated[str | None, option("--against", DATA,
        "Data set to compare with (default: another split of DATA).", "DATA",
        autocompletion=complete.datasets)] = None,
    split: Annotated[str, option("--split", DATA,
        "Split of DATA (default: its test split).", "SPLIT")] = "auto",
    against_split: Annotated[str, option("--against-split", DATA,
        "Split of --against (default: its train split).", "SPLIT")] = "auto",
    distance: Annotated[int, option("--distance", RUN,
        "Largest distance of near duplicates, in bits of a 64-bit hash (default: 6).", "BITS",
        min=0, max=32)] = 6,  # recipe.group_rule.NEAR_DISTANCE, which would load pydantic
    labels: Annotated[bool, option("--labels", RUN,
        "Also rank the labels of the split to train on by how much the features of --ckpt contradict them "
        "(default: images alone).")] = False,
    ckpt: Annotated[str | None, option("--ckpt", MODEL,
        f"Required by --labels: {options.WEIGHTS_HELP}. [model.ckpt]", "CKPT",
        autocompletion=complete.ckpts)] = None,
    recipe: options.RecipeName = None,
    set_: options.Set = None,
    inference: options.InferenceOptions,
    out: Annotated[Path | None, option("--out", RUN,
        "Write all pairs to this .csv file; with --labels the labels of all images, and a page of the "
        "suspicious ones beside it, in .html (default: print the first).", "FILE")] = None,
    overwrite: options.Overwrite = False,
    printing: Printing,
) -> int:  # fmt: skip
    """Find duplicates, leaks, bad labels and unreadable images.

    Copies within and between splits, files that cannot be read, classes of one name, and with --labels wrong
    labels. Exit code 3 if a number would be wrong: docs/data.md lists what for. A split is compared with
    itself if --split and --against-split both name it, or if it is the only one.
    """
    for name, value in {"--ckpt": ckpt, "--device": inference.device}.items():
        if value is not None and not labels:
            raise typer.BadParameter("only --labels runs a network", param_hint=name)
    if labels and ckpt is None and recipe is None:
        if dataset.partition(":")[0] != "demo":
            raise VitError(
                "labels are compared by the features of weights, and none are named",
                where="--labels",
                fix="--ckpt FILE, a run, or timm's NAME.TAG such as vit_base_patch16_224.augreg_in21k",
            )
        ckpt = "demo"
    keys = {"data.dataset": dataset, "data.on_bad_image": "skip"}
    loaded = options.RecipeOptions(recipe=recipe, set_=set_).load(ckpt, inference, keys)
    from vitcli.data.checks import check, findings
    from vitcli.data.checks.near_duplicates import SplitName
    from vitcli.data.checks.text import as_text

    a, b = SplitName(dataset, split), SplitName(against, against_split)
    how = check.CheckOptions(distance, None if labels else out, overwrite, inference.workers, printing.quiet)
    if labels:
        launch(None, inference.device)
        from vitcli.features.label_errors import check_with_labels

        result = check_with_labels(a, b, loaded, inference.settings(printing, out, overwrite), how)
    else:
        result, _ = check.check(a, b, loaded.data, how)
    return printing.show_and_fail(result, findings.failure(result), as_text)


@command(app, "preview", example="vit datasets preview photos/ --ckpt vit_b16.npz")
def datasets_preview(
    *,
    dataset: Annotated[str, typer.Argument(autocompletion=complete.datasets, metavar="DATA",
        help="As for --dataset: an alias, a folder, a Hub id.")],
    num_images: Annotated[int, option("--images", DATA,
        "Images of each split (default: 8).", "N", min=1, max=256)] = 8,
    ckpt: options.Ckpt = None,
    res: options.Res = None,
    recipe: options.RecipeName = None,
    set_: options.Set = None,
    workers: options.Workers = None,
    out: Annotated[Path, option("--out", RUN,
        "The page (default: preview.html).", "FILE")] = Path("preview.html"),
    overwrite: options.Overwrite = False,
    printing: Printing,
) -> int:  # fmt: skip
    """Show the images of the first training step as the network gets them.

    Crops, colours and mixed labels are those of vit finetune with the same recipe and seed; beside them the
    pixels of evaluation.
    """
    from vitcli import recipe as recipes

    keys = options.RecipeOptions(dataset=dataset, res=res, skip_bad=True).shorthands(ckpt, None)
    overrides = set_ or ()
    loaded = (
        recipes.load(recipe, overrides, keys)
        if recipe
        else recipes.load_for_dataset("finetune", dataset, overrides, keys)
    )
    recipes.check_names_ckpt(loaded, "datasets preview")
    inputs.check_recipe(loaded)
    launch(None, "cpu")
    from vitcli.training.preview import PreviewOptions, as_text, preview

    how = PreviewOptions(out, num_images, overwrite, workers, printing.quiet)
    return printing.show(preview(loaded, how), as_text)

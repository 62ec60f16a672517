"""`vit label`: labels for a folder of images."""

import os
import signal
from pathlib import Path
from typing import Annotated

import typer

from vitcli.cli import complete, options
from vitcli.cli.help import DATA, MODEL, RUN, USE
from vitcli.cli.options import Printing, RecipeOptions, command, launch, option

app = typer.Typer()


@command(
    app,
    panel=USE,
    example="""\
vit label photos/ --ckpt timm/vit_small_patch16_224.augreg_in21k --classes cat,dog
vit label photos/ --review
vit label photos/ --import project.json
vit label photos/ --export sorted/""",
)
def label(
    *,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER",
        help="Images, in any folders below it; labels are in FOLDER/labels.csv.")],
    classes: Annotated[str | None, option("--classes", DATA,
        "Names of classes in the order of their keys: cat,dog (default: as they are typed on the page).",
        "NAME,...")] = None,
    import_: Annotated[Path | None, option("--import", DATA,
        "Read labels from Label Studio's JSON or from class folders, and serve no page; a label that is "
        "there stays (default: none).", "FILE|FOLDER")] = None,
    export: Annotated[Path | None, option("--export", DATA,
        "Write labels as Label Studio's JSON, or copies of the images in a folder for each class, and serve "
        "no page (default: none).", "FILE.json|FOLDER")] = None,
    ckpt: Annotated[str | None, option("--ckpt", MODEL,
        f"The network whose features guess. {options.WEIGHTS_HELP} (default: demo, to try it out). "
        "[model.ckpt]", "CKPT", autocompletion=complete.ckpts)] = None,
    inference: options.InferenceOptions,
    review: Annotated[bool, option("--review", RUN,
        "Show only labels that the other images contradict; without labels.csv, those of class folders "
        "(default: one such label in ten images).")] = False,
    port: Annotated[int, option("--port", RUN, "Port of the page (default: any free one).", "N", min=0,
        max=65535)] = 0,
    printing: Printing,
) -> int:  # fmt: skip
    """Label images on a page that guesses along.

    The page is for this machine and whoever has its address; Ctrl-C ends it. It shows the images first that
    teach most. Each click is on the disk before the next image comes, and vit finetune --dataset FOLDER reads
    the labels as they are.
    """
    # A click is many small sums, for which a second thread of NumPy's costs more than it brings.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    others = {"--review": review, "--classes": classes, "--ckpt": ckpt, "--port": port, "--export": export}
    given = [name for name, value in others.items() if value and (import_ or (export and name != "--export"))]
    if given:
        raise typer.BadParameter(f"--import and --export go alone: leave {' and '.join(given)} out")
    recipe = RecipeOptions(skip_bad=True).load(ckpt or "demo", inference)
    launch(None, inference.device)
    from vitcli.teaching import label as labels

    def announce(address: str) -> None:
        typer.echo(f"{address}  (Ctrl-C ends)", err=printing.as_json)

    if import_ or export:
        return printing.show(labels.exchange(folder, import_, export), labels.as_text)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # nothing is lost: end quietly
        signal.signal(signal.SIGINT, signal.default_int_handler)
    names = tuple(classes.split(",")) if classes is not None else ()
    asked = {"classes": names, "is_review": review, "port": port, "ready": announce}
    return printing.show(labels.label(folder, recipe, inference.settings(printing), **asked), labels.as_text)

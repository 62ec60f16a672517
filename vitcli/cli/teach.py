"""`vit teach` and `vit forget`: classifiers that learn images and forget them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from vitcli.cli import complete, inputs, options
from vitcli.cli.help import DATA, RUN, USE
from vitcli.cli.options import Printing, command, launch, option

app = typer.Typer()

# fmt: off
Run = Annotated[str, typer.Argument(metavar="RUN", autocompletion=complete.ckpts,
    help="Folder of vit teach, of a run of vit fewshot or finetune, or weights as --ckpt takes them.")]


@dataclass(frozen=True)
class WhereToWrite:
    """Options about the folder of a taught classifier."""

    out: Annotated[Path | None, option("--out", RUN,
        "Folder of the result: weights, statistics, card and summary (default: a new one under runs/).",
        "FOLDER")] = None
    in_place: Annotated[bool, option("--in-place", RUN,
        "Change the folder RUN itself, which vit teach has made.")] = False
    overwrite: options.Overwrite = False
    device: options.Device = None
    workers: options.Workers = None

    def settings(self, run: str, printing: Printing):
        """Return the RunSettings; typer.BadParameter for two places."""
        from vitcli.output.run_folder import CLOSED_FORM

        if not (Path(run) / CLOSED_FORM).is_file():  # as a few-shot run has it, which is not a checkpoint
            inputs.check_ckpt(run)
        if self.in_place and (self.out or self.overwrite):
            message = "it writes to RUN; leave --out and --overwrite out"
            raise typer.BadParameter(message, param_hint="--in-place")
        launch(None, self.device)
        from vitcli.evaluation.setup import RunSettings

        return RunSettings(self.workers, printing.quiet, self.out, self.overwrite)
# fmt: on


@command(
    app,
    panel=USE,
    example="""\
vit teach runs/fewshot --add new_photos/ --out runs/taught
vit teach runs/taught --add tulips/ --class tulip --in-place
vit teach ViT-B/16@in21k --add photos/ --out runs/taught""",
)
def teach(
    *,
    run: Run,
    add: Annotated[str | None, option("--add", DATA,
        "Images to learn: a folder of class folders, or the training split of any data set; with --class a "
        "file or a folder of images (default: none).", "FOLDER", autocompletion=complete.datasets)] = None,
    class_name: Annotated[str | None, option("--class", DATA,
        "Class of all images of --add, known or new (default: as their folders say).", "NAME")] = None,
    remove: Annotated[list[str] | None, option("--remove", DATA,
        "Image, or folder of images, to forget, as vit forget does. Repeatable.", "FILE")] = None,
    remove_class: Annotated[list[str] | None, option("--remove-class", DATA,
        "Class to forget, with all its images. Repeatable.", "NAME")] = None,
    where: WhereToWrite,
    printing: Printing,
) -> int:  # fmt: skip
    """Teach a classifier new classes and images, without training.

    The network stays as it is; its last layer is the closed form of vit fewshot on all images taught, so no
    class is forgotten, and the order in which they came does not matter, to the last bit.
    """
    if class_name is not None and (not add or not class_name.strip()):
        message = "name a class, and its images with --add" if add else "name its images with --add"
        raise typer.BadParameter(message, param_hint="--class")
    settings = where.settings(run, printing)
    from vitcli.teaching.teach import Changes, as_text, failure_of
    from vitcli.teaching.teach import teach as make

    changes = Changes(add, class_name, tuple(remove or ()), tuple(remove_class or ()))
    result = make(run, changes, settings, in_place=where.in_place, command="teach")
    return printing.show_and_fail(result, failure_of(result), as_text)


@command(
    app,
    panel=USE,
    example="""\
vit forget runs/taught anna.jpg --in-place
vit forget runs/taught --class tulip --in-place
vit forget runs/taught anna.jpg --check""",
)
def forget(
    *,
    run: Run,
    images: Annotated[list[str] | None, typer.Argument(metavar="IMAGES",
        help="Files, folders or globs of images, recognised by their bytes, wherever they are now.")] = None,
    class_name: Annotated[list[str] | None, option("--class", DATA,
        "Class to forget, with all its images. Repeatable.", "NAME")] = None,
    check: Annotated[bool, option("--check", RUN,
        "Change nothing: look for every trace of IMAGES in RUN and in the cache, and fail if there is "
        "one.")] = False,
    where: WhereToWrite,
    printing: Printing,
) -> int:  # fmt: skip
    """Take images out of a classifier, as if it had never seen them.

    Weights and statistics are those of a classifier that was taught the other images alone, bit for bit. What
    the cache holds of them is deleted, and the folder is searched for their bytes.
    """
    if not images and (check or not class_name):
        raise typer.BadParameter("name images, or a class with --class", param_hint="IMAGES")
    if check and (class_name or where.out or where.in_place or where.overwrite):
        raise typer.BadParameter("it changes nothing; give RUN and IMAGES alone", param_hint="--check")
    settings = where.settings(run, printing)
    from vitcli.teaching.teach import Changes, as_text, check_as_text, check_forgotten, failure_of, teach

    if check:
        result = check_forgotten(run, images, settings)
        return printing.show_and_fail(result, failure_of(result), check_as_text)
    changes = Changes(remove=tuple(images or ()), remove_classes=tuple(class_name or ()))
    result = teach(run, changes, settings, in_place=where.in_place, command="forget")
    return printing.show_and_fail(result, failure_of(result), as_text)

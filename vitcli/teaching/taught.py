"""A folder with a classifier that can be taught and can forget: a frozen network and a closed form.

    closed_form.safetensors   the images as integers, and their sums (`features/statistics.py`)
    model.safetensors         the network with the closed form as its last layer, and config.json
    summary.json, README.md   what it is, with the digest of the statistics

The statistics are the truth and are written first, the summary last: where that is of other statistics, as
a kill leaves it, the next command writes all again. A few-shot run has the statistics alone; its network is
that of its checkpoint.
"""

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vitcli.conversion.model_card import taught_card
from vitcli.data.parts.splitting import groups_to_divide
from vitcli.data.seen_images import KEY, SeenImages, as_metadata, digests_of
from vitcli.data.split import Split
from vitcli.errors import DataError
from vitcli.evaluation.setup import RunSettings, read_checkpoint
from vitcli.features.extract import FeatureExtractor, features_of_rows, open_extractor
from vitcli.features.feature_store import FeatureStore, open_cached, open_temporary
from vitcli.features.least_squares import DEFAULT_L2, in_float32
from vitcli.features.statistics import STEP, ClosedFormStatistics, network_digest
from vitcli.inspection.why import training_images
from vitcli.models.build import put_last_layer
from vitcli.output import run_folder
from vitcli.output.atomic import TEMPORARY, read_json, write_json, write_text
from vitcli.output.owned_folder import OwnedFolder
from vitcli.output.redaction import public_name
from vitcli.output.run_folder import CLOSED_FORM, SUMMARY, WEIGHTS
from vitcli.recipe import load_for_inference
from vitcli.training.methods.probe_head import STRENGTHS, chosen_solution, on_one_core
from vitcli.weights import licences
from vitcli.weights.describe import WeightsInfo
from vitcli.weights.io import write_weights

OF_STATISTICS = "closed_form"  # in the metadata of the weights: the digest of the statistics they are of
MOST_NAMED = 5  # images that cannot be read
CARD, LOCK = "README.md", ".vit-teach.lock"
FILES = ("config.json", CARD, SUMMARY, WEIGHTS, CLOSED_FORM)


@dataclass(frozen=True, eq=False)
class Taught:
    """A frozen network and the statistics of the images that it was taught.

    Attributes:
        ckpt: what the command names: a taught folder, a run, or weights.
        folder: of a taught one; None of others.
        l2: "sweep", or the strength that a few-shot run was given.
        of_network: digests of the images that the network itself was trained on; None if they are unknown.
        is_unfinished: a command that changed the folder was killed between its files.
    """

    ckpt: str
    folder: Path | None
    extractor: FeatureExtractor
    statistics: ClosedFormStatistics
    l2: float | str
    of_network: np.ndarray | None
    is_unfinished: bool = False

    def features(
        self,
        split: Split,
        dataset: str,
        rows_N: np.ndarray,
        open_store: Callable[[dict[str, Any], int], FeatureStore] = open_temporary,
    ) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Return those of the rows of a split that can be decoded, their features, and the other places."""
        data = self.extractor.recipe.data.model_copy(update={"dataset": dataset})
        extractor = replace(self.extractor, recipe=self.extractor.recipe.model_copy(update={"data": data}))
        rows_N, features_ND, computed = features_of_rows(extractor, split, rows_N, open_store)
        return rows_N, features_ND, computed.skipped


def open_taught(ckpt: str, run: RunSettings) -> Taught:
    """Open a taught folder, a run or weights, and load the network.

    The statistics of weights are those of no image; of a training run they are computed on its images.

    Raises:
        DataError: the statistics are damaged, or of another network.
    """
    path, folder = folder_of_weights(ckpt), run_folder.folder_of(ckpt)
    is_taught, is_fewshot = (path / CLOSED_FORM).is_file(), (path / run_folder.DRAWS).is_file()
    is_of_run = folder is not None and (is_fewshot or not (folder / run_folder.DRAWS).is_file())
    of_run, is_there = run_folder.recipe_of(folder) if folder and is_of_run else (None, False)
    keys, name = {"model.ckpt": ckpt}, None
    if is_fewshot:
        name, keys = str(folder / run_folder.RECIPE), of_run.given | {"model.ckpt": of_run.model.ckpt}
    recipe = load_for_inference(name, (), keys | {"data.on_bad_image": "skip"})
    weights = read_checkpoint(recipe, quiet=run.quiet)
    extractor = open_extractor(weights, recipe, run)
    seen = SeenImages.of(weights.metadata)
    if is_taught:
        statistics, about = ClosedFormStatistics.read(path / CLOSED_FORM)
        if about.get("network") != network_digest(extractor.network.model):
            raise DataError(
                f"the statistics are of another network than {weights.source}",
                where=str(path / CLOSED_FORM),
                fix="restore the weights, or teach again from the images",
            )
        is_own = not is_fewshot
        before = seen.trained_before if is_own else seen.ever_trained_on
        summary = read_json(path / SUMMARY) or {}  # which is written last
        is_unfinished = is_own and summary.get("statistics") != statistics.digest
        own_folder = path if is_own else None
        return Taught(ckpt, own_folder, extractor, statistics, about["l2"], before, is_unfinished)
    nothing = ClosedFormStatistics.of_nothing(extractor.network.model.num_features)
    taught = Taught(ckpt, None, extractor, nothing, "sweep", seen.ever_trained_on)
    if of_run is None:
        return taught
    if not is_there:
        what = f"the images of the run are gone: {of_run.data.dataset}"
        raise DataError(what, where=str(folder), fix="put them where its recipe.toml says")
    train = training_images(of_run, weights, needed_by="vit teach")
    every = np.arange(len(train))
    rows_N, features_ND, skipped = taught.features(train, of_run.data.dataset, every, open_cached)
    for place in skipped[:MOST_NAMED]:
        extractor.network.settings.progress.note(f"note: not taught, as it cannot be read: {place}")
    groups_N = groups_to_divide(train)
    statistics = ClosedFormStatistics.of(
        features_ND,
        train.read_labels()[rows_N],
        digests_of(train, rows_N),
        class_names=train.readable_class_names,
        groups_N=None if groups_N is None else groups_N[rows_N],
    )
    return replace(taught, statistics=statistics)


def folder_of_weights(ckpt: str) -> Path:
    """Return the folder of a taught classifier where its weights are named, else what is named."""
    path = Path(ckpt)
    return path.parent if path.is_file() and (path.parent / CLOSED_FORM).is_file() else path


def fitted(statistics: ClosedFormStatistics, l2: float | str) -> tuple[tuple[Any, Any], dict[str, Any]]:
    """Return weight (K, D) and bias (K,) of the last layer, and the facts of its fit.

    l2, temperature and the accuracy of images that are left out come from the rows, the layer from the sums;
    equal images give equal bits.
    """
    facts: dict[str, Any] = {"l2": DEFAULT_L2, "temperature": 1.0, "left_out_top1": None}
    if len(statistics.class_names) > 1:
        _, found, _ = chosen_solution(
            statistics.features_ND * STEP,
            statistics.labels_N,
            np.unique(statistics.groups_N, return_inverse=True)[1],
            num_classes=len(statistics.class_names),
            loss="softmax",
            l2=STRENGTHS if l2 == "sweep" else (float(l2),),
        )
        facts = {key: found[key] for key in facts}
    if l2 != "sweep":  # also where no image can be left out
        facts["l2"] = float(l2)
    layer = on_one_core(lambda: statistics.layer(facts["l2"], scale=facts["temperature"]))
    return in_float32(*layer), facts


def _leave(folder: Path) -> None:
    """Remove a folder in which nothing has come to be."""
    with suppress(OSError):
        if [entry.name for entry in folder.iterdir()] == [LOCK]:
            (folder / LOCK).unlink()
            folder.rmdir()


def claim(folder: Path, held: ExitStack) -> None:
    """Lock a folder that is new, empty or a taught one until `held` is closed, and remove debris of a kill.

    Raises:
        VitError: it holds something else.
        MachineError: it cannot be written, or another process holds it.
    """
    run_folder.refuse_run(folder, "taught")
    owned = OwnedFolder(folder, "taught classifier", lock=LOCK, files=FILES, marker=LOCK)
    owned.refuse_foreign()
    held.callback(_leave, folder)
    owned.claim(held)
    for leftover in folder.glob(f"{TEMPORARY}*"):
        leftover.unlink()


def write(
    taught: Taught, statistics: ClosedFormStatistics, out: Path, summary: dict[str, Any]
) -> dict[str, Any]:
    """Fit the closed form and write the claimed folder; return the summary with what the fit found."""
    layer, facts = fitted(statistics, taught.l2)
    network, weights = taught.extractor.network, taught.extractor.network.weights
    put_last_layer(network.model, *layer, name=network.arch.name, option="RUN")
    about = {"l2": taught.l2, "network": network_digest(network.model)}
    statistics.write(out / CLOSED_FORM, about)
    seen = {"trained_on": statistics.digests_N}
    seen |= {} if taught.of_network is None else {"trained_before": taught.of_network}
    origin = weights.metadata.get("from") if taught.folder else public_name(weights.source)
    metadata = {
        **({licences.KEY: weights.licence} if weights.licence != licences.UNKNOWN else {}),
        "trained_by": "teach",
        "from": origin,
        OF_STATISTICS: statistics.digest,
        KEY: as_metadata(seen, None),
    }
    arch = replace(network.arch, num_classes=len(statistics.class_names))
    pixels = network.preprocessing.as_dict()
    info = WeightsInfo(arch, pixels, statistics.class_names, metadata)
    write_weights(out, network.model.state_dict(), info)
    counts = dict(zip(statistics.class_names, statistics.counts_K.tolist(), strict=True))
    summary |= {
        "from": origin,
        "model": arch.name,
        "resolution": list(network.preprocessing.image_size),
        "num_classes": arch.num_classes,
        "num_examples": len(statistics),
        "classes": counts,
        "statistics": statistics.digest,
        **facts,
    }
    write_text(out / CARD, taught_card(summary, arch, weights.licence))
    write_json(out / SUMMARY, summary)
    return summary

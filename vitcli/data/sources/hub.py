"""Data sets on the Hugging Face Hub, downloaded by `datasets` and found in its cache afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import datasets
from datasets import config as datasets_config

from vitcli.data.sources.tables import Tables
from vitcli.errors import DataError, nearest_path, reason_of
from vitcli.io.http import hub_outage


def open_hub(hub_id: str, *, config: str | None, revision: str | None) -> Tables:
    """Return the tables of a Hub data set, downloaded when opened and then cached by `datasets`.

    Raises:
        DataError: the Hub has no such data set, or cannot be reached and none is in the cache.
    """
    outage, endpoint = "", datasets_config.HF_ENDPOINT
    if not datasets_config.HF_HUB_OFFLINE:
        outage = hub_outage(hub_id, "README.md", revision=revision, endpoint=endpoint, repo_type="dataset")
    with _hub_errors(hub_id, outage):
        names = datasets.get_dataset_split_names(hub_id, config, revision=revision)

    def download(name: str) -> datasets.Dataset:
        with _hub_errors(hub_id, outage):
            return datasets.load_dataset(hub_id, config, revision=revision, split=name)

    return Tables({name: partial(download, name) for name in names}, None)


@contextmanager
def _hub_errors(hub_id: str, outage: str) -> Iterator[None]:
    """Read the cache alone during an outage; turn what `datasets` and its client raise into a DataError."""
    before = datasets_config.HF_HUB_OFFLINE
    datasets_config.HF_HUB_OFFLINE = before or bool(outage)
    try:
        yield
    except Exception as error:  # of the Hub's client, its HTTP library, or plain OS errors
        reason = f"it {outage}" if outage else reason_of(error)
        raise DataError(
            f"could not download data set {hub_id} from the Hub: {reason[:160]}",
            where=f"--dataset; no file or folder here has this name{nearest_path(hub_id)}",
            fix="check the name and the network, or name a local copy (of an alias: $VIT_DATA/<alias>)",
        ) from error
    finally:
        datasets_config.HF_HUB_OFFLINE = before

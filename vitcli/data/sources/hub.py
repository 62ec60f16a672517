"""Data sets on the Hugging Face Hub, downloaded by `datasets` and found in its cache afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import datasets
from datasets import config as datasets_config

from vitcli.data.sources.tables import Tables
from vitcli.errors import DataError, nearest_path, reason_of
from vitcli.io.http import watch_hub


def open_hub(hub_id: str, *, config: str | None, revision: str | None) -> Tables:
    """Return the tables of a Hub data set, downloaded when opened and then cached by `datasets`.

    Raises:
        DataError: the Hub has no such data set, or cannot be reached and none is in the cache.
    """
    watch_hub()
    outage = "" if datasets_config.HF_HUB_OFFLINE else _outage(hub_id, revision)
    with _hub_errors(hub_id, outage):
        names = datasets.get_dataset_split_names(hub_id, config, revision=revision)

    def download(name: str) -> datasets.Dataset:
        with _hub_errors(hub_id, outage):
            return datasets.load_dataset(hub_id, config, revision=revision, split=name)

    return Tables({name: partial(download, name) for name in names}, None)


def _outage(hub_id: str, revision: str | None) -> str:
    """Ask the Hub once; return why it cannot be reached, "" if it answers, whatever it says.

    Its client would try again for half a minute, without a word, where there is no network.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError

    endpoint, timeout_s = datasets_config.HF_ENDPOINT, constants.HF_HUB_ETAG_TIMEOUT
    try:
        url = hf_hub_url(hub_id, "README.md", repo_type="dataset", revision=revision, endpoint=endpoint)
        get_hf_file_metadata(url, timeout=timeout_s, endpoint=endpoint)
    except (HfHubHTTPError, ValueError):  # the second, of a name that none on the Hub can have
        return ""
    except Exception as error:  # of the client's HTTP library, whichever its version has
        return reason_of(error)
    return ""


@contextmanager
def _hub_errors(hub_id: str, outage: str) -> Iterator[None]:
    """Read the cache alone during an outage; turn what `datasets` and its client raise into a DataError."""
    before = datasets_config.HF_HUB_OFFLINE
    datasets_config.HF_HUB_OFFLINE = before or bool(outage)
    try:
        yield
    except Exception as error:  # of the Hub's client, its HTTP library, or plain OS errors
        raise DataError(
            f"could not download data set {hub_id} from the Hub: {(outage or reason_of(error))[:160]}",
            where=f"--dataset; no file or folder here has this name{nearest_path(hub_id)}",
            fix="check the name and the network, or name a local copy (of an alias: $VIT_DATA/<alias>)",
        ) from error
    finally:
        datasets_config.HF_HUB_OFFLINE = before

"""Parts of a split that are drawn: the dev part to choose by, and random subsets."""

from dataclasses import replace

from vitcli.data import sampler
from vitcli.data.split import Split
from vitcli.errors import DataError


def cut_dev(train: Split, *, dev_fraction: float, split: str) -> tuple[Split, Split]:
    """The rows to train on, and a random `dev_fraction` to choose or report by (paper, section B.1.1).

    The cut depends on the split alone, never on the run's seed, so that all runs choose by the same rows. The
    dev part remembers what it was cut from; `split` is how the data set calls that.
    """
    num_dev = round(len(train) * dev_fraction)
    if not 0 < num_dev < len(train):
        raise DataError(
            f"a dev part of {dev_fraction:.0%} of {train.name}, {len(train)} rows, leaves one side empty",
            where="recipe key data.dev_fraction",
            fix="name the split to report on with data.eval_split, or choose another fraction",
        )
    key = sampler.derive_seed(0, "dev split", len(train))
    whole, num_train = train, len(train) - num_dev
    if train.block_starts is not None:  # a row here and a row there would have every block read for them
        whole, key = train.random_blocks(len(train), name=train.name, key=key), None
    rest = whole.part(0, num_train, name=f"{train.name} without its dev part", shuffle_key=key)
    dev = whole.part(num_train, len(train), name=f"{train.name}, dev part", shuffle_key=key)
    cut = {"split": split, "fraction": dev_fraction, "fingerprint": train.fingerprint}
    return rest, replace(dev, dev_cut=cut)


def random_subset(split: Split, num_examples: int, *, seed: int) -> Split:
    """`num_examples` rows drawn without replacement by `seed`; of shards whole blocks are drawn."""
    if num_examples > len(split):
        raise DataError(
            f"{num_examples} examples were asked for, {split.name} has {len(split)}",
            where="recipe key data.num_examples",
            fix=f"a number up to {len(split)}, or leave the key out",
        )
    key, name = sampler.derive_seed(seed, "subset", num_examples), f"{num_examples} of {split.name}"
    if split.block_starts is not None:
        return split.random_blocks(num_examples, name=name, key=key)
    return split.part(0, num_examples, name=name, shuffle_key=key)

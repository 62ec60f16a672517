"""Deliberate breaks that nobody noticed at first, by package: what turned each of them red came later."""

# By file and tests: what each break does, the text before and after it.
BY_PACKAGE = {
    # Data: orders, parts, what a split is known by, and how folders and files are read.
    ("vitcli/data/sampler.py", "tests/data/test_sampler.py"): {
        "classes come in the same order in every epoch": (
            'key = derive_seed(self.seed, "order", epoch)\n        places_N = permute',
            'key = derive_seed(self.seed, "order")\n        places_N = permute',
        ),
        "a window is rounded down to whole steps": (
            "self.window = -(-window // batch_size) * batch_size",
            "self.window = max(1, window // batch_size) * batch_size",
        ),
    },
    ("vitcli/data/parts/assignment.py", "tests/data/parts/test_assignment.py"): {
        "the largest group stands in for the smallest": (
            "groups.order_G[among_G[groups.order_G]][-1]",
            "groups.order_G[among_G[groups.order_G]][0]",
        ),
        "what was trained on is held out though others could be": ("may_move_G &= ~last_G", "pass"),
    },
    ("vitcli/data/parts/cuts.py", "tests/data/test_dataset.py"): {
        "a stratified part is another after an upgrade": (
            'key = sampler.derive_seed(0, "dev split", len(train))\n    return sampler',
            "key = 0\n    return sampler",
        ),
        "a stratified part has its rows by class": (
            "np.flatnonzero(is_dev_N) if order_N is None else dev_rows",
            "dev_rows",
        ),
    },
    ("vitcli/data/split.py", "tests/data/test_split.py"): {
        "a fingerprint without the last image": (
            "np.linspace(0, self.num_examples - 1, min(32",
            "np.linspace(0, self.num_examples - 2, min(32",
        ),
        "a fingerprint of 16 images": (
            "min(32, self.num_examples)).astype",
            "min(16, self.num_examples)).astype",
        ),
        "a streamed label one too high": (
            "max(labels) >= split.num_classes",
            "max(labels) > split.num_classes",
        ),
    },
    ("vitcli/data/contents.py", "tests/data/test_contents.py"): {
        "terabytes of shards are read before a run": (
            "MAX_HASHED_BYTES = 2 * 2**30",
            "MAX_HASHED_BYTES = 2 * 2**40",
        ),
    },
    ("vitcli/data/sources/tables.py", "tests/data/sources/test_folders.py"): {
        "the last word for a split counts": (
            'for part in file.with_suffix("").parts for word',
            'for part in file.with_suffix("").parts[::-1] for word',
        ),
    },
    ("vitcli/data/sources/folders.py", "tests/data/sources/test_folders.py"): {
        "a file is left out twice": (
            "return LeftOut(tuple(dict.fromkeys(chain",
            "return LeftOut(tuple((chain",
        ),
        "two left-out files are named": ("len(paths) <= NAMED_EACH", "len(paths) < NAMED_EACH"),
        "readme.png is no image": (
            "is_about = lower.startswith(SILENT_STARTS) and suffix_of(lower) not in IMAGE_SUFFIXES",
            "is_about = lower.startswith(SILENT_STARTS)",
        ),
    },
    ("vitcli/data/sources/class_folders.py", "tests/data/sources/test_folders.py"): {
        "images beside the splits are not named": (
            "outside.append(list_files(self.root, self.root, recursive=False))",
            "pass",
        ),
        "two classes one level down are one class": (
            "if inner == folder or len(names) < 2:",
            "if inner == folder or len(names) < 3:",
        ),
        "accents in another encoding are another class": (
            'unicodedata.normalize("NFC", name).casefold()',
            "name.casefold()",
        ),
    },
    ("vitcli/data/sources/layouts.py", "tests/data/sources/test_layouts.py"): {
        "changed times of files change no key": (
            "{state.st_size}\\0{state.st_mtime_ns}\\n",
            "{state.st_size}\\0\\n",
        ),
        "changed sizes of files change no key": ("{inside}\\0{state.st_size}\\0", "{inside}\\0"),
        "a copied folder has another key": ("inside = file.removeprefix(str(path))", "inside = file"),
    },
    ("vitcli/data/sources/class_folders.py", "tests/data/sources/test_layouts.py"): {
        "one class of folders speaks for all": (
            "min(map(len, inner), default=0) < 2",
            "max(map(len, inner), default=0) < 2",
        ),
    },
    ("vitcli/data/sources/hub.py", "tests/data/test_dataset.py"): {
        "the Hub is asked though that is forbidden": (
            "datasets_config.HF_HUB_OFFLINE = before or bool(outage)",
            "datasets_config.HF_HUB_OFFLINE = bool(outage)",
        ),
    },
    ("vitcli/data/sources/label_files.py", "tests/data/sources/test_label_files.py"): {
        "one word makes a column of splits": (
            "if all(row[c].lower() in SPLIT_WORDS for row in rows)",
            "if any(row[c].lower() in SPLIT_WORDS for row in rows)",
        ),
        "one of two files of labels is taken": ("    if len(files) > 1:\n", "    if len(files) > 2:\n"),
    },
}

"""Deliberate breaks that a review misses: a sign, a dropped argument, a rule off by one; see `mutants.py`."""

# By file and tests: what each break does, the text before and after it.
OF_PARTS = {
    # Images of a group are left out together.
    ("vitcli/training/methods/start.py", "tests/training/methods/test_groups_left_out.py"): {
        "a probe head knows no groups": (
            "labels_N, groups_N=groups_N, **about)",
            "labels_N, groups_N=None, **about)",
        ),
    },
    ("vitcli/training/methods/believing.py", "tests/training/methods/test_groups_left_out.py"): {
        "prediction sets know no groups": (
            "groups_N = None if train.groups_N is None else np.append(train.groups_N, choice.groups_N)",
            "groups_N = None",
        ),
    },
    ("vitcli/evaluation/belief/familiar.py", "tests/training/methods/test_groups_left_out.py"): {
        "distances of an image beside its copies": (
            "groups_N = np.arange(len(labels_N)) if groups_N is None else groups_N",
            "groups_N = np.arange(len(labels_N))",
        ),
    },
    ("vitcli/data/split.py", "tests/data/parts/test_groups.py"): {
        "a part has the groups of the first rows": (
            "lambda: self.groups_N[all_rows()])",
            "lambda: self.groups_N)",
        ),
    },
    ("vitcli/features/suspects.py", "tests/features/test_suspects.py"): {
        "copies vouch for a label": ('"groups_N": groups_N}', '"groups_N": None}'),
    },
    ("vitcli/features/draws.py", "tests/features/test_draws.py"): {
        "neighbours of the own group are counted": (
            '{"num_classes": num_classes, "groups_N": groups_N}',
            '{"num_classes": num_classes, "groups_N": None}',
        ),
        "the l2 of a draw knows no groups": (
            "l2=strengths, groups_N=groups_N,",
            "l2=strengths, groups_N=None,",
        ),
    },
    ("vitcli/inspection/why.py", "tests/inspection/test_why.py"): {
        "the reasons of an answer know no groups": (
            "l2=strengths, groups_N=groups_N,",
            "l2=strengths, groups_N=None,",
        ),
    },
}

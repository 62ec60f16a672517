"""Deliberate breaks of classifiers that learn and forget; see `mutants.py`."""

# By file and tests: what each break does, the text before and after it.
OF_TEACHING = {
    ("vitcli/features/statistics.py", "tests/features/test_statistics.py"): {
        "products of images that were taken away stay": ("gram_DD=self.gram_DD - gram_of(gone_MD),", ""),
        "sums of images that were taken away stay": (
            "sums_KD=self.sums_KD - _sums_of(",
            "sums_KD=self.sums_KD - 0 * _sums_of(",
        ),
        "products that float64 rounds": ("max(1, 2**53 // largest**2)", "max(1, 2**60 // largest**2)"),
        "rows in the order in which they came": (
            "order_N = np.argsort(joined[0])  # of the digests",
            "order_N = np.arange(len(joined[0]))",
        ),
        "classes in the order in which they came": (
            'order_K = np.argsort(np.array(names, dtype=object), kind="stable")',
            "order_K = np.arange(len(names))",
        ),
        "a group is named after an image that is gone": (
            "groups_N=self.digests_N[first[group_N]],",
            "groups_N=self.groups_N,",
        ),
        "the mean is rounded to a whole number": (
            "rest_D = (total_D - count * floor_D) / count",
            "rest_D = 0 * (total_D - count * floor_D) / count",
        ),
        "damaged statistics are read": ('if read.digest != about["digest"]:', "if False:"),
        "of an image in two classes the first row counts": ("rank_K[labels_N], digests_N", "digests_N"),
    },
    ("vitcli/teaching/taught.py", "tests/teaching/test_teach.py"): {
        "a change leaves the statistics behind": (
            "    statistics.write(out / CLOSED_FORM, about)\n",
            "",
        ),
        "a killed command counts as finished": (
            'is_unfinished = is_own and summary.get("statistics") != statistics.digest',
            "is_unfinished = False",
        ),
        "what the network was trained on is forgotten with the rest": (
            "before = seen.trained_before if is_own else seen.ever_trained_on",
            "before = None",
        ),
        "the l2 that a few-shot run was given is chosen again": (
            'l2=STRENGTHS if l2 == "sweep" else (float(l2),),',
            "l2=STRENGTHS,",
        ),
    },
    ("vitcli/teaching/teach.py", "tests/teaching/test_teach.py"): {
        "an image of two classes": (
            "        if there != names[label]:",
            "        if False:",
        ),
        "what the cache holds stays": ("if not user_cache.delete(entry.path)]", "if False]"),
        "images that are there are added again": (
            "is_new_N[row] = digest not in known",
            "is_new_N[row] = True",
        ),
        "the folder is claimed after it was read": ("            claim(start, held)\n", ""),
        "traces that are left are no failure": ("    if traces:\n", "    if False:\n"),
    },
    ("vitcli/teaching/traces.py", "tests/teaching/test_teach.py"): {
        "a piece over the border of a chunk": ("kept = content[-longest:]", 'kept = b""'),
        "the first bytes of a piece are enough": (
            "if start >= 0 and content[start : start + len(piece)] == piece:",
            "if start >= 0:",
        ),
        "the cache is not searched": (
            "for place in (folder, *map(user_cache.cache_folder, CACHES)):",
            "for place in (folder,):",
        ),
    },
    ("vitcli/teaching/labels_file.py", "tests/teaching/test_labels_file.py"): {
        "a label counts before it is on disk": ("                    os.fsync(file.fileno())\n", ""),
        "half a line stays of a full disk": ("                    file.truncate(num_bytes)\n", ""),
        "what another program wrote is written over": ("if self._stamp_now() != self._stamp:", "if False:"),
        "an empty file gets no header": ("any(map(str.strip, lines)) and", "not lines or"),
    },
    ("vitcli/teaching/labelling.py", "tests/teaching/test_labelling.py"): {
        "a second click counts": ('if click.get("state") != self._number:', "if False:"),
        "a skip that is undone stays": ("            self._skipped.pop(row, None)\n", ""),
        "an answer of this session is confirmed": ("        if was_labelled:\n", "        if True:\n"),
        "a label goes before what replaces it is there": (
            "for file, content in reversed(writes) if NONE in changes.values() else writes:",
            "for file, content in writes:",
        ),
    },
    ("vitcli/teaching/label_server.py", "tests/teaching/test_label_server.py"): {
        "any token": ("if not hmac.compare_digest(given.encode(), root.encode()):", "if False:"),
        "another origin": ("        if not _is_of_page(request):\n", "        if False:\n"),
        "a script of anybody": ("script-src 'sha256-{digests[0]}'", "script-src 'unsafe-inline'"),
    },
    ("vitcli/teaching/label_exchange.py", "tests/teaching/test_label.py"): {
        "an exact path is looked up by its end": ("    if path in names:\n", "    if False:\n"),
    },
    ("vitcli/distributed/device.py", "tests/distributed/test_runtime.py"): {
        "GPUs are counted without the environment": (
            'num_gpus = len(visible.split(",")) if visible else len(gpus)',
            "num_gpus = len(gpus)",
        ),
    },
}

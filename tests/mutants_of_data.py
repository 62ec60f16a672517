"""Deliberate breaks of data: orders, parts, what a split is known by, how folders and files are read."""

# By file and tests: what each break does, the text before and after it.
OF_DATA = {
    (
        "vitcli/data/sampler.py",
        "tests/data/test_sampler.py::test_of_a_class_as_many_rows_are_drawn_as_are_whole_by_the_end_of_an_epoch",
    ): {
        "rows of a class are rounded up": (
            "np.floor(self.bounds * (num_epochs * self.num_examples) + 1e-6)",
            "np.ceil(self.bounds * (num_epochs * self.num_examples) - 1e-6)",
        ),
    },
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
    ("vitcli/data/parts/group_assignment.py", "tests/data/parts/test_assignment.py"): {
        "the largest group stands in for the smallest": (
            "groups.order_G[among_G[groups.order_G]][-1]",
            "groups.order_G[among_G[groups.order_G]][0]",
        ),
        "what was trained on is held out though others could be": ("may_move_G &= ~last_G", "pass"),
    },
    ("vitcli/data/parts/splitting.py", "tests/data/test_dataset.py"): {
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
    ("vitcli/data/data_fingerprint.py", "tests/data/test_data_fingerprint.py"): {
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
        "links are followed in search of images": ("entry.is_dir(follow_symlinks=False)", "entry.is_dir()"),
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
            "or 1 in map(len, inner.values())",
            "or False",
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
    ("vitcli/data/vtab_splits.py", "tests/data/test_vtab_splits.py"): {
        "a label too many is a class of a task": (
            '<= range_of["max"] < num_classes',
            '<= range_of["max"] <= num_classes',
        ),
    },
    ("vitcli/data/checks/findings.py", "tests/data/checks/test_findings.py"): {
        "five images of a class are few": ("if 0 < count < FEW_IMAGES}", "if 0 < count <= FEW_IMAGES}"),
        "copies within a test split are nothing to look at": (
            '"look" if exact or is_trained_on else "know"',
            '"look" if is_trained_on else "know"',
        ),
    },
    ("vitcli/data/checks/near_duplicates.py", "tests/data/checks/test_findings.py"): {
        "one image of a pair is counted": (
            "            if self.within:\n                self.has_pair",
            "            if False:\n                self.has_pair",
        ),
    },
    ("vitcli/data/checks/splits.py", "tests/data/checks/test_findings.py"): {
        "width and height of odd images are exchanged": (
            "{width_N[i]}x{height_N[i]}",
            "{height_N[i]}x{width_N[i]}",
        ),
        "the median of numbers is their mean": ("np.median(numbers_N)", "np.mean(numbers_N)"),
    },
    ("vitcli/data/checks/text.py", "tests/data/checks/test_findings.py"): {
        "the speed is of the first split": (
            'num_seen = sum(part["num_images"] for part in result["splits"])',
            'num_seen = result["num_images"]',
        ),
        "what comes next stops at unreadable images": (
            'words += ["--skip-bad"] if "unreadable_images" in names else []',
            "pass",
        ),
    },
    ("vitcli/data/shards/remote.py", "tests/data/shards/test_rows.py"): {
        "kept ranges are told apart by their beginnings": (
            "self.key(first, last)",
            "self.key(first)",
        ),
        "a shard that has changed": ("self.path, self.size, self.stamp, *part)", "self.path, *part)"),
    },
    ("vitcli/data/shards/webdataset.py", "tests/data/shards/test_rows.py"): {
        "a shard may have more samples than counted": (
            "if len(index.offsets_N) != count:",
            "if len(index.offsets_N) < count:",
        ),
    },
    ("vitcli/data/shards/rows.py", "tests/data/shards/test_rows.py"): {
        "shards of other sizes are the same data": (
            "(file_name(file.url), file.size, counts)",
            "(file_name(file.url), counts)",
        ),
    },
    (
        "vitcli/data/checks/near_duplicates.py",
        "tests/data/checks/test_near_duplicates.py::test_a_run_would_train_on_what_is_searched_unless_that_is_other_data",
    ): {
        "other data are what a run would train on": (
            "return 0 if against.dataset else min(1, len(opened) - 1)",
            "return min(1, len(opened) - 1)",
        ),
    },
    (
        "vitcli/data/checks/near_duplicates.py",
        "tests/data/checks/test_near_duplicates.py::test_the_closest_of_all_pairs_are_shown_whichever_block_they_are_found_in",
    ): {
        "the pairs found first are the closest": (
            "pairs[:] = sorted([*pairs, *map(tuple, first.tolist())])[:SHOWN_PAIRS]",
            "pairs[:] = [*pairs, *map(tuple, first.tolist())][:SHOWN_PAIRS]",
        ),
    },
    (
        "vitcli/data/shards/rows.py",
        "tests/data/shards/test_rows.py::test_every_row_is_in_one_block_and_no_other_row_in_any",
    ): {
        "there is a row behind the last": ("if not 0 <= row < starts[-1]:", "if not 0 <= row <= starts[-1]:"),
    },
    (
        "vitcli/data/shards/remote.py",
        "tests/data/shards/test_rows.py::test_bytes_of_a_server_that_never_tells_of_a_change_are_not_kept",
    ): {
        "bytes that may change unseen are kept": (
            "return self.blocks if self.stamp else None",
            "return self.blocks",
        ),
    },
    (
        "vitcli/data/checks/findings.py",
        "tests/data/checks/test_findings.py::test_classes_of_one_to_four_images_are_small_and_those_of_none_are_empty",
    ): {
        "classes without images are small ones": ("if 0 < count < FEW_IMAGES}", "if count < FEW_IMAGES}"),
    },
    (
        "vitcli/data/checks/near_duplicates.py",
        "tests/data/checks/test_near_duplicates.py::test_an_image_with_an_exact_copy_is_not_one_with_a_near_copy_as_well",
    ): {
        "an image with an exact copy has a near one as well": (
            "(self.has_pair[2] & ~is_exact_N).sum()",
            "self.has_pair[2].sum()",
        ),
    },
    (
        "vitcli/data/checks/near_duplicates.py",
        "tests/data/checks/test_near_duplicates.py::test_equal_images_contradict_each_other_by_the_names_of_their_classes",
    ): {
        "images that are merely alike contradict each other": (
            "(differing_P4[~is_near_P], differing_P4[is_near_P])",
            "(differing_P4, differing_P4[is_near_P])",
        ),
        "classes of two splits are compared by their numbers": (
            "np.array([codes[name] for name in labels.class_names])[labels.labels] for labels",
            "labels.labels for labels",
        ),
    },
    ("vitcli/data/checks/splits.py", "tests/data/checks/test_splits.py"): {
        "one image in four is among the smallest 5 %": (
            "(0.0, 0.05, 0.5, 0.95, 1.0)",
            "(0.0, 0.25, 0.5, 0.75, 1.0)",
        ),
        "unreadable images shift the places of odd ones": (
            "split.where_is(int(hashes.rows_N[i]))",
            "split.where_is(int(i))",
        ),
        "all labels of a stream are read": ("if opened.is_large:", "if False:"),
        "labels that are no classes are called no numbers": (
            "return None, reasons[0]",
            "return None, reasons[-1]",
        ),
        "labels of another table are taken": ("if len(opened) != num_images:", "if False:"),
    },
    (
        "vitcli/data/checks/check.py",
        "tests/data/checks/test_findings.py::test_pairs_within_a_large_split_are_searched_for_only_if_asked",
    ): {
        "a large split that is named is not compared with itself": (
            "len(one.split) <= MOST_WITHIN or (len(examined) == 1 and is_named)",
            "len(one.split) <= MOST_WITHIN",
        ),
    },
    (
        "vitcli/data/checks/text.py",
        "tests/data/checks/test_findings.py::test_numbers_and_several_labels_are_described",
    ): {
        "several labels are to be trained by the softmax": (
            '{"several": "sigmoid", "number": "regression"}',
            '{"several": "softmax", "number": "regression"}',
        ),
    },
    (
        "vitcli/data/shards/remote.py",
        "tests/data/shards/test_rows.py::test_a_refusal_is_not_tried_again_and_a_failure_three_times",
    ): {
        "a server that forbids is asked four times": ("REFUSALS = (401, 403)", "REFUSALS = (401,)"),
    },
    (
        "vitcli/data/shards/remote.py",
        "tests/data/shards/test_rows.py::test_a_shard_is_missing_where_the_server_says_so_and_not_where_it_fails",
    ): {
        "a shard that is gone for good is looked for again": ("MISSING = (404, 410)", "MISSING = (404,)"),
    },
    (
        "vitcli/data/shards/block_cache.py",
        "tests/data/shards/test_rows.py::test_blocks_whose_rows_are_taken_are_loaded_each_time_and_the_first_stay",
    ): {
        "blocks take the rows of others": (
            "if int(stamps[row]) in (0, stamp)",
            "if True",
        ),
    },
    (
        "vitcli/data/shards/webdataset.py",
        "tests/data/shards/test_rows.py::test_a_shard_of_no_samples_by_its_count_file_is_not_read",
    ): {
        "shards without samples are read all the same": ("if count >= 0:", "if count > 0:"),
    },
    (
        "vitcli/data/shards/webdataset.py",
        "tests/data/shards/test_rows.py::test_of_two_count_files_the_first_to_be_looked_for_is_right",
    ): {
        "the last of two count files is right": (
            "counts = _counts_in(parse_json(content)) | counts",
            "counts |= _counts_in(parse_json(content))",
        ),
    },
    (
        "vitcli/data/shards/parquet.py",
        "tests/data/shards/test_rows.py::test_a_row_group_of_any_place_must_fit_into_the_cache",
    ): {
        "the smallest row group has to fit into the cache": ("    largest = max(\n", "    largest = min(\n"),
    },
    (
        "vitcli/data/shards/rows.py",
        "tests/data/shards/test_rows.py::test_a_label_that_is_read_late_is_one_of_the_classes_or_refused_by_its_row",
    ): {
        "a label that is read late may be one too high": (
            "if value is not None and 0 <= value < self.num_classes)",
            "if value is not None and 0 <= value <= self.num_classes)",
        ),
    },
    (
        "vitcli/data/checks/findings.py",
        "tests/data/checks/test_findings.py::test_copies_within_matter_most_where_a_part_of_their_split_is_held_out",
    ): {
        "images of a test split are to be kept on one side": (
            'keeps them on one side of a cut" if is_trained_on else ""',
            'keeps them on one side of a cut"',
        ),
    },
    (
        "vitcli/data/checks/findings.py",
        "tests/data/checks/test_findings.py::test_labels_that_are_not_read_spoil_a_number_where_they_would_stop_a_run",
    ): {
        "labels that are merely not read are an error": (
            'level: Level = "spoils" if part["labels_stop"] else "look"',
            'level: Level = "spoils"',
        ),
    },
    (
        "vitcli/data/checks/findings.py",
        "tests/data/checks/test_findings.py::test_images_of_no_class_are_counted",
    ): {
        "one image of no class is no finding": (
            'if classes["num_unlabelled"]:',
            'if classes["num_unlabelled"] > 1:',
        ),
    },
    (
        "vitcli/data/checks/findings.py",
        "tests/data/checks/test_findings.py::test_a_page_of_wrong_labels_is_to_be_opened_where_there_is_one",
    ): {
        "a page of wrong labels has no name": ("fix or f\"open {suspects['page']}\"", 'fix or "open it"'),
    },
    (
        "vitcli/data/checks/findings.py",
        "tests/data/checks/test_findings.py::test_three_names_are_shown_and_the_others_counted",
    ): {
        "an image without a file is named with its data set": (
            'if ", file " in place else file.rpartition(", split ")[2]',
            'if ", file " in place else file',
        ),
    },
    (
        "vitcli/data/checks/check.py",
        "tests/data/checks/test_findings.py::test_a_single_split_that_is_too_large_has_no_pairs",
    ): {
        "a single large split has pairs to show": (
            ('    if not comparisons:\n        return dict.fromkeys(keys[:-1], 0) | {"pairs": []}\n'),
            "",
        ),
    },
    (
        "vitcli/data/checks/text.py",
        "tests/data/checks/test_findings.py::test_nothing_is_found_in_clean_images_and_the_facts_are_right",
    ): {
        "classes of one size have extremes": ("elif counts[largest] == counts[smallest]:", "elif False:"),
    },
    (
        "vitcli/data/checks/text.py",
        "tests/data/checks/test_findings.py::test_sizes_are_a_range_unless_all_images_have_the_same",
    ): {
        "short sides alone tell that all images have one shape": (
            'if short["min"] == short["max"] and aspect["min"] == aspect["max"]:',
            'if short["min"] == short["max"]:',
        ),
    },
    (
        "vitcli/data/checks/text.py",
        "tests/data/checks/test_findings.py::test_what_comes_next_follows_from_labels_and_findings",
    ): {
        "data of which one split has no labels are not trained on": (
            "if kinds == {None}:",
            "if None in kinds:",
        ),
        "groups of their own are replaced by near duplicates": (
            'if not any("data.group_column" in word for word in reading):',
            "if True:",
        ),
        "labels that were checked are to be checked": (
            'has_classes = "class" in kinds and "num_checked" not in suspects',
            'has_classes = "class" in kinds',
        ),
    },
    (
        "vitcli/data/shards/remote.py",
        "tests/data/shards/test_rows.py::test_an_error_of_this_machine_says_nothing_of_a_shard",
    ): {
        "a disk that fails is a damaged shard": (
            (
                "        if is_of_machine(error):\n"
                "            raise\n"
                "        raise unreadable(url, error) from error"
            ),
            "        raise unreadable(url, error) from error",
        ),
    },
    (
        "vitcli/data/shards/remote.py",
        "tests/data/shards/test_rows.py::test_reading_by_ranges_is_reading_a_file",
    ): {
        "a shard is read from before its start": (
            "self.position = max(0, start + offset)",
            "self.position = start + offset",
        ),
    },
    (
        "vitcli/data/shards/remote.py",
        "tests/data/shards/test_rows.py::test_without_the_network_the_hub_is_asked_once",
    ): {
        "the Hub is asked four times though that is forbidden": (
            'if type(error).__name__ == "OfflineModeIsEnabled":',
            "if False:",
        ),
    },
    (
        "vitcli/data/shards/block_cache.py",
        "tests/data/shards/test_locks.py",
    ): {
        "processes index the same shard at once": ("with self._one_at_a_time(stamp):", "if True:"),
    },
    (
        "vitcli/data/shards/webdataset.py",
        "tests/data/shards/test_rows.py::test_a_label_may_stand_in_json_as_a_number_or_as_several",
    ): {
        "a sample has the first label of the next one": (
            "labels_M[first : self.label_ends_N[sample]]",
            "labels_M[first : self.label_ends_N[sample] + 1]",
        ),
    },
    (
        "vitcli/data/shards/webdataset.py",
        "tests/data/shards/test_rows.py::test_a_sample_without_image_or_label_is_refused_by_shard_and_key",
    ): {
        "a label of a gigabyte is read": ("MAX_LABEL_BYTES = 2**20", "MAX_LABEL_BYTES = 2**30"),
        "labels need 64 bits": ("abs(value) < 2**31", "abs(value) < 2**63"),
    },
    (
        "vitcli/data/shards/webdataset.py",
        "tests/data/shards/test_rows.py::test_a_count_is_believed_up_to_what_the_bytes_of_a_shard_can_hold",
    ): {
        "a sample may be of a single block": (
            "LEAST_SAMPLE_BYTES = 2 * tarfile.BLOCKSIZE",
            "LEAST_SAMPLE_BYTES = tarfile.BLOCKSIZE",
        ),
    },
    (
        "vitcli/data/shards/webdataset.py",
        "tests/data/shards/test_rows.py::test_links_and_devices_in_a_tar_are_never_followed",
    ): {
        "a sparse member of a tar is an image": (
            "not member.isreg() or member.issparse() or not stem",
            "not member.isreg() or not stem",
        ),
    },
    (
        "vitcli/data/shards/webdataset.py",
        "tests/data/shards/test_rows.py::test_of_a_tar_on_this_disk_only_the_index_is_kept",
    ): {
        "a tar on this disk has to fit into the cache": (
            "return index_bytes + (0 if file.is_local else file.size)",
            "return index_bytes + file.size",
        ),
    },
    (
        "vitcli/data/shards/parquet.py",
        "tests/data/shards/test_rows.py::test_an_empty_row_group_has_no_labels_that_could_be_wrong",
    ): {
        "an empty row group hides the range of labels": (
            ("        if not group.num_rows:\n            continue\n"),
            "",
        ),
    },
    (
        "vitcli/data/shards/parquet.py",
        "tests/data/shards/test_rows.py::test_columns_of_which_two_may_be_the_image_or_the_label_are_to_be_named",
    ): {
        "the first of two columns is taken": (
            "return matches[0] if len(matches) == 1 else None",
            "return matches[0] if matches else None",
        ),
    },
    (
        "vitcli/data/shards/parquet.py",
        "tests/data/shards/test_rows.py::test_several_labels_in_words_are_refused_as_one_is",
    ): {
        "lists of words are labels": (
            "return name == label_column or name in LABEL_NAMES or",
            "return name == label_column or",
        ),
    },
    (
        "vitcli/data/shards/rows.py",
        "tests/data/shards/test_rows.py::test_shards_without_statistics_need_the_number_of_classes",
    ): {
        "one shard tells the classes of all": (
            "if known is None and len(largest) == len(with_rows):",
            "if known is None and largest:",
        ),
    },
    (
        "vitcli/data/shards/rows.py",
        "tests/data/shards/test_rows.py::test_shards_of_which_one_may_change_unseen_have_no_stamp",
    ): {
        "shards that may change unseen have a stamp": (
            'if stamps and all(stamps) else ""',
            'if stamps else ""',
        ),
    },
    (
        "vitcli/data/shards/parquet.py",
        "tests/data/shards/test_rows.py::test_a_column_is_told_from_those_whose_names_begin_with_its_own",
    ): {
        "columns are told apart by how their names begin": (
            'return path == column or path.startswith(f"{column}.")',
            "return path.startswith(column)",
        ),
    },
    (
        "vitcli/data/parts/splitting.py",
        "tests/data/test_dataset.py::test_held_out_rows_are_as_near_to_the_fraction_of_each_class_as_whole_rows_allow",
    ): {
        "a fraction of all rows is rounded down": (
            "np.clip(round(fraction * counts_K.sum())",
            "np.clip(int(fraction * counts_K.sum())",
        ),
    },
    ("vitcli/data/parts/image_hashes.py", "tests/data/parts/test_image_hashes.py"): {
        "images of another shape are copies": (
            "_first_64_bits(repr(image_HWC.shape).encode(), ",
            "_first_64_bits(",
        ),
    },
}

"""Deliberate breaks of what a result rests on, such as pixels, counts and weights; see `mutants.py`."""

# By file and tests: what each break does, the text before and after it.
OF_RESULTS = {
    # Which images, in which order, and which are held out.
    ("vitcli/data/classes.py", "tests/data/test_split.py"): {
        "as many classes are the same": (
            "train.class_names == held_out.class_names and",
            "train.class_names == held_out.class_names or",
        ),
    },
    ("vitcli/data/classes.py", "tests/evaluation/test_evaluate_and_predict.py"): {
        "classes are matched by position": (
            "np.array([order.get(name, -1) for name in names])",
            "np.arange(len(names))",
        ),
        "other classes are scored": ("        if unknown or not set", "        if not set"),
    },
    ("vitcli/data/loader.py", "tests/data/test_loader.py"): {
        "a process that shares no cores has one thread": ("cores or launch.cpu_count()", "cores or 1"),
        "the augmentation forgets its position": ('"augment", position', '"augment", 0'),
        "the augmentation ignores the seed": ("derive_seed(sampler.seed, ", "derive_seed(0, "),
        "a bad image is replaced by itself": (
            "row, read_row = (row + 1) % len(split), ",
            "row, read_row = row, ",
        ),
        "what was left out is not counted": ("                skipped += (split.where_is(row),)\n", ""),
        "exchanged images count as the same data": (
            "xxh3_128_intdigest(image, seed=row)",
            "xxh3_128_intdigest(image)",
        ),
        "a bad image is an image": (
            "            return Example(None, row, skipped",
            "            return Example(0, row, skipped",
        ),
    },
    ("vitcli/data/sampler.py", "tests/data/test_loader.py"): {
        "the last, short batch is dropped": (
            "        yield range(first, min(first + size, num_rows))",
            "        if first + size <= num_rows:\n            yield range(first, first + size)",
        ),
    },
    ("vitcli/data/sampler.py", "tests/data/test_sampler.py"): {
        "a class goes on with the same order": ('"class", number, of_pass)', '"class", number)'),
        "each epoch begins its classes again": ("before_K[classes_N] + places_N", "places_N"),
        "every epoch in the same order": (
            'derive_seed(seed, "order", epoch)',
            'derive_seed(seed, "order", 0)',
        ),
        "every process sees the same images": ("+ rank * per_rank", "+ 0 * per_rank"),
        "shards in the same order in every epoch": ('"blocks", epoch', '"blocks", 0'),
        "a window in the same order in every epoch": ('"window", epoch, window', '"window", 0, window'),
        "seven rounds of the permutation": ("ROUNDS = 8", "ROUNDS = 7"),
    },
    ("vitcli/data/seen_images.py", "tests/data/test_seen_images.py"): {
        "what is not known of a teacher counts as nothing": (
            "None if any(digests_N is None for digests_N in of_each) else ever_before",
            "ever_before",
        ),
        "images are recognised by their row": (
            'int.from_bytes(blake2b(bytes(image), digest_size=DIGEST_BYTES).digest(), "little")',
            "row + 1",
        ),
        "images are held out by their row": (
            "np.lexsort((digests_N, np",
            "np.lexsort((np.arange(len(digests_N)), np",
        ),
        "what was trained on before is held out first": (
            "np.isin(digests_N, before)\n",
            "~np.isin(digests_N, before)\n",
        ),
        "images that were trained on are scored": (
            "was_trained_N[held_rows] = False",
            "was_trained_N[:] = False",
        ),
    },
    ("vitcli/data/parts/splitting.py", "tests/data/test_dataset.py tests/data/test_seen_images.py"): {
        "a class is held out whole": ("np.maximum(counts_K - 1, 0)", "counts_K"),
        "a class is left without a held-out image": (
            "(counts_K >= 2).astype(np.int64)",
            "np.zeros_like(counts_K)",
        ),
        "held-out images are trained on": ("train.rows(np.flatnonzero(~is_dev_N))", "train"),
    },
    ("vitcli/data/parts/group_assignment.py", "tests/data/parts"): {
        "a fold forgets what it holds": ("(2 * held_PC[:, columns] + counts)", "counts"),
        "the smallest groups are assigned first": ("-np.bincount(groups_N))", "np.bincount(groups_N))"),
        "all groups of a class are held out": (
            "groups.sole_groups() if every_class",
            "np.zeros(groups.num_groups, dtype=bool) if every_class",
        ),
        "groups that were trained on are held out": ("rest_G=sole_G | last_G", "rest_G=sole_G"),
    },
    ("vitcli/data/parts/groups.py", "tests/data/parts"): {
        "near duplicates are no group": ("roots_N = _joined(", "_joined("),
        "a folder is counted from the top": ("folders[-level]", "folders[level - 1]"),
    },
    ("vitcli/data/split.py", "tests/data/test_split.py"): {
        "unlabelled rows are scored": ("labels < 0 if labels.ndim == 1", "labels < -1 if labels.ndim == 1"),
        "labels beyond the classes pass": ("labels >= split.num_classes", "labels > split.num_classes"),
        "rows without a label become the last class": (
            "np.where(labels < 0, labels, number_of[labels])",
            "number_of[labels]",
        ),
    },
    ("vitcli/distributed/transfer.py", "tests/distributed/test_threads.py"): {
        "the loader takes OpenMP threads": ("        torch.set_num_threads(1)", "        pass"),
    },
    # Pixels.
    ("vitcli/cache/row_store.py", "tests/cache/test_row_store.py"): {
        "an image of a changed file is taken": (
            "if stored != stamp or not num_bytes:",
            "if not num_bytes:",
        ),
        "changed pixels are taken": (
            "if xxhash.xxh3_64_intdigest(content_ABC.data, SEED) != checksum:",
            "if False:",
        ),
        "a torn record is taken": ("_check(record[: PLACE.size]) != record[PLACE.size :]", "False"),
        "a store of one process has two": ("            if is_shared:\n", "            if True:\n"),
    },
    ("vitcli/io/files.py", "tests/cache/test_row_store.py"): {
        "links in the cache are followed": ("os.O_CREAT | NO_LINK", "os.O_CREAT"),
    },
    ("vitcli/data/image_cache.py", "tests/cache/test_row_store.py"): {
        "memory keeps images of changed files": ("pixels_HWC if stored == stamp else None", "pixels_HWC"),
    },
    ("vitcli/data/decoding.py", "tests/data/test_decoding.py"): {
        "damage is taken for grey": ("if any(words in str(error).lower() for words in DAMAGE)", "if False"),
        "no limit of scans": ("> MOST_SCANNED_PIXELS", "> 2**60"),
        "no limit of pixels": ("    if num_pixels > MAX_PIXELS:", "    if False:"),
        "no limit of sides": ("    if max(image.size) > MAX_SIDE:", "    if False:"),
        "a photograph lies on its side": (
            "orientation := _orientation(image)) != 1",
            "orientation := 1) != 1",
        ),
        "transparency is black": ('layer.size, "white")', 'layer.size, "black")'),
        "any format that Pillow has": (
            "Image.open(io.BytesIO(data), formats=FORMATS)",
            "Image.open(io.BytesIO(data))",
        ),
        "the check accepts what training refuses": (
            '            _read_all_bits(data, "RGB")\n',
            "",
        ),
    },
    ("vitcli/data/transforms.py", "tests/data/test_transforms.py"): {
        "mean and deviation are exchanged": (
            "sub_(mean_C.view(-1, 1, 1)).div_(std_C.view(-1, 1, 1))",
            "sub_(std_C.view(-1, 1, 1)).div_(mean_C.view(-1, 1, 1))",
        ),
        "the crop is at the corner": ("(round((side - crop) / 2) for", "(0 * (side - crop) for"),
        "the short side is rounded up": (
            "math.floor(min(self.image_size) / self",
            "math.ceil(min(self.image_size) / self",
        ),
        "the crop fraction is ignored": (
            "(math.floor(side / self.crop_fraction + 1e-6) for",
            "(math.floor(side + 1e-6) for",
        ),
        "antialias is turned round": (
            "RESIZE[interpolation, antialias]",
            "RESIZE[interpolation, not antialias]",
        ),
        "corners are aligned in a resize": ("size, False, None, None, out=", "size, True, None, None, out="),
        "an Inception crop is turned on its side": (
            "width = round(height * ratio)\n",
            "width = round(height / ratio)\n",
        ),
        "three of four images are mirrored": ("rng.random() < 0.5", "rng.random() < 0.75"),
        "bicubic is bilinear": (
            '("bicubic", True): torch._C._nn._upsample_bicubic2d_aa',
            '("bicubic", True): torch._C._nn._upsample_bilinear2d_aa',
        ),
    },
    # What is counted.
    ("vitcli/evaluation/assertions.py", "tests/evaluation/test_assertions.py"): {
        ">= is >": ('">=": operator.ge', '">=": operator.gt'),
        "a missing number holds": ("value is not None and RELATIONS", "value is None or RELATIONS"),
    },
    ("vitcli/evaluation/class_map.py", "tests/evaluation/test_class_map.py"): {
        "synonyms are summed": (".max(dim=2).values", ".sum(dim=2)"),
        "classes outside a map compete": ("if not self.all_compete:", "if self.all_compete:"),
        "one class counts for two": ("if owner.setdefault(number, name) != name:", "if False:"),
    },
    ("vitcli/evaluation/compare.py", "tests/evaluation/test_compare.py"): {
        "predictions of other images are compared": ("    if pairs:\n", "    if False:\n"),
        "the sign of a difference": ("(only_b - only_a) / count", "(only_a - only_b) / count"),
    },
    ("vitcli/evaluation/inference.py", "tests/evaluation/test_inference.py"): {
        "NaN is class 0": ("if (0 * outputs).sum() != 0:", "if False:"),
        "a row may be counted twice": ("int(seen_N.max()) <= 1 and num_rows", "True or num_rows"),
        "a row may be missing": ("<= 1 and num_rows == len(split)", "<= 1"),
        "dropout in an evaluation": ("    model.eval()\n", "    pass\n"),
        "training goes on in evaluation mode": ("        model.train(was_training)", "        pass"),
        "undecodable images are right": (
            "rows_N = seen_N.nonzero()[:, 0]\n    counted",
            "rows_N = torch.arange(len(seen_N))\n    counted",
        ),
        "undecodable images are right in a run": (
            'columns["ranks"][seen_N], columns["losses"][seen_N]',
            'columns["ranks"], columns["losses"]',
        ),
        "nothing decoded is no error": ("    if not seen_N.any():", "    if False:"),
    },
    ("vitcli/evaluation/metrics.py", "tests/evaluation/test_metrics.py"): {
        "equal logits are right": (".addcmul_(equal_BMK, before_BMK)", ""),
        "equal top logits are in any order": ("* num_classes - torch.arange(num_classes)", "* num_classes"),
        "negative logits are ordered by their size": (" ^ (bits_BK >> 31 & 0x7FFFFFFF)", ""),
        "0 is before -0": ("(logits_BK + 0.0).view", "logits_BK.view"),
        "groups of classes stay in the order of their maxima": (
            ".sort(dim=1).values[..., None]",
            "[..., None]",
        ),
        "the last of many classes are in no group": (
            "torch.cat([near_BC, torch.arange(whole, num_classes).expand(len(near_BC), -1)], dim=1)",
            "near_BC",
        ),
        "top-5 of six": ("ranks_N < 5", "ranks_N <= 5"),
        "the loss of several labels is their sum": (
            "(losses_BM * is_label_BM).sum(dim=1) / is_label_BM.sum(dim=1)",
            "(losses_BM * is_label_BM).sum(dim=1)",
        ),
        "the last of several labels counts": (".min(dim=1).values", ".max(dim=1).values"),
        "padding is a right class": (".where(labels_BM >= 0, num_classes)", ""),
    },
    (
        "vitcli/evaluation/predictions.py",
        "tests/evaluation/test_predictions.py tests/evaluation/test_prediction_files.py",
    ): {
        "a damaged file of predictions": ("if about is None:", "if False:"),
        "the least confident mistakes": (
            "np.argsort(-predictions.confidences_N[wrong]",
            "np.argsort(predictions.confidences_N[wrong]",
        ),
    },
    ("vitcli/evaluation/real_labels.py", "tests/evaluation/test_real_labels.py"): {
        "ReaL labels are off by one": ("int(name[1]) - 1", "int(name[1])"),
        "images without a ReaL label are wrong": ("sum(map(bool, lists_N))", "len(lists_N)"),
        "labels of other images are taken": ("if sum(agrees) < len(agrees) / 2:", "if False:"),
    },
    ("vitcli/evaluation/intervals.py", "tests/evaluation/test_intervals.py"): {
        "McNemar's test has one side": ("min(1.0, 2 * largest * total)", "min(1.0, largest * total)"),
        "an interval of 90 %": ("TAILS = (0.025, 0.975)", "TAILS = (0.05, 0.95)"),
    },
    ("vitcli/evaluation/predictions.py", "tests/evaluation/test_reliability.py"): {
        "ECE without weights": ("(self.counts_M * gaps_M).sum() / self.counts_M.sum()", "gaps_M.mean()"),
    },
    # Networks.
    ("vitcli/models/build.py", "tests/models/test_build.py"): {
        "the two GELUs are exchanged": (
            '{"tanh": "gelu_tanh", "erf": "gelu"}',
            '{"tanh": "gelu", "erf": "gelu_tanh"}',
        ),
        "the representation layer has no tanh": ('("tanh", nn.Tanh())', '("tanh", nn.Identity())'),
        "the last layer is not zero": ("nn.init.zeros_(parameter)", "nn.init.ones_(parameter)"),
        "an image size is cut to patches": (
            "    check_image_size(arch)\n    return arch\n",
            "    return arch\n",
        ),
    },
    ("vitcli/models/build.py", "tests/training/test_model_keys.py"): {
        "drop path is ignored": ('options["drop_path_rate"] = drop_path', "pass"),
    },
    ("vitcli/models/build.py", "tests/weights/test_huggingface.py"): {
        "epsilons are timm's": ("module.eps = arch.norm_eps", "pass"),
    },
    ("vitcli/models/features.py", "tests/models/test_features.py"): {
        "pre_logits are dropped": (
            "head[:2](features_BD) if isinstance(head, nn.Sequential) else features_BD",
            "features_BD",
        ),
        "the class token counts in the mean": (
            "tokens_of(model, encoded)[:, model.num_prefix_tokens :].mean(dim=1)",
            "tokens_of(model, encoded).mean(dim=1)",
        ),
    },
    ("vitcli/models/kernels.py", "tests/models/test_gelu.py"): {
        "a slope of GELU": ("alpha=-1.5 / SLOPE", "alpha=-1.4 / SLOPE"),
    },
    (
        "vitcli/models/pos_embed.py",
        "tests/models/test_pos_embed.py tests/models/test_pos_embed_resampling.py",
    ): {
        "corners are not aligned": (
            'mode="bilinear", align_corners=True',
            'mode="bilinear", align_corners=False',
        ),
        "bicubic position embeddings": ('size=new_grid, mode="bilinear"', 'size=new_grid, mode="bicubic"'),
        "the grid is turned on its side": (
            "grid_1ND.unflatten(1, old_grid)",
            "grid_1ND.unflatten(1, old_grid[::-1])",
        ),
        "patches are resampled with antialias": (
            "antialias=is_timms",
            "antialias=True",
        ),
    },
    # Weights.
    ("vitcli/weights/onnx.py", "tests/conversion/test_export.py"): {
        "weights beside every ONNX file have one name": (
            "    _name_data_by_contents(path, graph)\n",
            "",
        ),
    },
    ("vitcli/weights/production/program.py", "tests/weights/production/test_program.py"): {
        "an exported file rounds pixels once": (
            "torch.floor((high + torch.floor(low / PART)) / (scale / PART).float() + 0.5)",
            "((high + low / PART) / (scale / PART).float())",
        ),
        "an exported file forgets the low part of a weight": ("(high + torch.floor(low / PART))", "high"),
        "a band lacks its last pixel": (
            "_as_size(offsets_M1.max() + num_taps)",
            "_as_size(offsets_M1.max() + num_taps - 1)",
        ),
        "an exported file cuts a pixel beside the centre": (
            "return half + is_odd * (half % 2)",
            "return half",
        ),
    },
    ("vitcli/conversion/export.py", "tests/conversion/test_form.py tests/conversion/test_onnx_file.py"): {
        "an exported file has no temperature": ('{"scaled": stored.scaling.scaled}', "{}"),
        "other outputs are kept": ("if agreement.max_rel_difference > TOLERANCE:", "if False:"),
    },
    ("vitcli/conversion/export.py", "tests/conversion/test_export.py"): {
        "the figure of an earlier file stays": (", front_path(target)) if target", ",) if target"),
    },
    ("vitcli/conversion/comparison.py", "tests/conversion/test_gate.py"): {
        "the gate believes what it has seen": (
            "return self.highest_drop <= self.max_drop",
            "return self.drop <= self.max_drop",
        ),
        "the gate takes gains for losses": (
            "difference = lost - gained - num_images * drop",
            "difference = gained - lost - num_images * drop",
        ),
    },
    ("vitcli/conversion/golden.py", "tests/conversion/test_onnx_file.py"): {
        "a golden file allows anything": ("or not 0 < tolerance < 1:", "or not 0 < tolerance:"),
    },
    ("vitcli/weights/describe.py", "tests/weights/test_files.py"): {
        "a file asks timm for other files": (
            "if options := FACTORY_OPTIONS & arch.model_args.keys():",
            "if options := set():",
        ),
        "networks of any depth": ("if not _is_of_a_network(value, key):", "if False:"),
    },
    ("vitcli/weights/download.py", "tests/weights/test_download.py"): {
        "checksums of downloads": ("is_whole and all(digest", "is_whole or all(digest"),
        "a part of another version is appended": ('and stated.get("etag", etag) == etag', ""),
        "a download without encryption": ('if self.address.startswith("https:") and not', "if False and not"),
        "a web page is kept as weights": (
            'if stated.get("content-type", "").startswith("text/html"):',
            "if False:",
        ),
        "an address shows its password": (
            "where, host = public_name(self.address), ",
            "where, host = self.address, ",
        ),
    },
    (
        "vitcli/weights/download.py",
        "tests/weights/test_names.py tests/weights/test_download.py "
        "tests/weights/test_io.py tests/weights/test_huggingface.py",
    ): {
        "paths in a list of shards are followed": ("Path(name).name == name and name", "name"),
        "a damaged file of the Hub": ("digest_of_file(blob).hex() != blob.name", "False"),
    },
    ("vitcli/weights/files.py", "tests/test_hostile_files.py"): {
        "names share their numbers": (") > num_bytes:", ") > 99 * num_bytes:"),
        "pickles of any size": ("member.file_size > MOST_PICKLED_BYTES", "False"),
        "old pickles of any size": ("if self.num_pickled > MOST_PICKLED_BYTES:", "if False:"),
        "a header is parsed before its tensors are counted": ("> MOST_TENSORS:", "> 10**9:"),
    },
    ("vitcli/weights/files.py", "tests/weights/test_archives.py"): {
        "a pickle is run": ("weights_only=True, mmap", "weights_only=False, mmap"),
        "archives grow without end": ("if num_bytes > MAX_EXPANSION * path.stat().st_size:", "if False:"),
        "Python objects in an npz": ("if dtype.hasobject:", "if False:"),
    },
    ("vitcli/weights/files.py", "tests/weights/test_files.py"): {
        "weights are waited for in a pipe": (
            "        open_regular(path).close()  # no pipe, which would be waited for",
            "        pass",
        ),
        "weights carry no checksum": (
            'not in ("", checksum_of(state, text))',
            'not in ("", metadata.get(CHECKSUM))',
        ),
        "strides of 0 are unpacked": (") > num_bytes:", ") < 0:"),
        "a key twice": ("if len(dict(pairs)) < len(pairs):", "if False:"),
        "a header of any length": ("if length > min(path.stat().st_size, MOST_HEADER_BYTES):", "if False:"),
    },
    ("vitcli/weights/huggingface.py", "tests/weights/test_huggingface.py"): {
        "images are normalised though they are not": (
            '_three(given, "image_mean") if given["do_normalize"] else [0.0, 0.0, 0.0]',
            '_three(given, "image_mean")',
        ),
        "any rescaling": ("math.isclose(factor, 1 / 255, rel_tol=1e-6)", "True"),
    },
    ("vitcli/weights/authors_npz.py", "tests/weights/test_authors_npz.py"): {
        "query and key are exchanged": ('("query", "key", "value")', '("key", "query", "value")'),
        "a projection is not transposed": (
            "lambda x_HhD: x_HhD.flatten(0, 1).T",
            "lambda x_HhD: x_HhD.flatten(0, 1)",
        ),
        "the class token has its row twice": (
            "np.zeros_like(posemb_1ND[:, :1])",
            "np.ones_like(posemb_1ND[:, :1])",
        ),
    },
    ("vitcli/weights/load.py", "tests/weights/test_io.py"): {
        "a kept head is in the order of the weights": (
            "parameter.copy_(parameter[order])",
            "parameter.copy_(parameter)",
        ),
        "a head for other classes is kept": ("        if in_data != in_weights:", "        if False:"),
        "tensors that do not fit are left out": ("        check_fits(state, expected, arch)\n", ""),
    },
    ("vitcli/weights/timm.py", "tests/weights/test_timm.py"): {
        "a tag is asked of every name": (
            "if not tag or not timm.is_model(name):",
            "if not tag and not timm.is_model(name):",
        ),
        "the GELU of the paper's weights": ('variant.timm_args, "tanh"', 'variant.timm_args, "timm"'),
        "timm's mean and deviation are exchanged": (
            'list(stored.get("mean") or',
            'list(stored.get("std") or',
        ),
        "timm's crop is ignored": ('float(stored.get("crop_pct") or 0.875)', "0.875"),
    },
    # Few-shot classification, and features that are kept.
    ("vitcli/features/extract.py", "tests/features/test_extract.py"): {
        "features of other weights": ('            "weights": self.weights_digest,\n', ""),
        "features of other pixels": (
            '            "preprocessing": self.network.preprocessing.as_dict(),\n',
            "",
        ),
        "features of other images": ('            "data": split.fingerprint,\n', ""),
        "features of another layer": (
            '"layer": recipe.eval.layer if layout is None else',
            '"layer": "" if layout is None else',
        ),
    },
    ("vitcli/features/feature_store.py", "tests/features/test_feature_store.py"): {
        "features of anything else": ("int(name_of(about)[:16], 16) or 1", "1"),
        "rows of another program are features": (
            "claimed_N[place] = self._fits(self.rows.get(int(rows_N[place]), self._stamp))",
            "pass",
        ),
    },
    ("vitcli/weights/io.py", "tests/features/test_feature_store.py"): {
        "weights of equal shapes are the same": (
            "digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())",
            "pass",
        ),
    },
    # Classes of different sizes, and metrics of each.
    ("vitcli/data/balance.py", "tests/data/test_balance.py"): {
        "weights of another mean": (" * (counts_K.sum() / (counts_K @ weights_K))", ""),
    },
    ("vitcli/evaluation/class_metrics.py", "tests/evaluation/test_class_metrics.py"): {
        "ties count as wins": ("lower_P + 0.5 * equal_P", "lower_P + equal_P"),
        "the precision of a tie is that of its first row": (
            "(num_positives - own_below_P) / (num_rows - below_P)",
            "(num_positives - own_upto_P + 1) / (num_rows - below_P)",
        ),
        "absent classes count": (
            "classes_C, counts_C = np.unique(labels_N,",
            "classes_C, counts_C = np.unique(predicted_N,",
        ),
    },
    ("vitcli/data/augmentations/random_erasing.py", "tests/data/test_augmentations.py"): {
        "erased the other way round": ("if rng.random() > probability", "if rng.random() < probability"),
    },
    ("vitcli/features/least_squares.py", "tests/features/test_least_squares.py"): {
        "a group is left out row by row": (
            "in _groups_of_equal_size(solution.groups_N, width)",
            "in _groups_of_equal_size(np.arange(len(solution.groups_N)), width)",
        ),
        "no ridge term": ("(self.eigenvalues_R + self.l2[which])", "(self.eigenvalues_R)"),
        "deviations of a sample": (
            ".mean(axis=0)) + STD_ADDED",
            ".sum(axis=0) / (len(features_ND) - 1)) + STD_ADDED",
        ),
        "left-out scores of weighted rows stay weighted": (
            "targets_N1K - right_NLK / root_N11",
            "targets_N1K - right_NLK",
        ),
        "a row that is left out counts": ("/ (1 - diagonal_G11 if is_tall", "/ (1 if is_tall"),
        "the smallest l2 among equals": (
            "(accuracy_L[i], solution.l2[i])",
            "(accuracy_L[i], -solution.l2[i])",
        ),
        "shots of every seed alike": ("np.random.default_rng(seed)", "np.random.default_rng(0)"),
    },
}

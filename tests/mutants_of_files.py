"""Deliberate breaks of networks and what is written of them: weights, exports, what is seen inside."""

# By file and tests: what each break does, the text before and after it.
OF_FILES = {
    ("vitcli/models/layered_head.py", "tests/models/test_layered_head.py"): {
        "a layered head reads the patches without the last norm": (
            "norm=True, output_fmt",
            "norm=False, output_fmt",
        ),
        "a layered head reads means before tokens": (
            "(prefix_BSD[:, :1], x_BND.mean(dim=1, keepdim=True))",
            "(x_BND.mean(dim=1, keepdim=True), prefix_BSD[:, :1])",
        ),
        "an ordinary head is put into the columns of the last mean": (
            "return slice(num_features - 2 * width, num_features - width)",
            "return slice(num_features - width, num_features)",
        ),
        "a widened head forgets its bias": ("nn.Parameter(bias_K.clone())", "nn.Parameter(0 * bias_K)"),
        "a network with fewer blocks gets a layered head": (
            "0 < num_layers <= len(model.blocks)",
            "0 < num_layers",
        ),
        "a widened network changes the one it is made of": (
            '"_modules": dict(model._modules)',
            '"_modules": model._modules',
        ),
    },
    ("vitcli/models/features.py", "tests/models/test_layered_head.py"): {
        "the mean of the patches counts what a layered head reads": (
            "tokens_of(model, encoded)[:, model.num_prefix_tokens :]",
            "encoded[:, model.num_prefix_tokens :]",
        ),
    },
    ("vitcli/models/architecture.py", "tests/models/test_layered_head.py"): {
        "a new head reads several layers": (
            "representation_size=0, head_layers=0)",
            "representation_size=0)",
        ),
        "a layered network counts as plain": (
            'parts == ("1d", "stem", False, 0)',
            'parts[:3] == ("1d", "stem", False)',
        ),
    },
    ("vitcli/weights/locate.py", "tests/training/methods/test_layered_refit.py"): {
        "checkpoints are read with the head of the end": (
            "if metadata.pop(LAYERED, False)",
            "if False",
        ),
    },
    ("vitcli/conversion/comparison.py", "tests/conversion/test_agreement.py"): {
        "images are shrunk as no file does": (
            'exact = replace(preprocessing, decode="exact")',
            "exact = preprocessing",
        ),
        "an output that is too small does not differ": (
            "float((exported_NK - outputs_NK).abs().max())",
            "float((exported_NK - outputs_NK).max())",
        ),
    },
    ("vitcli/conversion/comparison.py", "tests/conversion/test_speed.py"): {
        "the throughput is that of the slowest batch size": (
            "max(seconds, key=lambda batch_size: batch_size / seconds[batch_size])",
            "min(seconds, key=lambda batch_size: batch_size / seconds[batch_size])",
        ),
        "batches are measured for minutes": (
            "> MOST_S:\n            break",
            "> 100 * MOST_S:\n            break",
        ),
        "a latency in seconds": ('"latency_ms": 1000 * seconds[1]', '"latency_ms": seconds[1]'),
        "the first run of a turn counts": (
            "for _ in range(RUNS_OF_A_TURN)][1:]",
            "for _ in range(RUNS_OF_A_TURN)]",
        ),
    },
    ("vitcli/conversion/model_card.py", "tests/conversion/test_usage.py"): {
        "a revision is forgotten in how to load": ('at = f"@{revision}" if revision else ""', 'at = ""'),
    },
    ("vitcli/inspection/analysis.py", "tests/inspection/test_analysis.py"): {
        "an image is lit by the maps of others": (
            "maps_Bhw.flatten(1).double().quantile(full_at, dim=1, keepdim=True)",
            "maps_Bhw.flatten().double().quantile(full_at).expand(len(maps_Bhw), 1)",
        ),
        "maps are compared at the size of the smaller": ("size = max((map_MHW", "size = min((map_MHW"),
        "a rollout goes from the first layer to the last": ("mean_BTT @ below_BTT", "below_BTT @ mean_BTT"),
    },
    (
        "vitcli/inspection/why.py",
        "tests/inspection/test_why.py::test_a_group_is_shown_by_its_image_of_most_influence "
        "tests/inspection/test_why.py::test_fifty_images_are_explained_and_one_more_is_refused",
    ): {
        "a group is shown by its first image": (
            "np.where(group_of_row_N == group, influences_N, -np.inf).argmax()",
            "np.flatnonzero(group_of_row_N == group)[0]",
        ),
        "51 images are explained": ("> MOST_IMAGES:", "> MOST_IMAGES + 1:"),
    },
    ("vitcli/models/masked_patch.py", "tests/models/test_masked_patch.py"): {
        "registers are patches": (
            "[:, self.vit.num_prefix_tokens :]\n        outputs",
            "[:, 1:]\n        outputs",
        ),
    },
    (
        "vitcli/models/image_sizes.py",
        "tests/training/methods/test_resolutions.py::test_networks_of_timm_take_other_sizes_or_are_refused",
    ): {
        "rotary angles of the first other size are kept": ("if grid not in ropes:", "if not ropes:"),
    },
    ("vitcli/weights/interpolate.py", "tests/weights/test_interpolate.py"): {
        "the best of several tables speaks for all": (
            "{k: min(s[k] for s in similarities)",
            "{k: max(s[k] for s in similarities)",
        ),
    },
    ("vitcli/weights/imagenet.py", "tests/weights/test_imagenet.py::test_only_an_imagenet_head_is_one"): {
        "train1k is ImageNet-1k": ("(?<![a-z0-9])(in1k", "(in1k"),
    },
    (
        "vitcli/weights/timm.py",
        "tests/weights/test_timm.py::test_timm_crops_what_we_crop_and_the_whole_where_we_resize_nothing",
    ): {
        "timm crops what is not resized": (
            '"crop_pct": 1.0 if preprocessing["resize"] == "none" else preprocessing["crop_fraction"]',
            '"crop_pct": preprocessing["crop_fraction"]',
        ),
    },
    (
        "vitcli/conversion/images.py",
        "tests/conversion/test_calibration.py::test_networks_are_compared_on_images_from_the_whole_of_a_split",
    ): {
        "int8 is compared on few images": (
            'most = NUM_IMAGES if precision == "fp32" else MAX_IMAGES',
            "most = NUM_IMAGES",
        ),
        "a file is compared on the first class of a gate": (
            "return Images(evenly(gate_split, MAX_IMAGES))",
            "return Images(gate_split.part(0, min(MAX_IMAGES, len(gate_split)), name=gate_split.name))",
        ),
    },
    (
        "vitcli/conversion/loading.md.j2",
        "tests/conversion/test_usage.py::test_transformers_loads_a_network_without_classes_as_one_that_gives_features",
    ): {
        "a network without classes is loaded as a classifier": (
            '"AutoModelForImageClassification" if has_classes else "AutoModel"',
            '"AutoModelForImageClassification"',
        ),
    },
    (
        "vitcli/weights/catalog.py",
        "tests/weights/test_pretrained.py::test_a_tag_tells_the_images_of_its_paper_in_the_order_of_training",
    ): {
        "DINO was trained on ImageNet-21k": ('"dino": "in1k"', '"dino": "in21k"'),
    },
    (
        "vitcli/models/flops.py",
        "tests/models/test_variants.py::test_the_activations_of_vit_b_16_are_17_values_a_token_with_its_class_token",
    ): {
        "the class token takes no memory": (
            "(math.prod(arch.known_grid) + 1) * variant.hidden",
            "math.prod(arch.known_grid) * variant.hidden",
        ),
    },
    (
        "vitcli/conversion/images.py",
        "tests/conversion/test_calibration.py::test_the_scales_of_int8_are_measured_on_training_images",
    ): {
        "int8 is calibrated on test images": (
            "name = recipe.data.train_split",
            "name = recipe.data.eval_split",
        ),
    },
    (
        "vitcli/weights/average.py",
        "tests/weights/test_average.py::test_files_and_networks_have_the_same_tensors_either_way",
    ): {
        "a tensor of the file alone is dropped from an average": (
            "sorted(set(state) ^ set(weights_names))",
            "sorted(set(state) - set(weights_names))",
        ),
    },
    (
        "vitcli/conversion/golden.py",
        "tests/conversion/test_onnx_file.py::test_golden_answers_are_those_of_vit_predict_and_are_repeated",
    ): {
        "golden images are the first of a split": (
            "evenly(split, NUM_IMAGES)",
            "split.rows(np.arange(min(NUM_IMAGES, len(split))))",
        ),
    },
    (
        "vitcli/conversion/images.py",
        "tests/conversion/test_onnx_file.py::test_a_gate_is_for_weights_that_have_an_accuracy",
    ): {
        "a gate is opened for several labels": (
            "check_supports(option, task_of(weights.metadata, num_classes)",
            "check_supports(option, task_of({}, num_classes)",
        ),
    },
    ("vitcli/conversion/images.py", "tests/conversion/test_calibration.py"): {
        "a run's own images are published": (
            "return of_the_demo().split if self.are_held_out else self.split",
            "return self.split",
        ),
        "thousands of images are compared": ("min(MAX_IMAGES, len(files))", "len(files)"),
        "int8 is calibrated on a dozen images": ("NUM_FOR_SCALES = 128", "NUM_FOR_SCALES = 12"),
        "all images that are named are measured for int8": (
            "return evenly(split, NUM_FOR_SCALES) if given",
            "return evenly(split, 10**6) if given",
        ),
        "int8 is calibrated on pixels that the file does not take": (
            'image_HWC if form.input == "images" else form.preprocessing(image_HWC)',
            "image_HWC",
        ),
    },
    (
        "vitcli/conversion/model_card.py",
        "tests/conversion/test_usage.py::test_a_section_between_its_marks_is_replaced_and_all_else_is_kept",
    ): {
        "two sections on loading are both replaced": (
            "return changed if count == 1 else None",
            "return changed if count else None",
        ),
    },
    (
        "vitcli/conversion/loading.md.j2",
        "tests/conversion/test_usage.py::test_the_card_says_what_the_conversion_may_have_lost",
    ): {
        "a drop is a hundred times too small in a card": (
            "at most {{ onnx.gate.highest_drop | percent }}",
            'at most {{ onnx.gate.highest_drop | form(".2f") }} %',
        ),
    },
    (
        "vitcli/conversion/onnx_process.py",
        "tests/conversion/test_onnx_file.py::test_a_process_for_an_onnx_file_writes_nothing_and_ends_in_time",
    ): {
        "an ONNX file may compute ten times as long": (
            "resource.RLIMIT_CPU: seconds * num_threads",
            "resource.RLIMIT_CPU: 10 * seconds * num_threads",
        ),
        "an ONNX file may write files": ("resource.RLIMIT_FSIZE: 0, ", ""),
    },
    (
        "vitcli/inspection/collect.py",
        "tests/inspection/test_analysis.py::test_uniform_attention_is_given_to_every_token_and_looks_nowhere_at_those_before_the_patches",
    ): {
        "uniform attention knows one token besides the patches": (
            "num_patches / (num_patches + layout.num_prefix)",
            "num_patches / (num_patches + 1)",
        ),
    },
    (
        "vitcli/inspection/why.py",
        "tests/inspection/test_why.py::test_the_head_of_a_few_shot_run_has_the_scores_of_the_closed_form",
    ): {
        "the runner-up is the unlikeliest class": (
            "next(k for k in logits_K.argsort(descending=True, stable=True)",
            "next(k for k in logits_K.argsort(stable=True)",
        ),
    },
    ("vitcli/models/masked_patch.py", "tests/models/test_corruption.py"): {
        "all images have the same patches corrupted": (
            "torch.Generator().manual_seed(seed))",
            "torch.Generator().manual_seed(0))",
        ),
    },
    (
        "vitcli/weights/interpolate.py",
        "tests/weights/test_interpolate.py::test_the_tokens_and_operations_of_a_network_are_counted_by_hand",
    ): {
        "a billion operations are 2^30": ("forward_macs(arch) / 1e9", "forward_macs(arch) / 2**30"),
    },
    (
        "vitcli/weights/licences.py",
        "tests/weights/test_licences.py::test_a_run_of_vit_is_asked_first_then_its_start_then_the_files_beside_the_weights",
    ): {
        "the licence of the start counts before that of the run": (
            (
                "        lambda: _name(metadata.get(KEY)),\n"
                '        lambda: licence_of_name(metadata.get("from")),'
            ),
            (
                '        lambda: licence_of_name(metadata.get("from")),\n'
                "        lambda: _name(metadata.get(KEY)),"
            ),
        ),
    },
    ("vitcli/weights/timm.py", "tests/weights/test_timm.py"): {
        "a config without classes has no head": (
            'stored.get("num_classes", 1000)',
            'stored.get("num_classes", 0)',
        ),
        "images are padded in silence": (
            'stored.get("crop_mode") == "border" or float',
            'stored.get("crop_mode") == "borders" or float',
        ),
        "registers are taken to have rows": (
            "is_ambiguous = num_prefix > 1 and is_square_without",
            "is_ambiguous = False",
        ),
        "two poolings are one network": (
            ('    if "fc_norm.weight" in shapes:\n        raise'),
            ('    if "fc_norm.weights" in shapes:\n        raise'),
        ),
        "the paper's sizes have any number of heads": ("heads in (None, v.heads))", "True)"),
        "the tag of a copied repository is not read": (
            'tag = tag or str(stored.get("tag") or "")',
            "tag = tag",
        ),
        "weights that timm loads by default have the authors' GELU": ('if key != "tag"}', "}"),
        "timm's images are wide before they are high": (
            'list(stored.get("input_size", (3, 224, 224)))[1:]',
            'list(stored.get("input_size", (3, 224, 224)))[:0:-1]',
        ),
        "a distillation token is a patch": (
            '("cls_token", "dist_token", "reg_token")',
            '("cls_token", "reg_token")',
        ),
    },
    (
        "vitcli/weights/catalog.py",
        "tests/weights/test_pretrained.py::test_a_family_is_summed_up_with_the_network_nearest_to_25_million",
    ): {
        "a family is shown by its largest network": (
            'abs((row["params"] or 0) - 25e6)',
            '-(row["params"] or 0)',
        ),
    },
    ("vitcli/conversion/golden.py", "tests/conversion/test_onnx_file.py::test_a_tie_is_no_other_class"): {
        "a tie that rounding decides is another class": (
            'if golden["output"] == "probabilities" and not surplus <= tolerance:',
            'if golden["output"] == "probabilities" and not surplus <= 0:',
        ),
    },
    (
        "vitcli/conversion/model_card.py",
        "tests/conversion/test_usage.py::test_a_path_of_the_data_is_a_place_to_fill_in_and_a_public_name_stays",
    ): {
        "a path of three folders is a name of the Hub": (
            'dataset.count("/") == 1 and not',
            'dataset.count("/") >= 1 and not',
        ),
    },
    (
        "vitcli/conversion/loading.md.j2",
        "tests/conversion/test_usage.py::test_what_the_libraries_do_otherwise_is_said_and_features_predict_nothing",
    ): {
        "a network without classes is to predict": ("{% if has_classes %}", "{% if true %}"),
        "what the libraries do otherwise is kept back": ("In timm and transformers, {{ caveat }}.", ""),
    },
    (
        "vitcli/conversion/comparison.py",
        "tests/conversion/test_gate.py::test_a_drop_that_is_just_allowed_is_accepted",
    ): {
        "a drop that is just allowed is refused": (
            "return self.highest_drop <= self.max_drop",
            "return self.highest_drop < self.max_drop",
        ),
    },
    (
        "vitcli/conversion/onnx_process.py",
        "tests/conversion/test_onnx_file.py::test_a_process_has_memory_and_time_by_the_bytes_of_its_weights",
    ): {
        "an ONNX file has the memory of its bytes": (
            "MEMORY_MB + MEMORY_PER_BYTE * num_bytes // 2**20",
            "MEMORY_MB + num_bytes // 2**20",
        ),
        "large ONNX files have a minute": ("MOST_S + num_bytes // BYTES_IN_A_SECOND", "MOST_S"),
    },
    (
        "vitcli/weights/licences.py",
        "tests/weights/test_licences.py::test_names_of_weights_have_the_licence_of_timms_registry",
    ): {
        "the authors' own addresses have no licence": (
            'f"{STORAGE}/bit_models/", "gs://vit_models/"',
            'f"{STORAGE}/bit_models/"',
        ),
    },
    (
        "vitcli/conversion/golden.py",
        "tests/conversion/test_onnx_file.py::test_images_of_a_golden_file_are_256_pixels_wide_or_high_at_most",
    ): {
        "golden images have any size": ("    image.thumbnail((MOST_SIDE, MOST_SIDE))\n", ""),
    },
    (
        "vitcli/weights/interpolate.py",
        "tests/weights/test_interpolate.py::test_7x7_becomes_16x16_and_all_else_stays",
    ): {
        "resampled weights keep the loss before": (
            '("top1", "top5", "loss")',
            '("top1", "top5")',
        ),
    },
    (
        "vitcli/weights/diagnose.py",
        "tests/weights/test_summary.py::test_tensors_that_do_not_fit_are_listed_by_what_is_wrong_with_them",
    ): {
        "whole numbers are taken for weights": (
            "if not tensor.is_floating_point() and not name.endswith(INTEGER_BUFFERS)",
            "if False",
        ),
        "a transposed matrix fits": (
            "if name in expected and tensor.shape != expected[name]",
            "if name in expected and tensor.numel() != expected[name].numel()",
        ),
    },
    (
        "vitcli/weights/diagnose.py",
        "tests/weights/test_summary.py::test_numbers_that_are_not_finite_are_found_anywhere_in_a_tensor",
    ): {
        "infinite weights are accepted": (
            "if not torch.isfinite(both).all()]",
            "if torch.isnan(both).any()]",
        ),
    },
    (
        "vitcli/models/architecture.py",
        "tests/models/test_build.py::test_what_the_head_of_a_network_reads",
    ): {
        "the mean beside a class token is read as that without": (
            'self.model_args.get("class_token") is False and self.model_args.get("global_pool") == "avg"',
            'self.model_args.get("global_pool") == "avg"',
        ),
    },
    (
        "vitcli/models/variants.py",
        "tests/models/test_variants.py::test_timm_builds_an_mlp_of_exactly_the_width_that_is_asked_for",
    ): {
        "an MLP is a unit too narrow": (
            "        mlp_ratio = (mlp + 0.5) / hidden\n",
            "        pass\n",
        ),
    },
    (
        "vitcli/cache/user_cache.py",
        "tests/cache/test_user_cache.py::test_ages_as_people_write_them",
    ): {
        "a week of the cache has five days": (
            '"w": 7 * 86400',
            '"w": 5 * 86400',
        ),
    },
    (
        "vitcli/models/kernels.py",
        "tests/models/test_gelu.py::test_in_float64_the_kernel_is_torchs_tanh_form_and_its_derivative",
    ): {
        "a digit of GELU's constant is missing": (
            "CUBIC = 0.044715",
            "CUBIC = 0.0447",
        ),
    },
    (
        "vitcli/conversion/comparison.py",
        "tests/conversion/test_gate.py::test_a_drop_of_just_the_allowed_size_is_accepted_and_any_more_is_not",
    ): {
        "a drop of just the allowed size is refused": (
            "return self.highest_drop <= self.max_drop",
            "return self.highest_drop < self.max_drop",
        ),
    },
    ("vitcli/weights/download.py", "tests/weights/test_download.py"): {
        "offline the cache is not read": (
            "    if path.is_file():\n        user_cache.hold(path.parent)\n"
            "        return path\n    if is_offline",
            "    if is_offline",
        ),
    },
    (
        "vitcli/conversion/golden.py",
        "tests/conversion/test_onnx_file.py::test_a_check_says_whether_the_file_is_the_one_that_was_exported",
    ): {
        "weights beside an ONNX file take no memory": (
            "for part in (file, *data_files(file))",
            "for part in (file,)",
        ),
        "every file is the one that was exported": (
            'is_same = golden.get("sha256") == digest_of_file(file).hex()',
            "is_same = True",
        ),
        "the file that was exported is another": (
            'is_same = golden.get("sha256") == digest',
            'is_same = golden.get("sha256") != digest',
        ),
        "another file than the exported one has no note": (
            "[] if is_same else",
            "[] if True else",
        ),
    },
}

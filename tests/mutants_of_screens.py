"""Deliberate breaks of what is read and asked for: screens, reports, recipes, commands, processes."""

# By file and tests: what each break does, the text before and after it.
OF_SCREENS = {
    (
        "vitcli/__main__.py",
        "tests/cli/test_signals.py::test_a_command_calls_the_exit_handlers_of_libraries_and_shuts_python_down_no_further",
    ): {
        "threads of libraries outlive Python": ("    atexit.register(leave)  #", "    pass  #"),
    },
    ("vitcli/recipe/validation.py", "tests/training/methods/test_layered_refit.py"): {
        "layers are asked for of a head of zeros": (
            "for key in OF_REFIT if head != REFIT else ():",
            "for key in ():",
        ),
        "a rate that is asked for gives way": (
            'if key == UNFAMILIAR_LR and "optimizer.lr" in layer:',
            "if False:",
        ),
    },
    ("vitcli/distributed/runtime.py", "tests/distributed/test_runtime.py"): {
        "memory is a thousand times as large": (
            '2**30 if sys.platform == "darwin" else 2**20)  # in bytes',
            '2**30 if sys.platform == "darwin" else 2**10)  # in bytes',
        ),
    },
    ("vitcli/distributed/numerics.py", "tests/distributed/test_runtime.py"): {
        "a CPU has one thread in every run": (
            'if device.type == "cpu" and exact:',
            'if device.type == "cpu":',
        ),
    },
    ("vitcli/distributed/device.py", "tests/distributed/test_device.py"): {
        "-1 hides no GPU": ('in ("", "-1", "NoDevFiles")', 'in ("", "NoDevFiles")'),
    },
    ("vitcli/output/plots.py", "tests/output/test_plots.py"): {
        "an axis shows twenty points": (
            "missing = max(0.0, LEAST_SPAN - (high - low)) / 2",
            "missing = max(0.0, LEAST_SPAN - (high - low))",
        ),
    },
    ("vitcli/cache/user_cache.py", "tests/cache/test_user_cache.py"): {
        "a cache of another user is written to": (
            'if hasattr(os, "geteuid") and folder.stat().st_uid != os.geteuid():',
            "if False:",
        ),
    },
    ("vitcli/output/result_folder.py", "tests/output/test_result_folder.py"): {
        "a value that is no longer given is no difference": (
            "for key in (*new, *(old.keys() - new.keys()))",
            "for key in new",
        ),
    },
    ("vitcli/output/text.py", "tests/output/test_text.py"): {
        "a long screen has no room for a command": ("MOST_LINES - bool(next_commands), 0", "MOST_LINES, 0"),
    },
    ("vitcli/experiments/reproduce_rows.py", "tests/experiments/test_reproduce_rows.py"): {
        "more images than published are the same test set": (
            "if expected in (None, num_scored) else",
            "if expected in (None, num_scored) or num_scored > expected else",
        ),
        "a published percentage is not rounded": ("round(mean / 100, 10), None", "mean / 100, None"),
    },
    (
        "vitcli/experiments/reproduce.py",
        "tests/experiments/test_reproduce.py::test_the_time_of_runs_scored_by_other_labels_is_that_of_training_and_scoring",
    ): {
        "the time to score runs is forgotten": (
            'summary["elapsed_s"] + rescored["elapsed_s"]',
            'summary["elapsed_s"]',
        ),
    },
    ("vitcli/recipe/__init__.py", "tests/recipe/test_recipe.py"): {
        "a warm-up is a fraction of the steps that are left": (
            "100 * warmup / steps_of_file",
            "100 * warmup / steps",
        ),
    },
    ("vitcli/recipe/sweep.py", "tests/recipe/test_recipe.py"): {
        "256 combinations are too many": ("if count <= MOST_TRIALS:", "if count < MOST_TRIALS:"),
    },
    ("vitcli/recipe/auto.py", "tests/recipe/test_auto.py"): {
        "one large class decides which recipe it is": (
            "typical = median(present)",
            "typical = sum(present) / len(present)",
        ),
    },
    ("vitcli/report/grouping.py", "tests/report/test_grouping.py"): {
        "runs of a cell count by their folders": (
            "values = [value for entry in finished for value in entry.values or (entry.mean,)]",
            "values = [entry.mean for entry in finished]",
        ),
    },
    (
        "vitcli/report/grouping.py",
        "tests/report/test_grouping.py::test_the_smallest_error_is_that_of_a_run_whose_start_had_not_seen_the_images",
    ): {
        "errors of different numbers are compared": (
            "return (summary.target or summary.command, names.data",
            "return (names.data",
        ),
        "a run that has seen the images is the best": (
            'if not getattr(record.summary, "num_held_out_seen", 0)]',
            "]",
        ),
    },
    ("vitcli/bench/setup.py", "tests/bench/test_bench.py::test_the_sides_take_turns_lap_by_lap"): {
        "one side has all its laps first": (
            "        for _ in range(self.options.repeats):\n            for side, lap in sides.items():\n",
            "        for side, lap in sides.items():\n            for _ in range(self.options.repeats):\n",
        ),
    },
    (
        "vitcli/bench/setup.py",
        "tests/bench/test_bench.py::test_another_side_is_built_after_our_first_lap_and_its_memory_is_not_counted",
    ): {
        "the memory of all sides is ours": ("self.peaks or peak_memory()", "peak_memory()"),
    },
    (
        "vitcli/cli/end_of_command.py",
        "tests/cli/test_app.py::test_a_report_of_a_bug_is_written_through_no_link",
    ): {
        "a report of a bug is written through a link": ('report.open("x", ', 'report.open("w", '),
    },
    ("vitcli/report/scan.py", "tests/report/test_runs.py"): {
        "hidden folders are searched for runs": ('if not name.startswith(".") and', "if"),
        "a folder of figures outside a run is passed over": (
            "not (kind and name in INNER)",
            "not (name in INNER)",
        ),
        "links back up are followed": ("if folder.resolve() in visited:", "if folder in visited:"),
        "a recipe alone is a run": ("is_known and has_begun else None", "is_known else None"),
        "runs are searched for six folders deep": (
            "if depth == MAX_DEPTH or",
            "if depth == MAX_DEPTH + 1 or",
        ),
    },
    (
        "vitcli/report/predicted.py",
        "tests/report/test_predicted.py::test_classes_of_one_image_or_without_a_mistake_are_not_among_the_three_weakest",
    ): {
        "a class of one image is the weakest": ("if n >= ENOUGH and right < n", "if right < n"),
    },
    (
        "vitcli/report/grouping.py",
        "tests/report/test_grouping.py::test_networks_of_no_known_size_come_in_the_order_that_a_person_counts_in",
    ): {
        "the tenth network comes before the ninth": ("natural(column.name, ignore_case=True)", "column.name"),
    },
    (
        "vitcli/output/text.py",
        "tests/output/test_text.py::test_a_list_of_names_says_how_many_more_there_are_also_of_those_that_were_never_listed",
    ): {
        "names that are not listed are not counted": (
            "more = (total or len(names)) - len(shown)",
            "more = len(names) - len(shown)",
        ),
    },
    (
        "vitcli/recipe/catalog.py",
        "tests/recipe/test_shipped.py::test_recipes_that_only_serve_as_a_base_are_those_that_name_no_data_set",
    ): {
        "an extended recipe with a data set is no recipe to run": (
            'if "dataset" not in tables[name].get("data", {})}',
            "}",
        ),
    },
    ("vitcli/recipe/auto.py", "tests/recipe/test_auto.py::test_the_images_of_a_class_choose"): {
        "three times as many images are uneven": (
            "> UNEVEN * max(1, min(present))",
            ">= UNEVEN * max(1, min(present))",
        ),
    },
    (
        "vitcli/recipe/__init__.py",
        "tests/recipe/test_recipe.py::test_a_base_in_a_folder_beside_the_file_is_looked_up_from_there_and_not_from_where_vit_is_started",
    ): {
        "a base is looked up from where vit is started": (
            'base_path = sibling if sibling.suffix == ".toml" and sibling.is_file() else find(str(base))',
            'base_path = find(str(base)) if not str(base).startswith(".") and "/" in str(base) else sibling',
        ),
    },
    (
        "vitcli/bench/limits.py",
        "tests/bench/test_bench.py::test_the_limit_is_that_of_the_fastest_round_after_the_first",
    ): {
        "the slowest round is the limit": ("(min(times) if is_cpu", "(max(times) if is_cpu"),
    },
    (
        "vitcli/bench/limits.py",
        "tests/bench/test_bench.py::test_the_limit_of_a_gpu_is_what_it_keeps_up_for_the_time_of_a_lap",
    ): {
        "the sprint of a GPU is its limit": ("else median(times))", "else min(times))"),
        "a GPU is measured for a part of a lap": ("MEASURED_S if is_cpu else LAP_S", "MEASURED_S"),
    },
    (
        "vitcli/bench/data.py",
        "tests/bench/test_bench.py::test_a_second_epoch_begins_when_every_image_was_read_once",
    ): {
        "the second epoch is the first": (
            "for _ in range(-(-len(few) // batch_size) + 1):",
            "for _ in range(0):",
        ),
    },
    (
        "vitcli/cli/end_of_command.py",
        "tests/cli/test_app.py::test_an_error_of_all_processes_is_printed_by_the_first_and_one_of_a_single_process_by_that_one",
    ): {
        "every process prints the same error": (
            'if os.environ.get("LOCAL_RANK", "0") == "0" or hasattr(error, "rank")',
            "if True",
        ),
    },
    (
        "vitcli/cli/end_of_command.py",
        "tests/io/test_credentials.py::test_a_report_of_a_bug_has_the_traceback_without_a_password",
    ): {
        "a password is in the report of a bug": (
            'file.write(hide_credentials("".join(traceback.format_exception(error))))',
            'file.write("".join(traceback.format_exception(error)))',
        ),
    },
    (
        "vitcli/cli/checkpoints.py",
        "tests/cli/test_app.py::test_the_points_that_a_gate_allows_to_be_lost_are_hundredths_of_the_images",
    ): {
        "a gate lets half of the images be lost": (
            "else 0.5) if self.max_drop is None else self.max_drop) / 100",
            "else 0.5) if self.max_drop is None else self.max_drop)",
        ),
    },
    (
        "vitcli/cli/checkpoints.py",
        "tests/cli/test_app.py::test_what_belongs_to_a_gate_is_refused_without_one",
    ): {
        "a split without a gate is ignored": (
            "if self.gate is None and (self.split, None if self.fastest else self.max_drop) != (None, None)",
            "if self.gate is None and self.max_drop is not None",
        ),
    },
    (
        "vitcli/experiments/reproduce.py",
        "tests/experiments/test_reproduce.py::test_vtab_is_the_mean_over_tasks_run_by_run",
    ): {
        "the time of 19 tasks is that of the longest": (
            'sum(summary["elapsed_s"] for summary in summaries.values())',
            'max(summary["elapsed_s"] for summary in summaries.values())',
        ),
    },
    (
        "vitcli/distributed/transfer.py",
        "tests/training/test_queued_device.py::test_a_computation_waits_for_its_batch_whose_memory_stays_until_the_computation_is_done",
    ): {
        "a computation waits for no copy": ("        computing.wait_stream(self._stream)\n", ""),
    },
    (
        "vitcli/recipe/toml.py",
        "tests/recipe/test_recipe.py::test_a_section_that_one_of_two_recipes_lacks_is_a_difference_either_way",
    ): {
        "a section that the first of two recipes lacks is no difference": (
            "for name in {**left, **right}}",
            "for name in left}",
        ),
    },
    (
        "vitcli/recipe/__init__.py",
        "tests/recipe/test_recipe.py::test_a_value_of_a_section_that_a_recipe_lacks_comes_from_nowhere",
    ): {
        "sections that a recipe lacks have values": (
            "(set(SECTIONS) - set(OPTIONAL_SECTIONS))",
            "set(SECTIONS)",
        ),
    },
    (
        "vitcli/output/text.py",
        "tests/training/test_probe_head.py::test_a_line_tells_the_parts_of_a_mixture_in_the_order_of_their_names",
    ): {
        "the parts of a mixture are exchanged": (
            "{1 - alpha:.0%} probe head, {alpha:.0%} fine-tuned",
            "{alpha:.0%} probe head, {1 - alpha:.0%} fine-tuned",
        ),
    },
    (
        "vitcli/distributed/launch.py",
        "tests/distributed/test_launch.py::test_a_run_that_ctrl_c_has_stopped_ends_with_130_whichever_process_got_it",
    ): {
        "Ctrl-C ends several processes with 143": (
            "return 130 if 130 in codes.values() else 143",
            "return 143",
        ),
    },
    (
        "vitcli/distributed/launch.py",
        "tests/distributed/test_launch.py::test_of_two_killed_processes_the_first_is_named",
    ): {
        "the last of two killed processes is named": (
            "raise _killed(killed[0], failures[killed[0]])",
            "raise _killed(killed[-1], failures[killed[-1]])",
        ),
    },
    (
        "vitcli/cache/listing.py",
        "tests/cache/test_user_cache.py::test_what_is_kept_is_what_was_there_without_what_went",
    ): {
        "what was deleted is kept": (
            "sum(entry.num_bytes for entry in entries if entry not in deleted)",
            "sum(entry.num_bytes for entry in entries)",
        ),
    },
    (
        "vitcli/distributed/runtime.py",
        "tests/distributed/test_runtime.py::test_bf16_is_of_a_cpu_that_multiplies_it",
    ): {
        "any AVX512 multiplies bf16": (
            '"avx512_bf16" in flags or "amx_bf16" in flags',
            '"avx512" in flags or "amx_bf16" in flags',
        ),
    },
    (
        "vitcli/experiments/study.py",
        "tests/experiments/test_study.py::test_the_compute_of_a_plan_is_that_of_all_runs_that_are_counted",
    ): {
        "the compute of a study is that of its largest run": (
            'sum(cell["exaflops"] or 0.0 for cell in cells)',
            'max(cell["exaflops"] or 0.0 for cell in cells)',
        ),
    },
    (
        "vitcli/distributed/fsdp.py",
        "tests/distributed/test_fsdp.py::test_what_is_gathered_by_itself_is_each_block_of_a_network",
    ): {
        "all blocks are gathered at once": (
            'name.split(".")[-2:-1] == ["blocks"]',
            'name.split(".")[-1:] == ["blocks"]',
        ),
    },
    (
        "vitcli/cli/hints.py",
        "tests/cli/test_app.py::test_an_option_of_other_programs_is_answered_with_ours_if_the_command_has_it",
    ): {
        "--batch is the batch of a device": ('"--batch": "--batch-size"', '"--batch": "--per-device-batch"'),
        "an option is answered with one that the command lacks": (
            "elif OPTIONS.get(name_here) in options:",
            "elif OPTIONS.get(name_here):",
        ),
    },
    (
        "vitcli/cache/user_cache.py",
        "tests/cache/test_user_cache.py::test_no_more_is_deleted_than_what_is_too_much",
    ): {
        "a cache of the size to keep loses an entry": (
            "if keep_bytes is not None and used <= keep_bytes:",
            "if keep_bytes is not None and used < keep_bytes:",
        ),
    },
    (
        "vitcli/distributed/launch.py",
        "tests/distributed/test_launch.py::test_the_cores_are_shared_by_the_processes_unless_their_threads_are_given",
    ): {
        "every process takes the threads of all": ("max(1, cpu_count() // num_processes)", "cpu_count()"),
    },
    (
        "vitcli/distributed/launch.py",
        "tests/distributed/test_launch.py::test_the_memory_of_a_container_counts_by_its_bound",
    ): {
        "a container that is too full has a byte left": ("max(0.0, bound - taken", "max(1.0, bound - taken"),
    },
    (
        "vitcli/distributed/launch.py",
        "tests/distributed/test_launch.py::test_free_memory_is_what_is_available_here_and_in_the_container",
    ): {
        "memory in use is free": ("psutil.virtual_memory().available", "psutil.virtual_memory().total"),
    },
    (
        "vitcli/distributed/runtime.py",
        "tests/distributed/test_runtime.py::test_after_the_end_of_a_run_a_process_is_the_only_one_on_its_device",
    ): {
        "the only process has the rank that it had": (
            "device=self.device, process_index=0, num_processes=1,",
            "device=self.device, process_index=self.rank, num_processes=1,",
        ),
    },
    (
        "vitcli/distributed/runtime.py",
        "tests/distributed/test_runtime.py::test_a_cpu_computes_in_bf16_by_itself_where_it_multiplies_it",
    ): {
        "a CPU is given fp16": ('if precision == "fp16" and not has_gpu:', "if False:"),
    },
    (
        "vitcli/distributed/accelerate_settings.py",
        "tests/distributed/test_accelerate_settings.py::test_what_changes_no_number_stays_and_all_other_settings_are_taken_out",
    ): {
        "the cores that accelerate gives are forgotten": (
            ('HARMLESS = {"ACCELERATE_DEBUG_MODE", "ACCELERATE_CPU_AFFINITY", "ACCELERATE_LOG_LEVEL"}'),
            'HARMLESS = {"ACCELERATE_DEBUG_MODE", "ACCELERATE_LOG_LEVEL"}',
        ),
    },
    (
        "vitcli/distributed/accelerate_settings.py",
        "tests/distributed/test_accelerate_settings.py::test_a_switch_is_on_by_the_words_of_accelerate",
    ): {
        'a switch of accelerate that is on by "yes" is off': (
            '("true", "1", "yes", "y", "t", "on")',
            '("true", "1")',
        ),
    },
    (
        "vitcli/distributed/transfer.py",
        "tests/training/test_queued_device.py::test_a_constant_is_a_float32_product_of_float32_numbers",
    ): {
        "means of pixels are rounded once and not twice": (
            "(torch.tensor(values, dtype=torch.float32) * scale)",
            "(torch.tensor(values, dtype=torch.float64) * scale).float()",
        ),
    },
    (
        "vitcli/distributed/peers.py",
        "tests/distributed/test_peers.py::test_another_process_is_waited_for_as_long_as_is_said",
    ): {
        "beats go on when all processes have left": ("num_left = int(left)", "num_left = 0"),
        "a silent process is waited for as long as the main thread works": (
            "if max(silent_s, waited_s) > self.longest_s",
            "if min(silent_s, waited_s) > self.longest_s",
        ),
    },
    (
        "vitcli/output/text.py",
        "tests/output/test_text.py::test_a_duration_has_the_unit_a_person_would_take",
    ): {
        "minutes are rounded down": ("minutes = round(seconds / 60)", "minutes = int(seconds / 60)"),
    },
    (
        "vitcli/output/text.py",
        "tests/output/test_text.py::test_folds_say_what_a_random_split_would_have_flattered_by",
    ): {
        "a random split that flatters is shown to do the opposite": (
            "100 * (at_random - by_groups):+.1f",
            "100 * (by_groups - at_random):+.1f",
        ),
    },
    (
        "vitcli/recipe/__init__.py",
        "tests/recipe/test_recipe.py::test_a_run_shorter_than_its_warmup_keeps_the_fraction_that_the_recipe_has",
    ): {
        "a warm-up that was asked for is shortened": (
            'sources[WARMUP].startswith("option ") or not',
            "not",
        ),
    },
    (
        "vitcli/recipe/group_rule.py",
        "tests/data/parts/test_groups.py::test_images_of_up_to_six_differing_bits_are_one_group",
    ): {
        "images of ten differing bits are one group": ("NEAR_DISTANCE = 6", "NEAR_DISTANCE = 10"),
    },
    (
        "vitcli/report/run_tables.py",
        "tests/report/test_report.py::test_whether_a_run_lives_is_told_by_its_lock_file_on_this_machine",
    ): {
        "a run that has stopped will end in some minutes": (
            'duration(now.seconds_left) if now.is_live is not False else ""',
            "duration(now.seconds_left)",
        ),
    },
    (
        "vitcli/report/accuracy.py",
        "tests/report/test_report.py::test_vtab_is_one_row_and_its_tasks_a_table",
    ): {
        "the score of VTAB is that of natural images": (
            "fraction_cell(summary.top1, note=note)",
            "fraction_cell(summary.groups.get('natural'), note=note)",
        ),
    },
    ("vitcli/bench/measure.py", "tests/bench/test_bench.py::test_ratios_are_of_neighbouring_laps"): {
        "CPU time is compared by the time on the wall": (
            "(a.images / getattr(a, key)) / (b.images",
            "(a.images / a.wall_s) / (b.images",
        ),
    },
    (
        "vitcli/bench/measure.py",
        "tests/bench/test_bench.py::test_a_lap_takes_two_seconds_but_two_steps_at_least_and_500_at_most",
    ): {
        "a lap may have thousands of steps": (
            "min(MOST_STEPS, max(2, round(LAP_S / max(step_s, 1e-6))))",
            "max(2, round(LAP_S / max(step_s, 1e-6)))",
        ),
    },
    (
        "vitcli/cli/end_of_command.py",
        "tests/io/test_credentials.py::test_an_error_names_an_address_without_its_password_for_people_and_as_json",
    ): {
        "an error as JSON has the password of an address": (
            "as_dict = {key: hide_credentials(text) for key, text in as_dict.items()}",
            "pass",
        ),
    },
    (
        "vitcli/distributed/launch.py",
        "tests/distributed/test_launch.py::test_an_error_names_the_process_and_what_it_did",
    ): {
        "gloo's guess at a cause is passed on": (
            'r"^\\[\\S+\\] |\\. This is typically caused by.*"',
            'r"^\\[\\S+\\] "',
        ),
        "every process is this one in a message": (
            "global_rank() if rank is None else rank",
            "global_rank()",
        ),
    },
    (
        "vitcli/distributed/launch.py",
        "tests/distributed/test_launch.py::test_what_may_not_be_interrupted_ignores_sigterm_and_no_longer",
    ): {
        "SIGTERM is ignored for good": (
            "restored.callback(signal.signal, number, signal.signal(number, handler))",
            "signal.signal(number, handler)",
        ),
    },
    (
        "vitcli/distributed/launch.py",
        "tests/distributed/test_launch.py::test_processes_of_a_run_are_never_started_again_and_listen_to_this_machine_alone",
    ): {
        "processes that failed are started again": ("max_restarts=0", "max_restarts=1"),
    },
    (
        "vitcli/distributed/launch.py",
        "tests/distributed/test_launch.py::test_a_process_whose_launcher_is_gone_ends_as_one_that_was_asked_to",
    ): {
        "a process without its launcher ends as if all was well": (
            ("        sys.exit(143)\n\n\n@contextmanager"),
            ("        sys.exit(0)\n\n\n@contextmanager"),
        ),
    },
    (
        "vitcli/distributed/launch.py",
        "tests/distributed/test_launch.py::test_of_processes_that_ended_by_themselves_the_one_with_the_highest_code_is_named",
    ): {
        "the lowest exit code is the cause": (
            "rank = max(ended, key=lambda rank: ended[rank])",
            "rank = min(ended, key=ended.get)",
        ),
    },
    (
        "vitcli/distributed/runtime.py",
        "tests/distributed/test_runtime.py::test_losses_are_scaled_in_fp16_alone_and_torch_aborts_a_minute_after_the_run_ends",
    ): {
        "torch aborts before the run can end": ("ABORTED_AFTER * bool(available)", "ABORTED_AFTER * 0"),
        "losses are scaled in bf16": ('enabled=precision == "fp16"', 'enabled=precision != "fp32"'),
    },
    (
        "vitcli/distributed/runtime.py",
        "tests/distributed/test_runtime.py::test_the_processes_of_a_machine_are_those_that_its_launcher_has_counted",
    ): {
        "all processes are on this machine": (
            'int(os.environ.get("LOCAL_WORLD_SIZE", self.world_size))',
            "self.world_size",
        ),
    },
    (
        "vitcli/distributed/runtime.py",
        "tests/distributed/test_runtime.py::test_a_process_has_its_part_of_the_cores_of_its_machine",
    ): {
        "processes of other machines share the cores": ("if machine == own[2]]", "]"),
    },
    (
        "vitcli/distributed/launch.py",
        "tests/distributed/test_launch.py::test_processes_divide_the_cores_that_they_share",
    ): {
        "cores of its own are divided, too": ("[cores for cores in here if cores & own]", "here"),
        "a process has cores that it may not use": ("min(len(own), len(", "min(999, len("),
    },
    (
        "vitcli/distributed/runtime.py",
        "tests/distributed/test_runtime.py::test_an_error_of_one_process_says_which_it_was",
    ): {
        "an error of one process has no rank": (
            ("            error.rank = self.rank\n            raise"),
            "            raise",
        ),
        "a bug of the first process has no rank": (
            ("            if not isinstance(outcome[1], VitError):\n                outcome[1].rank = 0"),
            ("            if isinstance(outcome[1], VitError):\n                outcome[1].rank = 0"),
        ),
    },
    (
        "vitcli/distributed/runtime.py",
        "tests/distributed/test_runtime.py::test_a_network_is_taken_out_of_all_its_wrappers",
    ): {
        "a compiled network is its wrapper": ('return getattr(model, "_orig_mod", model)', "return model"),
    },
    (
        "vitcli/distributed/runtime.py",
        "tests/distributed/test_runtime.py::test_accelerators_have_numbers_where_there_may_be_several",
    ): {
        "Apple's GPU has a number": (
            'return [kind] if kind == "mps" else',
            'return [kind] if kind == "xpu" else',
        ),
        "a GPU that emulates bf16 computes in it by itself": (
            "is_bf16_supported(including_emulation=False)",
            "is_bf16_supported()",
        ),
        "the bf16 of the CPU is that of a GPU without CUDA": (
            "has_bf16 and (has_gpu or not torch.accelerator.is_available())",
            "has_bf16",
        ),
    },
    (
        "vitcli/distributed/runtime.py",
        "tests/distributed/test_runtime.py::test_a_signal_ends_a_process_that_waits_for_others_unless_it_is_ignored",
    ): {
        "an ignored signal ends a process that waits": (
            " if signal.getsignal(number) is not signal.SIG_IGN]",
            "]",
        ),
    },
    (
        "vitcli/distributed/accelerate_settings.py",
        "tests/distributed/test_accelerate_settings.py::test_what_asks_for_nothing_else_is_taken_out_without_a_word",
    ): {
        '"auto" is another number of micro-batches': ('(("1", "auto"), "--per', '(("1",), "--per'),
    },
    (
        "vitcli/distributed/transfer.py",
        "tests/training/test_queued_device.py::test_a_copy_that_is_not_waited_for_reads_pinned_memory",
    ): {
        "Apple's GPUs are given float64": (
            'if device.type == "mps" and tensor.dtype == torch.float64:',
            "if False:",
        ),
    },
    (
        "vitcli/distributed/peers.py",
        "tests/distributed/test_peers.py::test_what_is_being_written_is_waited_for_as_long_as_a_process_may_save",
    ): {
        "a file that is never written keeps a process for ever": (
            "(_unfinished and waited_s < launch.SAVING_TIME_S)",
            "_unfinished",
        ),
    },
    (
        "vitcli/bench/measure.py",
        "tests/bench/test_bench.py::test_items_that_settle_are_pulled_before_a_lap_and_not_counted",
    ): {
        "what was prepared before a lap counts": (
            ("for _ in range(self._settle):\n            next(self._items)"),
            ("for _ in range(0):\n            next(self._items)"),
        ),
    },
    (
        "vitcli/cli/end_of_command.py",
        "tests/io/test_credentials.py::test_an_error_is_the_exit_code_alone_where_standard_error_is_closed",
    ): {
        "a closed standard error is a bug": (
            ("with suppress(OSError):\n            text = hide"),
            ("if True:\n            text = hide"),
        ),
    },
    (
        "vitcli/output/text.py",
        "tests/output/test_text.py::test_a_size_has_the_unit_of_which_it_has_one_at_least",
    ): {
        "a GiB is 1,024 MiB": ("if number >= 2**30:", "if number > 2**30:"),
    },
    (
        "vitcli/output/text.py",
        "tests/output/test_text.py::test_images_that_a_checkpoint_had_seen_make_an_accuracy_too_high",
    ): {
        "images to choose by that were trained on are kept back": (
            'if seen := result.get("num_choice_seen"):',
            "if False:",
        ),
    },
    (
        "vitcli/report/accuracy.py",
        "tests/report/test_report.py::test_pre_training_compute_stands_beside_when_its_run_is_reported_too",
    ): {
        "a checkpoint by another path is of another run": (
            "run.path.resolve() == Path(ckpt).resolve()",
            "run.path == Path(ckpt)",
        ),
    },
    (
        "vitcli/report/run_tables.py",
        "tests/report/test_report.py::test_the_settings_of_a_run_have_the_rate_that_it_was_trained_with",
    ): {
        "the rate is that of the recipe": (
            'summary.lr if summary.lr is not None else run.recipe.get("optimizer.lr")',
            'run.recipe.get("optimizer.lr")',
        ),
    },
    ("vitcli/report/run_tables.py", "tests/report/test_report.py::test_a_run_under_way_tells_its_step"): {
        "a run under way has no fraction": (
            "fraction = now.step / now.total_steps if now.total_steps else None",
            "fraction = None",
        ),
        "a loss has two digits": (
            'number_cell(_last(run.losses), "{:.4f}")',
            'number_cell(_last(run.losses), "{:.2f}")',
        ),
    },
    (
        "vitcli/report/grouping.py",
        "tests/report/test_grouping.py::test_a_size_is_that_of_the_pixels_and_a_key_that_is_not_set_has_no_name",
    ): {
        "the size of the weights is no number of pixels": (
            "if key == SIZE and entry.resolution is not None:",
            "if False:",
        ),
        "a key that is not set names a column": ("if key != SIZE and value != UNSET]", "if key != SIZE]"),
    },
    (
        "vitcli/report/grouping.py",
        "tests/report/test_grouping.py::test_a_network_that_starts_from_nothing_says_so_beside_one_that_does_not",
    ): {
        "fresh weights have no name beside others": (
            'if ckpt else "from fresh weights"]',
            'if ckpt else "from"]',
        ),
    },
    (
        "vitcli/distributed/device.py",
        "tests/distributed/test_device.py::test_what_other_programs_call_a_device_is_answered_with_our_name",
    ): {
        '"nvidia" is answered with nothing': ('in ("gpu", "nvidia") else ""', 'in ("gpu",) else ""'),
    },
    (
        "vitcli/distributed/device.py",
        "tests/distributed/test_device.py::test_any_number_of_processes_may_compute_on_the_cpu_of_a_machine_with_gpus",
    ): {
        "a CPU has as many processes as GPUs": (
            'if available and kind != "cpu" and available',
            "if available and available",
        ),
    },
    (
        "vitcli/distributed/numerics.py",
        "tests/distributed/test_runtime.py::test_every_kind_of_max_pooling_is_refused_with_exact",
    ): {
        "max pooling in one dimension is deterministic": (
            "(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)",
            "(nn.MaxPool2d, nn.MaxPool3d)",
        ),
    },
    (
        "vitcli/distributed/numerics.py",
        "tests/distributed/test_runtime.py::test_no_kernel_of_a_gpu_rounds_fp32_and_none_fills_what_is_read_later",
    ): {
        "recurrent networks compute in TF32": (
            "cudnn.conv, cudnn.rnn)",
            "cudnn.conv)",
        ),
        "new tensors on a GPU are filled with NaN": (
            "fill_uninitialized_memory = False",
            "fill_uninitialized_memory = True",
        ),
    },
    (
        "vitcli/distributed/launch.py",
        "tests/distributed/test_runtime.py::test_the_peak_memory_of_a_process_is_in_bytes",
    ): {
        "a thousand bytes of memory are 1024": ("1024 * int(peak_kib[1])", "1000 * int(peak_kib[1])"),
    },
    (
        "vitcli/output/profile.py",
        "tests/output/test_profile.py::test_a_copy_ends_where_the_next_thing_begins",
    ): {
        "a forward pass is a part of the copy before it": (
            '    _tracing.end_copy()\n    with _mark("forward"):',
            '    with _mark("forward"):',
        ),
    },
    (
        "vitcli/output/profile.py",
        "tests/output/test_profile.py::test_work_of_a_gpu_belongs_to_the_phase_that_launched_it",
    ): {
        "a mark on the time line of a GPU counts as a kernel": (
            "row.self_device_time_total if row.is_user_annotation else 0",
            "0",
        ),
    },
    (
        "vitcli/bench/data.py",
        "tests/bench/test_bench.py::test_comparisons_are_of_ours_against_theirs_by_the_clock_and_by_cpu_time",
    ): {
        "a second epoch is so many times slower": (
            'ratio(second, theirs)["ratio"]',
            'ratio(theirs, second)["ratio"]',
        ),
        "CPU time is compared with that of worker processes": (
            'by_cpu = ratio(ours, in_process, "cpu_s")',
            'by_cpu = ratio(ours, theirs, "cpu_s")',
        ),
    },
    (
        "vitcli/bench/setup.py",
        "tests/bench/test_bench.py::test_comparisons_are_of_ours_against_theirs_by_the_clock_and_by_cpu_time",
    ): {
        "timm's loop is compared the other way round": (
            'ratio(self.laps[ours], self.laps["timm"])',
            'ratio(self.laps["timm"], self.laps[ours])',
        ),
    },
    (
        "vitcli/report/grouping.py",
        "tests/report/test_report.py::test_compute_has_the_unit_of_its_largest_value",
    ): {
        "digits of compute go by exaFLOPs": (
            "if largest * scale < 1e4",
            "if largest < 1e4",
        ),
    },
    (
        "vitcli/inspection/analysis.py",
        "tests/inspection/test_analysis.py::test_one_patch_that_draws_all_attention_darkens_the_rest_unless_told_otherwise",
    ): {
        "an image is brighter than it was": (
            "(maps_Bhw / full_B1[:, :, None]).clamp_max(1)",
            "(maps_Bhw / full_B1[:, :, None])",
        ),
    },
    (
        "vitcli/training/notes.py",
        "tests/training/test_notes.py::test_fewer_than_200_images_a_class_and_10000_in_all_are_too_few_for_fresh_weights",
    ): {
        "images are enough for a hundred classes as for one": (
            "or count >= MANY_PER_CLASS * num_classes",
            "or count >= MANY_PER_CLASS",
        ),
    },
    (
        "vitcli/inspection/attention.py",
        "tests/inspection/test_attention.py::test_features_by_place_are_those_of_the_patches",
    ): {
        "tokens that are no grid are a map": (
            "if patches_BND.shape[1] == grid[0] * grid[1] else None",
            "",
        ),
    },
}

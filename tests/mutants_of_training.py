"""Deliberate breaks of training: heads, rates, parts of a run, and many runs."""

# By file and tests: what each break does, the text before and after it.
OF_TRAINING = {
    (
        "vitcli/training/auto_batch_size.py",
        "tests/training/test_auto_batch_size.py::test_memory_that_the_allocator_could_give_back_is_free",
    ): {
        "memory that the allocator holds is not free": (
            "(free + torch.cuda.memory_reserved(device)",
            "(free",
        ),
    },
    (
        "vitcli/training/validation.py",
        "tests/training/test_time_limit.py::test_what_is_loaded_for_the_first_batch_is_not_the_time_of_an_image",
    ): {
        "the first batch of a process is timed": (
            "for few in (rows[:batch_size], rows[",
            "for few in (rows[",
        ),
    },
    (
        "vitcli/distributed/launch.py",
        "tests/distributed/test_runtime.py::test_what_nccl_and_cuda_say_is_told_apart",
    ): {
        "a GPU that has failed is a bug of ours": ("if re.search(FAILED_GPU, text):", "if False:"),
    },
    (
        "vitcli/training/loop.py",
        "tests/training/test_queued_device.py::test_a_loss_that_is_not_finite_ends_a_run_in_fp16_too",
    ): {
        "a loss that is not finite goes on": ("if math.isfinite(self._loss) and (", "if ("),
        "a loss that is not finite is called a gradient": (
            "'gradient' if math.isfinite(self._loss) else 'loss'",
            "'gradient'",
        ),
    },
    (
        "vitcli/distributed/transfer.py",
        "tests/training/test_device.py "
        "tests/training/test_queued_device.py::test_a_copy_that_is_not_waited_for_reads_pinned_memory",
    ): {
        "a copy to Apple's GPUs is not waited for": (
            "        return tensor.to(device)\n    return (",
            "        return tensor.to(device, non_blocking=True)\n    return (",
        ),
        "a copy that is not waited for reads memory that is not pinned": (
            "(tensor if tensor.is_pinned() else tensor.pin_memory()).to(",
            "tensor.to(",
        ),
    },
    (
        "vitcli/training/optim.py",
        "tests/training/test_shard.py::test_slices_are_updated_and_updates_skipped_on_a_device_that_runs_ahead",
    ): {
        "torch's fused SGD is given slices": (
            "_FusedSgd if fused else torch.optim.SGD",
            "torch.optim.SGD",
        ),
        "an update of slices by fused SGD is never skipped": (
            'found_inf=getattr(self, "found_inf", None),',
            "found_inf=None,",
        ),
    },
    (
        "vitcli/training/loop.py",
        "tests/training/test_time_limit.py::test_a_stopped_run_follows_the_recorded_plan_to_the_same_bits",
    ): {
        "a plan that is due is forgotten when the clock is asked again": (
            "requests.append(self.is_plan_due or (",
            "requests.append(False or (",
        ),
        "the last step of a recorded plan is not logged if its numbers are read late": (
            "self.is_plan_due or self.state.step == self.until",
            "self.is_plan_due",
        ),
    },
    ("vitcli/training/methods/refit.py", "tests/training/methods/test_refit.py"): {
        "the closed form takes the place of the tuned head": (
            "tuned[name] + fitted[name].to(tuned[name].device)",
            "fitted[name].to(tuned[name].device)",
        ),
        "labels are checked by the features that know them": (
            "facts_of(self.before or None, after)",
            "facts_of(after.facts, after)",
        ),
        "the head is refitted on weights that are not delivered": (
            "state.deliver(state.weights)",
            "state.model.load_state_dict(state.weights)",
        ),
    },
    (
        "vitcli/training/setup.py",
        "tests/training/test_run.py::test_long_runs_on_cuda_are_compiled_unless_their_images_grow",
    ): {
        "images of growing sizes are compiled for": (
            "not recipe.schedule.image_sizes and has_compiler()",
            "has_compiler()",
        ),
    },
    ("vitcli/training/methods/outputs.py", "tests/training/methods/test_refit.py"): {
        "each pass takes the time of the steps": ("int(PART_OF_RUN * plan.images_seen)", "plan.images_seen"),
    },
    ("vitcli/training/methods/refit.py", "tests/training/methods/test_layered_refit.py"): {
        "familiar images are trained on at the higher rate": ("FAMILIAR = 0.6", "FAMILIAR = 0.7"),
        "several layers need not be ahead by more than nothing": ("AHEAD = 0.1", "AHEAD = 0.0"),
        "the rate is chosen by the features of several layers": (
            'before.get("one_layer_top1", before.get("left_out_top1"))',
            'before.get("left_out_top1")',
        ),
        "a layered head is not described": ("run.job = run.job.with_layered_head(num_layers)", "pass"),
        "the higher rate is not taken": ("run.job = run.job.with_lr(lr)", "pass"),
    },
    ("vitcli/training/many_runs/average_inputs.py", "tests/training/methods/test_layered_refit.py"): {
        "heads of other layers are averaged": (
            "architectures = asdict(one.arch), asdict(other.arch)",
            "architectures = other.arch.with_head(2).as_dict(), one.arch.with_head(2).as_dict()",
        ),
    },
    ("vitcli/training/schedule.py", "tests/training/test_schedule.py"): {
        "a warm-up in percent is rounded down": (
            'round(float(warmup.removesuffix("%")) / 100 * total_steps)',
            'int(float(warmup.removesuffix("%")) / 100 * total_steps)',
        ),
    },
    (
        "vitcli/training/methods/imbalance.py",
        "tests/training/methods/test_imbalance.py::test_a_last_class_without_images_has_a_weight_of_its_own",
    ): {
        "a last class without images has no weight": ("minlength=train_split.num_classes", "minlength=0"),
    },
    ("vitcli/training/many_runs/sweep_results.py", "tests/training/test_sweep_results.py"): {
        "two arms have one folder": ("is_usable = len(set(names)) == len(names) and", "is_usable ="),
    },
    (
        "vitcli/training/methods/early_stopping.py",
        "tests/training/test_time_limit.py::test_a_run_scores_what_it_reports_on_and_what_it_chooses_by",
    ): {
        "patience scores nothing at the end": ("return len(job.splits.choice or ())", "return 0"),
    },
    (
        "vitcli/training/methods/calibrate.py",
        "tests/training/methods/test_calibrate.py::test_no_image_of_those_that_choose_the_distance_is_flagged_by_it_as_it_is_stored",
    ): {
        "a stored distance is rounded down": ("-rounded_down(-chosen[0])", "rounded_down(chosen[0])"),
    },
    ("vitcli/training/splits.py", "tests/training/test_splits.py"): {
        "images of other classes calibrate a network": (
            "return split if is_same and not split.is_large else choice",
            "return split",
        ),
    },
    (
        "vitcli/training/many_runs/workers.py",
        "tests/training/test_sweep.py::test_runs_side_by_side_are_each_on_a_gpu_of_its_own_among_those_that_may_be_used",
    ): {
        "all runs are on the first GPU": (
            "visible[number] if number < len(visible) else str(number)",
            "visible[0] if visible else str(number)",
        ),
    },
    (
        "vitcli/training/many_runs/sweep_results.py",
        "tests/training/test_sweep_results.py::test_intervals_that_touch_cannot_be_told_apart",
    ): {
        "intervals that touch are told apart": (
            'choice["dev_interval"][1] >= best["dev_interval"][0]',
            'choice["dev_interval"][1] > best["dev_interval"][0]',
        ),
    },
    (
        "vitcli/training/many_runs/folds.py",
        "tests/training/many_runs/test_folds.py::test_a_limit_of_time_is_shared_by_the_runs_that_follow_one_another",
    ): {
        "the run on all images has no part of the time": (
            "counts = recipe.train.folds, 1",
            "counts = recipe.train.folds, 0",
        ),
    },
    (
        "vitcli/training/many_runs/average_inputs.py",
        "tests/training/many_runs/test_average_choice.py::test_runs_come_in_the_order_of_their_seeds",
    ): {
        "seed 10 comes before seed 9": (
            "key=lambda path: (len(path.name), path.name)",
            "key=lambda path: path.name",
        ),
    },
    (
        "vitcli/training/many_runs/sweep_results.py",
        "tests/training/test_sweep_results.py::test_held_out_images_that_every_arm_had_seen_are_counted_once",
    ): {
        "images that all arms have seen count for each arm": (
            'max((arm.get("num_held_out_seen") or 0 for arm in arms), default=0)',
            'sum(arm.get("num_held_out_seen") or 0 for arm in arms)',
        ),
    },
    (
        "vitcli/training/methods/early_stopping.py",
        "tests/training/test_early_stopping.py::test_an_evaluation_that_is_made_again_after_an_interruption_counts_once",
    ): {
        "an evaluation made again counts again": ("if step == self.last_step:", "if False:"),
    },
    (
        "vitcli/training/many_runs/sweep_results.py",
        "tests/training/test_sweep_results.py::test_the_speed_of_several_runs_is_all_their_images_by_all_their_time",
    ): {
        "the memory of several runs is that of the first": (
            'max(summary["peak_memory_gib"] for summary in summaries)',
            'summaries[0]["peak_memory_gib"]',
        ),
        "the speed of several runs is by the time of one": (
            'seconds = sum(final["elapsed_s"] for final in finals)',
            'seconds = finals[0]["elapsed_s"]',
        ),
    },
    (
        "vitcli/training/methods/wise_ft.py",
        "tests/training/test_probe_head.py::test_weights_that_are_always_wrong_come_before_weights_whose_outputs_are_no_numbers",
    ): {
        "outputs that are no numbers are as good as wrong ones": (
            "-1.0 if scores[alpha] is None else scores[alpha]",
            "0.0 if scores[alpha] is None else scores[alpha]",
        ),
    },
    (
        "vitcli/training/optim.py",
        "tests/training/test_optim.py::test_adam_steps_are_those_of_the_formula_with_decay_apart_from_the_gradient",
    ): {
        "Adam's epsilon is that of torch": (
            "lr=0.0, betas=betas, eps=eps, fused=fused",
            "lr=0.0, betas=betas, fused=fused",
        ),
    },
    (
        "vitcli/training/gradients.py",
        "tests/training/test_gradients.py::test_what_is_left_of_a_tree_is_added_from_the_right",
    ): {
        "what is left of a tree of sums is added from the left": (
            ("total = sums.pop()\n    while sums:\n        left = sums.pop()"),
            ("total = sums.pop(0)\n    while sums:\n        left = sums.pop(0)"),
        ),
    },
    (
        "vitcli/training/results.py",
        "tests/training/test_finetune.py::test_an_unreadable_image_before_a_stop_is_counted_by_the_run_that_goes_on",
    ): {
        "ten of the images that were left out are named": (
            '"skipped_images": sorted(skipped)[:100]',
            '"skipped_images": sorted(skipped)[:10]',
        ),
    },
    (
        "vitcli/training/methods/outputs.py",
        "tests/training/methods/test_groups_left_out.py::test_the_groups_of_the_data_reach_the_head_and_its_calibration",
    ): {
        "images without labels calibrate": ("    kept_N &= rows.labels_N >= 0\n", ""),
    },
    (
        "vitcli/training/methods/imbalance.py",
        "tests/training/methods/test_imbalance.py::test_the_rule_of_classes_is_that_of_the_loss_and_else_that_of_drawing",
    ): {
        "weights of classes in the loss are no balance": (
            "rules = (recipe.objective.class_weights, recipe.data.sampling)",
            "rules = (recipe.data.sampling,)",
        ),
    },
    (
        "vitcli/training/methods/time_limit.py",
        "tests/training/test_time_limit.py::test_a_run_is_planned_again_if_it_ends_a_hundredth_late_or_three_early",
    ): {
        "a run may end a third of its time early": (
            "late_s < -EARLY * self.limit_s",
            "late_s < -10 * EARLY * self.limit_s",
        ),
    },
    (
        "vitcli/training/methods/time_limit.py",
        "tests/training/test_time_limit.py::test_a_run_that_is_killed_loses_a_twentieth_of_its_time_or_five_seconds",
    ): {
        "a killed run of an hour has saved every five seconds": (
            "max(LEAST_SAVED_S, self.limit_s * SAVED_AFTER)",
            "min(LEAST_SAVED_S, self.limit_s * SAVED_AFTER)",
        ),
    },
    (
        "vitcli/training/many_runs/average.py",
        "tests/training/many_runs/test_average.py::test_each_method_is_the_arithmetic_of_its_paper",
    ): {
        "stored weights of runs are those of their mean": (
            '"sha256": run["sha256"], "weight": run["weight"]',
            '"sha256": run["sha256"], "weight": 1 / len(record["runs"])',
        ),
        "an average takes the time of its first run": (
            "**totals_of([run.summary for run in task.runs]),",
            "**totals_of([task.runs[0].summary]),",
        ),
        "the mean accuracy of runs is their best": (
            'mean(run.summary["top1"] for run in task.runs)',
            'max(run.summary["top1"] for run in task.runs)',
        ),
    },
    (
        "vitcli/training/many_runs/folds.py",
        "tests/training/many_runs/test_folds.py::test_what_all_folds_took_is_added_and_their_deviation_is_that_of_a_sample",
    ): {
        "the deviation of folds is that of a population": (
            '"std": stdev(accuracies)',
            '"std": float(np.std(accuracies))',
        ),
        "folds: the memory of the run on all images does not count": (
            'max(summary["peak_memory_gib"] for summary in everything)',
            'max(summary["peak_memory_gib"] for summary in folds)',
        ),
        "folds: the time of the run on all images does not count": (
            "**totals_of(everything),",
            "**totals_of(folds),",
        ),
    },
    (
        "vitcli/training/many_runs/workers.py",
        "tests/training/test_sweep.py::test_runs_side_by_side_share_the_cores_and_have_the_options_of_the_sweep",
    ): {
        "arms of a sweep compile though it is not to": (
            "[] if options.compile is None else [",
            "[] if not options.compile else [",
        ),
        "runs side by side each take all cores": (
            "max(1, launch.cpu_count() // options.arms_parallel)",
            "launch.cpu_count()",
        ),
    },
    (
        "vitcli/training/methods/time_limit.py",
        "tests/training/test_time_limit.py::test_a_run_that_slows_down_is_planned_again_after_a_quarter_of_the_time_that_is_left",
    ): {
        "the end of a run is looked at again after half the time": (
            "CHECKED_AFTER = 1 / 4",
            "CHECKED_AFTER = 1 / 2",
        ),
    },
    (
        "vitcli/training/methods/time_limit.py",
        "tests/training/test_time_limit.py::test_too_short_a_time_is_an_error_of_the_first_plan_alone",
    ): {
        "half a minute is advised as a whole one": (
            "math.ceil(needed_s / 30) / 2",
            "math.ceil(needed_s / 60)",
        ),
    },
    (
        "vitcli/training/methods/time_limit.py",
        "tests/training/test_time_limit.py::test_the_last_two_steps_are_made_as_they_were_planned",
    ): {
        "the last steps are planned again": ("total_steps - step > FEWEST_STEPS", "True"),
    },
    (
        "vitcli/training/methods/time_limit.py",
        "tests/training/test_time_limit.py::test_a_new_plan_is_told_with_the_speed_and_the_time_that_scoring_takes",
    ): {
        "a run that ends on time is said to be late": (
            "is_on_time = end_s <= (1 + LATE) * self.limit_s",
            "is_on_time = end_s <= self.limit_s / 2",
        ),
    },
    (
        "vitcli/training/methods/imbalance.py",
        "tests/training/methods/test_imbalance.py::test_weights_in_the_loss_are_by_the_sizes_of_the_classes_and_1_in_the_mean",
    ): {
        "classes have weights where none are asked for": (
            ('if recipe.objective.class_weights == "none":\n        return ()'),
            ('if recipe.objective.class_weights == "balanced":\n        return ()'),
        ),
    },
    (
        "vitcli/training/gradients.py",
        "tests/training/test_gradients.py::test_a_part_is_the_largest_that_leaves_a_tree_and_else_the_largest_that_divides",
    ): {
        "a step that makes no tree has parts of one image": ("default=divisors[-1])", "default=divisors[0])"),
    },
    (
        "vitcli/training/many_runs/sweep_results.py",
        "tests/training/test_sweep_results.py::test_values_beyond_the_edge_go_up_or_down_by_about_three",
    ): {
        "a rate that is hardly another one is advised": (
            "if step > 1.5 * value][:2]",
            "if step > 1.0 * value][:2]",
        ),
    },
    (
        "vitcli/training/many_runs/workers.py",
        "tests/training/test_sweep.py::test_a_worker_that_ended_with_an_error_is_told_of_with_the_end_of_its_output",
    ): {
        "a worker that failed beside others is passed over": (
            "if process.wait() not in (0, 128 + signal.SIGTERM):",
            "if process.wait() < 0:",
        ),
    },
    (
        "vitcli/training/methods/early_stopping.py",
        "tests/training/test_early_stopping.py::test_the_best_is_that_of_the_highest_precision_or_accuracy_and_then_of_the_smallest_loss",
    ): {
        "several labels are kept by their top-1": (
            '("mean_ap", "top1")',
            '("top1", "mean_ap")',
        ),
    },
    (
        "vitcli/training/splits.py",
        "tests/training/test_early_stopping.py::test_a_tenth_of_the_images_is_held_out_to_choose_by_and_never_more_than_500",
    ): {
        "a thousand images are held out to choose by": (
            "MOST_TO_CHOOSE_BY = 0.1, 500",
            "MOST_TO_CHOOSE_BY = 0.1, 1000",
        ),
    },
    (
        "vitcli/training/methods/calibrate.py",
        "tests/training/methods/test_calibrate.py::test_the_score_of_a_probe_is_chosen_by_the_closed_form_without_each_class",
    ): {
        "new classes are told by scores without the temperature": (
            'head.facts["temperature"] * least_squares.left_out_scores(solution)',
            "least_squares.left_out_scores(solution)",
        ),
    },
    (
        "vitcli/training/methods/calibrate.py",
        "tests/training/methods/test_calibrate.py::test_the_score_of_a_network_is_that_which_tells_each_left_out_class_from_the_others",
    ): {
        "the first class is never left out": (
            "fold_N = np.full(len(labels_N), -1)",
            "fold_N = np.full(len(labels_N), 0)",
        ),
    },
    (
        "vitcli/training/methods/outputs.py",
        "tests/training/methods/test_calibrate.py::test_rows_whose_outputs_overflow_are_left_out_with_their_labels_and_groups",
    ): {
        "overflown outputs are calibrated by": (
            "rows.features_ND.isfinite().all(dim=1) & rows.logits_NK.isfinite().all(dim=1)",
            "rows.features_ND.isfinite().all(dim=1)",
        ),
    },
    (
        "vitcli/training/many_runs/average_inputs.py",
        "tests/training/many_runs/test_average_choice.py::test_an_average_was_trained_on_what_any_of_its_runs_was",
    ): {
        "an average was trained on the images of its first run": (
            "np.unique(np.concatenate(digests))",
            "digests[0]",
        ),
    },
    (
        "vitcli/training/methods/time_limit.py",
        "tests/training/test_time_limit.py::test_images_that_are_still_to_be_scored_are_counted_by_hand",
    ): {
        "evaluations behind the end are counted": (
            "return max(0, times) * self.num_periodic",
            "return times * self.num_periodic",
        ),
    },
    (
        "vitcli/training/many_runs/average.py",
        "tests/training/many_runs/test_average_choice.py::test_an_average_that_is_clearly_worse_than_the_best_run_is_not_accepted",
    ): {
        "the interval of an average is turned round": (
            "paired_interval(only_best, only_average, ",
            "paired_interval(only_average, only_best, ",
        ),
        "only one in a hundred is no chance": (
            "SIGNIFICANT = 0.05",
            "SIGNIFICANT = 0.01",
        ),
    },
    (
        "vitcli/training/many_runs/average_inputs.py",
        "tests/training/many_runs/test_average_choice.py::test_images_that_runs_report_on_choose_no_average",
    ): {
        "an average is chosen by the images it reports on": (
            "if dev.fingerprint in reported:",
            "if False:",
        ),
    },
    (
        "vitcli/training/many_runs/average.py",
        "tests/training/many_runs/test_average_choice.py::test_a_folder_of_another_request_is_no_average_of_this_one",
    ): {
        "another average is taken for this one": (
            '    refuse_other(out, "another average", different)\n',
            "",
        ),
    },
    (
        "vitcli/training/many_runs/sweep_results.py",
        "tests/training/test_sweep_results.py::test_the_scores_of_several_runs_are_means_and_their_deviation_is_that_of_a_sample",
    ): {
        "the memory of arms does not count": (
            'max(summary["peak_memory_gib"] for summary in summaries)',
            'max(summary["peak_memory_gib"] for summary in finals)',
        ),
        "the interval of several runs is that of the first": (
            "interval_of(means[name], count) for name",
            "interval_of(runs[0][name], count) for name",
        ),
        "the probe of several runs is that of the first": (
            '"top1": mean(accuracies)',
            '"top1": accuracies[0]',
        ),
        "the deviation of runs is that of a population": (
            'stdev([run["top1"] for run in runs])',
            'mean([(run["top1"] - means["top1"]) ** 2 for run in runs]) ** 0.5',
        ),
    },
    (
        "vitcli/training/many_runs/sweep_results.py",
        "tests/training/test_sweep_results.py::test_the_hours_of_all_runs_are_those_of_all_their_images",
    ): {
        "a sweep takes the hours of one run": (
            'totals["all_images_seen"] / final["measured_images_per_s"] / 3600',
            'final["images_seen"] / final["measured_images_per_s"] / 3600',
        ),
    },
    (
        "vitcli/training/methods/refit.py",
        "tests/training/methods/test_refit.py::test_images_of_a_single_class_have_no_closed_form",
    ): {
        "a single class has a closed form": (
            "if len(np.unique(rows.labels_N)) < 2:",
            "if False:",
        ),
    },
    (
        "vitcli/training/many_runs/average.py",
        "tests/training/many_runs/test_average.py::test_accuracy_and_loss_of_a_run_are_the_means_over_the_dev_part",
    ): {
        "the loss on the dev part is a sum": (
            "predictions.losses_N.mean()",
            "predictions.losses_N.sum()",
        ),
    },
    (
        "vitcli/training/many_runs/average.py",
        "tests/training/many_runs/test_average.py::test_images_that_cannot_be_decoded_are_counted_once_over_all_passes",
    ): {
        "unreadable images of the last pass alone are counted": (
            "self.skipped |= set(skipped)",
            "self.skipped = set(skipped)",
        ),
        "unreadable images of an average are not counted": (
            "self.runtime.union(self.skipped)",
            "set()",
        ),
    },
    ("vitcli/training/notes.py", "tests/training/test_notes.py"): {
        "files left out of training are not said": (
            "left_out = train.left_out | scored.left_out",
            "left_out = scored.left_out",
        ),
        "files left out of scoring are not said": (
            "left_out = train.left_out | scored.left_out",
            "left_out = train.left_out",
        ),
    },
    (
        "vitcli/training/setup.py",
        "tests/training/test_auto_batch_size.py::test_the_memory_of_a_run_is_that_of_its_tensors_and_of_a_micro_batch",
    ): {
        "a micro-batch takes the memory of one image": (
            "(weights + activations * job.plan.per_device_batch)",
            "(weights + activations)",
        ),
        "SGD takes the memory of Adam": (
            '(2 if recipe.optimizer.name == "adam" else 1)',
            "2",
        ),
        "the average takes no memory": (
            "+ bool(recipe.optimizer.average)",
            "",
        ),
        "gradients take no memory": (
            "* 4 * (2 + _tensors_per_weight(job.recipe))",
            "* 4 * (1 + _tensors_per_weight(job.recipe))",
        ),
        "a sharded run takes the memory of a whole one": (
            "job.runtime.world_size if job.options.shard else 1",
            "1",
        ),
    },
    (
        "vitcli/training/setup.py",
        "tests/training/test_auto_batch_size.py::test_the_trial_recomputes_activations_where_the_run_does",
    ): {
        "what a step holds takes twice the memory": (
            "held = int(params * 4 *",
            "held = int(params * 8 *",
        ),
        "a trial leaves no room for teachers": (" + bytes_of_teachers(recipe))", ")"),
        "a trial on a CPU forgets the gradients": (
            "params * 8 + held",
            "params * 4 + held",
        ),
    },
}

"""Deliberate breaks of the code, each of which must turn a test red: `tests/test_mutants.py` makes them.

A break is a text that occurs once in its file, and what takes its place. It belongs to the tests of which one
must fail. Those are fast, and need no data or weights besides what they make themselves. Here are the breaks
of what a run must keep; those of what a result rests on are in `mutants_of_results.py`, those that a review
misses most easily in `mutants_of_parts.py`, and package by package in the others.
"""

from dataclasses import dataclass

from tests.mutants_of_data import OF_DATA
from tests.mutants_of_exports import OF_EXPORTS
from tests.mutants_of_figures import OF_FIGURES
from tests.mutants_of_files import OF_FILES
from tests.mutants_of_parts import OF_PARTS
from tests.mutants_of_results import OF_RESULTS
from tests.mutants_of_rounding import OF_ROUNDING
from tests.mutants_of_scores import OF_SCORES
from tests.mutants_of_screens import OF_SCREENS
from tests.mutants_of_teachers import OF_TEACHERS
from tests.mutants_of_teaching import OF_TEACHING
from tests.mutants_of_training import OF_TRAINING


@dataclass(frozen=True)
class Mutant:
    """A change of a file, of a text that occurs once, and the tests of which one must fail."""

    what: str
    file: str
    before: str
    after: str
    tests: str


# By file and tests: what each break does, the text before and after it.
OF_RUNS = {
    # What a crash may not take.
    ("vitcli/output/atomic.py", "tests/output/test_atomic.py"): {
        "a folder that is there cannot be written": (
            "folder.mkdir(parents=True, exist_ok=True)\n        for path in made",
            "folder.mkdir(parents=True)\n        for path in made",
        ),
        "no fsync of a replaced file": ("        sync(temporary)\n", ""),
        "no fsync of its folder": (
            "os.replace(temporary, path)\n        sync(path.parent)\n",
            "os.replace(temporary, path)\n",
        ),
        "a file is renamed before it is on disk": (
            "        sync(temporary)\n        fence(path)\n        os.replace(temporary, path)\n",
            "        fence(path)\n        os.replace(temporary, path)\n        sync(path)\n",
        ),
        "a failed write leaves its file": (
            "            temporary.unlink(missing_ok=True)",
            "            pass",
        ),
    },
    ("vitcli/output/atomic.py", "tests/training/test_power_loss.py"): {
        "no fsync of new parents": ("                sync(path.parent)", "                pass"),
    },
    ("vitcli/output/run_folder.py", "tests/training/test_power_loss.py"): {
        "a run is finished before its metrics are on disk": (
            "        self.metrics_bytes()\n        self.write_json(SUMMARY",
            "        self.write_json(SUMMARY",
        ),
        "no fsync of the metrics": ("os.fsync(self._metrics.fileno())", "pass"),
    },
    ("vitcli/training/checkpoint.py", "tests/training/test_checkpoint.py"): {
        "no rename before a deletion": ("old.rename(_retired(old))", "old"),
        "damaged ones are not put aside": ("bad.rename(_free_name(", "str(_free_name("),
        "one damaged name for all times": (
            "path.with_name(name) for name in names if not",
            "path for name in names if True or not",
        ),
        "leftovers of saves are kept": (
            "        shutil.rmtree(leftover, ignore_errors=True)",
            "        pass",
        ),
        "hashes are not compared": ("digest_of_file(path).hex() != sha256", "False"),
        "weights that are not finite are saved": (
            "        check_finite(find_non_finite(checkpoint.tensors), step)",
            "        pass",
        ),
        "milestones are deleted": (
            "if not milestone_every or step_of_checkpoint(old) % milestone_every:",
            "if True:",
        ),
        "a file that does not belong is accepted": ("    if unlisted:", "    if False:"),
        "a checkpoint of another name is accepted": ("if checkpoint_name != folder.name:", "if False:"),
        "a failed save leaves its files": (
            "        shutil.rmtree(temporary, ignore_errors=True)\n        if isinstance",
            "        if isinstance",
        ),
        "what cannot be deleted is not named": (
            "return left + [old for old in retired if old.exists()]",
            "return []",
        ),
        "momentum is restored as zero": (
            "optimizer.state[parameter][slot] = value",
            "optimizer.state[parameter][slot] = torch.zeros_like(value)",
        ),
        "a copy shares memory with the model": (
            "copies = iter(Download(values).read())",
            "copies = iter(values)",
        ),
        "an old one goes before the new one is there": (
            "        temporary.rename(saved)\n",
            "        for old in checkpoint_folders(run_dir)[keep - 1 :]:\n"
            "            shutil.rmtree(old)\n"
            "        temporary.rename(saved)\n",
        ),
    },
    ("vitcli/training/checkpoint.py", "tests/training/test_checkpoint_contents.py"): {
        "contents of a checkpoint are not looked at": ("    if problem:\n", "    if False:\n"),
        "an empty optimizer goes on": ("if has_state and not found and", "if False and"),
        "a step beyond the end is accepted": ("not 0 < step <= total_steps", "not 0 < step"),
    },
    ("vitcli/training/checkpoint.py", "tests/training/test_power_loss.py"): {
        "no fsync of a checkpoint's files": ("        sync(path)\n", ""),
        "no fsync of the manifest": ("    sync(folder / MANIFEST)\n", ""),
        "no fsync of the temporary folder": ("MANIFEST)\n    sync(folder)\n", "MANIFEST)\n"),
        "no fsync of checkpoints/": ("        sync(folder)\n    except", "    except"),
        "no fsync of the run folder": ("sync(run_dir)  # the", "pass  # the"),
        "one checkpoint too many is retired": ("(run_dir)[keep:]", "(run_dir)[keep - 1 :]"),
    },
    ("vitcli/io/files.py", "tests/output/test_atomic.py"): {
        "a pipe is waited for": ('"O_BINARY", "O_NONBLOCK", ', '"O_BINARY", '),
    },
    ("vitcli/io/files.py", "tests/io/test_files.py"): {
        "files of any size are read": (
            "if len(content) > most or os.fstat(file.fileno()).st_size > most:",
            "if False:",
        ),
    },
    # What a run that stops and goes on may not change, and what it may not say.
    (
        "vitcli/evaluation/inference.py",
        ""
        "tests/training/test_finetune.py::test_a_run_stopped_within_an_evaluation_resumes_into_it_bit_for_bit",
    ): {
        "a signal waits for the end of an evaluation": ("if number < num_of_each and", "if False and"),
    },
    (
        "vitcli/output/run_folder.py",
        ""
        "tests/training/test_finetune.py::test_a_folder_with_another_recipe_is_refused_with_the_keys_that_differ",
    ): {
        "a run of another recipe is resumed": (
            'refuse_other(path, "a run of another recipe", differing, advice=advice)',
            "pass",
        ),
    },
    (
        "vitcli/output/run_folder.py",
        "tests/training/test_finetune.py::test_a_run_stopped_by_sigterm_resumes_bit_for_bit",
    ): {
        "metrics are not cut to their checkpoint": (
            "        self._metrics.truncate(num_bytes)",
            "        pass",
        ),
    },
    (
        "vitcli/training/state.py",
        ""
        "tests/training/test_finetune.py::test_a_run_is_not_resumed_with_one_other_image_and_is_with_a_copy_of_the_data",
    ): {
        "changed data are resumed on": (
            "None not in (before.get(key), now.get(key)) and before[key] != now[key]",
            "False",
        ),
        "32 images stand for all": (
            '("train_data", "eval_data", "choice_data", *IMAGES)',
            '("train_data", "eval_data", "choice_data")',
        ),
    },
    (
        "vitcli/training/state.py",
        "tests/training/test_finetune.py::test_a_run_stopped_by_sigterm_resumes_bit_for_bit",
    ): {
        "the average begins anew": (
            'state.average.restore(fsdp.all_sliced_like(saved.tensors["average"], current))',
            "pass",
        ),
        "the optimizer begins anew": (
            'checkpoint.restore_optimizer(state.model, state.optimizer, saved.tensors["optimizer"])',
            "pass",
        ),
    },
    (
        "vitcli/training/state.py",
        ""
        "tests/training/test_finetune.py::test_a_run_stopped_within_an_evaluation_resumes_into_it_bit_for_bit",
    ): {
        "an interrupted evaluation is forgotten": ('saved.state["evaluation_due"]', "False"),
    },
    (
        "vitcli/training/state.py",
        ""
        "tests/training/test_finetune.py::test_an_unreadable_image_before_a_stop_is_counted_by_the_run_that_goes_on",
    ): {
        "unreadable images before a stop are forgotten": ('set(saved.state["skipped"])', "set()"),
    },
    ("vitcli/training/state.py", "tests/training/test_saver.py"): {
        "a failed save is swallowed": (
            "raise_error)\n        for left in writing.result() if writing is not None else ():",
            "lambda: 0)\n        for left in writing.result() if writing and not error else ():",
        ),
        "a failed save ends one process alone": (
            "self.state.runtime.on_main(raise_error)",
            "raise_error()",
        ),
        "a failed save is told only with the next": ("return failed or time", "return time"),
        "'saved' is said before it is on disk": ("        if wait:\n            self._finish()\n", ""),
    },
    # A step of training.
    ("vitcli/training/gradients.py", "tests/training/test_gradients.py"): {
        "a running sum in place of the tree": (
            "while subtrees and subtrees[-1][0] == level:",
            "while subtrees:",
        ),
        "a split that is no tree is taken": (
            "return rest == 0 and (world_size == 1 or _is_power_of_two(parts))",
            "return rest == 0",
        ),
        "slices of a sum are exchanged": (
            "self.runtime.gather(total).flatten()",
            "self.runtime.gather(total).flip(0).flatten()",
        ),
    },
    ("vitcli/training/loop.py", "tests/training/test_loop.py"): {
        "dropout is the same in every micro-batch": ("step, runtime.rank * parts + part)", "step, 0)"),
        "dropout is the same in every step": (
            "_of_part(settings.seed, step, ",
            "_of_part(settings.seed, 0, ",
        ),
        "dropout ignores the seed": ("_of_part(settings.seed, ", "_of_part(0, "),
        "a gradient that is not finite goes on": (
            "(may_overflow or math.isfinite(self._grad_norm))",
            "True",
        ),
        "the rate of the next step": ("settings.lr_at(step)", "settings.lr_at(step + 1)"),
        "clipping after the step": (
            "            grad_norm = clip_by_global_norm(parameters, settings.clip)\n",
            "            grad_norm = clip_by_global_norm(parameters, 0.0)\n",
        ),
        "the last micro-batch weighs less": (
            "scale(loss / state.gradients.num_losses)",
            "scale(loss / (state.gradients.num_losses + (part == parts - 1)))",
        ),
        "micro-batches are summed, not averaged": ("scale(loss / state.gradients.num_losses)", "scale(loss)"),
        "gradients of the step before are added": ("            optimizer.zero_grad()\n", ""),
        "the logged loss is that of one micro-batch": ("math.fsum(losses) / len(losses)", "losses[-1]"),
        "the average counts one step too many": ("num_updates=state.step)", "num_updates=state.step + 1)"),
        "SIGTERM leaves without saving": ("is_end or stop_signal or is_saved", "is_end or is_saved"),
        "SIGTERM does not wait for its save": ("wait=is_end or stop_signal > 0", "wait=is_end"),
        "a second Ctrl-C is ignored": ("            os._exit(130)\n", "            pass\n"),
        "a second Ctrl-C ends as if all were well": ("os._exit(130)", "os._exit(0)"),
        "a signal is forgotten": (
            "            if stop_signal:\n                raise Stopped",
            "            if False:\n                raise Stopped",
        ),
        "Ctrl-C ends as SIGTERM does": (
            "signal.SIGINT if interrupted else signal.SIGTERM",
            "signal.SIGTERM if interrupted else signal.SIGTERM",
        ),
    },
    ("vitcli/training/loop.py", "tests/training/test_queued_device.py"): {
        "a step that is not finite changes the weights": (
            "update_weights(optimizer, numbers.is_finite)",
            "update_weights(optimizer, torch.tensor(True))",
        ),
    },
    (
        "vitcli/training/loop.py",
        ""
        "tests/training/test_queued_device.py::test_a_gradient_that_overflows_in_fp16_is_skipped_as_by_torchs_scaler",
    ): {
        "an overflow of fp16 ends the run": (
            'precision == "fp16" and loss_scale',
            'precision == "" and loss_scale',
        ),
        "gradients are clipped before they are unscaled": (
            "            runtime.scaler.unscale_(optimizer)\n"
            "            grad_norm = clip_by_global_norm(parameters, settings.clip)\n",
            "            grad_norm = clip_by_global_norm(parameters, settings.clip)\n"
            "            runtime.scaler.unscale_(optimizer)\n",
        ),
    },
    ("vitcli/training/objective.py", "tests/training/test_objective.py"): {
        "MixUp's targets are exchanged": (
            "weight * of_labels + (1 - weight) * loss",
            "(1 - weight) * of_labels + weight * loss",
        ),
        "MixUp's target is the other neighbour": ("labels.roll(1, dims=0)", "labels.roll(-1, dims=0)"),
        "MixUp's weight is below a half": ("max(drawn, 1 - drawn)", "min(drawn, 1 - drawn)"),
        "sigmoid targets are not smoothed to e and 1 - e": (
            "(1 - 2 * label_smoothing)",
            "(1 - label_smoothing)",
        ),
        "the sigmoid loss is a mean over classes": ("losses_BK.sum(dim=-1).mean()", "losses_BK.mean()"),
        "padding of labels is class 0": (
            "labels_BM.where(labels_BM >= 0, num_classes)",
            "labels_BM.clamp(min=0)",
        ),
    },
    ("vitcli/training/optim.py", "tests/training/test_optim.py"): {
        "biases are decayed": ("parameter.ndim >= 2 and", "parameter.ndim >= 1 and"),
        "embeddings are decayed": ("parameter.ndim >= 2 and not is_embedding", "parameter.ndim >= 2"),
        "what timm spares is decayed": ("is_embedding = is_of_timm or ", "is_embedding = "),
        "a plain running average": ("(1 - self.factor) / (1 - self.factor**num_updates)", "1 - self.factor"),
        "averaged weights stay in the model": (
            "            model.load_state_dict(trained)",
            "            pass",
        ),
        "small gradients are enlarged": ("torch.clamp(max_norm / norm, max=1.0)", "max_norm / norm"),
        "Adam's betas are exchanged": ("betas=betas, eps=eps", "betas=betas[::-1], eps=eps"),
        "Nesterov's momentum": (
            "momentum=settings.momentum, fused",
            "momentum=settings.momentum, nesterov=True, fused",
        ),
        "clipping one parameter after the other": (
            "    norm = nn.utils.get_total_norm(grads)\n",
            "    norm = nn.utils.get_total_norm(grads[:1])\n",
        ),
    },
    ("vitcli/training/schedule.py", "tests/training/test_schedule.py"): {
        "the decay begins a step early": ("(step - warmup_steps) / max", "(step + 1 - warmup_steps) / max"),
        "the warm-up begins above zero": (
            "lr * min(1.0, step / warmup_steps)",
            "lr * min(1.0, (step + 1) / warmup_steps)",
        ),
        "the decay ends at zero": ("end_lr + (base_lr - end_lr) * factor", "base_lr * factor"),
        "epochs are rounded down": (
            "round(epochs * num_examples / batch_size)",
            "int(epochs * num_examples / batch_size)",
        ),
        "a batch that does not divide is rounded": ("    if batch_size % images_per_pass:", "    if False:"),
    },
    # What may not get out, or in.
    ("vitcli/data/columns.py", "tests/data/test_split.py"): {
        "paths out of the data set are followed": ("not Path(real).is_relative_to(root)", "False"),
        "a NUL in a path": ('if "\\0" in path:', "if False:"),
        "a pipe is read as an image": (
            "return read_regular(real, MOST_BYTES)",
            "return Path(real).read_bytes()",
        ),
    },
    ("vitcli/data/image_cache.py", "tests/data/test_image_cache.py"): {
        "images of other data are taken": ('"fingerprint": whole.fingerprint, ', ""),
        "images prepared in another way are taken": (
            "json.loads(json.dumps(preprocessing.geometry))",
            "[list(preprocessing.image_size)]",
        ),
        "one stamp for all images": ("stamp = self.stamp_of(source)  #", "stamp = self.stamp_of(0)  #"),
    },
    ("vitcli/data/shards/webdataset.py", "tests/data/shards"): {
        "links in a tar are followed": ("if not member.isreg() or member.issparse() or", "if"),
        "a tar that is cut off": ("if len(end) < tarfile.BLOCKSIZE or any(end):", "if False:"),
    },
    ("vitcli/distributed/launch.py", "tests/distributed/test_launch.py"): {
        "children look for modules in the working folder": (
            '"-P", str(Path(__file__).parents[1] / "__main__.py")',
            '"-m", "vitcli"',
        ),
    },
    ("vitcli/output/owned_folder.py", "tests/output/test_run_folder.py tests/output/test_owned_folder.py"): {
        "links are followed": ("        self.refuse_links()\n", ""),
        "a link is the mark of a run": (" and not (self.path / self.marker).is_symlink()", ""),
        "a folder of other files is taken": ("        if files and not is_marked:", "        if False:"),
        "an owner that has died is named": ("if owner and is_alive(owner) is not False:", "if owner:"),
    },
    ("vitcli/output/leases.py", "tests/output/test_leases.py"): {
        "a late worker writes into the cell of another": (
            "clock() - self._beat_at > self.seconds / 2",
            "clock() - self._beat_at > self.seconds * 2",
        ),
        "a worker that beats slowly loses its cell": (
            "return clock() - self._seen[name][1] >= self.seconds",
            "return clock() - self._seen[name][1] >= 0",
        ),
        "claims of a cell are counted anew": (
            "self._take(name, number + 1, folders[name])",
            "self._take(name, 1, folders[name])",
        ),
        "what a killed worker had begun comes last": ("for name in running if", "for name in () if"),
        "a worker whose successor is there goes on": (
            "self._is_lost |= self.rival.exists()",
            "pass",
        ),
    },
    ("vitcli/evaluation/parts.py", "tests/evaluation/test_parts.py"): {
        "parts of another request are kept": (
            "for key in {**there, **here} if there.get(key) != here.get(key)",
            "for key in ()",
        ),
        "the last part is left out": (
            "range(0, len(split), self.rows)",
            "range(0, len(split) - self.rows, self.rows)",
        ),
        "a damaged part stays": ("except (OSError, ValueError):", "except OSError:"),
    },
    ("vitcli/features/feature_store.py", "tests/evaluation/test_parts.py"): {
        "rows are counted anew in each part": (
            'records_N["row"] + first_row if',
            'records_N["row"] if',
        ),
    },
    ("vitcli/evaluation/predictions.py", "tests/evaluation/test_parts.py"): {
        "rows of an evaluation are counted anew in each part": (
            'arrays["rows_N"] = arrays["rows_N"] + first_row',
            "pass",
        ),
    },
    ("vitcli/results.py", "tests/evaluation/test_parts.py"): {
        "a row of the parts is its neighbour": ('side="right")', 'side="left")'),
    },
    ("vitcli/output/shared_work.py", "tests/output/test_shared_work.py"): {
        "what another worker has just finished is trained again": (
            "result = self.runtime.on_main(cell.finished) or cell.work()",
            "result = cell.work()",
        ),
        "results are told in the order of their ends": (
            "while self._num_told in self.results:",
            "for self._num_told in results:",
        ),
    },
    ("vitcli/io/files.py", "tests/output/test_run_folder.py"): {
        "two writers in one folder": ("lock_descriptor(file.fileno(), blocking=False)", "True"),
    },
    ("vitcli/distributed/launch.py", "tests/test_windows.py"): {
        "a signal that Windows lacks is named": (
            'getattr(signal, "SIGUSR1", signal.SIGTERM)',
            "signal.SIGUSR1",
        ),
    },
    ("vitcli/cli/app.py", "tests/test_windows.py"): {
        "a letter that a pipe of Windows lacks is a bug": ('errors="backslashreplace"', 'errors="strict"'),
    },
    ("vitcli/io/files.py", "tests/io/test_locks.py"): {
        "a deleted lock file is held": ("os.path.samestat(os.fstat(file.fileno()), os.lstat(path))", "True"),
        "a lock is waited for once": ("if not is_locked and time.monotonic() >= until", "if not is_locked"),
    },
    ("vitcli/cache/user_cache.py", "tests/io/test_locks.py tests/cache/test_row_store.py"): {
        "an entry in use is deleted": ('for use in path.glob("use-*.lock"):', "for use in ():"),
        "an entry is deleted while another process begins to use it": (
            "with lock_file(path / LOCK, wait_s=USE_WAIT_S):",
            "with ExitStack():",
        ),
    },
    ("vitcli/output/redaction.py", "tests/conversion"): {
        "a published name has a signature": (
            'QUERY.sub("", name) if name.startswith("http") else name',
            "name",
        ),
        "a published name is a path": ('return PurePath(name).name or "local"', "return name"),
    },
    ("vitcli/output/redaction.py", "tests/output/test_run_folder.py"): {
        "tokens are logged": ('re.sub(r"hf_[A-Za-z0-9]{8,}", "hf_***", argument)', "argument"),
        "passwords are logged": ('    argument = PASSWORD.sub("***@", argument)\n', ""),
    },
    ("vitcli/output/run_folder.py", "tests/output/test_run_folder.py"): {
        "the command line is logged as it is": ("*map(without_secrets, arguments)", "*arguments"),
    },
    (
        "vitcli/output/text.py",
        "tests/output/test_text.py tests/output/test_document.py tests/output/test_progress.py",
    ): {
        "escapes reach the terminal": (
            '"".join(c if c.isprintable() else "�" for c in str(text))',
            "str(text)",
        ),
        "escapes are in JSON": (
            "c if c.isprintable() else json.dumps(c)[1:-1] for c in letters[0]",
            "c for c in letters[0]",
        ),
    },
    ("vitcli/report/server.py", "tests/report/test_page.py"): {
        "clients without number": (
            "if self._free.acquire(blocking=False):",
            "if self._free.acquire(blocking=False) or True:",
        ),
        "a silent client is waited for": ("timeout = PATIENCE_S", "timeout = None"),
        "pages of the web read the report": (
            'if self.headers.get("Host", "").partition(":")[0] not in HOST_NAMES:',
            "if False:",
        ),
        "clients that vanish are told": (
            "if not isinstance(sys.exception(), ConnectionError | TimeoutError):",
            "if True:",
        ),
    },
    # Exit codes, and what a terminal is told.
    ("vitcli/cli/end_of_command.py", "tests/cli"): {
        "escapes are in errors": (
            '"".join(c if c.isprintable() or c == "\\n" else "\\ufffd" for c in text)',
            "text",
        ),
        "a bug ends with the code of a mistake": (
            "_environment_error(error) or _internal_error(error)",
            "_environment_error(error) or VitError(str(error), where='', fix='')",
        ),
        "an error ends with 0": (
            "        return _print_error(error, arguments)\n    except Stopped",
            "        return _print_error(error, arguments) * 0\n    except Stopped",
        ),
    },
    ("vitcli/errors.py", "tests/cli tests/test_api.py"): {
        "exit codes of weights and machine": (
            "    WeightsError: 4,\n    MachineError: 5,",
            "    WeightsError: 5,\n    MachineError: 4,",
        ),
        "exit code of a loss that is not finite": ("NotFiniteError: 6", "NotFiniteError: 5"),
        "exit code of a failed check": ("CheckFailed: 8", "CheckFailed: 1"),
        "exit code of a signal": ("128 + signal_number", "signal_number"),
    },
}

BY_PACKAGE = (OF_FIGURES, OF_DATA, OF_FILES, OF_EXPORTS, OF_SCORES, OF_SCREENS, OF_TRAINING, OF_TEACHING,
              OF_TEACHERS, OF_ROUNDING)  # fmt: skip
MUTANTS = [
    Mutant(what, file, before, after, tests)
    for part in (OF_RUNS, OF_RESULTS, OF_PARTS, *BY_PACKAGE)
    for (file, tests), breaks in part.items()
    for what, (before, after) in breaks.items()
]

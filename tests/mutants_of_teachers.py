"""Deliberate breaks of what students learn of teachers; see `mutants.py`."""

# By file and tests: what each break does, the text before and after it.
OF_TEACHERS = {
    ("vitcli/training/methods/outputs.py", "tests/training/methods/test_distillation.py"): {
        "a head in closed form is fitted to the few labels in a sample of all images": (
            "labelled = split if is_labelled_N.all() else split.rows(np.flatnonzero(is_labelled_N))",
            "labelled = split",
        ),
    },
    ("vitcli/recipe/reading.py", "tests/training/many_runs/test_students.py"): {
        "a student holds out other images than its teacher": ('("dev_fraction", "dev_stratified")', "()"),
    },
    ("vitcli/output/profile.py", "tests/output/test_profile.py"): {
        "the forward pass of a teacher is its student's": (
            "if not _tracing or _tracing.is_at_teacher:",
            "if not _tracing:",
        ),
    },
    ("vitcli/training/methods/distillation.py", "tests/training/methods/test_distillation.py"): {
        "what a teacher says is not stored": (
            "store.add(position, STAMP,",
            "(lambda *_: None)(position, STAMP,",
        ),
        "what was said for another seed is taken": (
            '"seed": recipe.train.seed,',
            '"seed": 0,',
        ),
        "what a student of another size was moved by is taken": (
            '"moved": size if data.trivialaugment else None,',
            '"moved": None,',
        ),
        "a teacher sees another mixture than its student": (
            "seed_of_part(job.recipe.train.seed, step, number)",
            "seed_of_part(job.recipe.train.seed, step + 1, number)",
        ),
        "targets have no temperature": (
            "(logits_BK / temperature).log_softmax(dim=1) for",
            "logits_BK.log_softmax(dim=1) for",
        ),
        "of several teachers the logarithms are averaged": (
            "of_each.logsumexp(dim=0) - log(len(logits))",
            "of_each.mean(dim=0)",
        ),
        "what is left of the probability has the first class": (
            "log_p_BK.scatter(1, classes_BT, -inf).logsumexp(dim=1, keepdim=True)",
            "log_p_BK.logsumexp(dim=1, keepdim=True)",
        ),
        "a run resumes with another teacher": ("if self.before not in (None,", "if self.before in ("),
        "the micro-batches of a teacher of another size are one late": (
            "for _ in range(part):",
            "for _ in range(part + 1):",
        ),
    },
    ("vitcli/data/augmentations/trivialaugment.py", "tests/data/test_augmentations.py"): {
        "an image of another size is moved by as many pixels": (
            "        strength *= scale\n",
            "        pass\n",
        ),
    },
    ("vitcli/training/objective.py", "tests/training/methods/test_distillation.py"): {
        "a divergence without the square of the temperature": ("return temperature**2 * F", "return F"),
        "the divergence of the teacher from the student": (
            "F.kl_div(of_student_BT, of_teacher_BT,",
            "F.kl_div(of_teacher_BT, of_student_BT,",
        ),
        "a box is cut by its place in pixels": (
            "round(part * side) for part, side in zip(self.box, (height, height, width, width)",
            "round(part * 8) for part, side in zip(self.box, (height, height, width, width)",
        ),
    },
    ("vitcli/data/split.py", "tests/training/methods/test_distillation.py"): {
        "images without labels take the groups of the others away": (
            "grouping=self.grouping and self.grouping.with_single_rows(len(others)),",
            "grouping=None,",
        ),
        "images without labels have those of others": (
            "np.append(self.read_labels(), np.full(len(others), -1))",
            "np.append(self.read_labels(), np.full(len(others), 0))",
        ),
        "images without labels are one late": (
            "(of_each[1](row - count)[0], -1)",
            "(others.read_row(0)[0], -1)",
        ),
    },
    ("vitcli/training/splits.py", "tests/training/methods/test_distillation.py"): {
        "images that are held out are trained on": ("if is_held_N.any():", "if False:"),
        "images to calibrate by are trained on": (
            "(scored, choice, dev, calibration)",
            "(scored, choice, dev)",
        ),
    },
    ("vitcli/training/run.py", "tests/training/many_runs/test_students.py"): {
        "what a teacher was trained on is not seen": (
            "if start.origin else []), *of_teachers],",
            "if start.origin else [])],",
        ),
    },
    ("vitcli/output/run_folder.py", "tests/training/many_runs/test_students.py"): {
        "a teacher is looked for in this folder": ("_where_it_is(name, then)[0] for name", "name for name"),
    },
    ("vitcli/training/teacher.py", "tests/weights/test_licences.py"): {
        "a student has the licence of its start alone": (
            "return next((each for each in licences_of if each and",
            "return next((each for each in () if each and",
        ),
    },
    ("vitcli/training/teacher.py", "tests/training/methods/test_distillation.py"): {
        "a teacher of another size has other views": ("if keys and sides != {size}:", "if False:"),
        "a teacher keeps the order of its own classes": (
            "            keep_head(",
            "            (lambda *_, **__: None)(",
        ),
        "an ONNX file keeps the order of its own classes": (
            "return logits_BK[:, self._order] if len(self._order) else logits_BK",
            "return logits_BK",
        ),
        "the blank images of a batch are mixed into it": (
            "mixing.mix(pixels_BCHW[:count])",
            "mixing.mix(pixels_BCHW)[:count]",
        ),
    },
    ("vitcli/training/many_runs/students.py", "tests/training/many_runs/test_students.py"): {
        "the student of a teacher is delivered though it is worse": (
            "return distilled.num_right >= baseline.num_right or not is_found_worse",
            "return True",
        ),
        "a loss makes up for a student that is worse": ("mcnemar_p < SIGNIFICANT or ", ""),
        "both students have the teacher": (
            'with_teacher.model_copy(update={"distill": None})',
            "with_teacher",
        ),
        "images that are not there are found missing after the baseline": (
            "with_unlabelled(train, self.recipe.distill.images or (), ())",
            "with_unlabelled(train, (), ())",
        ),
        "the dev split is trained on": ('"data.hold_out_dev": True', '"data.hold_out_dev": False'),
    },
}

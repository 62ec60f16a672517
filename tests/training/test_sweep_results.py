"""What several runs come to, by hand."""

import shlex

import pytest

from vitcli import recipe
from vitcli.evaluation.intervals import interval_of
from vitcli.training.many_runs import sweep_results
from vitcli.training.many_runs.sweep_results import Trial
from vitcli.training.text import arm_line, as_text, choices_table


def arm(lr: float, top1: float | None, loss: float = 1.0, num_images: int = 5) -> Trial:
    runs = [{"seed": 0, "top1": top1, "loss": loss}]
    summary = None if top1 is None else {"runs": runs, "num_eval_examples": num_images}
    return Trial({"optimizer.lr": lr}, summary)


@pytest.mark.parametrize(
    ("arms", "lr"),
    [
        ([arm(0.1, 0.8), arm(0.2, 0.9), arm(0.3, 0.7)], 0.2),
        ([arm(0.1, 0.9, 0.5), arm(0.2, 0.9, 0.4)], 0.2),  # of equal shares the smaller loss
        ([arm(0.1, 0.9, 0.5), arm(0.2, 0.9, 0.5)], 0.1),  # of equal ones the first
        ([arm(0.1, None), arm(0.2, 0.0, 9.0)], 0.2),
    ],
)
def test_the_best_trial_has_the_highest_accuracy_then_the_smaller_loss_then_comes_first(arms, lr):
    assert sweep_results.best(arms) == {"optimizer.lr": lr}


def test_masked_patches_are_ranked_by_the_fraction_of_correct_colours_else_by_the_loss():
    def masked(right, loss):
        run = {"seed": 0, "patch_accuracy": right, "most_frequent_color": right, "loss": loss}
        return Trial({"model.dropout": loss}, {"runs": [run], "num_eval_examples": 8})

    assert sweep_results.best([masked(0.3, 1.0), masked(0.2, 0.5)]) == {"model.dropout": 1.0}
    assert sweep_results.best([masked(None, 1.0), masked(None, 0.5)]) == {"model.dropout": 0.5}


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"optimizer.lr": 0.003}, "lr-0.003"),
        ({"optimizer.lr": 1e-05, "data.flip": True}, "lr-1e-05_flip-true"),
        ({"schedule.warmup": "10%"}, "warmup-10%"),
        ({"data.crop_area": [0.05, 1.0]}, "crop_area--0.05-1.0"),
        ({"model.ckpt": "runs/a b/"}, "ckpt-runs-a-b"),
    ],
)
def test_an_arm_is_named_by_its_values(choice, name):
    assert sweep_results.name_of(choice) == name


def entries(*arms: Trial) -> list[dict]:
    return [each.entry() for each in arms]


def test_an_entry_has_the_interval_of_its_accuracy_and_the_number_of_images():
    entry = arm(0.1, 0.8).entry()

    assert (
        entry["dev_interval"] == pytest.approx([0.2836, 0.9949], abs=1e-4) and entry["dev_num_examples"] == 5
    )
    assert "dev_interval" not in arm(0.1, None).entry()


@pytest.mark.parametrize(
    ("arms", "reason"),
    [
        ([arm(0.1, 0.8), arm(0.2, 0.9), arm(0.3, 0.7)], "highest accuracy"),
        ([arm(0.1, 0.9, 0.5), arm(0.2, 0.9, 0.4), arm(0.3, 0.2)], "by loss: equal accuracy"),
        ([arm(0.1, 0.9, 0.5), arm(0.2, 0.9, 0.5)], "first of equals"),
        ([arm(0.1, None), arm(0.2, 0.0, 9.0)], "highest accuracy"),
    ],
)
def test_the_reason_of_a_choice_is_what_decided(arms, reason):
    assert sweep_results.reason(entries(*arms), sweep_results.best(arms)) == reason


@pytest.mark.parametrize(
    ("arms", "notes"),
    [
        # Five images: 3, 4 and 3 of them; the best lies inside.
        ([arm(0.001, 0.6), arm(0.003, 0.8), arm(0.01, 0.6)],
         ["note: 5 images cannot tell lr 0.003 from lr 0.001, lr 0.01: the 95 % intervals overlap"]),
        # A thousand images: no interval overlaps, and the best is the last.
        ([arm(lr, top1, num_images=1000) for lr, top1 in ((0.001, 0.6), (0.003, 0.7), (0.01, 0.8))],
         ["note: lr 0.01 is the largest tried; a larger one may be better, such as --lr 0.01,0.03,0.1"]),
        ([arm(0.02, 0.9, num_images=1000), arm(0.06, 0.1, num_images=1000)],
         ["note: lr 0.02 is the smallest tried; a smaller one may be better, such as --lr 0.003,0.01,0.02"]),
        ([arm(0.1, None), arm(0.2, 0.0), arm(0.3, None)],  # none of five
         []),
    ],
)  # fmt: skip
def test_what_a_choice_does_not_prove_is_said(arms, notes):
    assert sweep_results.remarks(entries(*arms), sweep_results.best(arms)) == notes


def test_intervals_that_touch_cannot_be_told_apart():
    def choice(flip: bool, low: float, high: float) -> dict:
        scores = {"dev_top1": (low + high) / 2, "dev_loss": 1.0}
        return {"data.flip": flip, **scores, "dev_interval": [low, high], "dev_num_examples": 80}

    def notes_of(high: float) -> list[str]:
        return sweep_results.remarks([choice(True, 0.7, 0.9), choice(False, 0.5, high)], {"data.flip": True})

    (note,) = notes_of(0.7)
    assert note == "note: 80 images cannot tell flip true from flip false: the 95 % intervals overlap"
    assert notes_of(0.699) == []


def test_choices_of_an_earlier_version_and_of_words_get_no_remark():
    old = [
        {"optimizer.lr": lr, "dev_top1": top1, "dev_loss": 1.0}
        for lr, top1 in ((0.1, 0.5), (0.2, 0.6), (0.3, 0.4))
    ]
    words = [
        {"data.flip": flip, "model.ckpt": "a", "dev_top1": 0.5, "dev_loss": 1.0} for flip in (True, False)
    ]

    assert sweep_results.remarks(old, {"optimizer.lr": 0.2}) == []
    assert sweep_results.remarks(words, {"data.flip": True, "model.ckpt": "a"}) == []


def test_a_line_names_the_best_arm_so_far_and_the_table_the_chosen_with_the_reason():
    arms = [arm(0.001, 0.6, 1.5), arm(0.003, 0.6, 1.25), arm(0.01, None)]

    lines = [arm_line(entries(*arms[:count]), {"optimizer.lr": 0.003}, 3) for count in (1, 2, 3)]
    final = choices_table(entries(*arms), {"optimizer.lr": 0.003}).splitlines()

    assert lines == [
        "arm 1 of 3, lr 0.001: 60.00% on the dev split, loss 1.5000",
        "arm 2 of 3, lr 0.003: 60.00% on the dev split, loss 1.2500, best so far",
        "arm 3 of 3, lr 0.01: diverged",
    ]
    assert final[2].endswith("1.2500  chosen, by loss: equal accuracy") and "chosen" not in final[1]
    assert final[3].split() == ["lr", "0.01", "-", "-", "diverged"]


def summary(**changes) -> dict:
    """The summary of a run on five images, with the exact intervals of a table of Clopper and Pearson."""
    return {
        "intervals": {"top1": [0.2836, 0.9949], "top5": [0.4782, 1.0]},
        "top1": 0.8, "top1_std": None, "top5": 1.0, "loss": 0.5, "num_classes": 5, "num_eval_examples": 5,
        "runs": [{"seed": 0, "top1": 0.8, "top5": 1.0, "loss": 0.5}], "eval_split": "photos, dev part",
        "num_skipped_images": 0, "skipped_images": [], "model": "ViT-Ti/16", "resolution": 96, "ckpt": "demo",
        "steps": 10, "batch_size": 16, "num_train_examples": 47, "lr": 0.01, "images_per_s": 30.0,
        "elapsed_s": 5.0, "precision": "fp32", "num_processes": 1, "run_dir": "runs/my photos", **changes,
    }  # fmt: skip


def lines_of(text: str) -> dict[str, str]:
    return {line[:12].strip(): line[12:] for line in text.splitlines() if line[:1].strip()}


def test_a_run_says_what_its_accuracy_is_worth_and_what_to_type_next(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    text = as_text(summary(), verbose=True, width=200)

    lines = lines_of(text)
    assert lines["top-1"] == "80.00%  (95 %: 28 to 99; 5 images)" and lines["top-5"] == "-  (5 classes)"
    assert lines["speed"] == "30.0 images/s, 5.0 s, fp32, 1 process"
    commands = [shlex.split(line[12:]) for line in text.partition("next")[2].splitlines()]
    commands[0] = shlex.split(lines["next"])
    assert [words[:2] for words in commands] == [
        ["vit", name] for name in ("predict", "report", "evaluate", "export")
    ]
    assert commands[2][2:] == ["--ckpt", "runs/my photos", "--out", "runs/my photos/evaluation"]
    assert commands[3][2:] == ["runs/my photos", "my photos.onnx"]


def test_several_runs_have_the_interval_of_one_of_them():
    runs = [{"seed": seed, "top1": top1, "top5": 1.0, "loss": 0.5} for seed, top1 in ((0, 0.6), (1, 1.0))]
    text = as_text(summary(runs=runs, top1_std=0.2828), width=200)

    spread = "80.00% ± 28.28%, mean and std of 2 runs"
    assert lines_of(text)["top-1"] == f"{spread}  (95 % of one run: 28 to 99; 5 images)"


def test_masked_patches_have_no_interval_and_are_for_finetuning():
    scores = {"patch_accuracy": 0.3, "most_frequent_color": 0.2, "loss": 1.0}
    of_patches = {key: value for key, value in summary(**scores).items() if key not in ("top1", "top5")}

    lines = lines_of(as_text(of_patches | {"runs": [{"seed": 0, **scores}]}, width=200))

    assert "top-1" not in lines and lines["next"] == "vit finetune --ckpt 'runs/my photos' --dataset DATA"


def test_a_sweep_and_the_labels_to_check_are_told_whole_in_eighty_columns():
    label = {"place": "ant/3.png", "label": "ant", "other": "bee", "other_probability": 0.99}
    head = {"labels_to_check": {"num_checked": 40, "num_named": 26, "first": [label]}, "left_out_top1": 0.9}
    choices = [
        {
            "optimizer.lr": lr,
            "dev_top1": top1,
            "dev_loss": 1.0,
            "dev_interval": [0.5, 1.0],
            "dev_num_examples": 68,
        }
        for lr, top1 in ((0.003, 0.8), (0.01, 0.9))
    ]
    advice = [f"--set data.sampling=balanced, as classes have 10 to 5{n} training images" for n in range(2)]
    facts = {"worst_classes": [], "confident_mistakes": [], "advice": advice}
    of_sweep = {"choices": choices, "chosen": {"optimizer.lr": 0.01}}
    of_sweep |= {"classes_not_held_out": ["a", "b"], "num_held_out_copies": 2}

    text = as_text(summary(**of_sweep, probe_head=head, findings=facts), width=80)

    assert "such as --lr 0.01,0.03,0.1 to check" in " ".join(text.split())
    assert "2 held-out images are exact copies" in text and "no held-out image of: a, b" in text
    assert lines_of(text)["to check"] == "26 training labels, first ant/3.png: bee 99.0%"


@pytest.mark.parametrize(("left_out_top1", "is_told"), [(0.79, True), (0.8, False), (None, False)])
def test_labels_that_could_not_be_judged_are_said_with_what_would_help(left_out_top1, is_told):
    head = {"labels_to_check": None, "left_out_top1": left_out_top1}
    told = (
        "not judged; larger --res or other weights may help: before training, the network knows 79.00% of "
        "left-out images, 80% needed"
    )
    for verbose in (True, False):
        lines = lines_of(as_text(summary(probe_head=head), verbose=verbose, width=200))
        assert lines.get("labels") == (told if is_told else None)
        large = summary(probe_head=head, resolution=[224, 160])
        assert ("; other weights may help: " in as_text(large, verbose=verbose)) is is_told
        refit = summary(probe_head=head, refit={"num_examples": 47})
        assert ("head" in lines_of(as_text(refit, verbose=verbose))) is (verbose or not is_told)


@pytest.mark.parametrize(("num_runs", "once"), [(1, ""), (3, " --runs 1")])
def test_the_advice_to_take_folds_names_a_folder_of_their_own(num_runs, once):
    facts = {"worst_classes": [], "confident_mistakes": [], "advice": ["--folds 5 scores all 47 images"]}
    runs = [{"seed": seed, "top1": 0.8, "top5": 1.0, "loss": 0.5} for seed in range(num_runs)]
    lines = lines_of(as_text(summary(findings=facts, runs=runs), width=200))

    advice = f"--folds 5{once} --out 'runs/my photos-folds' scores all 47 images, about 30 s"
    assert lines["would help"] == advice


def test_arms_have_the_names_of_their_values_or_numbers_where_these_would_be_one_name():
    def names(*values: object) -> list[str]:
        return sweep_results.names_of([{"optimizer.name": value} for value in values])

    assert names("sgd", "adam") == ["name-sgd", "name-adam"]
    assert names("a b", "a/b") == ["arm-1", "arm-2"]
    assert names("x" * 120) == ["arm-1"]


def test_held_out_images_that_every_arm_had_seen_are_counted_once(monkeypatch, tmp_path):
    monkeypatch.setattr(sweep_results.TrainingSummary, "written", lambda summary: summary)
    facts = dict(fewshot=None, exaflops=0.5, peak_memory_gib=1.0)
    arms = [Trial({"optimizer.lr": lr}, summary(num_held_out_seen=3, **facts)) for lr in (0.1, 0.2)]

    whole = sweep_results.summary_of_all(arms, {"optimizer.lr": 0.1}, [summary(**facts)], path=tmp_path)
    assert whole["num_choice_seen"] == 3  # all arms are chosen by the same images
    assert (whole["elapsed_s"], whole["exaflops"]) == (15.0, 1.5)  # which every arm costs


def test_the_speed_of_several_runs_is_all_their_images_by_all_their_time(monkeypatch, tmp_path):
    monkeypatch.setattr(sweep_results.TrainingSummary, "written", lambda summary: summary)
    facts = dict(fewshot=None, exaflops=None)
    of_each = ((5.0, 1.5), (11.0, 3.0))
    runs = [summary(**facts, elapsed_s=time, peak_memory_gib=memory) for time, memory in of_each]

    whole = sweep_results.summary_of_all([], {}, runs, path=tmp_path)
    assert whole["images_per_s"] == 2 * 10 * 16 / 16.0 and whole["exaflops"] is None
    assert whole["peak_memory_gib"] == 3.0  # which a device must have


@pytest.mark.parametrize(
    ("value", "is_largest", "values"),
    [
        (0.01, True, "0.01,0.03,0.1"),
        (0.025, True, "0.025,0.1,0.3"),  # 0.03 would be hardly another one
        (1.0, True, "1,3,10"),
        (0.01, False, "0.001,0.003,0.01"),
        (0.012, False, "0.001,0.003,0.012"),
    ],
)
def test_values_beyond_the_edge_go_up_or_down_by_about_three(value, is_largest, values):
    assert sweep_results._beyond(value, is_largest) == values


def test_the_scores_of_several_runs_are_means_and_their_deviation_is_that_of_a_sample(monkeypatch, tmp_path):
    monkeypatch.setattr(sweep_results.TrainingSummary, "written", lambda summary: summary)

    def run_of(seed: int, top1: float, probe: float) -> dict:
        facts = dict(fewshot={"shots": 5, "top1": probe}, exaflops=0.5, peak_memory_gib=1.0)
        return summary(**facts) | {
            "runs": [{"seed": seed, "top1": top1, "loss": 1 - top1}],
            "num_eval_examples": 200,
        }

    runs = [run_of(0, 0.5, 0.2), run_of(1, 0.7, 0.4), run_of(2, 0.9, 0.9)]
    arm = Trial({"optimizer.lr": 0.1}, summary(fewshot=None, exaflops=0.5, peak_memory_gib=8.0))
    whole = sweep_results.summary_of_all([arm], {"optimizer.lr": 0.1}, runs, path=tmp_path)

    assert (whole["top1"], whole["loss"]) == (pytest.approx(0.7), pytest.approx(0.3))
    assert whole["top1_std"] == pytest.approx(0.2)  # the population's is 0.163
    assert whole["fewshot"] == {"shots": 5, "top1": pytest.approx(0.5), "runs": [0.2, 0.4, 0.9]}
    assert whole["intervals"] == {"top1": interval_of(0.7, 200)}
    assert whole["peak_memory_gib"] == 8.0  # of an arm


def test_the_hours_of_all_runs_are_those_of_all_their_images():
    plan = {"total_steps": 10, "images_seen": 7_200, "exaflops": 0.5}

    measured, asked = plan | {"measured_images_per_s": 2.0}, recipe.load("finetune/default")
    whole = sweep_results.plan_of_all(asked, measured, [plan] * 5, {"num_runs": 3})
    assert (whole["all_images_seen"], whole["all_measured_hours"]) == (36_000, 5.0)
    assert (whole["all_steps"], whole["all_exaflops"]) == (50, 2.5)
    assert whole["recipe"] == recipe.to_toml(asked)

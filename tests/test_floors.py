"""The house of docs/house.md: imports run down, files and functions stay small."""

import ast
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "vitcli"
FLOORS = [
    # 0 words
    {"errors", "document", "order", "stream_order", "schedule", "variants", "architecture",
     "assertions", "sharing", "recipe", "recipe_schema", "recipe_sections", "recipe_types", "recipe_rules",
     "recipe_text", "recipe_mistakes", "recipe_choices", "recipe_places", "reproduction",
     "reproduction_schema", "study", "study_schema", "study_rules"},
    # 1 maths
    {"model", "backbones", "initialisation", "posemb", "positions",
     "conversion", "official", "official_names", "huggingface",
     "masked_patch", "corruption", "randaugment", "least_squares", "classifiers", "layers",
     "losses", "optim", "transforms", "metrics", "figures", "costs", "analysis", "attention_maps",
     "inspection_figures",
     "predictions", "calibration", "resampling", "projection", "evaluation_figures",
     "demo", "vtab", "image_hash", "selecting", "report_figures", "report_style",
     "study_figures", "svg"},
    # 2 world
    {"safe_files", "result_folder", "data", "vtab_tables", "duplicates", "data_files", "split", "subsets",
     "columns",
     "class_lists", "kept",
     "decoding", "loader", "checkpoint", "weights",
     "weights_files", "weights_places", "weights_findings", "weights_about",
     "loading", "pictures",
     "onnx_files", "export_formats", "gradients", "saving", "sharding", "step_tensors",
     "shards", "shard_tar", "shard_parquet", "shard_files", "shard_places",
     "runtime", "launching", "runlog",
     "class_maps", "real_labels", "prediction_files", "evaluation_text",
     "feature_store", "draw_files", "fewshot_text",
     "card_metadata", "card_text", "loading_text", "model_card", "weights_card", "hub_upload", "console",
     "tables", "reproduction_text", "report_shapes", "report_files", "report_progress", "report_data",
     "report_columns", "report_tables", "report_cross", "report_results", "report_evaluations",
     "report_costs", "report_pictures", "report_text", "report_html", "report_server", "study_text",
     "inspection_text", "figure_files"},
    # 3 loops
    {"train", "forward", "inference", "scoring", "patch_inference", "agreement", "fitting",
     "feature_pass", "few_shot", "looking"},
    # 4 commands
    {"commands." + name for name in
     ("__init__", "planning", "job", "session", "state", "task", "watch", "results", "pixels",
      "finetune", "selection", "selection_files", "shared", "side_by_side", "vtab", "datasets", "pretrain",
      "evaluate", "scores", "evaluation_files", "compare", "predict", "recipes", "models",
      "interpolate_posemb", "inspect", "inspect_summary", "inspection", "inspection_files",
      "export", "push", "doctor", "frozen", "fewshot", "fewshot_folder",
      "embed", "reproduce", "reproduce_plan", "report", "study", "study_runs", "study_folder",
      "study_pictures")} | {"api"},
    # 5 door
    {"cli", "cli_datasets", "cli_evaluate", "cli_recipes", "cli_weights", "cli_doctor", "cli_fewshot",
     "cli_reproduce", "cli_report", "cli_study", "cli_inspect",
     "cli_start", "options", "exits", "__main__", "__init__"},
]  # fmt: skip
# Who may use a room of its own floor: the parts of one thing, and what every floor may use.
NEIGHBOURS = {
    "schedule": {"errors"}, "variants": {"errors"}, "recipe_sections": {"errors", "recipe_types"},
    "recipe_schema": {"recipe_sections"},
    "recipe_text": {"errors", "recipe_schema"},
    "recipe_mistakes": {"errors", "recipe_rules", "recipe_schema", "recipe_text"},
    "reproduction": {"errors", "reproduction_schema"},
    "reproduction_schema": {"errors", "recipe", "recipe_mistakes", "recipe_schema", "recipe_sections",
                            "recipe_types"},
    "reproduction_text": {"tables"},
    "commands.reproduce": {"commands.planning", "commands.vtab"},
    "commands.reproduce_plan": {"commands.planning", "commands.reproduce"},
    "cli_reproduce": {"cli_start", "options"},
    "recipe_choices": {"recipe_mistakes", "recipe_rules", "recipe_schema", "recipe_text"},
    "recipe_places": {"errors"},
    "recipe": {"errors", "recipe_choices", "recipe_places", "recipe_rules", "recipe_schema", "recipe_text",
               "recipe_mistakes"},
    "stream_order": {"order"},
    "study": {"study_rules", "study_schema", "variants"},
    "study_schema": {"errors", "recipe", "recipe_mistakes", "recipe_schema", "recipe_sections", "recipe_text",
                     "recipe_types", "study_rules"},
    "study_figures": {"figures"}, "study_text": {"tables"},
    "commands.study": {"commands.study_folder"},
    "commands.study_folder": {"commands.job", "commands.study_pictures"},
    "commands.study_runs": {"commands.fewshot", "commands.finetune", "commands.planning", "commands.pretrain",
                            "commands.study"},
    "architecture": {"errors", "variants"},
    "assertions": {"errors"},
    "predictions": {"metrics"}, "evaluation_figures": {"calibration", "figures"},
    "class_maps": {"split"}, "real_labels": {"columns", "split"}, "prediction_files": {"safe_files"},
    "card_metadata": {"tables"}, "card_text": {"tables"}, "loading_text": {"card_text"},
    "model_card": {"card_metadata", "card_text", "loading_text", "tables"},
    "weights_card": {"card_metadata", "card_text", "tables"},
    "commands.push": {"commands.export", "commands.results"},
    "evaluation_text": {"tables"}, "scoring": {"forward"},
    "classifiers": {"least_squares"}, "layers": {"model"}, "feature_pass": {"forward"},
    "looking": {"forward"}, "attention_maps": {"layers", "positions"}, "inspection_figures": {"figures"},
    "commands.frozen": {"commands.pixels"}, "commands.embed": {"commands.frozen", "commands.pixels"},
    "commands.fewshot": {"commands.fewshot_folder", "commands.frozen", "commands.pixels"},
    "commands.fewshot_folder": {"commands.frozen", "commands.job"},
    "cli_fewshot": {"cli_start", "options"}, "fewshot_text": {"tables"},
    "report_figures": {"figures"}, "report_files": {"report_shapes", "runlog"},
    "report_progress": {"report_files", "runlog"},
    "report_data": {"report_files", "report_progress", "report_shapes", "runlog"},
    "report_columns": {"tables"}, "report_tables": {"report_columns", "report_data"},
    "report_cross": {"report_columns", "report_tables", "tables"},
    "report_results": {"report_columns", "report_cross", "report_data", "report_shapes", "report_tables",
                       "tables"},
    "report_evaluations": {"report_columns", "report_cross", "report_data", "report_tables", "tables"},
    "report_costs": {"report_columns", "report_data", "report_progress", "report_shapes", "report_tables",
                     "tables"},
    "report_pictures": {"report_data", "report_progress", "report_tables", "tables"},
    "report_text": {"report_tables", "tables"},
    "inspection_text": {"report_columns", "report_tables", "tables"}, "figure_files": {"safe_files"},
    "report_html": {"report_pictures", "report_tables", "tables"},
    "cli_report": {"options"},
    "costs": {"model"}, "model": {"backbones", "initialisation", "positions"}, 
    "masked_patch": {"corruption", "initialisation"}, "transforms": {"randaugment"}, "positions": {"posemb"},
    "official": {"official_names"},
    "split": {"columns"}, "class_lists": {"split"}, "subsets": {"split"},
    "data": {"class_lists", "data_files", "shard_places", "shards", "split", "subsets", "vtab_tables"},
    "vtab_tables": {"columns", "data_files", "decoding", "split"},
    "duplicates": {"columns", "data_files", "decoding", "launching", "split"},
    "shards": {"data_files", "shard_files", "shard_parquet", "shard_places", "shard_tar", "split"},
    "shard_parquet": {"columns", "shard_files"},
    "shard_tar": {"data_files", "safe_files", "shard_files", "shard_places"},
    "shard_places": {"data_files", "shard_files"}, 
    "loader": {"decoding", "kept", "launching", "split"}, "kept": {"split"},
    "weights": {"safe_files", "weights_about", "weights_files", "weights_places"},
    "weights_about": {"weights_files", "weights_places"}, "weights_places": {"weights_files"},
    "weights_findings": {"weights", "weights_about", "weights_files", "weights_places"},
    "loading": {"weights", "weights_files"}, "checkpoint": {"safe_files", "sharding", "step_tensors"},
    "sharding": {"runtime"}, "step_tensors": {"sharding"},
    "runlog": {"launching", "safe_files"}, "result_folder": {"runlog", "safe_files"},
    "tables": {"launching"},
    "train": set(), "inference": {"forward"}, "agreement": {"forward"}, "patch_inference": {"forward"},
    "gradients": {"runtime"}, "saving": {"runtime"},
    "pictures": {"data_files", "split"},
    "export_formats": {"loading", "onnx_files", "safe_files", "weights", "weights_files"},
    "commands.results": {"commands.job", "commands.pixels"},
    "commands.planning": {"commands.task"}, "commands.job": {"commands.planning"},
    "commands.state": {"commands.job"},
    "commands.watch": {"commands.job", "commands.pixels", "commands.state", "commands.task"},
    "commands.session": {"commands.job", "commands.pixels", "commands.planning", "commands.results",
                         "commands.state", "commands.task", "commands.watch"},
    "commands.finetune": {"commands.planning", "commands.selection"},
    "commands.pretrain": {"commands.planning", "commands.selection"},
    "commands.selection": {"commands.job", "commands.planning", "commands.selection_files",
                           "commands.session", "commands.shared", "commands.side_by_side"},
    "commands.selection_files": {"commands.results"},
    "commands.shared": {"commands.job", "commands.planning"},
    "commands.side_by_side": {"commands.planning"},
    "commands.evaluate": {"commands.evaluation_files", "commands.pixels", "commands.scores"},
    "commands.scores": {"commands.pixels"},
    "commands.inspect": {"commands.inspection", "commands.inspection_files", "commands.pixels"},
    "commands.inspection": {"commands.pixels"}, "commands.inspection_files": {"commands.inspection"},
    "commands.evaluation_files": {"commands.scores"},
    "commands.predict": {"commands.pixels"}, "commands.export": {"commands.pixels"},
    "api": {"commands.pixels"}, "__init__": {"api"},
    "cli": {"cli_datasets", "cli_doctor", "cli_evaluate", "cli_fewshot", "cli_inspect", "cli_recipes",
            "cli_report", "cli_reproduce", "cli_start", "cli_study", "cli_weights", "exits", "options"},
    "cli_study": {"cli_start", "options"}, "cli_inspect": {"cli_start", "options"},
    "cli_weights": {"options"}, "cli_recipes": {"options"}, "cli_datasets": {"options"},
    "cli_doctor": {"options"}, "cli_evaluate": {"cli_start", "options"}, "__main__": {"cli"},
}  # fmt: skip
KNOWN = set().union(*FLOORS)
HEAVY = {"torch", "torchvision", "timm", "datasets", "accelerate", "matplotlib"}
FILES = sorted(PACKAGE.rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def room(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


@cache
def floor(name: str) -> int:
    (found,) = [number for number, rooms in enumerate(FLOORS) if name in rooms]
    return found


@cache
def imports(tree: ast.AST, *, top_level_only: bool = False) -> set[str]:
    nodes = tree.body if top_level_only else ast.walk(tree)
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def own_rooms(names: set[str]) -> set[str]:
    return {name.removeprefix("vitcli.") for name in names if name.startswith("vitcli.")} & KNOWN


@pytest.mark.parametrize("path", FILES, ids=room)
def test_every_room_has_a_floor_and_imports_only_downwards(path):
    name = room(path)
    allowed = NEIGHBOURS.get(name, {"errors"} if floor(name) == 0 else set())

    upward = {
        other
        for other in own_rooms(imports(tree_of(path)))
        if floor(other) >= floor(name) and other not in allowed
    }

    assert not upward


@pytest.mark.parametrize(
    "path", [path for path in FILES if floor(room(path)) == 0 or room(path) == "cli"], ids=room
)
def test_the_ground_floor_and_the_door_load_nothing_heavy(path):
    top = {name.partition(".")[0] for name in imports(tree_of(path), top_level_only=True)}

    assert not top & HEAVY


@pytest.mark.parametrize("path", FILES, ids=room)
def test_only_commands_read_recipes(path):
    # `data` looks up aliases and `options` completes names; both read files of recipes/, and no recipe.
    if floor(room(path)) in (1, 2, 3) and room(path) != "data":
        assert "recipe" not in own_rooms(imports(tree_of(path)))


@pytest.mark.parametrize("path", FILES, ids=room)
def test_no_room_imports_click_or_unpickles(path):
    tree = tree_of(path)

    assert not {"click", "pickle"} & {name.partition(".")[0] for name in imports(tree)}
    settings = [word for node in ast.walk(tree) if isinstance(node, ast.Call) for word in node.keywords]
    given = {(word.arg, word.value.value) for word in settings if isinstance(word.value, ast.Constant)}
    assert not given & {("allow_pickle", True), ("weights_only", False)}


@pytest.mark.parametrize("path", FILES, ids=room)
def test_files_and_functions_stay_within_their_budget(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 300
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef):
            lines = node.end_lineno - node.body[0].lineno + 1
            assert lines <= (80 if node.name == "train" else 50), f"{node.name} has {lines} lines"

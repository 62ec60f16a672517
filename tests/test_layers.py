"""The layout: packages import only packages below them, heavy libraries come late, files stay one subject."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

from tests.conftest import REPOSITORY

ORDER = ["errors", "io", "recipe", "distributed", "output", "cache", "models", "data", "weights",
         "evaluation", "conversion", "features", "training", "inspection", "report", "teaching",
         "experiments", "bench", "submission", "api", "cli", "results", "commands"]  # fmt: skip
APART = {"training", "inspection", "report"}  # none of them imports another
DOORS = {"__init__", "__main__", "backbones"}  # of the package itself; they import what they show
LIGHT = ["io", "distributed.startup", "recipe", "cache", "report", "submission", "cli", "models.variants",
         "data.vtab", "evaluation.intervals", "experiments.vtab", "experiments.reproduce",
         "experiments.study"]  # fmt: skip
HEAVY = {"torch", "torchvision", "timm", "datasets", "accelerate"}
MOST_MODULES = 25  # with code, in one folder
# Of the whole package; modules without __init__.py. These numbers only fall, to 51,500 and 265, but for the
# commands as functions and `vit skill`: 640 lines in three modules.
MOST_LINES_IN_ALL, MOST_MODULES_IN_ALL = 66_197, 308
# "is not a ...", dev split, calibration, top class: "there is no", "is no longer" and the like are English.
BANNED_TURNS = (
    r"(?<!there )(?<!where )\b(?:is|are) no (?!longer|better|more|less|other|such|row|reason|proof|function)"
    r"|\bso many\b|may be believed|to choose by|nevertheless|\blearnt\b|\blikeliest\b|\bsurest\b"
)
MOST_LINES, MOST_FUNCTION_LINES, MOST_PARAMETERS = 600, 60, 8
NO_RECIPE = {"distributed", "models", "data", "weights", "report"}  # they take sections or plain keywords

PACKAGE = REPOSITORY / "vitcli"
FILES = sorted(PACKAGE.rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in FILES}


@cache
def imports(path: Path, *, at_the_top: bool = False) -> set[str]:
    """Whole names of the modules that a file imports; `from a import b` counts as a.b, too."""
    nodes = tree_of(path).body if at_the_top else ast.walk(tree_of(path))
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def own(names: set[str]) -> set[str]:
    return {name.removeprefix("vitcli.") for name in names if name.startswith("vitcli.")} & MODULES.keys()


def loaded_with(name: str) -> set[str]:
    """Every library that importing a module loads, through our own modules too."""
    seen, to_do, libraries = set(), [name], set()
    while to_do:
        names = imports(MODULES[module := to_do.pop()], at_the_top=True)
        libraries |= {name.partition(".")[0] for name in names}
        seen.add(module)
        to_do += own(names) - seen
    return libraries


@cache
def functions_of(path: Path) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.FunctionDef)]


def is_below(package: str, imported: str) -> bool:
    is_apart = package in APART and imported in APART
    return package in DOORS or (ORDER.index(imported) < ORDER.index(package) and not is_apart)


def test_a_package_imports_only_packages_below_it():
    offenders = []
    for name, path in MODULES.items():
        package = name.partition(".")[0]
        imported = {other.partition(".")[0] for other in own(imports(path))} - {package}
        offenders += [f"{name}: {other}" for other in imported if not is_below(package, other)]

    assert not offenders


def test_what_answers_at_once_loads_no_torch():
    light = [name for name in MODULES if {name, name.partition(".")[0]} & {*LIGHT}]
    offenders = {name: heavy for name in light if (heavy := loaded_with(name) & HEAVY)}

    assert not offenders


def test_no_module_imports_click_or_unpickles():
    offenders = []
    for name, path in MODULES.items():
        libraries = {imported.partition(".")[0] for imported in imports(path)}
        calls = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)]
        keywords = [word for call in calls for word in call.keywords if isinstance(word.value, ast.Constant)]
        given = {(word.arg, word.value.value) for word in keywords}
        offenders += [(name, library) for library in libraries & {"click", "pickle"}]
        offenders += [
            (name, keyword) for keyword in given & {("allow_pickle", True), ("weights_only", False)}
        ]

    assert not offenders


def test_files_and_functions_stay_within_their_budget():
    offenders = []
    for name, path in MODULES.items():
        lines = len(path.read_text().splitlines())
        offenders += [f"{name}: {lines} lines"] if lines > MOST_LINES else []
        for function in functions_of(path):
            lines = function.end_lineno - function.body[0].lineno + 1
            most = 80 if function.name == "train" else MOST_FUNCTION_LINES
            offenders += [f"{name}.{function.name}: {lines} lines"] if lines > most else []

    assert not offenders


def test_many_parameters_are_one_value_or_have_a_reason_above_them():
    offenders = []
    for name, path in MODULES.items():
        if path.parent.name == "cli":
            continue
        text = path.read_text().splitlines()
        for function in functions_of(path):
            args = function.args
            names = {arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)} - {"self", "cls"}
            has_reason = "parameters: " in text[function.lineno - 2]
            offenders += (
                [f"{name}.{function.name}"] if len(names) > MOST_PARAMETERS and not has_reason else []
            )

    assert not offenders


def test_packages_of_parts_take_no_whole_recipe():
    parts = {name: path for name, path in MODULES.items() if name.partition(".")[0] in NO_RECIPE}

    assert not [name for name, path in parts.items() if "vitcli.recipe.Recipe" in imports(path)]


def test_a_class_name_is_unique_in_the_package():
    names = [
        node.name for path in FILES for node in ast.walk(tree_of(path)) if isinstance(node, ast.ClassDef)
    ]

    assert sorted(names) == sorted({*names})


def test_every_package_has_a_signpost_of_its_files():
    packages = {path.parent for path in FILES if path.name == "__init__.py"} - {PACKAGE}
    for package in packages - {PACKAGE / "data" / "shards"}:
        text = (package / "README.md").read_text()
        assert len(text.splitlines()) <= 25
        missing = [path.name for path in package.glob("[!_]*.py") if f"`{path.name}`" not in text]
        assert not missing, f"{package.name}/README.md names no {', '.join(missing)}"


def test_no_folder_is_crowded():
    modules = Counter(path.parent for path in FILES if path.name != "__init__.py")

    assert max(modules.values()) <= MOST_MODULES, modules.most_common(3)


def test_packages_are_not_code():
    inits = {name_of(path): path.read_text() for path in FILES if path.name == "__init__.py"}

    assert {name for name, text in inits.items() if text} == {"__init__", "recipe", "cli"}


def test_the_package_does_not_grow():
    modules = [path for path in FILES if path.name != "__init__.py"]

    assert sum(len(path.read_text().splitlines()) for path in FILES) <= MOST_LINES_IN_ALL
    assert len(modules) <= MOST_MODULES_IN_ALL


def test_no_text_has_a_turn_for_which_the_field_has_a_noun():
    texts = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.md"), *(REPOSITORY / "docs").rglob("*.md")]
    offenders = [
        f"{path.relative_to(REPOSITORY)}: {found[0]}"
        for path in (*texts, REPOSITORY / "README.md")
        for found in re.finditer(BANNED_TURNS, path.read_text(), re.IGNORECASE)
    ]

    assert not offenders

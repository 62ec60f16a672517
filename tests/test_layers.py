"""The layout: packages import only packages below them, heavy libraries come late, files stay one subject."""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

ORDER = ["errors", "io", "recipe", "distributed", "output", "models", "data", "weights", "evaluation",
         "export", "features", "training", "inspection", "report", "experiments", "bench", "api",
         "cli"]  # fmt: skip
APART = {"training", "inspection", "report"}  # none of them imports another
DOORS = {"__init__", "__main__", "backbones"}  # of the package itself; they import what they show
LIGHT = ["io", "distributed.startup", "recipe", "report", "cli", "models.variants", "data.vtab",
         "evaluation.statistics", "experiments.vtab", "experiments.reproduce",
         "experiments.study"]  # fmt: skip
HEAVY = {"torch", "torchvision", "timm", "datasets", "accelerate"}
MOST_MODULES = 22  # with code, in one folder
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
PACKAGES = sorted({name.partition(".")[0] for name in MODULES})


def files_of(package: str) -> list[Path]:
    return [path for name, path in MODULES.items() if name.partition(".")[0] == package]


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


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_package_imports_only_packages_below_it(path):
    package = name_of(path).partition(".")[0]
    imported = {name.partition(".")[0] for name in own(imports(path))} - {package}
    if package in DOORS:
        return

    assert all(ORDER.index(other) < ORDER.index(package) for other in imported)
    assert package not in APART or not imported & APART


@pytest.mark.parametrize("name", [name for name in MODULES if {name, name.partition(".")[0]} & {*LIGHT}])
def test_what_answers_at_once_loads_no_torch(name):
    assert not loaded_with(name) & HEAVY


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_imports_click_or_unpickles(package):
    for path in files_of(package):
        check_imports_and_settings(path)


def check_imports_and_settings(path: Path) -> None:
    assert not {"click", "pickle"} & {name.partition(".")[0] for name in imports(path)}
    keywords = [
        word for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call) for word in node.keywords
    ]
    given = {(word.arg, word.value.value) for word in keywords if isinstance(word.value, ast.Constant)}
    assert not given & {("allow_pickle", True), ("weights_only", False)}


@pytest.mark.parametrize("package", PACKAGES)
def test_files_and_functions_stay_within_their_budget(package):
    for path in files_of(package):
        check_budget(path)


def check_budget(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MOST_LINES, path.name
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef):
            lines = node.end_lineno - node.body[0].lineno + 1
            assert lines <= (80 if node.name == "train" else MOST_FUNCTION_LINES), f"{node.name}: {lines}"


@pytest.mark.parametrize("path", [path for path in FILES if path.parent.name != "cli"], ids=name_of)
def test_many_parameters_are_one_value_or_have_a_reason_above_them(path):
    text = path.read_text().splitlines()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef):
            names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            has_reason = "parameters: " in text[node.lineno - 2]
            assert len({*names} - {"self", "cls"}) <= MOST_PARAMETERS or has_reason, node.name


@pytest.mark.parametrize(
    "path", [path for path in FILES if name_of(path).partition(".")[0] in NO_RECIPE], ids=name_of
)
def test_packages_of_parts_take_no_whole_recipe(path):
    assert "vitcli.recipe.Recipe" not in imports(path)


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

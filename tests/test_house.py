"""The house itself: arrows run one way, integers live upstairs, nothing outgrows its room.

    levels -> minipaged -> kernels        and never back
    upstairs: sequences, blocks, queues   no tensor, not even through somebody else's import
    downstairs: model, cache, kernels     no sequence

Imports are read from the text, not by importing: what a test run happens to have loaded does not matter."""

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parent.parent
UPSTAIRS = (
    "checks",
    "sampling_params",
    "config",
    "sequence",
    "outputs",
    "batch",
    "queue",
    "blocks",
    "trace",
    "desk",
    "base",
    "detokenizer",
    "stop_strings",
    "structured",
    "languages.schema",
    "vocabulary",
    "parallel.portion",
    "parallel.balance",
    "parallel.load_chart",
)
TENSORS = {"torch", "numpy", "numba", "triton", "transformers", "safetensors"}
OUTSIDE = {"ABC", "Protocol", "NamedTuple", "Generic", "BaseModel", "Struct"}  # bases that are no ancestors
EMPTY_OPENINGS = (
    "this ",
    "module ",
    "implements ",
    "contains ",
    "defines ",
    "utilit",
    "helper",
    "code for ",
    "various ",
)


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def python_files(folder):
    """Without following the symbolic link minipaged/kernels: kernels/ is read under its own name."""
    files = (Path(top) / name for top, _, names in os.walk(ROOT / folder) for name in names if name.endswith(".py"))
    return sorted(files)


PATHS = {module_name(path): path for folder in ("minipaged", "levels", "kernels") for path in python_files(folder)}
TREES = {name: ast.parse(path.read_text()) for name, path in PATHS.items()}
LIBRARY = [name for name in TREES if name.split(".")[0] == "minipaged"]
LEVELS = [name for name in TREES if name.startswith("levels.0")]
ENGINES = [name for name in LEVELS if name.endswith(".engine")]
FUNCTIONS = [
    (f"{name}.{node.name}", node.end_lineno - node.lineno + 1)
    for name, tree in TREES.items()
    for node in ast.walk(tree)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
]


def resolve(name, node):
    """The full names that one import statement may mean: modules, and what may be modules within them."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    base = node.module or ""
    if node.level:
        package = name.split(".") if PATHS[name].stem == "__init__" else name.split(".")[:-1]
        base = ".".join([*package[: len(package) - node.level + 1], *base.split(".")]).rstrip(".")
    return {base, *(f"{base}.{alias.name}" for alias in node.names)}


def imports(name, nodes=None):
    nodes = ast.walk(TREES[name]) if nodes is None else nodes
    found = (resolve(name, node) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))
    return {target.replace("minipaged.kernels", "kernels") for targets in found for target in targets}


def rooms(targets):
    """Of all imported names, those that are modules of this house."""
    return {target for target in targets if target in TREES}


def test_the_library_knows_no_level():
    assert {name for name in LIBRARY if any(target.split(".")[0] == "levels" for target in imports(name))} == set()


def test_kernels_know_nobody_but_kernels():
    for name in TREES:
        if name.split(".")[0] == "kernels":
            above = {target for target in imports(name) if target.split(".")[0] in ("minipaged", "levels")}
            assert not above, (name, above)


def test_levels_know_the_library_and_what_all_levels_share_but_never_each_other():
    shared = {name for name in TREES if name.startswith("levels") and name not in LEVELS} | {"levels"}
    for name in LEVELS:
        ours = {target for target in imports(name) if target.split(".")[0] == "levels"}
        assert rooms(ours) <= shared, name
        assert "levels.load" not in ours, name
        assert not any(target.split(".")[0] in ("kernels", "benchmarks", "tests") for target in imports(name)), name


def test_an_engine_stands_on_the_library_alone():
    for name in ENGINES:
        assert not {target for target in imports(name) if target.split(".")[0] == "levels"}, name


def test_only_the_ladder_imports_by_name():
    users = {name for name in TREES if any(target.split(".")[0] == "importlib" for target in imports(name))}
    assert users == {"levels"}
    for name, path in PATHS.items():
        assert "__import__" not in path.read_text(), name


@pytest.mark.parametrize("room", UPSTAIRS)
def test_upstairs_nobody_sees_a_tensor_not_even_through_others(room):
    todo, seen = [f"minipaged.{room}"], set()
    while todo:
        name = todo.pop()
        seen.add(name)
        assert not {target for target in imports(name) if target.split(".")[0] in TENSORS}, (room, name)
        todo += rooms(imports(name)) - seen - {"minipaged"}  # the front door hands out everything


def test_downstairs_nobody_sees_a_sequence():
    for name in TREES:
        if name.startswith(("kernels", "minipaged.models")) or name in ("minipaged.kv_cache", "minipaged.attention"):
            assert "minipaged.sequence" not in imports(name), name


def test_imports_make_no_circle():
    arrows = {name: rooms(imports(name, TREES[name].body)) - {name, "minipaged"} for name in LIBRARY}
    while arrows:
        leaves = {name for name, below in arrows.items() if not below & set(arrows)}
        assert leaves, f"circle among {sorted(arrows)}"
        arrows = {name: below for name, below in arrows.items() if name not in leaves}


def test_from_03_on_a_level_brings_at_most_two_new_modules():
    met = set()
    for number, name in enumerate(ENGINES, 1):
        new = {target for target in rooms(imports(name)) if target.startswith("minipaged")} - met
        assert number < 2 or len(new) <= 2, (name, new)
        met |= new


def test_inheritance_is_one_deep():
    classes = [node for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    bases = {node.name: {base.id for base in node.bases if isinstance(base, ast.Name)} - OUTSIDE for node in classes}
    assert not [name for name, above in bases.items() if any(bases.get(base) for base in above)]


def test_nothing_outgrows_its_room():
    sizes = {name: len(path.read_text().splitlines()) for name, path in PATHS.items()}
    too_long = {name: size for name, size in sizes.items() if size > (150 if name in ENGINES else 250)}
    assert too_long == {}


def test_functions_are_short_and_most_are_very_short():
    assert {name: length for name, length in FUNCTIONS if length > 25} == {}
    assert median(length for _, length in FUNCTIONS) < 8


@pytest.mark.parametrize("name", [name for name, path in PATHS.items() if path.stem != "__main__"])
def test_a_module_opens_with_a_claim(name):
    text = ast.get_docstring(TREES[name])
    assert text, "a module without a first page"
    opening = text.split("\n\n")[0]
    assert not opening.lower().startswith(EMPTY_OPENINGS), opening
    assert len(opening.split()) >= 3, opening
    assert opening[-1] in ".?:" or name.startswith("kernels"), opening  # a kernel opens with its formula


def test_every_package_is_installed():
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {module_name(path) for path in python_files("minipaged") if path.name == "__init__.py"}
    assert listed == found | {"minipaged.kernels"}


def test_kernels_is_no_package_of_its_own():
    assert not (ROOT / "kernels" / "__init__.py").exists()
    assert (ROOT / "minipaged" / "kernels").resolve() == ROOT / "kernels"


STAND_IN = """
class Anything:  # stands for every name that somebody may want of the real distribution
    def __init__(self, *args, **kwargs): pass
    def __call__(self, decorated, *args, **kwargs): return decorated

def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Anything
"""
BOTH = """
from transformers import LlamaForCausalLM
from transformers.utils import is_kernels_available
import kernels
import minipaged.kernels.write_kv
print(is_kernels_available(), kernels.__file__)
"""


def test_an_installed_package_called_kernels_and_ours_do_not_meet(tmp_path):
    from transformers.utils.import_utils import KERNELS_MIN_VERSION as VERSION  # one that transformers does import

    package, metadata = tmp_path / "kernels", tmp_path / f"kernels-{VERSION}.dist-info"
    package.mkdir()
    metadata.mkdir()
    (package / "__init__.py").write_text(STAND_IN)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kernels\nVersion: {VERSION}\n")
    path = os.pathsep.join([str(ROOT), str(tmp_path)])  # the checkout first, as when a level is run from it
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    result = subprocess.run([sys.executable, "-c", BOTH], capture_output=True, text=True, cwd=ROOT, env=environment)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["True", str(package / "__init__.py")]

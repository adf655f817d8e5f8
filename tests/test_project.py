"""What must stay true of the repository as a whole: its walls, its set-up, its size."""

import ast
import graphlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.paths import ROOT

LIBRARY = ROOT / "platform" / "pasta"
MAX_LINES = 400

# What a package may import: of this project, and of others (None: anything; numpy comes with transformers).
# The list runs one way.
HEAVY = {"torch", "transformers", "ray", "trl", "deepspeed", "pydantic", "numpy", "datasets", "wandb"}
#: Modules that stand alone at the top of the library.
BASE = {"errors", "config", "files", "rows", "bounds", "names", "sizes", "statistics"}
SHARED = {"data", "engine", "interpreter", "lang", "stages", "tracking", *BASE}
RESULTS = {"markdown"}
WALLS: dict[str, tuple[set[str], set[str] | None]] = {
    "lang": ({"lang", "errors"}, set()),
    "interpreter": ({"interpreter", "lang", "errors", "messages"}, set()),
    "simulation": ({"simulation", "placement", "interpreter", "lang", *BASE}, {"matplotlib"}),
    "engine": (
        {
            "engine",
            "placement",
            "sizes",
            "bounds",
            "interpreter",
            "lang",
            "errors",
            "files",
            "heap",
            "rows",
            "messages",
        },
        {
            "torch",
            "transformers",
            "triton",
            "huggingface_hub",
            "numpy",
            "safetensors",
            "llguidance",
            "torchao",
        },
    ),
    "stages": ({"stages", "errors", "config", "files", "rows", "signals", "tracking", "bounds"}, set()),
    "data": ({"data", "interpreter", "lang", "stages", *BASE}, None),
    "training": ({"training", *SHARED}, None),
    "judges": ({"judges", *SHARED}, None),
    "candidates": ({"candidates", "judges", *SHARED}, None),
    "rl": ({"rl", "candidates", "judges", "training", *SHARED}, None),
    "evaluation": ({"evaluation", "candidates", "judges", *RESULTS, *SHARED}, None),
    "benchmark": ({"benchmark", "evaluation", "candidates", "simulation", *RESULTS, *SHARED}, None),
    "cli": (
        {
            "cli",
            "judges",
            "evaluation",
            "statistics",
            "markdown",
            "simulation",
            "data",
            "stages",
            "interpreter",
            "lang",
            "errors",
            "config",
            "files",
            "rows",
            "entrypoint",
        },
        None,
    ),
}


def sources(*folders: Path) -> list[Path]:
    return sorted(file for folder in folders for file in folder.rglob("*.py"))


def imports(file: Path) -> set[str]:
    """Dotted names of the modules that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def top(module: str) -> str:
    return module.partition(".")[0]


def test_platform_does_not_shadow_the_standard_library():
    assert not (ROOT / "platform" / "__init__.py").exists()
    code = "import platform; print(platform.machine())"
    machine = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert machine.stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="no git on PATH")
def test_the_top_level_is_the_design_s():
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if tracked.returncode or not tracked.stdout:
        pytest.skip("not a git checkout")
    folders = {line.partition("/")[0] for line in tracked.stdout.splitlines() if "/" in line}
    assert folders <= {".ci", "configs", "docker", "docs", "jobs", "platform", "serve", "tests"}


@pytest.mark.parametrize("package", WALLS)
def test_imports_stay_inside_the_walls(package):
    ours, others = WALLS[package]
    for file in sources(LIBRARY / package):
        for module in imports(file):
            if top(module) == "pasta":
                assert (module.split(".") + [""])[1] in ours | {"", "__version__"}, f"{file} imports {module}"
            elif others is not None:
                standard = top(module) in sys.stdlib_module_names
                assert standard or top(module) in others, f"{file} imports {module}"
            assert top(module) not in {"jobs", "serve"}, f"{file} imports {module}"


@pytest.mark.slow
def test_ray_is_imported_in_jobs_and_serve_only():
    for file in sources(LIBRARY):
        assert "ray" not in {top(module) for module in imports(file)}, f"{file} imports ray"


#: What jobs may import of the service: how to start Ray, the service, keys for it, and processes that share a model.
#: The service imports nothing of jobs.
OF_THE_SERVICE = {
    "serve.ray_start",
    "serve.launch",
    "serve.config",
    "serve.keys",
    "serve.imports",
    "serve.followers",
}


def test_the_service_imports_nothing_of_the_jobs_and_they_only_what_starts_it():
    for file in sources(ROOT / "serve"):
        assert "jobs" not in {top(module) for module in imports(file)}, f"{file} imports jobs"
    for file in sources(ROOT / "jobs"):
        for module in imports(file):
            if top(module) == "serve":
                assert ".".join(module.split(".")[:2]) in OF_THE_SERVICE, f"{file} imports {module}"


def test_the_service_s_modules_import_one_another_in_no_circle():
    edges = {}
    for file in sources(ROOT / "serve"):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        edges[module] = {name for name in imports(file) if top(name) == "serve"}
    graph = {
        module: {
            other
            for other in edges
            if other != module and any(name == other or name.rpartition(".")[0] == other for name in names)
        }
        for module, names in edges.items()
    }
    tuple(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


def test_the_language_and_the_interpreter_load_without_heavy_packages():
    code = f"import sys, pasta.lang, pasta.interpreter, pasta.entrypoint; print(*sorted({HEAVY} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == ""


def test_the_library_reads_neither_arguments_nor_the_environment():
    outside = re.compile(r"\bos\.environ\b|\bos\.getenv\b|\bargparse\b|\bsys\.argv\b")
    for file in sources(*(LIBRARY / package for package in WALLS if package != "cli")):
        # A module may be a command too; its main function is not the library.
        library = file.read_text(encoding="utf-8").partition("\ndef main(")[0]
        assert not outside.search(library), file


def test_every_package_of_the_library_is_one():
    for folder in {file.parent for file in sources(LIBRARY)}:
        assert (folder / "__init__.py").exists(), f"{folder} has no __init__.py"


def test_files_stay_short():
    for file in sources(LIBRARY, ROOT / "jobs", ROOT / "serve"):
        lines = len(file.read_text(encoding="utf-8").splitlines())
        assert lines <= MAX_LINES, f"{file} has {lines} lines"


#: Functions that modules of one kind have by agreement: those of a job, those of a way to train.
SHARED_NAMES = {"main", "parser", "stage", "run", "inputs", "prepare", "make_trainer", "train"}


@pytest.mark.slow
def test_a_public_class_or_function_has_a_name_of_its_own():
    places: dict[str, list[str]] = {}
    for file in sources(LIBRARY, ROOT / "jobs", ROOT / "serve"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                places.setdefault(node.name, []).append(str(file.relative_to(ROOT)))
    shared = {name: where for name, where in places.items() if len(where) > 1 and not name.startswith("_")}
    assert {name: where for name, where in shared.items() if name not in SHARED_NAMES} == {}


def test_nothing_is_left_to_do():
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    for file in sources(LIBRARY, ROOT / "jobs", ROOT / "serve"):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            assert not marks.search(line), f"{file}:{number}: {line.strip()}"


def test_make_names_only_what_exists():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    for module in re.findall(r"python -m (jobs\.[\w.]+)", text):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists(), f"Makefile runs {module}"
    for path in re.findall(r"\bconfigs/\S+\.yaml", text):
        assert (ROOT / path).exists(), f"Makefile reads {path}"
    targets = set(re.findall(r"^([a-z-]+):", text, re.MULTILINE))
    assert targets >= {"demo", "test", "lint", "serve", "train", "clean", "help"}


def requirements(text: str) -> dict[str, str]:
    pins = re.findall(r"^\s*\"?([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s\",;]+)", text, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins}


def test_the_lock_holds_every_pin_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = dict(project["optional-dependencies"])
    # What a benchmark compares with, and nothing else needs: it takes minutes to build; and what only a GPU needs.
    peers = requirements("\n".join([*extras.pop("peers"), *extras.pop("gpu")]))
    wanted = requirements(
        "\n".join([*project["dependencies"], *(line for extra in extras.values() for line in extra)])
    )
    assert len(wanted) >= 20
    locked = requirements((ROOT / "requirements.lock").read_text(encoding="utf-8"))
    assert {name: locked.get(name) for name in wanted} == wanted
    others = {"onnx", "onnx-ir", "onnxruntime-genai", "openvino-genai"}
    assert {"llama-cpp-python", "gguf", "torchao", *others} == {*peers}
    assert not {*peers} & {*locked}


def test_the_lock_is_exact_and_belongs_to_no_machine():
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    for line in lines:
        # No addresses, no paths, no local versions such as +cpu: a name and a version.
        assert line.startswith("#") or re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line), line


@pytest.mark.slow
def test_make_lock_writes_every_pin_of_the_project(tmp_path):
    for name in ("Makefile", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path)
    # Stands in for a new environment: nothing is installed, and pip lists this one.
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\nmkdir -p build/lock/bin && cat > build/lock/bin/pip <<'END'\n"
        f'#!/bin/sh\n[ "$1" = install ] || exec {sys.executable} -m pip "$@"\nEND\n'
        "chmod +x build/lock/bin/pip\n"
    )
    python.chmod(0o755)
    subprocess.run(["make", "lock", "PYTHON=./python"], cwd=tmp_path, check=True, capture_output=True)
    written = (tmp_path / "requirements.lock").read_text(encoding="utf-8")
    assert written.startswith("# Every package")
    made = requirements(written)
    committed = requirements((ROOT / "requirements.lock").read_text(encoding="utf-8"))
    assert {name: made.get(name) for name in committed} == committed
    assert not {"pip", "pasta-platform"} & set(made)


def test_the_environment_is_made_with_a_python_that_is_found_and_new_enough(tmp_path):
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("make", "sh", "grep"):
        (tools / tool).symlink_to(shutil.which(tool))

    def make(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(tools / "make"), "demo", *arguments]
        environment = {"PATH": str(tools)}
        return subprocess.run(
            command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True
        )

    says = "no Python that runs and is 3.11 or newer; install 3.11, 3.12 or 3.13, or say make PYTHON=…"
    assert make().stderr.startswith(f"error: python3.11: {says}")
    old = tools / "python3.9"
    old.write_text("#!/bin/sh\nexit 1\n")  # which is how it answers whether it is new enough
    old.chmod(0o755)
    assert make("PYTHON=python3.9").stderr.startswith(f"error: python3.9: {says}")
    (tools / "python3.12").symlink_to(sys.executable)
    assert "\npython3.12 -m venv .venv\n" in make("--dry-run").stdout


def test_what_a_profile_says_to_pip_and_python_does_not_lead_away_from_the_environment():
    said = dict.fromkeys(("PIP_TARGET", "PIP_PREFIX"), "/elsewhere")
    said |= dict.fromkeys(("PIP_USER", "PYTHONSAFEPATH", "PYTHONOPTIMIZE"), "1")
    shown = subprocess.run(
        ["make", "--eval=shown:;@env", "shown"],
        cwd=ROOT,
        env={**os.environ, **said},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    assert "PIP_USER=0" in shown
    assert not [line for line in shown if line.split("=")[0] in said.keys() - {"PIP_USER"}]


def test_nothing_is_installed_where_the_path_has_a_space(tmp_path):
    place = tmp_path / "my projects"
    place.mkdir()
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, place)
    command = ["make", "demo", f"PYTHON={sys.executable}"]
    found = subprocess.run(command, cwd=place, check=False, capture_output=True, text=True)
    assert found.returncode == 2
    assert found.stderr.startswith(f"error: {place}: Ray cannot start workers from a path with a space; move")
    assert not (place / ".venv").exists()


def test_all_configuration_is_yaml_that_can_be_read():
    from pasta.config import read_yaml

    for file in (ROOT / "configs").rglob("*"):
        if file.is_file() and file.suffix != ".json":  # DeepSpeed's own format
            assert file.suffix == ".yaml", file
            assert read_yaml(file)


def test_the_licence_is_apache_2():
    assert (ROOT / "LICENSE").read_text(encoding="utf-8").split()[:4] == [
        "Apache",
        "License",
        "Version",
        "2.0,",
    ]


def test_the_library_is_imported_from_this_checkout():
    import pasta

    assert Path(pasta.__file__).resolve() == LIBRARY / "__init__.py"

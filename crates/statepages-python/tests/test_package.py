"""The package as it is installed: typed, documented, and its example runs."""

import ast
import inspect
import pathlib
import subprocess
import sys

import statepages
import statepages.compat.block_pool
import statepages.compat.page_unit_checkpoint
from statepages import _native

INSTALLED = pathlib.Path(statepages.__file__).parent
EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"


def public(names):
    return {name for name in names if not name.startswith("_")}


def test_the_stub_names_what_there_is():
    stub = ast.parse((INSTALLED / "_native.pyi").read_text())
    classes = {node.name: node for node in stub.body if isinstance(node, ast.ClassDef)}
    stubs_only = {"LentArray", "Receipt"}
    assert set(classes) - stubs_only == public(dir(_native)) - stubs_only
    for name in set(classes) - {"LentArray"}:
        declared = {
            node.name if isinstance(node, ast.FunctionDef) else node.target.id
            for node in classes[name].body
            if isinstance(node, ast.FunctionDef | ast.AnnAssign)
        }
        actual = public(vars(getattr(_native, name)))
        assert public(declared) == actual, name


def test_signatures_take_what_the_stub_says():
    stub = ast.parse((INSTALLED / "_native.pyi").read_text())
    for node in stub.body:
        if not isinstance(node, ast.ClassDef) or node.name == "LentArray":
            continue
        for method in node.body:
            if not isinstance(method, ast.FunctionDef) or method.name.startswith("_"):
                continue
            if any(getattr(d, "id", None) == "property" for d in method.decorator_list):
                continue
            declared = method.args
            names = [a.arg for a in (*declared.args, *declared.kwonlyargs) if a.arg not in ("self", "cls")]
            real = inspect.signature(getattr(getattr(_native, node.name), method.name))
            assert names == [p for p in real.parameters if p not in ("self", "cls")], (node.name, method.name)


def test_constructors_take_what_engines_pass():
    for made, wanted in [
        (_native.BlockPool, "(num_blocks, on_evict=None, max_blocks=None)"),
        (_native.PageUnitCheckpointStore, "(pool, spec)"),
        (_native.PagedStateCheckpointCoordinator, "(pool, spec, enabled)"),
    ]:
        assert str(inspect.signature(made)) == wanted


def test_the_package_is_typed_and_documented():
    assert (INSTALLED / "py.typed").exists()
    for name in statepages.__all__:
        assert inspect.getdoc(getattr(statepages, name)), name


def test_the_miniature_engine_resumes_and_equals_its_cold_runs():
    example = EXAMPLES / "miniature_engine.py"
    assert len(example.read_text().splitlines()) < 200
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "all outputs equal" in done.stdout

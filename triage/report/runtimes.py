"""Reports to projects other than PyTorch: the text that runs their compilers, their model files, and their forms."""

import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass

from corpus.causes import CauseKey, Project, Stage, find_project
from fuzz.protocol.failures import WrongValue
from generators.program.type_check import types_of
from triage.rendering import render
from triage.report.failing_run import FailingRun

MODEL_SCRIPT = "reproduce.py"
"""Shows a bug of a runtime with the model and the data alone."""
DATA_FILE = "data.npz"
_EXPORT = """\
def compile_module(module, inputs, dynamic=False):
    shapes = [[torch.export.Dim.AUTO] * x.dim() for x in inputs] if dynamic else None
    program = torch.export.export(module, tuple(inputs), dynamic_shapes=shapes)
"""
_OPENVINO = """\
    compiled = openvino.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def run(*given):
        results = compiled([x.detach().contiguous().numpy() for x in given]).values()
        return torch.utils._pytree.tree_unflatten(map(torch.from_numpy, results), program.call_spec.out_spec)

    return run"""
_ONNXRUNTIME = """\
    model = torch.onnx.export(program, tuple(inputs), dynamo=True, opset_version={opset}, verbose=False)  # runs it too
    return lambda *given: torch.utils._pytree.tree_unflatten(model(*given), program.call_spec.out_spec)"""
_BACKEND = """\
def compile_module(module, inputs, dynamic=False):
    return torch.compile(module, backend="openvino", options={"config": {"INFERENCE_PRECISION_HINT": "f32"}})"""
_SIZES = "input=[list(x.shape) for x in inputs]"
_COMPILING = {
    "openvino": f"{_EXPORT}    model = openvino.convert_model(program)\n{_OPENVINO}",
    "openvino_sized": f"{_EXPORT}    model = openvino.convert_model(program, {_SIZES})\n{_OPENVINO}",
    "openvino_backend": _BACKEND,
    "onnxruntime": _EXPORT + _ONNXRUNTIME.format(opset=18),
    "onnxruntime_opset23": _EXPORT + _ONNXRUNTIME.format(opset=23),
}
"""By subject, the text of `compile_module`. Subjects that are not listed get no script."""
_IMPORTS = {"openvino": ["import openvino"], "openvino_sized": ["import openvino"]}
_IMPORTS["openvino_backend"] = ["import openvino.torch  # registers the backend"]
_QUIET = {Project.OPENVINO: ['os.environ["CI"] = "true"  # otherwise OpenVINO sends usage data']}

_SAVE_OPENVINO = """\
model = openvino.convert_model(torch.export.export(module, tuple(given)){sizes})
openvino.save_model(model, "model.xml", compress_to_fp16=False)"""
_SAVE_ONNX = """\
program = torch.export.export(module, tuple(given))
options = dict(dynamo=True, opset_version={opset}, external_data=False, verbose=False)
torch.onnx.export(program, tuple(given), "model.onnx", **options)"""
_SAVE = {
    "openvino": _SAVE_OPENVINO.format(sizes=""),
    "openvino_sized": _SAVE_OPENVINO.format(sizes=", input=[list(x.shape) for x in given]"),
    "onnxruntime": _SAVE_ONNX.format(opset=18),
    "onnxruntime_opset23": _SAVE_ONNX.format(opset=23),
}
_MODEL_FILES = {Project.OPENVINO: ("model.xml", "model.bin"), Project.ONNXRUNTIME: ("model.onnx",)}
FILES = (MODEL_SCRIPT, DATA_FILE, *(name for names in _MODEL_FILES.values() for name in names))
"""All files that a report may have besides others."""


@dataclass(frozen=True, slots=True)
class Form:
    """The form for bugs in a project's tracker."""

    repository: str  # that takes issues
    labels: tuple[str, ...]  # that the form sets
    fields: Mapping[str, str]  # {version}, {os} and {machine} are filled in

    def fill(self, version: str, facts: Mapping[str, str]) -> list[tuple[str, str]]:
        """The fields with our answers. `facts`: {urgency}, {model}, {upstream}, {files}."""
        told = {"version": version, "os": platform.system(), "release": platform.platform()}
        told |= {"machine": platform.machine(), **facts}
        return [(name, text.format(**told)) for name, text in self.fields.items()]


_FORMS = {
    # .github/ISSUE_TEMPLATE/08-general.yml of microsoft/onnxruntime
    Project.ONNXRUNTIME: Form(
        "microsoft/onnxruntime",
        (),
        {
            "Urgency": "{urgency}",
            "Platform": "{os}",
            "OS Version": "{release}",
            "ONNX Runtime Installation": "Released Package",
            "ONNX Runtime Version or Commit ID": "{version}",
            "ONNX Runtime API": "Python",
            "Architecture": "{machine}",
            "Execution Provider": "Default CPU",
        },
    ),
    # .github/ISSUE_TEMPLATE/bug.yml of openvinotoolkit/openvino
    Project.OPENVINO: Form(
        "openvinotoolkit/openvino",
        ("bug", "support_request"),
        {
            "OpenVINO Version": "{version}",
            "Operating System": "Other: {release}",
            "Device used for inference": "CPU ({machine})",
            "Framework": "PyTorch",
            "Model used": "{model}",
            "I checked the problem with the documentation, FAQ, open issues": "{upstream}",
            "There is reproducer code and related data files": "{files}",
        },
    ),
    # .github/ISSUE_TEMPLATE/bug-report.yml of pytorch/executorch
    Project.EXECUTORCH: Form("pytorch/executorch", (), {"Versions": "below, by collect_env.py"}),
    Project.ONNXSCRIPT: Form("microsoft/onnxscript", (), {}),
}


def spell_compiling(bug: FailingRun) -> str:
    """`compile_module`, the function that runs the accused compiler of another project; "" if none is accused, or for
    tensors that NumPy has no dtype for."""
    is_of_numpy = all(kind.dtype != "bfloat16" for kind in types_of(bug.case).values())
    return _COMPILING.get(bug.spec.backend, "") if is_foreign(bug) and is_of_numpy else ""


def is_foreign(bug: FailingRun) -> bool:
    """Whether a compiler of another project is accused."""
    return bug.is_compiled and bug.spec.is_foreign


def list_imports(bug: FailingRun) -> list[str]:
    """Statements of a script that imports the runtime."""
    return _IMPORTS.get(bug.spec.backend, []) if is_foreign(bug) else []


def list_head(bug: FailingRun) -> list[str]:
    """Statements that come before all others of a script."""
    return _QUIET.get(find_project(bug.result.subject), []) if is_foreign(bug) else []


def has_model(bug: FailingRun, cause: CauseKey | None) -> bool:
    """Whether the model that the compiler is given shows the bug without torch: the runtime is at fault, and an output
    of a single call is wrong."""
    failure, case = bug.result.failure, bug.case
    is_output = isinstance(failure, WrongValue) and failure.value.kind == "output"
    if cause is None or cause.who != find_project(bug.result.subject):
        return False
    is_of_runtime = cause.stage in (Stage.GRAPH_OPTIMISATION, Stage.RUNTIME)
    is_plain = not (case.calls or case.before) and bool(spell_compiling(bug))
    return is_of_runtime and is_output and is_plain and bug.spec.backend in _SAVE


def list_files(bug: FailingRun) -> tuple[str, ...]:
    """The files that `write_saving` writes."""
    return (*_MODEL_FILES[find_project(bug.result.subject)], DATA_FILE)


def write_saving(bug: FailingRun, program: str, exact: str) -> str:
    """A script that writes the model, and the inputs with the result in float64, into the current directory.

    `exact`: the expression of that result
    """
    names = [item.name for item in bug.case.arguments]
    return "\n".join(
        [
            "import os",
            *list_head(bug),
            program,
            "",
            "import numpy",
            "module, given = Module().eval(), inputs()",
            "with torch.no_grad():",
            f"    exact = {exact}",
            f"values = zip({names}, (x.detach().contiguous().numpy() for x in given))",
            f'numpy.savez_compressed("{DATA_FILE}", **dict(values), exact=exact.numpy())',
            _SAVE[bug.spec.backend],
            "",
        ]
    )


def write_reproduction(bug: FailingRun) -> str:
    """The script MODEL_SCRIPT, which needs the runtime and numpy alone."""
    failure, project = bug.result.failure, find_project(bug.result.subject)
    assert isinstance(failure, WrongValue)
    return render(
        "reproduce.py.j2",
        title=bug.title.replace("\\", "/").replace('"', "'"),
        runtime=project.value,
        label=project.label,
        place=int(failure.value.name or 0),
        error=failure.error if math.isfinite(failure.error) else None,
        files=list_files(bug),
    )


def find_form(project: Project) -> Form:
    """The form of a project; without anything for PyTorch, whose reports have their own form."""
    return _FORMS.get(project, Form("", (), {}))

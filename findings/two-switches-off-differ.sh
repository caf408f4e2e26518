#!/bin/sh
# Of torch's two variables that switch torch.compile off, one makes programs with fullgraph=True raise.
#
# Versions: torch 2.13.0; torch 2.15.0 does the same.
#
# With TORCHDYNAMO_DISABLE=1 torch.compile returns its argument, so everything runs in eager. With
# TORCH_COMPILE_DISABLE=1 Dynamo skips every function: plain torch.compile runs in eager without a word, and
# fullgraph=True raises "found no compiled frames". So the variable works as a switch for some callers and as an error
# for others; the stance "force_eager" of torch.compiler.set_stance raises for none.
#
# A guess: both variables do the same, run in eager.
#
# Seen: for each way to switch off, what torch.compile does without and with fullgraph=True
#     TORCHDYNAMO_DISABLE=1: eager, eager
#     TORCH_COMPILE_DISABLE=1: eager, RuntimeError
#     force_eager: eager, eager
#
# Installs torch in a temporary folder; PYTHON=/path/to/python uses an interpreter that has it. Exits with 1 if the
# behaviour is another.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv"
    "$folder/venv/bin/pip" install --quiet torch==2.13.0
    PYTHON=$folder/venv/bin/python
fi
cat > "$folder/call.py" <<'END'
import sys

import torch

graphs = []


def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward


def run(fullgraph):
    graphs.clear()
    try:
        torch.compile(lambda x: x.sin() + 1, backend=backend, fullgraph=fullgraph)(torch.ones(2))
    except Exception as error:
        return type(error).__name__
    return "compiled" if graphs else "eager"


if sys.argv[1] == "force_eager":
    torch.compiler.set_stance("force_eager")
print(f"{sys.argv[1]}: {run(False)}, {run(True)}")
END
{
    env TORCHDYNAMO_DISABLE=1 "$PYTHON" "$folder/call.py" TORCHDYNAMO_DISABLE=1
    env TORCH_COMPILE_DISABLE=1 "$PYTHON" "$folder/call.py" TORCH_COMPILE_DISABLE=1
    "$PYTHON" "$folder/call.py" force_eager
} | tee "$folder/seen"
diff - "$folder/seen" <<'END'
TORCHDYNAMO_DISABLE=1: eager, eager
TORCH_COMPILE_DISABLE=1: eager, RuntimeError
force_eager: eager, eager
END

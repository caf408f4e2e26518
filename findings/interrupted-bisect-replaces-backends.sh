#!/bin/sh
# torch's compiler bisector, if it is interrupted, replaces the backend of every later torch.compile of the same user.
#
# Versions: torch 2.13.0; torch 2.15.0 does the same.
#
# `python -m torch._inductor.compiler_bisector start` writes bisect/bisect_status.txt to Inductor's cache directory, by
# default /tmp/torchinductor_USER. From then on torch.compile in any process that uses this directory takes its backend
# from that file. It does so without a warning, with fullgraph=True, and if the caller passes a function as the backend.
# The first step of a bisection is the backend "eager", so nothing is compiled until somebody runs `end` or removes the
# file.
#
# A guess: a bisection affects the commands that it runs, and backend=FUNCTION calls FUNCTION.
#
# Seen: calls of the backend, before a bisection starts, after, and after its end
#     1
#     0
#     1
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
export TORCHINDUCTOR_CACHE_DIR="$folder/cache"
cat > "$folder/call.py" <<'END'
import torch

graphs = []


def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward


torch.compile(lambda x: x.sin() + 1, backend=backend, fullgraph=True)(torch.ones(2))
print(len(graphs))
END
bisect() { "$PYTHON" -m torch._inductor.compiler_bisector "$1" > "$folder/log" 2>&1; }
"$PYTHON" "$folder/call.py" | tee "$folder/seen"
bisect start
"$PYTHON" "$folder/call.py" | tee -a "$folder/seen"
bisect end
"$PYTHON" "$folder/call.py" | tee -a "$folder/seen"
printf '1\n0\n1\n' | diff - "$folder/seen"

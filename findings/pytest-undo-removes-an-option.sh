#!/bin/sh
# pytest's monkeypatch, when it undoes a change of an option of torch, leaves torch without the option.
#
# Versions: torch 2.13.0 (torch 2.15.0 does the same), pytest 9.2.0.
#
# monkeypatch.setattr on torch._inductor.config or torch._dynamo.config changes an option. At the end of the test the
# option is gone: reading it raises AttributeError, "does not exist". So every later compilation of the process that
# reads it fails, in tests that have nothing to do with the first. The options' own `patch` puts the value back.
#
# A guess: the option has the value that it had before the test.
#
# Seen: the option, and what reading it gives after the undo
#     torch._inductor.config.fallback_by_default AttributeError
#     torch._dynamo.config.verbose AttributeError
#
# Installs both in a temporary folder; PYTHON=/path/to/python uses an interpreter that has them. Exits with 1 if the
# behaviour is another.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv"
    "$folder/venv/bin/pip" install --quiet torch==2.13.0 pytest==9.2.0
    PYTHON=$folder/venv/bin/python
fi
cat > "$folder/undo.py" <<'END'
import importlib

import pytest

for module, name in (("torch._inductor.config", "fallback_by_default"), ("torch._dynamo.config", "verbose")):
    config = importlib.import_module(module)
    before = getattr(config, name)
    patch = pytest.MonkeyPatch()
    patch.setattr(config, name, not before)
    patch.undo()
    try:
        seen = "as before" if getattr(config, name) == before else "another value"
    except AttributeError as error:
        seen = type(error).__name__
    print(f"{module}.{name}", seen)
END
"$PYTHON" "$folder/undo.py" 2> "$folder/log" | tee "$folder/seen"
printf '%s AttributeError\n' torch._inductor.config.fallback_by_default torch._dynamo.config.verbose | diff - "$folder/seen"

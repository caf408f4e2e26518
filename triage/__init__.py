"""From failing cases to root causes, clusters of findings, reports and pages.

Sentences are rendered from typed data, each kind in one module. Templates join them.

- failures: fuzz/protocol/render.py
- experiments: fuzz/attribution/root_cause.py
- conditions and sizes: triage/report/conditions.py
- titles, summaries, places of faults, reasons for no report: triage/report/wording.py
"""

from pathlib import Path
from runpy import run_path

# `import fuzz` may find another package.
_OWN = run_path(str(Path(__file__).resolve().parents[1] / "fuzz" / "own_packages.py"))
_OWN["require_own"]("fuzz", "generators", "corpus")

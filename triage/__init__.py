"""From failing cases to root causes, clusters of findings, reports and pages.

Sentences are rendered from typed data, each kind in one module. Templates join them.

- failures: fuzz/protocol/render.py
- experiments: fuzz/attribution/root_cause.py
- conditions and sizes: triage/report/conditions.py
- titles, summaries, places of faults, reasons for no report: triage/report/wording.py
"""

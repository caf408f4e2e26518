"""From failing cases to root causes, clusters of findings, reports and pages.

Sentences are rendered from typed data, each kind in one module: failures in fuzz/protocol/render.py; experiments,
conditions and sizes in triage/attribution/render.py; titles, summaries, the place of a fault and why a finding is not
reported in triage/report/wording.py. Templates put them together.
"""

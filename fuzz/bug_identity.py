"""What tells bugs apart: kinds of verdicts, the operation of eager, and the rewrites that can carry a bug."""

from fuzz.campaign.symptom import EAGER, PROCESS, SILENT, VALUES, attention_patterns, kind_of, operation_of, rewrites

__all__ = ["EAGER", "PROCESS", "SILENT", "VALUES", "attention_patterns", "kind_of", "operation_of", "rewrites"]

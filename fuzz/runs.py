"""What a campaign leaves in its run directory, for those who read it: results, findings, events, statistics."""

from fuzz.campaign.investigate import Outcome
from fuzz.campaign.log import FILE as EVENTS_FILE
from fuzz.campaign.stats import FILE as STATISTICS_FILE
from fuzz.campaign.store import FILE as RESULTS_FILE
from fuzz.campaign.store import FindingRow, Results
from fuzz.campaign.summary import reproduce_lines

__all__ = ["EVENTS_FILE", "RESULTS_FILE", "STATISTICS_FILE", "FindingRow", "Outcome", "Results", "reproduce_lines"]

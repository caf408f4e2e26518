"""The state that the threads of a campaign share."""

from collections import Counter
from collections.abc import Mapping

from fuzz.campaign.options import Options, StopCondition
from fuzz.campaign.schedule import CaseNumbers, Schedule
from fuzz.campaign.search import Random
from fuzz.campaign.suspicion_queue import SuspicionQueue
from fuzz.events import Bus
from fuzz.known_bugs import KnownBug, KnownBugs
from fuzz.run_store import Results
from generators.program.case import Case
from generators.program.settings import Setting


class CampaignState:
    """A campaign's options and store, its source of cases, its known bugs and its suspicions."""

    def __init__(self, options: Options, results: Results, bus: Bus, search: Random) -> None:
        self.options, self.results, self.bus = options, results, bus
        self.search = search  # the source of cases
        self.settings: Mapping[str, Setting] = {}  # the settings of the worker's torch and device, which cases may get
        self.attention_only = False  # whether all subjects are attention functions
        self.stop = StopCondition(options.budget)
        self.schedule = Schedule(options.subjects, of_module=options.models is not None)
        self.numbers = CaseNumbers(*results.position(), options.budget)
        self.losses = Counter[str]()  # how often each case lost its worker
        self.known_bugs = KnownBugs(options.ledger)
        self.suspicions = SuspicionQueue(results, self.known_bugs, eager_last=options.is_of_user)

    def announce_bug(self, finding: KnownBug, case: Case) -> None:
        """Emit an event when the campaign first meets a bug of the ledger: `finding` explains the failure of `case`."""
        if met := self.known_bugs.meet(finding.case_id, case.id, self.options.worker_config.device):
            self.schedule.has_shown = True
            self.bus.emit(met)

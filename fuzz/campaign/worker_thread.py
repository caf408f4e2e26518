"""The thread that drives a worker, from its start to its end: it judges cases and investigates suspicions."""

import threading
import time
from collections.abc import Sequence

from fuzz.ask.worker_process import Stopped, WorkerLost
from fuzz.campaign.crew import Crew
from fuzz.campaign.investigation_runner import InvestigationRunner
from fuzz.campaign.run_case import choose_cases, run_case
from fuzz.campaign.schedule import Job

_IDLE_SECONDS = 0.1


class WorkerThread(threading.Thread):
    """Judges cases until the campaign is over."""

    def __init__(self, investigations: InvestigationRunner, number: int) -> None:
        super().__init__(name=f"worker {number}", daemon=True)
        self.investigations, self.state = investigations, investigations.state
        self.fault: Exception | None = None  # the exception that ended the thread early
        self.crew = Crew(self.state, number, self.choose)

    def choose(self) -> Sequence[Job]:
        """The next cases; none when the budget of cases is spent or the campaign is over."""
        return choose_cases(self.state)

    def run(self) -> None:
        stop = self.state.stop
        try:
            while not stop.is_over and self._work():
                pass
        except Stopped:
            pass
        except Exception as error:  # noqa: BLE001 - the main thread raises it again
            self.fault = stop.fail(error, self.state.options.out)
        finally:
            self.crew.close()

    def _work(self) -> bool:
        """Judge a case or investigate a suspicion; False when nothing is left to do."""
        numbers, investigations, crew = self.state.numbers, self.investigations, self.crew
        is_placed = crew.is_placed()
        taken = investigations.take(cases_left=numbers.has_next) if is_placed else None
        try:
            if taken is not None:
                investigations.work_on(*taken, crew)
                return True
            if is_placed and run_case(self.state, crew):
                return True
        except WorkerLost:
            return True  # its case or suspicion is judged again
        # Other workers get the jobs of a worker without a machine.
        numbers.returned += crew.jobs
        crew.jobs.clear()
        if investigations.is_drained and not numbers.has_next:
            return False
        time.sleep(_IDLE_SECONDS)
        return True

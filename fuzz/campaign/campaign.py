"""A campaign: threads judge cases and investigate suspicions until the budget is spent."""

import time
from collections.abc import Callable

from fuzz.campaign.investigation_runner import CampaignState, InvestigationRunner
from fuzz.campaign.libfuzzer import LibFuzzerThread
from fuzz.campaign.options import Options
from fuzz.campaign.search import AttentionSearch, Guided, Random
from fuzz.campaign.share import open_share
from fuzz.campaign.worker_thread import WorkerThread
from fuzz.evaluator import public_version
from fuzz.events import Bus, CampaignEnded, CampaignStarted
from fuzz.run_store import Results
from fuzz.subjects import get_spec
from generators.errors import UserError
from generators.program.case import Case
from generators.program.settings import list_available
from generators.sampling.sample import NO_LIMITS, Limits

_TICK_SECONDS = 0.2

Sampler = Callable[..., Case]
"""Gives the case of a seed and an index; with `attention_only=True`, a case whose attention a contract describes."""


class Campaign:
    """A session of a campaign. The main thread calls `prepare`, `run` and `close`."""

    def __init__(self, options: Options, results: Results, bus: Bus, sample: Sampler) -> None:
        self.options, self.results, self.bus = options, results, bus
        self._sample, self.attention_only = sample, False
        share = open_share(options.share, results, bus) if options.share is not None else None
        if options.engine == "guided":
            search: Random = Guided(
                self._draw, options.seed, options.seeds, results, share.take_case if share else None
            )
        else:
            # libFuzzer draws cases itself; the store keeps their coverage.
            search = Random(self._draw, results if options.engine == "atheris" else None)
        self.state = CampaignState(options, results, bus, search, share)
        self.investigations = InvestigationRunner(self.state)
        kind = LibFuzzerThread if options.engine == "atheris" else WorkerThread
        self.threads = [kind(self.investigations, number) for number in range(options.workers)]

    def prepare(self) -> None:
        """Start the first worker and load known bugs. Raises `UserError` when the campaign can't run."""
        options = self.options
        against = self.investigations.baseline_torch = self.threads[0].start_baseline()
        hello = self.threads[0].start_worker()
        self.attention_only = set(options.subjects) <= set(hello.attention)
        compilers = [name for name in options.subjects if get_spec(name).uses_inductor and name not in hello.attention]
        if options.engine == "atheris" and not compilers:
            raise UserError("--engine atheris follows Inductor: name a --subject that compiles the case")
        needy = [name for name in options.subjects if get_spec(name).needs_cxx]
        if hello.cxx is None and options.worker_config.device == "cpu" and needy:
            raise UserError(
                f"no C++ compiler for {', '.join(needy)}: install g++ or set CXX; or use --subject passes, which needs"
                " none (its findings stay in the run directory, as internal, until a public subject shows them)"
            )
        if self.attention_only:
            # Attention functions reach nothing in a compiler, and take few of the seeds.
            takes = {subject: hello.attention[subject] for subject in options.subjects}
            self.state.search = AttentionSearch(
                self._draw, options.seed, takes, self.state.known_bugs, device=hello.device
            )
        if any(get_spec(name).options for name in options.subjects):
            self.state.settings = list_available(hello.torch, hello.device)
        for option, torch in (("--python", public_version(hello.torch)), ("--against", against)):
            before = self.results.meta(option)
            if before not in (None, torch):
                given = f"{option} torch {before}" if before else f"no {option}"
                raise UserError(
                    f"--out {options.out} holds a run with {given}: continue with that, or give another --out"
                )
        self.results.set_meta({"torch": hello.torch, "--python": public_version(hello.torch), "--against": against})
        self.state.known_bugs.attention = frozenset(hello.attention)
        self.state.findings.load(hello.torch)
        self._read_share()
        for suspicion in self.results.waiting():
            self.state.suspicions.put(suspicion)
        self.bus.emit(
            CampaignStarted(
                seed=options.seed,
                index=self.results.position()[0],
                budget=str(options.budget),
                out=str(options.out),
                corpus=str(options.corpus),
                subjects=options.subjects,
                workers=options.workers,
                torch=hello.torch,
                device=hello.device,
                device_name=hello.device_name,
                n_known=len(self.results.findings()),
                pending=self.state.suspicions.waiting,
                against=self.investigations.baseline_torch,
                missing_hooks={} if self.attention_only else hello.missing_hooks,
            )
        )

    def _read_share(self) -> None:
        if self.state.share is not None and self.state.share.tick():
            self.investigations.learn_shared_findings(self.results.meta("torch") or "")

    def _draw(self, index: int, limits: Limits = NO_LIMITS) -> Case:
        """Case number `index` of the seed. If all subjects compute attention alone, it has a contract."""
        device = self.options.worker_config.device
        return self._sample(self.options.seed, index, attention_only=self.attention_only, limits=limits, device=device)

    def run(self) -> None:
        """Work until the budget is spent, or something stops it. The next session judges the cases that do not finish
        shortly after. Raises the exception of a thread."""
        self.state.stop.begin()
        for thread in self.threads:
            for evaluator in thread.evaluators:
                evaluator.process.has_worked = True
            thread.start()
        fault: Exception | None = None
        while any(thread.is_alive() for thread in self.threads):
            try:
                self.bus.tick()
                self._read_share()
            except Exception as error:  # noqa: BLE001 - raised below, when all threads have ended
                fault = self.state.stop.fail(error, self.options.out)
            if self.state.stop.is_overdue:
                self.kill()
            self.threads[0].join(_TICK_SECONDS)
            if not self.threads[0].is_alive():
                time.sleep(_TICK_SECONDS / 4)
        self.bus.emit(CampaignEnded(reason=self.state.stop.reason))
        for reason in (fault, *(thread.fault for thread in self.threads)):
            if reason is not None:
                raise reason

    def kill(self) -> None:
        """End at once. The next session judges the cases in hand."""
        self.state.stop.kill()
        for thread in self.threads:
            thread.kill()

    def close(self) -> None:
        """End the workers that still run: workers whose thread never began, and all workers after a fault."""
        for thread in self.threads:
            while thread.is_alive():
                self.kill()
                thread.join(_TICK_SECONDS)
            thread.close()

"""What several torch versions gave for a case, in one line."""

from corpus.entry import Entry, sort_by_version
from fuzz.evaluator import public_version
from triage.attribution.ablation import Ablation


def seen_in(entry: Entry, ablation: Ablation) -> str:
    """What the case's file has seen of other versions, and this one: "2.12.1 ok, 2.13.0 wrong result"; "" where there is
    no other."""
    here = public_version(ablation.hello.torch)
    found = {} if entry.found is None else {public_version(entry.found.torch): entry.found.verdict}
    seen = sort_by_version({**found, **entry.seen, here: str(ablation.result.verdict)})
    told = [f"{version} {verdict.replace('_', ' ')}" for version, verdict in seen.items() if version]
    return ", ".join(told) if len(told) > 1 else ""

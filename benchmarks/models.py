"""How much of released models becomes cases, and how their blocks do: the table of docs/models.md.

    python -m benchmarks.models transformers --workers 2 --json models.json
    python -m benchmarks.models transformers/llama --subject passes --judge old/bin/python --judge new/bin/python ...

Needs the extra `models` for the interpreter that imports; those that judge need only torch. Each architecture of
transformers is imported with attn_implementation eager and sdpa. `benchmarks.model_evidence` reads the JSON file.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.model_answers import format_answers
from corpus.entry import Entry, Found, save
from fuzz.ask.evaluator import Evaluator, open_evaluator
from fuzz.ask.question import Question
from fuzz.ask.worker_config import ROOT, WorkerConfig
from fuzz.bug_identity import attention_patterns, bug_relevant_rewrites
from fuzz.importing.importer import Block, BlockFailed, ModuleImport
from fuzz.protocol.render import describe
from fuzz.versions import public_version
from generators.errors import UserError
from generators.program.case import Case
from generators.sampling.neighbours import Neighbourhood, return_first

PACKAGES = ("transformers", "timm", "diffusers", "x-transformers")
_SPELLINGS = {"transformers": ("eager", "sdpa")}


def list_names(package: str, python: str) -> list[str]:
    """The architectures of a package, as `package/architecture@attention`."""
    command = [python, "-m", "fuzz.check.module.released_models", package]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        print(f"{package}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
    spelled = [f"@{how}" for how in _SPELLINGS.get(package, ())] or [""]
    return [f"{package}/{name}{how}" for name in done.stdout.split() for how in spelled]


def list_versions(python: str) -> str:
    """The packages that are imported, and torch, with their versions."""
    text = f"from importlib.metadata import version\nfor one in {('torch', *PACKAGES)}: print(one, version(one))"
    done = subprocess.run([python, "-c", text], capture_output=True, text=True, check=True)
    return ", ".join(done.stdout.splitlines())


def survey(name: str, config: WorkerConfig, judges: Sequence[Evaluator], options: argparse.Namespace) -> dict[str, Any]:
    """The import of an architecture, and the verdicts of its blocks."""
    began = time.monotonic()
    row: dict[str, Any] = {"name": name, "blocks": [], "error": ""}
    try:
        with ModuleImport(config, name) as module:
            row["calls"] = module.loaded.submodules[0].calls if module.loaded.submodules else 0
            blocks = module.import_blocks()
        row["seconds"] = round(time.monotonic() - began, 1)
        row["blocks"] = [describe_block(block) for block in blocks]
        row["error"] = "" if blocks else f"{name}: it makes no torch-level call"
        row["verdicts"] = list(judge(name, blocks, judges, options)) if options.subject else []
    except (UserError, BlockFailed) as error:
        row["error"] = str(error)
    except Exception as error:  # noqa: BLE001 - a fault of ours is counted, and the others go on
        row["error"] = f"fault: {type(error).__name__}: {error}"
    return row


def describe_block(block: Block) -> dict[str, Any]:
    """How a block is imported."""
    return {
        "name": block.name,
        "path": block.path,
        "calls": block.calls,
        "alike": 1 + len(block.also),
        "whole": block.case is not None and not block.missing,
        "imported": block.case is not None,
        "missing": dict(block.missing),
        "different": block.different,
        "reads": list(block.reads),
    }


def judge(
    name: str, blocks: list[Block], judges: Sequence[Evaluator], options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """The verdicts of blocks and of some neighbours. The whole module is judged if it has no smaller block."""
    models = {block.name: block.case for block in blocks if block.case is not None and not block.different}
    models = {one: case for one, case in models.items() if any(block.path == one for block in blocks)} or models
    models |= {f"{one} without its weights": return_first(case) for one, case in models.items() if case.returns[1:]}
    rows = [judge_case(name, each, near, case, judges, options) for each, near, case in list_near(models, options)]
    yield from rows
    # Most bugs of rewrites are those of attention patterns.
    deep = {row["block"] for row in rows if any(attention_patterns(one["rewrites"]) for one in row["results"])}
    options = argparse.Namespace(**vars(options) | {"neighbours": options.deep})
    for each, near, case in list_near({one: models[one] for one in models if one in deep}, options):
        if case.id != models[each].id:
            yield judge_case(name, each, near, case, judges, options)


def list_near(models: Mapping[str, Case], options: argparse.Namespace) -> Iterator[tuple[str, str, Case]]:
    """Each block and its neighbours: the block, the distance from it, and the case."""
    near = Neighbourhood(models)
    for index in range(len(models) * (1 + options.neighbours)):
        case = near.sample(options.seed, index)
        yield [*models][index % len(models)], near.describe(case), case


def judge_case(
    name: str, block: str, near: str, case: Case, judges: Sequence[Evaluator], options: argparse.Namespace
) -> dict[str, Any]:
    """The verdicts of a case in each version of torch. A finding is saved as a case file."""
    judged: list[dict[str, Any]] = []
    row = {"block": block, "case": near, "rejected": "", "results": judged}
    for evaluator in judges:
        try:
            result = evaluator.ask(Question(case, tuple(options.subject)))
        except UserError as error:
            row["rejected"] = str(error)
            continue
        row["rejected"] = result.rejected or row["rejected"]
        for one in result.results:
            torch = public_version(evaluator.hello.torch)
            shown = {"torch": torch, "subject": one.subject, "verdict": one.verdict.value}
            shown |= {"rewrites": sorted(bug_relevant_rewrites(one.applied_rewrites))}
            shown |= {"coverage": sorted({item.name for item in one.coverage})}
            if one.verdict.is_finding:
                found = Found(one.verdict.value, one.subject, torch=evaluator.hello.torch, message=describe(one))
                path = save(Entry(case, f"{name}, {near}", found=found), options.json.with_suffix("") / torch)
                shown |= {"message": describe(one), "file": str(path)}
            judged.append(shown)
    return row


def main() -> None:
    """Survey the packages or architectures of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--read", action="append", type=Path, default=[], help="a survey of other processes to add")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--subject", action="append", default=[])
    parser.add_argument("--judge", action="append", default=[], help="an interpreter that judges; default: --python")
    parser.add_argument("--neighbours", type=int, default=0, help="of each block, judged too")
    parser.add_argument("--deep", type=int, default=0, help="further neighbours of blocks that apply a pattern")
    parser.add_argument("--seed", type=int, default=0, help="of neighbours")
    parser.add_argument("--shuffle", action="store_true", help="in random order")
    parser.add_argument("--part", default="1/1", help="such as 3/16: of the architectures, for one of 16 processes")
    parser.add_argument("--limit", type=int, default=0, help="seconds until no further architecture begins")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--answers", type=Path, help="for the page: the JSON file of benchmarks.model_answers")
    parser.add_argument("--markdown", type=Path, help="write the page docs/models.md")
    options = parser.parse_args()
    config = WorkerConfig(python=options.python, timeout=90.0, memory_mib=6144)
    names = [one for name in options.names for one in ([name] if "/" in name else list_names(name, options.python))]
    if options.shuffle:
        random.Random(0).shuffle(names)
    part, parts = map(int, options.part.split("/"))
    began, waiting = time.monotonic(), iter(names[part - 1 :: parts])
    rows: list[dict[str, Any]] = []

    def work(_worker: int) -> None:
        with ExitStack() as stack:
            configs = [replace(config, python=python) for python in options.judge or [options.python]]
            judges = [stack.enter_context(open_evaluator(one)) for one in configs if options.subject]
            for name in waiting:
                if options.limit and time.monotonic() - began > options.limit:
                    return
                row = survey(name, config, judges, options)
                rows.append(row)
                options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
                print(summarize(row), flush=True)

    with ThreadPoolExecutor(options.workers) as pool:
        list(pool.map(work, range(options.workers)))
    rows = merge([row for file in options.read for row in json.loads(file.read_text(encoding="utf-8"))] + rows)
    options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print(total(rows))
    if options.markdown is not None:
        answered = json.loads(options.answers.read_text(encoding="utf-8")) if options.answers else []
        page = format_table(rows, list_versions(options.python), answered)
        options.markdown.write_text(page, encoding="utf-8")


def merge(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each architecture: its last import that succeeded, with the verdicts of all."""
    merged: dict[str, dict[str, Any]] = {}
    for row in rows:
        before = merged.get(row["name"], {"verdicts": [], "error": "none"})
        last = before if row["error"] and not before["error"] else row
        merged[row["name"]] = last | {"verdicts": [*before.get("verdicts", ()), *row.get("verdicts", ())]}
    return list(merged.values())


def summarize(row: dict[str, Any]) -> str:
    """An architecture in a line."""
    if row["error"]:
        return f"{row['name']}: {row['error'][:200]}"
    root = row["blocks"][0]
    missing = ", ".join(f"{count}x {call}" for call, count in root["missing"].items())
    different = [f"{block['name']}: {block['different']}" for block in row["blocks"] if block["different"]]
    parts = [f"{root['calls']} calls", "whole" if root["whole"] else missing, *different, f"{row['seconds']} s"]
    found = [one for case in row.get("verdicts", ()) for one in case.get("results", ()) if "message" in one]
    return f"{row['name']}: {'; '.join(parts)}" + "".join(f"\n    {one['subject']} {one['message']}" for one in found)


def format_table(rows: list[dict[str, Any]], versions: str, answered: list[dict[str, Any]]) -> str:
    """The page docs/models.md.

    versions: of the packages that were imported
    answered: what `benchmarks.model_answers` found
    """
    packages = {name.replace("-", "_"): list[dict[str, Any]]() for name in PACKAGES}
    for row in rows:
        packages[row["name"].partition("/")[0]].append(row)
    shares = {name: "; ".join(total(chosen).splitlines()[:2]) for name, chosen in packages.items() if chosen}
    results = [one for row in rows for case in row.get("verdicts", ()) for one in case.get("results", ())]
    judged = Counter(one["torch"] for one in results)
    told = ", ".join(f"{count} under torch {torch}" for torch, count in sorted(judged.items()))
    lines = [
        "# Released models",
        "",
        "<!-- Made by `python -m benchmarks.models PACKAGE... --answers ANSWERS --markdown docs/models.md`.",
        "`python -m benchmarks.model_answers` makes the file ANSWERS. -->",
        "",
        *(["## As people run them", "", format_answers(answered)] if answered else []),
        "## As cases",
        "",
        "Each architecture is built small from its configuration, with random weights, in inference in float32.",
        "*Whole*: cases say every call. Else the results of the calls named are inputs of the case. Every imported",
        "block repeats its module bit for bit, unless a line says otherwise. A sample of the names, in random order.",
        "",
        f"Imported with {versions}.",
        f"Verdicts on blocks and neighbours by the subject `passes`: {told}.",
        "",
        *(f"- {name}: {share}" for name, share in shares.items()),
        *(f"- {line.strip()}" for line in total(rows).splitlines()[2:] if not line.startswith("  1 ")),
        "",
        "| architecture | calls | left out | blocks | rewrites | findings |",
        "|---|---|---|---|---|---|",
    ]
    for row in sorted((row for row in rows if not row["error"]), key=lambda row: row["name"]):
        root, *_ = row["blocks"]
        results = [one for case in row.get("verdicts", ()) for one in case.get("results", ())]
        reached = sorted({name.removeprefix("sfdp_") for one in results for name in one["rewrites"] if "sfdp" in name})
        found = sorted({f"{one['torch']}: {one['message']}" for one in results if "message" in one})
        left = ", ".join(f"{count}x {call.partition(':')[0]}" for call, count in root["missing"].items())
        different = [f"{block['name']}: {block['different']}" for block in row["blocks"] if block["different"]]
        cells = (row["name"], root["calls"], left, len(row["blocks"]), ", ".join(reached), "; ".join(found + different))
        lines.append(f"| {' | '.join(str(cell).replace('|', '') for cell in cells)} |")
    failed = sorted(f"`{row['name']}`: {row['error'].partition(': ')[2][:140]}" for row in rows if row["error"])
    return "\n".join([*lines, "", f"Not built or not run ({len(failed)}):", "", *(f"- {line}" for line in failed), ""])


def total(rows: list[dict[str, Any]]) -> str:
    """The shares over all architectures."""
    done = [row for row in rows if not row["error"]]
    roots = [row["blocks"][0] for row in done]
    calls, missing = sum(root["calls"] for root in roots), sum(sum(root["missing"].values()) for root in roots)
    exact = sum(not block["different"] for row in done for block in row["blocks"] if block["imported"])
    blocks = sum(block["imported"] for row in done for block in row["blocks"])
    kinds = Counter[str]()
    for root in roots:
        kinds.update({call.partition(":")[0]: 1 for call in root["missing"]})
    return "\n".join(
        [
            f"{len(done)} of {len(rows)} imported, {sum(root['whole'] for root in roots)} whole",
            f"{calls - missing} of {calls} calls; {exact} of {blocks} blocks bit for bit",
            *(f"  {count} models lack {call}" for call, count in kinds.most_common(40)),
        ]
    )


if __name__ == "__main__":
    main()

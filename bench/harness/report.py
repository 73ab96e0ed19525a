"""Results as JSON, and all of them as one Markdown table."""

import json
import os
import platform
import textwrap
import time

from .counters import NAMES, USER, processor
from .stats import verdict

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
# Columns of a line of prose in a page (xtask tidy has the rule), and how lines are broken.
COLUMNS = 118
WHOLE_WORDS = {"break_long_words": False, "break_on_hyphens": False}
# Processors that names of files in bench/results tell apart.
KINDS = ["epyc", "ryzen", "xeon", "core"]
# The columns after the deciding counter.
FURTHER = [USER, "instructions", "empty_slots", "l1i_misses", "taken_branches"]


def machine():
    """What was measured on."""
    return f"{processor().get('model name', '')}, {len(os.sched_getaffinity(0))} cores, Linux {platform.release()}"


def here():
    """What is measured on, and when."""
    return f"{machine()}, {time.strftime('%Y-%m-%d', time.gmtime())}"


def record(name, rows, deciding, how, arguments):
    """What out/bench/NAME.json holds."""
    return {
        "schema_version": 1,
        "load": name,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "processor": processor().get("model name", platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "measured": how,
        "deciding": deciding,
        "quick": arguments.quick,
        "same": arguments.same,
        "rows": rows,
    }


def ratio(summary):
    return f"{summary['ratio']:.3f} [{summary['low']:.3f}, {summary['high']:.3f}]"


def table(folder, names):
    """The table of all results in `folder`, in the order of `names`."""
    records = []
    for name in names:
        path = os.path.join(folder, f"{name}.json")
        if os.path.exists(path):
            with open(path) as f:
                records.append(json.load(f))
    if not records:
        return "No results yet.\n"
    lines = []
    for deciding in dict.fromkeys(r["deciding"] for r in records):
        group = [r for r in records if r["deciding"] == deciding]
        lines += section(group, deciding)
    return "\n".join(lines) + "\n"


def section(records, deciding):
    """One table for the results that were measured in the same way."""
    rows = [(r, row) for r in records for row in r["rows"] if deciding in row["summary"]]
    further = [c for c in FURTHER if any(c in row["summary"] for _, row in rows)]
    head = ["program and load", "rounds", f"{NAMES[deciding]} [interval]", *(NAMES[c] for c in further), "verdict", "pause", "active after"]
    lines = [f"Measured: {records[0]['measured']}.", "", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for _, row in rows:
        summary = row["summary"]
        apply = row.get("attach") or {}
        cells = [row["title"], str(summary[deciding]["rounds"]), ratio(summary[deciding])]
        cells += ["-" if c not in summary else ratio(summary[c]) if c == USER else f"{summary[c]['ratio']:.3f}" for c in further]
        cells += [verdict(summary[deciding]), pause(apply), in_force(apply)]
        lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    for where in dict.fromkeys(place(r, row) for r, row in rows):
        lines.append(f"- {where}")
    return lines + [""]


def place(r, row):
    return f"{r['processor']}, {r['cores']} cores, Linux {r['kernel']}, {r['date']}, {row['restitch']}"


def pause(apply):
    value = (apply.get("apply") or {}).get("pause_us")
    return f"{value / 1000:.1f} ms" if value else "-"


def in_force(apply):
    ms = (apply.get("apply") or {}).get("in_force_ms")
    return f"{ms / 1000:.1f} s" if ms else "-"


def wrapped(text):
    """`text` with lines that a page may have; rows of tables cannot be broken."""
    lines = text.split("\n")
    return "\n".join(line if line.startswith("|") else textwrap.fill(line, COLUMNS, **WHOLE_WORDS) for line in lines)


def write_result(folder, question, title, command, text, kind=None):
    """A new file of `folder` (bench/results) with a table; its path. Files that are there are not changed: a second one
    of a day gets a number. Its name has the kind of processor, or what is given for that."""
    model = processor().get("model name", "").lower()
    kind = kind or next((name for name in KINDS if name in model), "other")
    stem = f"{time.strftime('%Y-%m-%d', time.gmtime())}-{kind}-{question}"
    for number in range(1, 1000):
        path = os.path.join(folder, f"{stem}-{number}.md" if number > 1 else f"{stem}.md")
        try:
            with open(path, "x") as f:
                f.write(f"# {title}\n\nMade by `{command}`.\n\n{wrapped(text)}")
            return path
        except FileExistsError:
            continue
    raise OSError(f"{folder} has a thousand files named {stem}; remove some")


def insert(page, text, begin=BEGIN, end=END):
    """Replaces what stands between the markers of `page`."""
    with open(page) as f:
        old = f.read()
    head, has_begin, rest = old.partition(begin)
    _, has_end, tail = rest.partition(end)
    if not has_begin or not has_end:
        raise OSError(f"{page} lacks the lines {begin} and {end}, between which the table belongs")
    with open(page, "w") as f:
        f.write(f"{head}{begin}\n{wrapped(text)}{end}{tail}")

"""What the workers of the demo do: one function a task, which gets the job and its lease, and completes it."""

import hashlib
import os
import time
from pathlib import Path

from psycopg.types.json import Jsonb

# Silence for so long, and others may take the job. Short, so that the demo shows it soon.
LEASE = "2 s"
RETRY = {"max_attempts": 30, "initial": "100ms", "factor": 2, "max": "1s"}
MAX_FILES = 5000
# A file is counted in so many pieces, with a heartbeat after each.
PIECES = 4


def text_files(folder):
    """The text files below a folder, each once: symbolic links are followed to what they mean."""
    found = {}
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(place, name).resolve()
            if not name.startswith(".") and path.is_file() and is_text(path):
                found.setdefault(str(path))
                if len(found) > MAX_FILES:
                    raise ValueError(f"{folder} has more than {MAX_FILES} text files")
    return list(found)


def is_text(path):
    try:
        str(path).encode()
        with path.open("rb") as file:
            return b"\0" not in file.read(8192)
    except (OSError, UnicodeEncodeError):
        return False


def read(path):
    return Path(path).read_text(encoding="utf-8", errors="replace")


def definition(files):
    """One step a file, all of them at once; then merge, a person's approval, and the report."""
    digits = len(str(len(files)))
    counts = [
        {"key": f"count_{n + 1:0{digits}}", "task": "count_words", "input": {"file": f"$.input.files[{n}]"}}
        for n in range(len(files))
    ]
    merge = {"key": "merge", "task": "merge_counts", "after": [step["key"] for step in counts]}
    approved = {"key": "approved", "event": "approved", "after": ["merge"], "timeout": "1 hour"}
    report = {
        "key": "report",
        "task": "write_report",
        "after": ["approved"],
        "input": {"path": "$.input.report", "counted": "$.steps.merge.output", "approved": "$.steps.approved.output"},
    }
    for step in [*counts, merge, report]:
        step |= {"lease": LEASE, "retry": RETRY}
    return {"name": "word_report", "result": "report", "steps": [*counts, merge, approved, report]}


def list_files(job, lease):
    """Lists the files and starts their workflow. Both are one transaction with the completion: a worker that dies here leaves
    either a finished job and a started workflow, or neither."""
    files = text_files(job.input["folder"])
    if not files:
        raise ValueError(f"there are no text files in {job.input['folder']}")
    with lease.conn.transaction():
        started = lease.conn.execute(
            "SELECT * FROM sayiir.workflow_start_graph(%s, %s, workflow_id => %s)",
            [
                Jsonb(definition(files)),
                Jsonb({"files": files, "report": job.input["report"]}),
                job.input["workflow_id"],
            ],
        ).fetchone()
        lease.complete({"files": len(files), "workflow_id": started.workflow_id})


def count_words(job, lease):
    """Counts the words of one file. The row and the completion are one transaction, so the file is counted exactly once however
    often its job is tried."""
    path = job.input["file"]
    lines = read(path).splitlines()
    words = 0
    for piece in range(PIECES):
        words += sum(len(line.split()) for line in lines[piece::PIECES])
        time.sleep(lease.pace / PIECES)
        lease.heartbeat(piece + 1, PIECES)
    with lease.conn.transaction():
        lease.conn.execute(
            "INSERT INTO demo.word_count (workflow_id, file, words, worker) VALUES (%s, %s, %s, %s)",
            [job.workflow_id, path, words, lease.worker],
        )
        lease.complete({"file": path, "words": words})


def merge_counts(job, lease):
    """Gets the default input of a step: what each prerequisite came to, by its key."""
    counts = {end["output"]["file"]: end["output"]["words"] for end in job.input.values()}
    lease.complete({"words": sum(counts.values()), "files": counts})


def write_report(job, lease):
    """Writes the report beside its place and moves it there: trying it again does no harm."""
    path, counted = Path(job.input["path"]), job.input["counted"]
    lines = [f"{words:>10}  {file}" for file, words in sorted(counted["files"].items())]
    lines += [f"{counted['words']:>10}  words in {len(lines)} files, approved by {job.input['approved']['by']}"]
    text = "\n".join(lines) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{lease.worker}")
    draft.write_text(text, encoding="utf-8")
    draft.rename(path)
    digest = hashlib.sha256(text.encode()).hexdigest()
    lease.complete({"report": str(path), "sha256": digest, "words": counted["words"], "files": len(counted["files"])})


TASKS = {task.__name__: task for task in [list_files, count_words, merge_counts, write_report]}

"""What examples/ holds, run as a user would run it."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

from flows import healthy
from support import wait_until

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
LICENCES = "/usr/share/common-licenses"


def environment(cluster, uri):
    path = f"{cluster.bin}{os.pathsep}{os.environ['PATH']}"
    return {name: value for name, value in os.environ.items() if name != "SAYIIR_URI"} | {"PATH": path} | uri


# Hello


def test_hello_is_what_the_readme_shows(cluster, fresh):
    output = cluster.client("psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", fresh, "-f", str(EXAMPLES / "hello.sql"))
    lines = output.splitlines()
    assert lines[0].startswith("hello|1|") and "|created|" in lines[0]
    assert lines[1:] == ["hello-1|started", "1", '{"text": "Hello, Ada"}']

    def statements(text):
        return [line for line in text.splitlines() if line and not line.startswith("--")]

    readme = (ROOT / "README.md").read_text()
    block = re.search(r"^```sql\n(.*?)^```", readme[readme.index("## Hello, world") :], re.DOTALL | re.MULTILINE)
    assert statements((EXAMPLES / "hello.sql").read_text()) == statements(block[1])


# The worker loop in three languages

TEXTS = {
    "to be or not to be": 6,
    "": 0,
    " \n\tone\r\n": 1,
    "it's \"quoted\", \\back\\slash $1 $$ :'name' %s": 7,
    "Größe, naïve, 日本語 🙂": 4,
    "'; DROP TABLE sayiir.job; --": 5,
}


@pytest.fixture(params=["shell", "python", "node"])
def worker(cluster, fresh, request):
    """A running worker example, and the database it works for."""
    if request.param == "shell":
        command = [str(EXAMPLES / "worker.sh")]
    elif request.param == "python":
        command = [sys.executable, str(EXAMPLES / "worker.py")]
    else:
        # A module finds its packages beside itself only.
        copy = ROOT / "target" / "node" / "worker.mjs"
        shutil.copy(EXAMPLES / "worker.mjs", copy)
        command = ["node", str(copy)]
    process = subprocess.Popen(
        command,
        env=environment(cluster, {"SAYIIR_URI": cluster.uri(fresh)}),
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    yield process, fresh
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def ended(conn, job_id):
    job = conn.execute("SELECT * FROM sayiir.job_get(%s)", [job_id]).fetchone()
    return job.status in ("succeeded", "failed") and job


def test_a_worker_loop(worker, connect):
    process, database = worker
    conn = connect(dbname=database, row_factory=namedtuple_row)
    jobs = conn.execute(
        "SELECT * FROM sayiir.job_enqueue_many('count_words', %s)", [Jsonb([{"text": text} for text in TEXTS])]
    ).fetchall()
    bad = conn.execute("SELECT * FROM sayiir.job_enqueue('count_words', '{\"txt\": 1}', max_attempts => 1)").fetchone()

    results = [wait_until(lambda: ended(conn, job.job_id), timeout=30) for job in jobs]
    assert [(job.status, job.output) for job in results] == [("succeeded", {"words": n}) for n in TEXTS.values()]
    assert {job.attempt for job in results} == {1}

    failed = wait_until(lambda: ended(conn, bad.job_id), timeout=30)
    assert (failed.status, failed.error_code) == ("failed", "failed")
    assert failed.error_message
    assert process.poll() is None, "the worker did not survive a job that failed"
    assert healthy(conn) == []


# The demo


def demo(cluster, *arguments, **env):
    command = [str(ROOT / "scripts" / "demo"), *arguments]
    return subprocess.run(command, env=environment(cluster, env), text=True, capture_output=True, timeout=100)


def test_the_demo(cluster, fresh, connect, tmp_path):
    uri = cluster.uri(fresh)
    # Twice the same text under two names, a link to one of them, a file in a folder, and what is no text.
    for name in ["GPL-2", "BSD"]:
        shutil.copy(f"{LICENCES}/{name}", tmp_path / name)
    shutil.copy(f"{LICENCES}/BSD", tmp_path / "a copy of 'BSD'")
    (tmp_path / "link").symlink_to(tmp_path / "BSD")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "$.steps ünï").write_text("three little words")
    (tmp_path / "empty").write_text("")
    (tmp_path / "binary").write_bytes(b"a\0b")
    words = {name: len((tmp_path / name).read_text().split()) for name in ["GPL-2", "BSD", "a copy of 'BSD'", "empty"]}
    words["folder/$.steps ünï"] = 3

    run = demo(cluster, str(tmp_path), "--workflow-id", "first", SAYIIR_URI=uri)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"each of {len(words)} files was counted exactly once, {sum(words.values())} words" in run.stdout
    assert re.search(r"killed (worker-\d) .* while it held (count_\d), attempt 1, epoch (\d+)\n", run.stdout)
    assert re.search(
        r"verified: count_\d was lost by worker-\d \(epoch \d+\) and counted by worker-\d \(attempt 2", run.stdout
    )

    conn = connect(dbname=fresh)
    counted = "SELECT file, words FROM demo.word_count WHERE workflow_id = 'first'"
    expected = {(str((tmp_path / name).resolve()), count) for name, count in words.items()}
    rows = conn.execute(counted).fetchall()
    assert len(rows) == len(expected) and set(rows) == expected
    result = conn.execute("SELECT sayiir.workflow_result('first')").fetchone()[0]
    assert (result["files"], result["words"]) == (len(words), sum(words.values()))
    report = Path(result["report"]).read_text()
    assert all(file in report for file, _ in rows) and "approved by the demo" in report
    Path(result["report"]).unlink()
    assert healthy(conn) == []

    # Again, after one that was given up in the middle.
    conn.execute("""SELECT * FROM sayiir.workflow_start_graph('{"name": "word_report", "steps": [{"key": "a", "event": "x"}]}',
        workflow_id => 'given up')""")
    run = demo(cluster, LICENCES, "--no-kill", "--pace", "0", "--workflow-id", "second", SAYIIR_URI=uri)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "cancelled given up" in run.stdout and "exactly once" in run.stdout and "killed" not in run.stdout
    assert conn.execute("SELECT sayiir.workflow_status('given up')").fetchone()[0] == "cancelled"
    names = [
        name for (name,) in conn.execute("SELECT file FROM demo.word_count WHERE workflow_id = 'second' ORDER BY file")
    ]
    files = sorted({str(path.resolve()) for path in Path(LICENCES).iterdir()})
    assert names == files
    Path(conn.execute("SELECT sayiir.workflow_result('second') ->> 'report'").fetchone()[0]).unlink()


def test_what_the_demo_refuses(cluster, fresh, tmp_path):
    uri = cluster.uri(fresh)
    (tmp_path / "binary").write_bytes(b"a\0b")
    for run, message in [
        (demo(cluster), "SAYIIR_URI is not set; run 'make demo'"),
        (demo(cluster, str(tmp_path / "none"), SAYIIR_URI=uri), "there is no folder"),
        (demo(cluster, str(tmp_path), SAYIIR_URI=uri), "there are no text files in"),
        (demo(cluster, LICENCES, SAYIIR_URI=cluster.uri()), "the database has no extension sayiir"),
    ]:
        assert run.returncode != 0 and message in run.stderr, run
        assert "Traceback" not in run.stderr


def test_the_demo_reports_a_failure(cluster, fresh, connect):
    """A workflow that cannot succeed ends the demo with the reason, not with a wait for ever."""
    conn = connect(dbname=fresh)
    conn.execute("CREATE SCHEMA demo")
    conn.execute(
        "CREATE TABLE demo.word_count (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
        " workflow_id text, file varchar(30), words bigint, worker text)"
    )
    run = demo(cluster, LICENCES, "--no-kill", "--pace", "0", SAYIIR_URI=cluster.uri(fresh))
    assert run.returncode != 0 and "Traceback" not in run.stderr
    assert "has failed" in run.stderr, run.stderr

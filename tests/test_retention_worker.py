"""The background worker prunes by itself."""

from jobs import a_task, complete, enqueue, leased, value
from support import wait_until


def test_prunes_without_any_call(cluster, db, connect):
    with cluster.connect() as admin:
        admin.execute(f"ALTER DATABASE {db} SET sayiir.retention_jobs = '1 ms'")
    conn = connect()
    job = leased(conn)
    complete(conn, job)
    conn.execute("UPDATE sayiir.retention SET due = '-infinity'")
    # It comes when something is due, at the latest after half a minute.
    enqueue(conn, a_task(), run_at=value(conn, "SELECT clock_timestamp() + interval '100 ms'"))
    wait_until(lambda: value(conn, "SELECT count(*) FROM sayiir.job WHERE job_id = %s", job.job_id) == 0, timeout=40)

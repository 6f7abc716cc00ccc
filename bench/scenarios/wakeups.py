"""What wake-ups cost writers: 16 clients that enqueue one job a transaction, with sayiir.notify on and off."""

from harness import SCRIPTS, Result, alternate
from scenarios.jobs import empty


def run(server, scale):
    result = Result("enqueue with 16 clients, wake-ups on and off")
    transactions = scale.pick(400, 2_000)
    with server.connect() as conn, server.connect() as listener:
        listener.execute("LISTEN sayiir_job_ready")

        def measure(name, value):
            def once():
                empty(conn)
                conn.execute(f"ALTER DATABASE {server.dbname} SET sayiir.notify = {value}")
                result.add(name, "jobs/s", server.pgbench(SCRIPTS / "enqueue.sql", 16, transactions))
                for _ in listener.notifies(timeout=0):
                    pass

            return once

        alternate(max(2 * scale.rounds, 5), {"on": measure("on", "on"), "off": measure("off", "off")})
        conn.execute(f"ALTER DATABASE {server.dbname} RESET sayiir.notify")
    result.ratio("on / off", "off", 0.9, of="on")
    yield result

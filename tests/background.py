"""A call in another session, which the test lets wait for a lock and then go on."""

import threading

from support import wait_for_lock


class Background:
    """Runs work(conn) in a thread. The connection is the thread's own."""

    def __init__(self, conn, work):
        self.conn = conn
        self._answer = None
        self._error = None
        self._thread = threading.Thread(target=self._run, args=[work], daemon=True)
        self._thread.start()

    def _run(self, work):
        try:
            self._answer = work(self.conn)
        except Exception as error:  # raised again where the answer is asked for
            self._error = error

    def is_blocked(self, observer):
        """Waits until the session waits for a lock, as another session sees it."""
        wait_for_lock(observer, self.conn.info.backend_pid)
        return self

    def answer(self, timeout=30):
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the call has not come back"
        if self._error:
            raise self._error
        return self._answer


def together(*calls):
    """Calls each function in a thread of its own, all at one moment; answers in order."""
    barrier = threading.Barrier(len(calls))

    def at_once(call):
        def work(_):
            barrier.wait(30)
            return call()

        return work

    threads = [Background(None, at_once(call)) for call in calls]
    return [thread.answer() for thread in threads]

"""The usual path of an effect: begin, finish, fail, and what a second caller is told."""

from datetime import timedelta
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from effects import (
    WORKER,
    a_key,
    assert_sound,
    begin,
    expire,
    fail,
    fall_due,
    finish,
    get,
    held,
    running,
    trail,
    transition,
)
from jobs import call, in_background, no_worker, one, refused, value  # noqa: F401
from support import wait_for_lock

pytestmark = pytest.mark.usefixtures("no_worker")

VERIFIED = Jsonb({"verification": {"mode": "authoritative"}})
DEDUPLICATED = Jsonb({"remote_idempotency": True})


@pytest.fixture(autouse=True)
def sound(conn):
    """Whatever a test does, the trails still lead to the records."""
    yield
    assert_sound(conn)


def test_two_calls(conn):
    key = a_key()
    effect = begin(conn, key, input=Jsonb({"amount": 5}))
    assert (effect.decision, effect.status, effect.attempt_count, effect.version) == ("run", "executing", 1, 1)
    assert (effect.lease_owner, effect.lease_epoch) == (WORKER, 1)
    assert effect.lease_expires_at - effect.created_at == timedelta(seconds=30)
    assert effect.idempotency_key == one(conn, "effect_idempotency_key", "pay", key)
    done = finish(conn, effect, {"receipt": 7})
    assert (done.status, done.output, done.version, done.lease_owner) == ("committed", {"receipt": 7}, 2, None)
    assert done.committed_at == done.updated_at == done.attempt_ended_at
    assert trail(conn, effect) == ["attempt_started", "succeeded"]
    again = begin(conn, key, input=Jsonb({"amount": 5}), owner="other")
    assert (again.decision, again.id, again.output) == ("replay", effect.id, {"receipt": 7})


def test_a_second_worker_is_told_to_leave_it(conn):
    effect = running(conn)
    for owner in [WORKER, "other"]:
        again = begin(conn, effect.logical_key, owner=owner)
        assert (again.decision, again.lease_owner, again.version) == ("in_progress", WORKER, 1)


def test_of_two_who_begin_at_once_one_runs(connect):
    first, second, watcher = connect(), connect(), connect()
    key = a_key()
    with first.transaction():
        effect = begin(first, key)
        other = in_background(lambda: begin(second, key, owner="other"))
        wait_for_lock(watcher, second.info.backend_pid)
    assert effect.decision == "run"
    assert other.join().decision == "in_progress"


def test_who_waited_for_one_that_rolled_back_runs_with_a_whole_lease(connect):
    first, second, watcher = connect(), connect(), connect()
    key = a_key()
    with first.transaction(force_rollback=True):
        begin(first, key)
        other = in_background(lambda: begin(second, key, owner="other", ttl="100 ms"))
        wait_for_lock(watcher, second.info.backend_pid)
        # Longer than the lease, on the clock that counts.
        released = value(first, "SELECT clock_timestamp() FROM pg_sleep(0.2)")
    effect = other.join()
    assert (effect.decision, effect.lease_owner) == ("run", "other")
    # Counted from when the key was free, not from when it was asked for.
    assert effect.lease_expires_at > released + timedelta(milliseconds=50)


def test_the_same_key_for_something_else_is_refused(conn):
    key = a_key()
    effect = running(conn, key, input=Jsonb({"a": 1, "b": [1.5, None]}))
    for what, kind, named in [
        ("kind", "read", {"input": Jsonb({"a": 1, "b": [1.5, None]})}),
        ("input", "irreversible_write", {"input": Jsonb({"a": 2, "b": [1.5, None]})}),
        ("input", "irreversible_write", {}),
        ("execution_contract", "irreversible_write",
         {"input": Jsonb({"b": [1.5, None], "a": 1}), "execution_contract": DEDUPLICATED}),
    ]:  # fmt: skip
        with refused("effect.mismatch") as detail:
            begin(conn, key, kind, **named)
        assert (detail.what, detail.id) == (what, str(effect.id))
    # The order of keys says nothing.
    again = begin(conn, key, input=Jsonb({"b": [1.50, None], "a": 1}))
    assert again.decision == "in_progress"


def test_a_null_output_is_not_no_output(conn):
    with_null, without = running(conn), running(conn)
    finish(conn, with_null, None)
    one(conn, "effect_finish", *held(without))
    query = "SELECT output IS NULL, output::text FROM sayiir.effect_begin('pay', %s, 'irreversible_write', 'x')"
    assert conn.execute(query, [with_null.logical_key]).fetchone() == (False, "null")
    assert conn.execute(query, [without.logical_key]).fetchone() == (True, None)


@pytest.mark.parametrize(
    ("class_", "contract", "expected", "course"),
    [
        ("transient", None, "pending", ["retry_scheduled"]),
        ("rate_limited", None, "pending", ["retry_scheduled"]),
        ("permanent", None, "failed", ["failed"]),
        ("validation", None, "failed", ["failed"]),
        ("ambiguous", None, "needs_intervention", ["outcome_unknown", "escalated"]),
        ("ambiguous", DEDUPLICATED, "pending", ["outcome_unknown", "retry_scheduled"]),
        ("ambiguous", VERIFIED, "unknown", ["outcome_unknown"]),
        ("transient", Jsonb({"max_attempts": 1}), "failed", ["failed"]),
        ("transient", Jsonb({"automatic_retry": False}), "failed", ["failed"]),
        ("ambiguous", Jsonb({"remote_idempotency": True, "max_attempts": 1}), "needs_intervention",
         ["outcome_unknown", "escalated"]),
    ],
)  # fmt: skip
def test_what_a_failure_leads_to(conn, class_, contract, expected, course):
    effect = running(conn, execution_contract=contract)
    failed = fail(conn, effect, class_, "it said no")
    assert (failed.status, failed.lease_owner) == (expected, None)
    error = {"class": class_} | ({"retry_after": None} if class_ == "rate_limited" else {})
    assert failed.last_error == {"class": error, "message": "it said no"}
    assert trail(conn, effect)[1:] == course
    assert failed.may_have_applied == (class_ == "ambiguous")


def test_a_retry_waits_and_then_runs(conn):
    effect = running(conn)
    failed = fail(conn, effect)
    delay = failed.next_attempt_at - failed.updated_at
    assert timedelta(milliseconds=500) <= delay <= timedelta(seconds=1)
    assert begin(conn, effect.logical_key).decision == "wait"
    fall_due(conn, effect)
    again = begin(conn, effect.logical_key, owner="other")
    assert (again.decision, again.attempt_count, again.lease_epoch) == ("run", 2, 2)
    assert again.idempotency_key == effect.idempotency_key


def test_a_worker_asks_for_later_but_not_for_earlier(conn):
    later = value(conn, "SELECT date_trunc('milliseconds', clock_timestamp()) + interval '1 hour'")
    assert fail(conn, running(conn), next_attempt_at=later).next_attempt_at == later
    failed = fail(conn, running(conn), next_attempt_at=later - timedelta(hours=2))
    assert failed.next_attempt_at > failed.updated_at


def test_a_dead_worker_leaves_doubt_and_the_contract_decides(conn):
    cases = {
        None: ("needs_intervention", ["lease_expired", "escalated"]),
        "verified": ("verify", ["lease_expired", "verification_started"]),
        "deduplicated": ("run", ["lease_expired", "retry_scheduled", "attempt_started"]),
    }
    contracts = {None: None, "verified": VERIFIED, "deduplicated": DEDUPLICATED}
    for name, (decision, course) in cases.items():
        effect = running(conn, execution_contract=contracts[name])
        expire(conn, effect)
        again = begin(conn, effect.logical_key, owner="other", execution_contract=contracts[name])
        assert again.decision == decision
        assert again.may_have_applied
        assert trail(conn, effect)[1:] == course
        with refused("effect.lease_lost"):
            finish(conn, effect)
        assert get(conn, effect).version == again.version


def test_a_check_confirms_or_leaves_the_outcome_unknown(conn):
    effect = running(conn, execution_contract=VERIFIED)
    expire(conn, effect)
    checking = begin(conn, effect.logical_key, execution_contract=VERIFIED)
    assert checking.status == "verifying"
    assert fail(conn, checking).status == "unknown"
    fall_due(conn, effect)
    checking = begin(conn, effect.logical_key, execution_contract=VERIFIED)
    done = finish(conn, checking, {"found": True})
    assert (done.status, done.output) == ("committed", {"found": True})
    assert trail(conn, effect)[-1] == "verification_confirmed"


def test_a_repeated_answer_is_answered_again(conn):
    effect = running(conn)
    done = finish(conn, effect, 1)
    assert finish(conn, effect, 2) == done
    with refused("effect.lease_lost"):
        fail(conn, effect)
    other = running(conn)
    failed = fail(conn, other)
    assert fail(conn, other, "permanent") == failed
    with refused("effect.lease_lost"):
        finish(conn, other)


def test_nothing_happens_to_who_holds_no_lease(conn):
    effect = running(conn)
    before = get(conn, effect)
    for changes, code in [
        ({"lease_owner": "other"}, "effect.lease_lost"),
        ({"lease_epoch": 2}, "effect.lease_lost"),
        ({"version": 0}, "effect.version_conflict"),
        ({"id": uuid4()}, "effect.not_found"),
    ]:
        with refused(code):
            finish(conn, effect._replace(**changes))
        with refused(code):
            fail(conn, effect._replace(**changes))
    expire(conn, effect)
    with refused("effect.lease_lost") as detail:
        finish(conn, effect)
    assert (detail.reason, detail.current_epoch) == ("expired", 1)
    assert get(conn, effect)._replace(lease_expires_at=None) == before._replace(lease_expires_at=None)


def test_begin_warns_in_a_transaction_block(conn):
    notices = []
    conn.add_notice_handler(lambda notice: notices.append((notice.severity, notice.message_primary)))
    running(conn)
    assert notices == []
    with conn.transaction():
        running(conn)
    [(severity, message)] = notices
    assert severity == "WARNING" and "commit before acting" in message


def test_begin_is_durable_even_when_its_caller_does_not_wait_for_the_disk(conn):
    conn.execute("SET synchronous_commit = off")
    with conn.transaction():
        key = a_key()
        begin(conn, key)
        assert value(conn, "SHOW synchronous_commit") == "on"
        finished = begin(conn, key)
    assert finished.decision == "in_progress"
    assert value(conn, "SHOW synchronous_commit") == "off"
    with conn.transaction():
        begin(conn, key)
        assert value(conn, "SHOW synchronous_commit") == "off", "nothing begins here"


def test_arguments_are_checked(conn):
    for function, args, argument in [
        ("effect_begin", [None, "k", "read", "w"], "name"),
        ("effect_begin", ["", "k", "read", "w"], "name"),
        ("effect_begin", ["n" * 201, "k", "read", "w"], "name"),
        ("effect_begin", ["n", "k" * 513, "read", "w"], "logical_key"),
        ("effect_begin", ["n", "k\n", "read", "w"], "logical_key"),
        ("effect_begin", ["n", "k", "write", "w"], "kind"),
        ("effect_begin", ["n", "k", "read", ""], "owner"),
        ("effect_begin", ["n", "k", "read", "w", "0 s"], "ttl"),
        ("effect_fail", [uuid4(), "w", 1, 1, "odd", "m"], "class"),
        ("effect_finish", [uuid4(), None, 1, 1], "owner"),
    ]:
        with pytest.raises(psycopg.Error) as caught:
            call(conn, function, *args)
        assert f'"argument":"{argument}"' in caught.value.diag.message_detail
    for contract in [{"max_attempt": 3}, {"kind": "read"}, {"max_attempts": -1}, {"verification": "none"}]:
        with pytest.raises(psycopg.Error, match="execution_contract"):
            begin(conn, a_key(), execution_contract=Jsonb(contract))


def test_organizations_do_not_share_a_key(conn):
    key = a_key()
    mine = begin(conn, key, organization_id="acme")
    theirs = begin(conn, key, organization_id="other")
    nobodys = begin(conn, key)
    assert {mine.decision, theirs.decision, nobodys.decision} == {"run"}
    assert len({mine.idempotency_key, theirs.idempotency_key, nobodys.idempotency_key}) == 3
    assert mine.idempotency_key == one(conn, "effect_idempotency_key", "pay", key, organization_id="acme")
    assert call(conn, "effect_get", mine.id) == []
    assert call(conn, "effect_get", mine.id, "other") == []
    assert one(conn, "effect_get", mine.id, "acme").id == mine.id
    with refused("effect.not_found"):
        transition_as(conn, mine, "other")
    assert call(conn, "effect_events", mine.id, "other") == []
    finish(conn, mine)


def transition_as(conn, effect, organization):
    one(conn, "effect_transition", effect.id, effect.version, "succeeded", organization_id=organization)


def test_the_published_keys_and_fingerprint(conn):
    assert one(conn, "effect_idempotency_key", "payment.charge", "order_5824") == UUID(
        "ab211c89-566b-5012-bd33-3a7f81351a08"
    )
    assert one(conn, "effect_idempotency_key", "payment.charge", "order_5824", True) == UUID(
        "46877ef3-8997-5e94-a1ac-4be0bd2782b4"
    )
    document = Jsonb({"b": [True, None], "a": 'x"y'})
    assert one(conn, "effect_fingerprint", document) == (
        "sha256:f30e11011c10c5d0aa8bc6c5d5d3524c5674821d8e100c82b9c1de63bda884e8"
    )
    assert one(conn, "effect_fingerprint", None) is None
    numbers = "SELECT sayiir.effect_fingerprint('[12345678901234567.89]') <> sayiir.effect_fingerprint('[12345678901234567.90]')"
    assert value(conn, numbers)


def test_a_raw_transition_goes_on_where_begin_stopped(conn):
    effect = running(conn, execution_contract=VERIFIED)
    lease = {"lease_owner": WORKER, "lease_epoch": 1}
    transition(conn, effect, "effect.outcome_unknown", **lease)
    transition(conn, effect, "start_verification", **lease)
    assert transition(conn, effect, "verification_not_applied", **lease).status == "failed"

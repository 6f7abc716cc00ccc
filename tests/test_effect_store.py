"""The raw functions of the ledger: what the published suite does not ask, locks, clocks, rights."""

import contextlib
from datetime import UTC, datetime, timedelta
from uuid import uuid4

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
from jobs import call, in_background, isolate, no_worker, one, refused, value  # noqa: F401
from support import wait_for_lock, wait_until

pytestmark = pytest.mark.usefixtures("no_worker")

CONTRACT = {
    "format_version": 1, "kind": "read", "remote_idempotency": False, "verification": {"mode": "none"},
    "handler_version": "1", "adapter": None, "require_approval": False, "automatic_retry": True, "max_attempts": 5,
}  # fmt: skip


@pytest.fixture(autouse=True)
def sound(conn):
    yield
    assert_sound(conn)


def inserted(conn, key=None, kind="irreversible_write", **named):
    return one(conn, "effect_insert_or_get", "pay", key or a_key(), kind, **named)


def acquire(conn, effect, owner=WORKER, ttl_ms=30_000, **named):
    return one(conn, "effect_acquire_lease", effect.id, owner, ttl_ms, **named)


def renew(conn, lease, ttl_ms=30_000):
    return one(conn, "effect_renew_lease", lease.effect_id, lease.owner, lease.epoch, ttl_ms)


# What the suite leaves open


def test_a_second_insert_answers_the_first_whatever_it_says(conn):
    first = inserted(conn, input=Jsonb(None), created_by="ann")
    again = one(conn, "effect_insert_or_get", "pay", first.logical_key, "read", input=Jsonb(1))
    assert (first.inserted, again.inserted) == (True, False)
    assert again[1:] == first[1:]


def test_an_id_belongs_to_one_key(conn):
    effect = inserted(conn)
    with refused("effect.id_conflict") as detail:
        inserted(conn, id=effect.id)
    assert detail.id == str(effect.id)


@pytest.mark.parametrize(
    "change",
    [{"extra": 1}, {"kind": "odd"}, {"max_attempts": "5"}, {"adapter": 1}, {"verification": {"mode": "eventually_consistent"}}],
)
def test_a_contract_that_no_client_could_read_is_refused(conn, change):
    inserted(conn, execution_contract=CONTRACT)
    with refused("argument.invalid") as detail:
        inserted(conn, execution_contract=CONTRACT | change)
    assert detail.argument == "execution_contract"
    for key in CONTRACT.keys() - {"adapter"}:
        with refused("argument.invalid"):
            inserted(conn, execution_contract={name: CONTRACT[name] for name in CONTRACT if name != key})


def test_an_error_that_no_client_could_read_is_refused(conn):
    effect = inserted(conn)
    for error in [{"message": 1}, {"class": "transient", "message": "x"}, {"class": {"class": "odd"}, "message": "x"}]:
        with refused("argument.invalid") as detail:
            transition(conn, effect, "start_attempt", error=error)
        assert detail.argument == "error"


def test_json_null_is_an_output(conn):
    effect = inserted(conn)
    transition(conn, effect, "start_attempt")
    query = "SELECT output IS NULL, output::text FROM sayiir.effect_transition(%s, 1, 'succeeded', output => %s)"
    assert conn.execute(query, [effect.id, Jsonb(None)]).fetchone() == (False, "null")
    other = inserted(conn)
    transition(conn, other, "start_attempt")
    assert conn.execute(query, [other.id, None]).fetchone() == (True, None)


def test_doubt_goes_only_with_evidence(conn):
    def doubtful(*transitions, kind="irreversible_write"):
        effect = inserted(conn, kind=kind)
        for name in ["start_attempt", "outcome_unknown", *transitions]:
            transition(conn, effect, name)
        return get(conn, effect)

    for path in [["schedule_retry"], ["resolved_retry"], ["resolved_applied"], ["schedule_retry", "start_attempt"],
                 ["start_verification", "verification_confirmed"]]:  # fmt: skip
        assert doubtful(*path).may_have_applied, path
    for path in [["resolved_not_applied"], ["start_verification", "verification_not_applied"],
                 ["start_verification", "schedule_retry"]]:  # fmt: skip
        assert not doubtful(*path).may_have_applied, path
    effect = doubtful("schedule_retry", "start_attempt")
    with refused("effect.invalid_transition") as detail:
        transition(conn, effect, "failed_definitively")
    assert (detail.reason, getattr(detail, "from"), detail.transition) == (
        "may_have_applied",
        "executing",
        "failed_definitively",
    )
    read = doubtful("schedule_retry", "start_attempt", kind="read")
    assert transition(conn, read, "failed_definitively").status == "failed"


def test_what_is_undone_was_applied_once(conn):
    effect = inserted(conn)
    for name in ["start_attempt", "succeeded"]:
        committed = transition(conn, effect, name)
    for name in ["start_compensation", "compensation_failed"]:
        failed = transition(conn, effect, name)
    assert failed.committed_at == committed.committed_at
    retried = one(conn, "effect_resolve", effect.id, "retry", "ann")
    assert (retried.status, retried.next_attempt_at) == ("compensating", retried.updated_at)
    undone = transition(conn, effect, "compensation_succeeded")
    assert (undone.status, undone.committed_at) == ("compensated", committed.committed_at)


def test_an_output_has_version_1_unless_it_says_otherwise(conn):
    effect = inserted(conn)
    transition(conn, effect, "start_attempt", output=Jsonb(1), output_schema_version=11)
    untouched = transition(conn, effect, "start_verification", output_schema_version=12)
    assert untouched.output_schema_version == 11
    assert transition(conn, effect, "verification_confirmed", output=Jsonb(2)).output_schema_version == 1


def test_missing_effects(conn):
    nobody = uuid4()
    for function, args in [
        ("effect_acquire_lease", [nobody, "w", 1]),
        ("effect_renew_lease", [nobody, "w", 1, 1]),
        ("effect_release_lease", [nobody, "w", 1]),
        ("effect_transition", [nobody, 0, "succeeded"]),
        ("effect_transition", [nobody, 0, "succeeded", "w", 1]),
        ("effect_append_observation", [uuid4(), nobody, Jsonb({})]),
        ("effect_assert_lease", [nobody, "w", 1]),
        ("effect_approve", [nobody, "ann"]),
        ("effect_supersede", [nobody, "ann"]),
    ]:
        with refused("effect.not_found") as detail:
            call(conn, function, *args)
        assert detail.id == str(nobody)
    for function in ["effect_get", "effect_events", "effect_observations"]:
        assert call(conn, function, nobody) == []


def test_refusals_carry_what_a_client_needs(conn):
    effect = inserted(conn)
    lease = acquire(conn, effect)
    with refused("effect.lease_held") as detail:
        acquire(conn, effect, "other")
    assert detail.owner == WORKER
    assert datetime.fromtimestamp(detail.expires_at_ms / 1000, UTC) == lease.expires_at
    with refused("effect.version_conflict") as detail:
        one(conn, "effect_transition", effect.id, 5, "start_attempt", WORKER, 1)
    assert (detail.expected, detail.actual) == (5, 0)
    with refused("effect.invalid_transition") as detail:
        one(conn, "effect_transition", effect.id, 0, "effect.succeeded", WORKER, 1)
    assert (getattr(detail, "from"), detail.transition, detail.reason) == ("pending", "succeeded", "table")
    with refused("argument.invalid"):
        one(conn, "effect_transition", effect.id, 0, "start_attempt", WORKER)


def test_the_legal_pairs(conn):
    pairs = call(conn, "effect_transitions")
    assert len(pairs) == 33
    assert ("compensation_failed", "resolved_retry", "effect.resolved_retry", "compensating") in pairs


def test_limits_of_0_and_of_everything(conn):
    effect = inserted(conn)
    assert call(conn, "effect_list", max_rows=0) == []
    assert effect.id in [row.id for row in call(conn, "effect_list", max_rows=2**63 - 1)]
    assert call(conn, "effect_observations", effect.id, max_rows=0) == []
    assert one(conn, "effect_prune", "committed", 0, 0) == 0


def test_leases_that_end_at_once_or_never(conn):
    effect = inserted(conn)
    for ttl_ms in [0, 2**63 - 1]:
        lease = acquire(conn, effect, ttl_ms=ttl_ms)
        with refused("effect.lease_lost") as detail:
            renew(conn, lease)
        assert detail.reason == "expired"
    lease = acquire(conn, effect)
    shorter = renew(conn, lease, 20_000)
    assert shorter.expires_at < lease.expires_at
    with refused("argument.out_of_range"):
        renew(conn, lease, -1)


def test_an_observation_is_stored_once_and_changes_nothing(conn):
    effect = running(conn)
    before = get(conn, effect)
    ids = sorted(uuid4() for _ in range(3))
    for n, observation in enumerate(ids):
        assert one(conn, "effect_append_observation", observation, effect.id, Jsonb({"n": n}))
    assert not one(conn, "effect_append_observation", ids[0], effect.id, Jsonb({"n": 9}))
    seen = call(conn, "effect_observations", effect.id, ids[0], 1)
    assert [(row.id, row.observation) for row in seen] == [(ids[1], {"n": 1})]
    assert get(conn, effect) == before


# Locks and clocks


def test_the_clock_is_read_behind_the_lock(connect):
    conn, other = connect(), connect()
    effect = inserted(conn)
    lease = acquire(conn, effect, ttl_ms=100)
    with other.transaction():
        other.execute("SELECT FROM sayiir.effect WHERE id = %s FOR UPDATE", [effect.id])
        late = in_background(lambda: renew(conn, lease))
        wait_for_lock(other, conn.info.backend_pid)
        # Until the lease is over.
        query = "SELECT clock_timestamp() > %s"
        wait_until(lambda: value(other, query, lease.expires_at))
    with refused("effect.lease_lost") as detail:
        late.join()
    assert detail.reason == "expired"


def test_a_scan_for_work_skips_what_others_change_and_a_list_does_not(connect):
    conn, other = connect(), connect()
    free, busy = inserted(conn, organization_id="scan"), inserted(conn, organization_id="scan")
    with other.transaction():
        other.execute("SELECT FROM sayiir.effect WHERE id = %s FOR UPDATE", [busy.id])
        found = [row.id for row in call(conn, "effect_list", unleased=True, organization_id="scan")]
        assert found == [free.id]
        found = [row.id for row in call(conn, "effect_list", organization_id="scan")]
        assert found == [free.id, busy.id]


def test_a_prune_skips_what_others_change(connect):
    conn, other = connect(), connect()
    free, busy = running(conn, organization_id="prune"), running(conn, organization_id="prune")
    for effect in [free, busy]:
        finish(conn, effect)
    with other.transaction():
        other.execute("SELECT FROM sayiir.effect WHERE id = %s FOR UPDATE", [busy.id])
        assert one(conn, "effect_prune", "committed", 0, organization_id="prune") == 1
    assert call(conn, "effect_get", free.id, "prune") == []
    assert one(conn, "effect_get", busy.id, "prune").status == "committed"


def test_an_observation_is_not_in_the_way_of_the_worker_but_of_a_prune(connect):
    conn, other = connect(), connect()
    mine = {"organization_id": "observed"}
    effect = running(conn, **mine)
    with other.transaction():
        one(other, "effect_append_observation", uuid4(), effect.id, Jsonb({}), **mine)
        finish(conn, effect)
        assert one(conn, "effect_prune", "committed", 0, **mine) == 0
    assert one(conn, "effect_prune", "committed", 0, **mine) == 1
    assert value(conn, "SELECT count(*) FROM sayiir.effect_observation WHERE effect_id = %s", effect.id) == 0


def test_an_insert_that_meets_a_prune_records_the_effect_anew(connect):
    conn, other, watcher = connect(), connect(), connect()
    effect = running(conn)
    finish(conn, effect)
    with other.transaction():
        assert one(other, "effect_prune", "committed", 0) >= 1
        again = in_background(lambda: inserted(conn, effect.logical_key))
        wait_for_lock(watcher, conn.info.backend_pid)
    answer = again.join()
    assert answer.inserted and answer.id != effect.id


def test_a_fixed_snapshot_is_refused_before_anything_changes(connect):
    conn = connect()
    effect = running(conn)
    for level in ["repeatable read", "serializable"]:
        isolate(conn, level)
        for work in [
            lambda: begin(conn, a_key()),
            lambda: finish(conn, effect),
            lambda: fail(conn, effect),
            lambda: inserted(conn),
            lambda: acquire(conn, effect),
            lambda: transition(conn, effect, "succeeded"),
            lambda: one(conn, "effect_prune", "committed", 0),
            lambda: call(conn, "effect_claim_due", "w"),
        ]:
            with refused("call.isolation_unsupported"):
                work()
        assert get(conn, effect).version == 1, "reading is fine"


def test_leases_stay_hot(conn):
    effect = running(conn)
    lease = one(conn, "effect_renew_lease", effect.id, WORKER, 1, 30_000)
    query = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relid = 'sayiir.effect'::regclass"
    with conn.transaction():
        before = conn.execute(query).fetchone()
        for _ in range(5):
            renew(conn, lease)
        one(conn, "effect_release_lease", effect.id, WORKER, 1)
        acquire(conn, effect)
        after = conn.execute(query).fetchone()
    assert [now - then for now, then in zip(after, before, strict=True)] == [7, 7]


def test_the_callers_clock_needs_a_superuser(connect):
    conn = connect()
    long_ago = datetime(2001, 2, 3, tzinfo=UTC)
    with refused("effect.caller_clock_denied"):
        inserted(conn, caller_now=long_ago)
    conn.execute("SET sayiir.allow_caller_clock = on")
    effect = inserted(conn, caller_now=long_ago + timedelta(microseconds=1999))
    assert effect.created_at == long_ago + timedelta(milliseconds=1)
    lease = acquire(conn, effect, caller_now=long_ago)
    assert lease.expires_at == long_ago + timedelta(seconds=30)
    conn.execute("RESET sayiir.allow_caller_clock")
    with contextlib.suppress(psycopg.errors.DuplicateObject):
        conn.execute("CREATE ROLE effect_worker LOGIN IN ROLE sayiir_worker")
    worker = connect(user="effect_worker")
    running(worker)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        worker.execute("SET sayiir.allow_caller_clock = on")
    for function, args in [("effect_approve", [uuid4(), "x"]), ("effect_prune", ["failed", 0]), ("effect_check", [])]:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            call(worker, function, *args)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        worker.execute("UPDATE sayiir.effect SET version = 0")


# With jobs and business rows


def test_a_lease_fences_the_writes_of_its_holder(connect):
    conn, other, watcher = connect(), connect(), connect()
    conn.execute("CREATE TEMP TABLE paid (n int)")
    effect = running(conn)
    with conn.transaction():
        one(conn, "effect_assert_lease", effect.id, WORKER, 1)
        conn.execute("INSERT INTO paid VALUES (1)")
        # Nobody takes over between the check and the commit.
        taking = in_background(lambda: acquire(other, effect, "other"))
        wait_for_lock(watcher, other.info.backend_pid)
    with refused("effect.lease_held"):
        taking.join()
    expire(conn, effect)
    with refused("effect.lease_lost") as detail, conn.transaction():
        conn.execute("INSERT INTO paid VALUES (2)")
        one(conn, "effect_assert_lease", effect.id, WORKER, 1)
    assert detail.reason == "expired"
    assert conn.execute("SELECT n FROM paid").fetchall() == [(1,)]


def test_a_job_and_its_effect_end_together_or_not_at_all(conn):
    one(conn, "job_enqueue", "charge")
    [job] = call(conn, "job_claim", "w", ["charge"])
    effect = running(conn, job.idempotency_key)
    with conn.transaction(force_rollback=True):
        finish(conn, effect, {"ok": 1})
        one(conn, "job_complete", job.job_id, job.epoch)
    assert get(conn, effect).status == "executing"
    assert one(conn, "job_get", job.job_id).status == "leased"
    with conn.transaction():
        finish(conn, effect, {"ok": 1})
        assert one(conn, "job_complete", job.job_id, job.epoch) == "succeeded"
    assert get(conn, effect).status == "committed"
    assert one(conn, "job_get", job.job_id).status == "succeeded"


def test_an_effect_in_the_same_database_happens_exactly_once(conn):
    conn.execute("CREATE TEMP TABLE account (balance int)")
    conn.execute("INSERT INTO account VALUES (100)")
    key = a_key()

    def pay(dies=False):
        with conn.transaction(force_rollback=dies):
            effect = begin(conn, key)
            if effect.decision == "run":
                conn.execute("UPDATE account SET balance = balance - 30")
                finish(conn, effect)
            return effect.decision

    assert [pay(dies=True), pay(), pay()] == ["run", "run", "replay"]
    assert value(conn, "SELECT balance FROM account") == 70


# Many at once


def test_due_work_is_leased_in_order_and_once(connect):
    conn, other = connect(), connect()
    names = ["due"]
    pending = one(conn, "effect_insert_or_get", "due", a_key(), "read")
    retry = one(conn, "effect_begin", "due", a_key(), "read", WORKER)
    fail(conn, retry)
    later = one(conn, "effect_begin", "due", a_key(), "read", WORKER)
    fail(conn, later, next_attempt_at=value(conn, "SELECT clock_timestamp() + interval '1 hour'"))
    approval = one(conn, "effect_insert_or_get", "due", a_key(), "read",
                   execution_contract=CONTRACT | {"require_approval": True})  # fmt: skip
    one(conn, "effect_begin", "due", a_key(), "read", WORKER)
    fall_due(conn, retry)
    with other.transaction():
        [first] = call(other, "effect_claim_due", "a", names, 1)
        assert first.id == pending.id, "the longest due"
        [second] = call(conn, "effect_claim_due", "b", names)
        assert second.id == retry.id
    assert call(conn, "effect_claim_due", "c", names) == []
    assert (second.lease_owner, second.lease_epoch, second.status) == ("b", 2, "pending")
    assert second.lease_expires_at - value(conn, "SELECT clock_timestamp()") <= timedelta(seconds=30)
    transition(conn, second, "start_attempt", lease_owner="b", lease_epoch=2)
    assert get(conn, approval).lease_owner is None
    assert trail(conn, second)[-1] == "attempt_started"
    assert held(second)[1:3] == ("b", 2)

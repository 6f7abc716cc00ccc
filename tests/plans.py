"""The plans of every statement that a call runs inside, by auto_explain."""

import contextlib
import json

import psycopg

_SETTINGS = {
    "log_min_duration": "0",
    "log_nested_statements": "on",
    "log_analyze": "on",
    "log_timing": "off",
    "log_format": "json",
    "log_level": "notice",
}


def has_auto_explain(conn):
    """Not every package of Postgres brings it."""
    try:
        conn.execute("LOAD 'auto_explain'")
    except psycopg.errors.UndefinedFile:
        return False
    return True


@contextlib.contextmanager
def explained(conn):
    """Collects (statement, plan) of what the block executes, nested statements first, the outer one included."""
    plans = []

    def hear(notice):
        _, found, text = notice.message_primary.partition("plan:\n")
        if found:
            plan = json.loads(text)
            plans.append((" ".join(plan["Query Text"].split()), plan["Plan"]))

    for name, setting in _SETTINGS.items():
        conn.execute(f"SET auto_explain.{name} = '{setting}'")
    plans.clear()
    conn.add_notice_handler(hear)
    try:
        yield plans
    finally:
        conn.remove_notice_handler(hear)
        conn.execute("SET auto_explain.log_min_duration = -1")


def nodes(plan, above=()):
    """Every node of a plan with those above it."""
    yield plan, above
    for child in plan.get("Plans", []):
        yield from nodes(child, (plan, *above))

"""examples/effect.sql does what it says."""

from pathlib import Path

EXAMPLE = Path(__file__).parent.parent / "examples" / "effect.sql"


def test_the_effect_in_the_same_database_happens_once(cluster, db):
    output = cluster.client("psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", db, "-f", str(EXAMPLE))
    assert output.splitlines() == ["70", "", "20", "order-1|committed|70", "20"]

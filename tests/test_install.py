"""The extension installs, is the version it says, and leaves nothing behind."""


def test_version(conn):
    library, installed = conn.execute(
        "SELECT sayiir.version(), (SELECT extversion FROM pg_extension WHERE extname = 'sayiir')"
    ).fetchone()
    assert library == installed


def test_server_is_the_one_asked_for(cluster, conn):
    assert conn.info.server_version // 10000 == cluster.major


def test_survives_a_crash(cluster, connect):
    cluster.restart("immediate")
    assert connect().execute("SELECT sayiir.version()").fetchone()


def test_drop_and_create_again(conn):
    conn.execute("DROP EXTENSION sayiir")
    assert conn.execute("SELECT to_regprocedure('sayiir.version()')").fetchone() == (None,)
    conn.execute("CREATE EXTENSION sayiir")

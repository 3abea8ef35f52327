# shellcheck shell=bash disable=SC2034 # the sourcing scripts use the variables
# lib.sh - what the scripts in deploy/ and tests/run share: talking to the person at the terminal,
# installing Debian packages, building, counting cores. Sourced, never run.

FORGE_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
FORGE_CACHE=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/forge
FORGE_MODEL_FILE=SmolLM2-135M-Instruct.Q4_1.gguf

# Debian 12 packages. What the build needs, what the scripts need, what the tests need on top.
FORGE_BUILD_PACKAGES=(gcc libc6-dev cmake ninja-build pkg-config libxxhash-dev libjansson-dev
    libuv1-dev libzmq3-dev libsodium-dev libcurl4-openssl-dev liblzma-dev libprotobuf-c-dev protobuf-c-compiler libucx-dev
    node-llhttp)
# What the program needs where it was not built (deploy/Containerfile).
FORGE_RUN_PACKAGES=(libuv1 libzmq5 libsodium23 libcurl4 libjansson4 libxxhash0 liblzma5 libprotobuf-c1 libucx0)
FORGE_SCRIPT_PACKAGES=(ca-certificates curl jq python3 python3-pip)
FORGE_TEST_PACKAGES=(g++ libcriterion-dev clang-format-14 python3-venv xz-utils procps
    libsimde-dev valgrind iproute2)
FORGE_FULL_PACKAGES=(clang-14 clang libclang-rt-14-dev llvm-14 gcc-aarch64-linux-gnu
    libc6-dev-arm64-cross qemu-user-static)

say() { printf '%s\n' "$*" >&2; }

die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

cores() { nproc 2>/dev/null || echo 1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

# with_progress TITLE LOG COMMAND... - runs the command with its output in LOG. On a terminal one
# line shows the time and the newest line of the log; elsewhere a line appears every ten seconds.
# Says how long it took, or shows the last lines of the log, and returns the exit status. With
# progress_summary set the caller says itself what came out of a success.
with_progress() {
    local title=$1 log=$2 started=$SECONDS status=0 next=10 newest waited=0
    shift 2
    mkdir -p "$(dirname "$log")"
    "$@" >"$log" 2>&1 </dev/null &
    local pid=$!
    progress_pid=$pid # so that the caller's trap can end it
    while kill -0 "$pid" 2>/dev/null; do
        if [ -t 2 ]; then
            newest=$(tail -c 400 "$log" 2>/dev/null | tr -d '\0' | tr '\r' '\n' | tail -n 1)
            printf '\r\033[K  %s  %ds  %.*s' "$title" $((SECONDS - started)) \
                $((${COLUMNS:-100} - ${#title} - 12)) "$newest" >&2
        elif [ $((SECONDS - started)) -ge "$next" ]; then
            newest=$(tail -c 400 "$log" 2>/dev/null | tr -d '\0' | tr '\r' '\n' | tail -n 1)
            printf '  %s  %ds  %.90s\n' "$title" $((SECONDS - started)) "$newest" >&2
            next=$((next + 10))
        fi
        # Quick commands are not made to wait; slow ones are looked at twice a second.
        if [ "$waited" -lt 10 ]; then
            sleep 0.05
            waited=$((waited + 1))
        else
            sleep 0.5
        fi
    done
    wait "$pid" || status=$?
    progress_pid=
    if [ -t 2 ]; then
        printf '\r\033[K' >&2
    fi
    if [ "$status" != 0 ]; then
        printf '  %s  failed (exit status %d); the end of %s:\n' "$title" "$status" "$log" >&2
        tail -n 30 "$log" | sed 's/^/    /' >&2
    elif [ -z "${progress_summary-}" ]; then
        printf '  %s  done in %d s\n' "$title" $((SECONDS - started)) >&2
    fi
    return "$status"
}

missing_packages() {
    local package
    for package in "$@"; do
        # db:Status-Status is "installed" only when the package is really there, not half removed.
        if [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" != installed ]; then
            printf '%s\n' "$package"
        fi
    done
}

# need_packages PACKAGE... - installs what is missing, or says which command would.
need_packages() {
    local missing
    if ! command -v dpkg-query >/dev/null; then
        say "  not Debian: make sure that these are installed: $*"
        return 0
    fi
    mapfile -t missing < <(missing_packages "$@")
    if [ "${#missing[@]}" = 0 ]; then
        return 0
    fi
    say "  missing packages: ${missing[*]}"
    if [ "$(id -u)" != 0 ] && ! sudo -n true 2>/dev/null; then
        if [ ! -t 0 ] || ! command -v sudo >/dev/null; then
            die "cannot install packages as $(id -un); as root run: apt-get install ${missing[*]}"
        fi
        sudo -v || die "as root run: apt-get install ${missing[*]}"
    fi
    if ! with_progress "installing ${#missing[@]} packages" "$FORGE_ROOT/build/logs/apt.log" \
        install_packages "${missing[@]}"; then
        die "apt-get failed: check the network and /etc/apt/sources.list, then try again"
    fi
}

install_packages() {
    # An index that is already there is tried first; a fresh machine has none.
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" \
        || { as_root apt-get update \
            && as_root env DEBIAN_FRONTEND=noninteractive \
                apt-get install -y --no-install-recommends "$@"; }
}

# build_preset PRESET [CMAKE OPTIONS...] - configures and builds build/PRESET.
build_preset() {
    local preset=$1
    shift
    with_progress "configuring $preset" "$FORGE_ROOT/build/logs/configure-$preset.log" \
        cmake -S "$FORGE_ROOT" --preset "$preset" "$@" \
        || die "cmake could not configure; if the message names a package, install it and try again"
    with_progress "building $preset" "$FORGE_ROOT/build/logs/build-$preset.log" \
        cmake --build "$FORGE_ROOT/build/$preset" --parallel "$(cores)" \
        || die "the build failed; the whole output is in build/logs/build-$preset.log"
}

# http_status PORT PATH - prints the status code of GET http://127.0.0.1:PORT/PATH, or nothing.
# A subshell, so that the socket is closed on every way out.
http_status() (
    exec 3<>"/dev/tcp/127.0.0.1/$1" || exit 1
    printf 'GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n' "$2" >&3
    IFS= read -r -t 5 line <&3 || exit 1
    timeout 5 cat <&3 >/dev/null
    line=${line#* }
    printf '%s' "${line%% *}"
) 2>/dev/null

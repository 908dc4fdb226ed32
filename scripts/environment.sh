# Sourced by the other scripts: makes .venv in the checkout, or takes the one that is there, and installs nandiag into it.
#
# NANDIAG_TORCH says which torch: `installed` (the one that python3 imports), `cpu` (a CPU build of the tested version),
# or anything that `pip install` takes, such as "torch==2.6.0". Unset: the installed one if there is one, else `cpu`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PIP_DISABLE_PIP_VERSION_CHECK=1

tested_torch="torch==2.13.0"
cpu_index="https://download.pytorch.org/whl/cpu"
venv="$PWD/.venv"
python="$venv/bin/python"

say() { echo "[$(basename "$0")] $*" >&2; }

# prepare [EXTRA]: after this, $python has torch and nandiag, and what the extra (test, dev) needs if one is named.
prepare() {
    local extra="${1:-}" stamp wanted
    stamp="$venv/nandiag-${extra:-plain}.stamp"
    wanted="$PWD ${NANDIAG_TORCH:-} $(cksum <pyproject.toml)"
    make_venv
    if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ] || ! "$python" -c 'import nandiag, torch' 2>/dev/null; then
        # An older pip can neither look before it installs nor install a checkout in place.
        "$python" -m pip install --quiet "pip>=23"
        install_torch
        say "installing nandiag${extra:+ and what \"$extra\" needs}"
        "$python" -m pip install --quiet --editable ".${extra:+[$extra]}"
        echo "$wanted" >"$stamp"
    fi
    say "using .venv: $("$python" -c 'import sys, torch; print("Python", sys.version.split()[0], "and torch", torch.__version__)')"
}

make_venv() {
    if "$python" -m pip --version >/dev/null 2>&1; then return; fi
    if [ -e "$venv" ]; then
        [ -f "$venv/pyvenv.cfg" ] || { say ".venv is no virtual environment; move it away and start again"; exit 1; }
        say ".venv is broken: building it again"
        rm -rf "$venv"
    fi
    local base
    base="$(find_python)"
    if [ "${NANDIAG_TORCH:-installed}" = installed ] && has_torch "$base"; then
        say "making .venv with $("$base" --version) and its torch"
        "$base" -m venv --system-site-packages "$venv"
        # Where python3 is that of a virtual environment, its packages are no system packages: name their folder.
        has_torch "$python" || site_packages "$base" >"$(site_packages "$python")/installed_torch.pth"
    else
        say "making .venv with $("$base" --version)"
        "$base" -m venv "$venv"
    fi
}

site_packages() { "$1" -c 'import sysconfig; print(sysconfig.get_path("platlib"))'; }

find_python() {
    local name
    for name in python3 python3.13 python3.12 python3.11 python3.10; do
        if "$name" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; then
            echo "$name"
            return
        fi
    done
    say "this needs Python 3.10 or newer with its venv module (on Debian and Ubuntu: apt install python3-venv)"
    exit 1
}

has_torch() {
    "$1" -c 'import sys, torch; sys.exit(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6))' 2>/dev/null
}

install_torch() {
    case "${NANDIAG_TORCH:-}" in
        "" | cpu) has_torch "$python" || install_cpu_torch ;;
        installed) has_torch "$python" || { say "python3 has no torch 2.6 or newer"; exit 1; } ;;
        *)
            say "installing $NANDIAG_TORCH"
            # shellcheck disable=SC2086  # it may hold options of pip
            "$python" -m pip install --quiet $NANDIAG_TORCH
            ;;
    esac
}

# numpy comes along, or torch warns at each import that it is missing.
install_cpu_torch() {
    if is_cpu_build "$tested_torch"; then
        say "installing $tested_torch (pip finds a CPU build)"
        "$python" -m pip install --quiet "$tested_torch" numpy
    elif is_cpu_build "$tested_torch" --index-url "$cpu_index"; then
        say "installing $tested_torch (the CPU build of $cpu_index)"
        "$python" -m pip install --quiet "$tested_torch" numpy --index-url "$cpu_index"
    else
        say "no CPU build within reach: installing torch from the package index, which may fetch gigabytes" \
            "(NANDIAG_TORCH=... takes another torch: anything that pip install takes, such as a wheel)"
        "$python" -m pip install --quiet "torch>=2.6" numpy
    fi
}

# Asks pip what it would fetch: a file that lies here, or one whose version ends in +cpu.
is_cpu_build() {
    "$python" -m pip install --dry-run --no-deps --ignore-installed --quiet --retries 1 --timeout 15 --report - "$@" \
        2>/dev/null | grep -Eq '"url": "(file:|[^"]*(%2B|\+)cpu)'
}

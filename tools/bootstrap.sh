#!/bin/sh
# Makes the environment that the Makefile uses:  tools/bootstrap.sh VENV EXTRAS
#
# Needs a Python from 3.11 on and any pip, nothing else. `$PYTHON` names the Python to use; without it the first that fits
# is taken. Works where Python has no ensurepip (Debian without python3-venv): the environment is then made without pip,
# and the pip that is there installs one into it. Pip's own settings (index, certificates, links) are left as they are.
# Done twice it changes nothing; stopped in the middle, the next run goes on.
set -eu

venv=$1
extras=$2

say() { printf '%s\n' "bootstrap: $*" >&2; }

# Is this a Python that runs, of a version in [$2, $3)? A pyenv shim of a version that is not chosen is there and fails.
fits() {
    command -v "$1" >/dev/null 2>&1 &&
        "$1" -c "import sys; sys.exit(not ($2 <= sys.version_info[:2] < $3))" >/dev/null 2>&1
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        fits "$PYTHON" '(3, 11)' '(4, 0)' && { printf '%s' "$PYTHON"; return; }
        say "PYTHON=$PYTHON is no Python from 3.11 on ($("$PYTHON" --version 2>&1 | head -n 1))"
        return 1
    fi
    for name in python3 python3.13 python3.12 python3.11 python; do
        fits "$name" '(3, 11)' '(3, 14)' && { printf '%s' "$name"; return; }
    done
    for name in python3 python3.14 python3.15 python; do
        fits "$name" '(3, 14)' '(4, 0)' && { say "this Python is newer than those it is tested with"; printf '%s' "$name"; return; }
    done
    say "no Python from 3.11 on is on PATH (python3 is: $(python3 --version 2>&1 | head -n 1))."
    say "Install one, for example with: apt install python3.11   or say where it is: make PYTHON=/path/to/python3.12 ..."
    return 1
}

usable() { [ -x "$venv/bin/python" ] && fits "$venv/bin/python" '(3, 11)' '(4, 0)' && "$venv/bin/python" -m pip --version >/dev/null 2>&1; }

# Settings that make sense for a machine, and would send packages elsewhere than into the environment.
unset PIP_USER PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV PYTHONHOME 2>/dev/null || true
export PIP_DISABLE_PIP_VERSION_CHECK=1

if ! usable; then
    python=$(find_python)
    say "making $venv with $("$python" --version) ($python)"
    rm -rf "$venv"
    if ! "$python" -m venv "$venv" >/dev/null 2>&1; then
        say "this Python has no ensurepip: taking the pip that is there"
        rm -rf "$venv"
        "$python" -m venv --without-pip "$venv"
        done=
        for pip in "$python -m pip" pip3 pip "python3 -m pip"; do
            # `--python` is known from pip 22.3 on. $pip is meant to be split.
            # shellcheck disable=SC2086
            if $pip --python "$venv/bin/python" install --quiet pip 2>"$venv/pip.log"; then done=yes; break; fi
        done
        if [ -z "$done" ]; then
            cat "$venv/pip.log" >&2
            say "no pip from 22.3 on could install into $venv; install one (apt install python3-pip) and call make again"
            exit 1
        fi
    fi
fi

say "installing rocketcrew[$extras] into $venv; the first time this takes a few minutes"
pip() { "$venv/bin/python" -m pip "$@" --quiet; }
# setuptools from the constraints and no isolation: the build needs no second download, and is the same everywhere.
pip install --constraint constraints.txt setuptools
case ",$extras," in
    *,dev,*)
        # Everything that the tests run with: the files of the lock, and no others. `check` says what it lacks.
        pip install --no-build-isolation --require-hashes --no-deps --requirement requirements.lock || {
            if [ -z "${PIP_FIND_LINKS:-}${UNLOCKED:-}" ]; then
                say "pip refused requirements.lock (above). UNLOCKED=1 installs the same versions without comparing hashes"
                exit 1
            fi
            # A folder of wheels that pip is told of may have wheels that were built there.
            say "pip did not get the files of requirements.lock (above): installing these versions without comparing hashes"
            pip install --no-build-isolation --no-deps --requirement constraints.txt
        }
        pip install --no-build-isolation --no-deps --editable .
        "$venv/bin/python" -m pip check >&2 ;;
    *) pip install --constraint constraints.txt --no-build-isolation --editable ".[$extras]" ;;
esac
say "done"

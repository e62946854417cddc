#!/usr/bin/env bash
# Installs the OpenHands agent-server, at the versions in agent-server.lock,
# into a virtual environment for tests.
#
#   scripts/agent-server.sh DIR
#
# The last line on stdout is the path of the agent-server executable; all else
# goes to stderr. Safe to repeat: a complete DIR of the same versions is used as
# it is, an incomplete one (a run that was cut off) is made again. A directory
# that this script didn't make is never touched.
#
# Exit codes: 0 done, 1 the installation failed, 2 bad use, 3 no Python 3.12 or
# newer on this machine. PYTHON names an interpreter to use instead of looking.
set -euo pipefail

say() { echo "agent-server.sh: $*" >&2; }

if [ $# -ne 1 ] || [ -z "$1" ] || [ "${1:0:1}" = - ]; then
	say "usage: scripts/agent-server.sh DIR"
	exit 2
fi
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
lock=$here/agent-server.lock
mkdir -p -- "$(dirname -- "$1")"
dir=$(cd "$(dirname -- "$1")" && pwd -P)/$(basename -- "$1")

# usable tells whether the interpreter is new enough and can make a virtual
# environment: some distributions leave that part out.
usable() {
	"$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1
}

# find_python prints the first usable interpreter. Names on the PATH may be
# shims that run but refuse, so each is tried, and what it really is, is asked.
find_python() {
	if [ -n "${PYTHON:-}" ]; then
		usable "$PYTHON" || {
			say "PYTHON=$PYTHON is not a Python 3.12 or newer with venv and ensurepip"
			return 1
		}
		echo "$PYTHON"
		return
	fi
	local candidate
	for candidate in python3.12 python3.13 python3.14 python3 python \
		"${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9]*/bin/python3 \
		/opt/homebrew/bin/python3.1[2-9] /usr/local/bin/python3.1[2-9]; do
		if usable "$candidate"; then
			"$candidate" -c 'import sys; print(sys.executable)'
			return
		fi
	done
	return 1
}

# want names everything that the content of DIR depends on.
want="$(cksum <"$lock")"
stamp=$dir/.boxkeeper-agent-server # empty while DIR is being made
finish() {
	echo "$dir/bin/agent-server"
	exit 0
}
complete() { [ -x "$dir/bin/agent-server" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$want" ]; }

if complete; then finish; fi

# One run at a time makes DIR. The lock ends with this process, however it ends.
if command -v flock >/dev/null; then
	exec 9>"$dir.lock"
	flock -w 900 9 || {
		say "another run holds $dir.lock for 15 minutes; end it and try again"
		exit 1
	}
	if complete; then finish; fi
fi

if ! python=$(find_python); then
	say "no Python 3.12 or newer with venv was found: tests against the real agent-server can't run here."
	say "Install python3.12 (and python3.12-venv where that is a package of its own), or set PYTHON, and run this again."
	exit 3
fi

if [ -e "$dir" ] && [ ! -e "$stamp" ] && [ -n "$(ls -A -- "$dir" 2>/dev/null || echo unreadable)" ]; then
	say "$dir was not made by this script and is not empty: give another directory"
	exit 2
fi
rm -rf -- "$dir"
mkdir -p -- "$dir"
: >"$stamp"

say "making $dir with $("$python" --version 2>&1) ($python)"
"$python" -m venv "$dir" >&2
# The lock constrains instead of listing what to install: another system or
# Python may need a package more, and that one alone is then free.
"$dir/bin/python" -m pip install --quiet --no-input --disable-pip-version-check \
	--constraint "$lock" openhands-agent-server openhands-sdk openhands-tools openhands-workspace >&2
"$dir/bin/python" -m pip check --disable-pip-version-check >&2
# The agent-server imports the tools only when its API is set up. What that
# prints matters only if it fails, and it must not look for a price list online.
mkdir "$dir/home"
if ! out=$(cd "$dir/home" && HOME=$dir/home LITELLM_LOCAL_MODEL_COST_MAP=True OPENHANDS_SUPPRESS_BANNER=1 \
	"$dir/bin/python" -c 'import openhands.agent_server.api' 2>&1); then
	say "the packages are installed, but don't work together:"
	echo "$out" >&2
	exit 1
fi
if [ ! -x "$dir/bin/agent-server" ]; then
	say "the packages are installed, but $dir/bin/agent-server is missing"
	exit 1
fi
echo "$want" >"$stamp"
finish

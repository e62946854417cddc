#!/usr/bin/env bash
# Builds a real S3 server for the tests of the export store: versitygw, at the
# version that tools/s3/go.mod pins.
#
#   scripts/s3.sh DIR
#
# The last line on stdout is the path of the executable; all else goes to
# stderr. The tests start it themselves, on a directory and a port of their own,
# when BOXKEEPER_TEST_S3_SERVER names it. Safe to repeat: a DIR of the same
# version is used as it is. A directory that this script didn't make is never
# touched.
#
# Exit codes: 0 done, 1 the build failed, 2 bad use.
set -euo pipefail

say() { echo "s3.sh: $*" >&2; }

if [ $# -ne 1 ] || [ -z "$1" ] || [ "${1:0:1}" = - ]; then
	say "usage: scripts/s3.sh DIR"
	exit 2
fi
module=$(cd "$(dirname "${BASH_SOURCE[0]}")/../tools/s3" && pwd -P)
mkdir -p -- "$(dirname -- "$1")"
dir=$(cd "$(dirname -- "$1")" && pwd -P)/$(basename -- "$1")

# want names everything that the content of DIR depends on.
want="$(cat "$module/go.mod" "$module/go.sum" | cksum) $(go env GOVERSION)"
stamp=$dir/.boxkeeper-s3 # empty while DIR is being made
server=$dir/versitygw
finish() {
	echo "$server"
	exit 0
}
complete() { [ -x "$server" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$want" ]; }

if complete; then finish; fi

# One run at a time makes DIR. The lock ends with this process, however it ends.
if command -v flock >/dev/null; then
	exec 9>"$dir.lock"
	flock -w 1800 9 || {
		say "another run holds $dir.lock for 30 minutes; end it and try again"
		exit 1
	}
	if complete; then finish; fi
fi

if [ -e "$dir" ] && [ ! -e "$stamp" ] && [ -n "$(ls -A -- "$dir" 2>/dev/null || echo unreadable)" ]; then
	say "$dir was not made by this script and is not empty: give another directory"
	exit 2
fi
rm -rf -- "$dir"
mkdir -p -- "$dir"
: >"$stamp"

say "building the S3 server; the first time takes some minutes"
if ! CGO_ENABLED=0 go build -C "$module" -trimpath -ldflags '-s -w' -o "$server" github.com/versity/versitygw/cmd/versitygw >&2; then
	say "the S3 server was not built"
	exit 1
fi
echo "$want" >"$stamp"
finish

#!/usr/bin/env bash
# Mutation testing of package box: gremlins changes one operator of the rules at
# a time, and the tests of the package must notice. On demand, since it takes an
# hour or two on two cores; docs/mutation.md holds the last report and what was
# thought of each change that nobody noticed.
#
#   scripts/mutation.sh [OUTPUT]    writes the report as JSON, and fails below 85 %
#
# Settings: CHECKS (15) random cases for each property in each run. Needs Go and
# the module proxy; gremlins is built at the version below, in a module of its
# own, so that none of ours moves.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=v0.6.0
output=$(realpath -m "${1:-mutation.json}")
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT

GOBIN=$work/bin go install "github.com/go-gremlins/gremlins/cmd/gremlins@$version"
# A copy: gremlins writes its changes into the tree that it tests.
git clone --quiet --shared . "$work/repo"
cd "$work/repo"
# The tag leaves out the tests of the tests. A few changes make a loop that never
# ends: the coefficient bounds what they cost.
RAPID_CHECKS=${CHECKS:-15} TMPDIR=$work "$work/bin/gremlins" unleash --tags mutation --workers 2 \
	--timeout-coefficient 6 --threshold-efficacy 85 --output "$output" ./box

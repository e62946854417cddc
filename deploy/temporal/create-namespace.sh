#!/bin/sh
# Makes the namespace and the search attributes that boxkeeper uses, and sets
# the retention. Runs once after the server is up; safe to repeat: what is
# there stays, the retention is set to the value given.
#
# Reads TEMPORAL_ADDRESS and TEMPORAL_NAMESPACE as the temporal command does,
# and TEMPORAL_RETENTION (like 2160h). WAIT_SECONDS bounds the wait for the
# server, 120 by default.
set -eu

: "${TEMPORAL_ADDRESS:?is not set; see docker-compose.yml}"
: "${TEMPORAL_NAMESPACE:?is not set; see docker-compose.yml}"
: "${TEMPORAL_RETENTION:?is not set; see docker-compose.yml}"
wait_seconds=${WAIT_SECONDS:-120}

say() { echo "create-namespace: $*"; }

# until_ok WHAT COMMAND... repeats the command once a second until it succeeds.
# Its last words are shown when the time is up, so that the cause is not lost.
until_ok() {
	what=$1
	shift
	waited=0
	while ! last=$("$@" 2>&1); do
		if [ "$waited" -ge "$wait_seconds" ]; then
			say "$what: no success within ${wait_seconds} s; the last answer was:" >&2
			echo "$last" >&2
			exit 1
		fi
		waited=$((waited + 1))
		sleep 1
	done
}

until_ok "wait for the server at $TEMPORAL_ADDRESS" temporal operator cluster health

# "Not found" alone means that the namespace is to be made. Any other failure
# to look, such as one to authorize, must not lead to a second try at making it.
if answer=$(temporal operator namespace describe --namespace "$TEMPORAL_NAMESPACE" 2>&1); then
	say "namespace $TEMPORAL_NAMESPACE is there, setting its retention to $TEMPORAL_RETENTION"
	temporal operator namespace update --namespace "$TEMPORAL_NAMESPACE" --retention "$TEMPORAL_RETENTION"
else
	case $answer in
	*[Nn]ot\ found* | *NotFound*)
		say "making namespace $TEMPORAL_NAMESPACE with a retention of $TEMPORAL_RETENTION"
		temporal operator namespace create --namespace "$TEMPORAL_NAMESPACE" --retention "$TEMPORAL_RETENTION"
		;;
	*)
		say "describe namespace $TEMPORAL_NAMESPACE: $answer" >&2
		exit 1
		;;
	esac
fi

# The server's caches take some seconds to learn of a new namespace.
until_ok "read the search attributes of $TEMPORAL_NAMESPACE" \
	temporal operator search-attribute list --namespace "$TEMPORAL_NAMESPACE"
have=$last

for pair in BoxProvider:Keyword BoxState:Keyword BoxOwner:Keyword \
	BoxNextActionAt:Datetime BoxSuspendedSince:Datetime BoxEpoch:Int BoxBlocked:Keyword; do
	name=${pair%%:*}
	type=${pair##*:}
	line=$(printf '%s\n' "$have" | grep -w -e "$name" || true)
	if [ -z "$line" ]; then
		say "adding search attribute $name ($type)"
		temporal operator search-attribute create --namespace "$TEMPORAL_NAMESPACE" --name "$name" --type "$type"
	elif ! printf '%s\n' "$line" | grep -qw -e "$type"; then
		say "search attribute $name has another type than $type: $line" >&2
		say "use another namespace, or remove the attribute if nothing else needs it" >&2
		exit 1
	fi
done
say "done"

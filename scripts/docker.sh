#!/usr/bin/env bash
# Runs a command with a Docker engine, for tests.
#
#   scripts/docker.sh COMMAND [ARGUMENT...]
#   scripts/docker.sh --install
#
# An engine that answers already, at DOCKER_HOST or where docker looks by
# itself, is used as it is. Otherwise, as root on Linux, one is started that
# shares nothing with the machine's own: its files lie in a new directory below
# TMPDIR, and its processes, mounts and network are in namespaces of their own,
# so that all of it ends with this script, however that ends. On Debian it is
# installed first where it is missing, as --install does and no more.
#
# COMMAND finds the engine's address in DOCKER_HOST, and in
# BOXKEEPER_TEST_DOCKER, where our tests look for one that they may use. With
# an engine of this script it runs in that engine's network: it reaches the
# ports that containers publish on 127.0.0.1 and nothing outside of this machine.
#
# Exit codes: COMMAND's own; 77 no engine can be had on this machine, and a line
# on stderr says why; 1 the engine started and failed, with the end of its log;
# 2 bad use.
set -euo pipefail

say() { echo "docker.sh: $*" >&2; }

# unable REASON... ends the script where no engine can be had.
unable() {
	say "no Docker engine: $*"
	exit 77
}

if [ $# = 0 ] || [ -z "$1" ]; then
	say "usage: scripts/docker.sh COMMAND [ARGUMENT...], or scripts/docker.sh --install"
	exit 2
fi

# address prints where an engine answers that is there already.
address() {
	command -v docker >/dev/null && timeout 20 docker version >/dev/null 2>&1 || return 1
	echo "${DOCKER_HOST:-$(docker context inspect --format '{{.Endpoints.docker.Host}}')}"
}

if there=$(address); then
	[ "$1" != --install ] || exit 0
	say "using the engine at $there"
	exec env DOCKER_HOST="$there" BOXKEEPER_TEST_DOCKER="$there" "$@"
fi

[ "$(uname -s)" = Linux ] || unable "none answers, and this script starts one only on Linux"
[ "$(id -u)" = 0 ] || unable "none answers, and starting one needs root, not $(id -un)"

# install installs with apt what is missing, without starting what it brings: a
# service would run on when this script has ended.
install() {
	local idle name packages=() code=0
	apt-get update -qq >&2 || return 1
	command -v dockerd >/dev/null || packages+=(docker.io)
	# Newer releases of Debian have it in a package of its own.
	command -v docker >/dev/null || [ -z "$(apt-cache search --names-only '^docker-cli$')" ] || packages+=(docker-cli)
	command -v ip >/dev/null || packages+=(iproute2)
	say "installing ${packages[*]}"
	idle=$(mktemp -d)
	for name in invoke-rc.d deb-systemd-invoke; do
		printf '#!/bin/sh\nexit 0\n' >"$idle/$name"
		chmod +x "$idle/$name"
	done
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
		-o DPkg::Path="$idle:$PATH" "${packages[@]}" >&2 || code=$?
	rm -r "$idle"
	return "$code"
}

complete() { command -v dockerd >/dev/null && command -v docker >/dev/null && command -v ip >/dev/null; }

if ! complete; then
	command -v apt-get >/dev/null || unable "dockerd, docker or ip is missing, and only on Debian this script installs them"
	install || unable "apt-get fails to install what is missing (above)"
	complete || unable "dockerd, docker or ip is missing, and apt-get doesn't bring it"
fi
[ "$1" != --install ] || exit 0

spaces=(--net --mount --pid --fork --kill-child --mount-proc)
refusal=$(unshare "${spaces[@]}" true 2>&1) || unable "this user may not make namespaces: $refusal"

# Sockets live below it, and their paths have a limit.
dir=$(mktemp -d "${TMPDIR:-/tmp}/docker.XXXXXX")
[ "${#dir}" -le 60 ] || { rmdir "$dir" && dir=$(mktemp -d /tmp/docker.XXXXXX); }
group=boxkeeper-${dir##*/}
opt=$(find /opt/containerd -maxdepth 0 2>/dev/null || true)
socket=unix://$dir/docker.sock

# engine runs in the new namespaces, as the first process of its own, until its
# input ends. Then it removes what it had, since its script may have been killed.
engine() {
	local driver=vfs pid
	ip link set lo up
	# Not the machine's settings, keys and sockets.
	mount -t tmpfs tmpfs /run
	[ ! -d /etc/docker ] || mount -t tmpfs tmpfs /etc/docker
	mkdir "$dir/lower" "$dir/upper" "$dir/work" "$dir/merged"
	if mount -t overlay -o "lowerdir=$dir/lower,upperdir=$dir/upper,workdir=$dir/work" overlay "$dir/merged" 2>/dev/null; then
		umount "$dir/merged"
		driver=overlay2
	fi
	# Rules for packets are for a network that leads out of here.
	dockerd --host "$socket" --data-root "$dir/data" --exec-root "$dir/run" --pidfile "$dir/pid" \
		--storage-driver "$driver" --iptables=false --ip-masq=false --ip-forward=false \
		--exec-opt native.cgroupdriver=cgroupfs --cgroup-parent "/$group" </dev/null &
	pid=$!
	{ cat && : >"$dir/over" && kill "$pid"; } <&0 >/dev/null &
	wait "$pid" || true
	[ ! -e "$dir/over" ] || clean
}

clean() {
	find /sys/fs/cgroup/"$group" /sys/fs/cgroup/*/"$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
	# It makes these wherever it runs.
	[ -n "$opt" ] || rmdir /opt/containerd/bin /opt/containerd/lib /opt/containerd 2>/dev/null || true
	rm -rf --one-file-system -- "$dir"
}

# finish ends the engine, by the end of its input.
finish() {
	local code=$? tries
	trap '' INT TERM HUP
	trap - EXIT
	exec {alive}>&-
	for ((tries = 0; tries < 600; tries++)); do
		kill -0 "$pid" 2>/dev/null || break
		sleep 0.1
	done
	! kill -9 "$pid" 2>/dev/null || say "the engine didn't end within a minute and was killed"
	wait "$pid" 2>/dev/null || true
	clean
	exit "$code"
}

export -f engine clean
export dir group opt socket
exec {alive}> >(exec unshare "${spaces[@]}" --propagation slave bash -ec engine >"$dir/log" 2>&1)
pid=$!
trap finish EXIT
command=
trap '[ -z "$command" ] || kill "$command"; exit 143' INT TERM HUP

for ((tries = 0; ; tries++)); do
	! docker --host "$socket" version >/dev/null 2>&1 || break
	if ! kill -0 "$pid" 2>/dev/null || [ "$tries" = 1200 ]; then
		reason=$(grep -vE 'level=(debug|info|warning)' "$dir/log" | tail -n 1 || true)
		# What the machine forbids or lacks, in the words of the kernel.
		if grep -qiE 'not permitted|permission denied|not supported|read-only file system|cgroup.* (isn.t|not) mounted' <<<"$reason"; then
			unable "$reason"
		fi
		say "the engine failed to start:"
		tail -n 20 "$dir/log" >&2
		exit 1
	fi
	sleep 0.1
done

# In the background, so that this script hears signals meanwhile.
{
	exec {alive}>&-
	exec env DOCKER_HOST="$socket" BOXKEEPER_TEST_DOCKER="$socket" nsenter --net="/proc/$pid/ns/net" -- "$@"
} <&0 &
command=$!
wait "$command"

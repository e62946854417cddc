package idlelock

import "time"

// Lease is what a test compares of a decoded lease.
type Lease struct {
	Owner, Host string
	Expires     time.Time
	PID         int
}

// ParseLease decodes a lease.
func ParseLease(text []byte) (Lease, error) {
	found, err := parseLease(text)
	return Lease{Owner: found.owner, Host: found.host, Expires: found.expires, PID: found.pid}, err
}

// LockOpen locks an open lock file.
func LockOpen(dir int, name string, fd int) (again bool, busy string) { return lockOpen(dir, name, fd) }

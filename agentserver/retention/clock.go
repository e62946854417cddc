package retention

import (
	"encoding/json"
	"os"
	"strings"
	"time"

	"github.com/openhands/boxkeeper/agentserver/storage"
)

const (
	// interval is between passes.
	interval = 5 * time.Minute
	// jump is by how much clocks must disagree until a box counts as resumed.
	jump = time.Minute
	// rest is how long nothing is archived after a resume.
	rest = 24 * time.Hour
	// stopped is how long a conversation must be out of use until its runtime
	// counts as stopped: agent-servers stop an idle one after 20 minutes, and one
	// that is being made has no runtime yet.
	stopped = 10 * time.Minute
)

// reading is what the clocks say at one moment. asleep is how long the machine
// was suspended since it started; the monotonic clock stands still meanwhile.
type reading struct {
	wall, mono, asleep time.Duration
}

func (r reading) time() time.Time { return time.Unix(0, int64(r.wall)).UTC() }

// clocks reads all of them; base is where the monotonic one begins.
func clocks(base time.Time) func() reading {
	return func() reading {
		now := time.Now()
		return reading{wall: time.Duration(now.UnixNano()), mono: now.Sub(base), asleep: asleep()}
	}
}

// resumedBetween reports whether a box was resumed between two readings: it was
// suspended with its clocks stopped, or frozen with only the wall clock put right
// again.
func resumedBetween(a, b reading) bool {
	apart := (b.wall - a.wall) - (b.mono - a.mono)
	return apart > jump || apart < -jump || b.asleep-a.asleep > jump
}

// kept is what a boxd leaves for the next one, by which that tells a restart of
// its own from a resume of the box.
type kept struct {
	Boot    string    `json:"boot"` // the kernel's name of this start of the machine
	Seen    time.Time `json:"seen"`
	Resumed time.Time `json:"resumed"`
}

// begin returns when the box was resumed, at the start of boxd: now, unless
// another boxd was at work moments ago.
func begin(dir, boot string, now time.Time) time.Time {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return now
	}
	defer root.Close()
	text, err := storage.ReadFile(root, clockFile, 64<<10)
	var before kept
	if err != nil || json.Unmarshal(text, &before) != nil || before.Resumed.IsZero() {
		return now
	}
	gap := now.Sub(before.Seen)
	if boot == "" || before.Boot != boot || gap < 0 || gap > 2*interval || before.Resumed.After(now) {
		return now
	}
	return before.Resumed
}

// bootID names this start of the machine; empty when that is not known.
func bootID() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

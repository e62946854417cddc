package docker

import (
	"math"
	"testing"
)

const (
	passwd = "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1001::/home/agent:/bin/sh\nbroken:x:one:two::/:\nshort:x\n"
	group  = "root:x:0:\nwheel:x:10:agent\n"
)

func TestIDs(t *testing.T) {
	t.Parallel()
	for user, want := range map[string][2]int{
		"root":       {0, 0},
		"agent":      {1000, 1001},
		"1000":       {1000, 1001},
		"65532":      {65532, 0},
		"agent:10":   {1000, 10},
		"agent:root": {1000, 0},
		"7:wheel":    {7, 10},
		"7:8":        {7, 8},
	} {
		if uid, gid, ok := ids(user, passwd, group); !ok || uid != want[0] || gid != want[1] {
			t.Errorf("%s is %d:%d, %t, want %v", user, uid, gid, ok, want)
		}
	}
	for _, user := range []string{"", ":", "nobody", "broken", "short", "-1", "4294967296", "agent:nobody", "agent:", "agent:-1"} {
		if uid, gid, ok := ids(user, passwd, group); ok {
			t.Errorf("%q is %d:%d, want none", user, uid, gid)
		}
	}
}

// What stands in an image is its maker's: no file may crash a worker, or give
// files to an id that is none.
func FuzzIDs(f *testing.F) {
	f.Add("agent:wheel", passwd, group)
	f.Fuzz(func(t *testing.T, user, passwd, group string) {
		uid, gid, ok := ids(user, passwd, group)
		if ok && (uid < 0 || gid < 0 || uid > math.MaxInt32 || gid > math.MaxInt32) {
			t.Errorf("%d:%d", uid, gid)
		}
	})
}

func FuzzParseIntent(f *testing.F) {
	f.Add([]byte(`{"suspend":true,"kind":"stop","life":"x","at":"2026-11-30T00:00:00Z"}`), "x")
	f.Fuzz(func(t *testing.T, raw []byte, life string) {
		if got := parseIntent(raw); got.suspends(life) && (!got.Suspend || got.Life != life) {
			t.Errorf("%+v", got)
		}
	})
}

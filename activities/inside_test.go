package activities_test

import (
	"context"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/activities"
	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/server"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
	"github.com/openhands/boxkeeper/providers"
)

const (
	drainPath = "/api/boxd/drain"
	usePath   = "/api/boxd/use"
	pausePath = "/api/conversations/prepare-for-sandbox-pause"
)

// asked lists the changing requests and the looks of a call, in order.
func (r *rig) asked(since int) []string {
	var out []string
	for _, p := range r.server.Paths()[since:] {
		switch p {
		case "GET " + usePath, "POST " + drainPath, "DELETE " + drainPath, "POST " + pausePath:
			out = append(out, p)
		}
	}
	return out
}

// open reports whether the box lets work in.
func (r *rig) open() bool {
	r.t.Helper()
	return drainLeft(r.t, r.server.URL) == 0
}

func TestQuiesceLooksBehindAClosedDoor(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	id := r.write(agentservertest.Conversation{Events: events(3)})
	target := r.made("e1-s2")
	r.server.Break(agentservertest.Faults{Idle: time.Hour})
	since := len(r.server.Paths())
	out := do(r, r.boxes.Quiesce, activities.QuiesceInput{Target: target, IdleFor: box.Duration(15 * time.Minute)})
	if out.Busy != "" || out.Use == nil || out.Use.Events != 3 || out.Use.Digest != digest(id, 3) {
		t.Errorf("the answer is %+v", out)
	}
	want := []string{"POST " + drainPath, "GET " + usePath, "POST " + pausePath, "GET " + usePath}
	if got := r.asked(since); !slices.Equal(got, want) {
		t.Errorf("asked was %v, want %v", got, want)
	}
	if left := drainLeft(t, r.server.URL); left < 2*time.Minute || left > 3*time.Minute {
		t.Errorf("the door is closed for another %s", left)
	}
	do(r, r.boxes.Undrain, target)
	if !r.open() {
		t.Error("the door is closed after undrain")
	}
}

func TestQuiesceOpensTheDoorAgain(t *testing.T) {
	t.Parallel()
	for what, row := range map[string]struct {
		faults agentservertest.Faults
		says   string
	}{
		"a conversation runs":            {agentservertest.Faults{Idle: time.Hour, Running: 2}, "a conversation is running"},
		"it was used just now":           {agentservertest.Faults{Idle: 14 * time.Minute}, "its last use is only 14m ago"},
		"it was used two seconds late":   {agentservertest.Faults{Idle: 15*time.Minute - 3*time.Second}, "its last use is only 14m57s ago"},
		"whole seconds are forgiven":     {agentservertest.Faults{Idle: 15*time.Minute - 2*time.Second}, ""},
		"the deadline is met to the dot": {agentservertest.Faults{Idle: 15 * time.Minute}, ""},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			target := r.made("e1-s2")
			r.server.Break(row.faults)
			since := len(r.server.Paths())
			out := do(r, r.boxes.Quiesce, activities.QuiesceInput{Target: target, IdleFor: box.Duration(15 * time.Minute)})
			if !strings.Contains(out.Busy, row.says) || (out.Busy == "") != (row.says == "") || out.Use == nil {
				t.Errorf("it says %q, want %q", out.Busy, row.says)
			}
			if r.open() == (row.says == "") {
				t.Errorf("the door is open: %v", r.open())
			}
			if paused := slices.Contains(r.asked(since), "POST "+pausePath); paused == (row.says != "") {
				t.Errorf("prepared for a pause: %v", paused)
			}
		})
	}
	t.Run("a person who insists is not asked whether it runs", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		target := r.made("e1-s2")
		r.server.Break(agentservertest.Faults{Running: 2})
		if out := do(r, r.boxes.Quiesce, activities.QuiesceInput{Target: target}); out.Busy != "" || r.open() {
			t.Errorf("busy %q, open %v", out.Busy, r.open())
		}
	})
	t.Run("a cancelled look leaves it open", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		target := r.made("e1-s2")
		r.server.Break(agentservertest.Faults{HangAfter: 2}) // the drain and the look at the server pass
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			await(t, func() bool { return len(r.asked(0)) > 0 && len(r.server.Paths()) >= 3 })
			r.server.Break(agentservertest.Faults{})
			cancel()
		}()
		_, err := run(ctx, r, r.boxes.Quiesce, activities.QuiesceInput{Target: target, IdleFor: box.Duration(time.Minute)})
		if activities.FailureOf(err).Class != box.ClassCanceled || !r.open() {
			t.Errorf("it ended with %v, the door is open: %v", err, r.open())
		}
	})
	t.Run("a server that cannot close its door is taken as it is", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, &agentservertest.Options{Plain: true})
		r.write(agentservertest.Conversation{Events: events(1)})
		target := r.made("e1-s2")
		r.server.Break(agentservertest.Faults{Idle: time.Hour})
		out := do(r, r.boxes.Quiesce, activities.QuiesceInput{Target: target, IdleFor: box.Duration(time.Minute)})
		if out.Busy != "" || out.Use.Digest != "" {
			t.Errorf("the answer is %+v", out)
		}
		do(r, r.boxes.Undrain, target)
		fails(r, box.ClassUnsupported, r.boxes.Reclaim, activities.ReclaimInput{Target: target})
	})
}

func TestReclaimFreesCaches(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("reclaim needs Linux: it resolves paths beneath a descriptor")
	}
	r := newRig(t, nil)
	target := r.made("e1-s2")
	cache := filepath.Join(r.server.Root, "home", ".cache", "pip")
	if err := os.MkdirAll(filepath.Join(cache, "http"), 0o755); err != nil {
		t.Fatal(err)
	}
	plan := do(r, r.boxes.Reclaim, activities.ReclaimInput{Target: target, Request: box.ReclaimRequest{DryRun: true}})
	if !plan.Reclaim.DryRun || plan.Reclaim.PlanID == "" || !r.open() {
		t.Errorf("the plan is %+v, the door is open: %v", plan.Reclaim, r.open())
	}
	done := do(r, r.boxes.Reclaim, activities.ReclaimInput{Target: target, Drained: true})
	if done.Reclaim.DryRun || r.open() {
		t.Errorf("the report is %+v, the door is open: %v", done.Reclaim, r.open())
	}
	fails(r, box.ClassInvalid, r.boxes.Reclaim, activities.ReclaimInput{Target: target, Request: box.ReclaimRequest{Tiers: []box.Tier{"all"}}})
}

// The digest of a receipt and the digest of a look are one: otherwise no export
// would ever cover a box.
func TestAReceiptCoversWhatALookSees(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"the real handler", "the fake with boxd", "the fake without boxd"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			var r *rig
			dir := ""
			switch kind {
			case "the real handler":
				root := t.TempDir()
				dir = filepath.Join(root, "conversations")
				if err := os.Mkdir(dir, 0o700); err != nil {
					t.Fatal(err)
				}
				reclaimer, err := reclaim.Open(root, reclaim.Options{})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(reclaimer.Close)
				keys, err := providers.NewKeySource(box.Secret(strings.Repeat("s", 32)))
				if err != nil {
					t.Fatal(err)
				}
				web := httptest.NewServer(server.New(server.Options{Root: root, Key: keys.SessionKey(workspace, 1), Reclaim: reclaimer}))
				t.Cleanup(web.Close)
				r = newRigAt(t, web.URL)
			default:
				r = newRig(t, &agentservertest.Options{Plain: kind == "the fake without boxd"})
				dir = r.server.Conversations()
			}
			target := r.made("e1-s2")
			previous := box.Receipt{}
			for round, count := range []int{0, 1, 7, 30} {
				for range count {
					if _, err := agentservertest.WriteConversation(dir, agentservertest.Conversation{Title: "t", Events: events(round)}); err != nil {
						t.Fatal(err)
					}
				}
				target.Step = "e1-s" + string(rune('3'+round))
				out := do(r, r.boxes.Export, activities.ExportInput{Target: target, Previous: previous})
				use := do(r, r.boxes.Scan, target).Use
				if kind == "the fake without boxd" {
					use.Digest = out.Receipt.Digest // it tells none; the deletion counts itself
				}
				if !out.Receipt.Covers(1, use.Digest) || out.Receipt.Conversations != use.Conversations {
					t.Errorf("round %d: receipt %+v, use %+v", round, out.Receipt, use)
				}
				if held := kind != "the fake without boxd" && runtime.GOOS == "linux"; out.Receipt.Archive.Held() != held || (out.Receipt.Archive.None == "") != held {
					t.Errorf("round %d: of the workspace: %+v", round, out.Receipt.Archive)
				}
				if out.Receipt.Reused != previous.Conversations {
					t.Errorf("round %d: %d conversations were fetched again", round, previous.Conversations-out.Receipt.Reused)
				}
				in := activities.DeleteInput{Target: target, Spec: spec(), Epoch: 1, Receipt: out.Receipt}
				if got := do(r, r.boxes.VerifyExport, in); got.Problem != "" {
					t.Errorf("round %d: %s", round, got.Problem)
				}
				previous = out.Receipt
			}
			if got := r.ledger(); got[len(got)-1] != "exported/e1-s6-exported" {
				t.Errorf("the ledger holds %v", got)
			}
		})
	}
}

func TestAnExportThatDoesNotMatchIsNone(t *testing.T) {
	t.Parallel()
	for what, spoil := range map[string]func(*agentservertest.Faults, string){
		"a zip that is cut off":       func(f *agentservertest.Faults, id string) { f.CutZip = map[string]bool{id: true} },
		"half a zip":                  func(f *agentservertest.Faults, id string) { f.ShortZip = map[string]bool{id: true} },
		"a lying event count":         func(f *agentservertest.Faults, id string) { f.Miscount = map[string]int{id: 1} },
		"a conversation that is gone": func(f *agentservertest.Faults, id string) { f.Missing = map[string]bool{id: true} },
		"a catalogue without an end":  func(f *agentservertest.Faults, _ string) { f.Loop = true },
		"a login page":                func(f *agentservertest.Faults, _ string) { f.Page = true },
		"a workspace that is cut off": func(f *agentservertest.Faults, _ string) { f.CutExport = true },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			id := r.write(agentservertest.Conversation{Events: events(5)})
			target := r.made("e1-s2")
			var faults agentservertest.Faults
			spoil(&faults, id)
			r.server.Break(faults)
			if _, err := run(t.Context(), r, r.boxes.Export, activities.ExportInput{Target: target}); err == nil {
				t.Fatal("a receipt was given")
			}
			for _, entry := range r.ledger() {
				if strings.HasPrefix(entry, string(exports.KindExported)) {
					t.Errorf("the ledger records %s", entry)
				}
			}
			r.server.Break(agentservertest.Faults{})
			if out := do(r, r.boxes.Export, activities.ExportInput{Target: target}); out.Receipt.Events != 5 {
				t.Errorf("the next try gives %+v", out.Receipt)
			}
		})
	}
}

// TestABlockedExportIsRefused ends without a receipt, without another try, and
// without the secret in what it says.
func TestABlockedExportIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	target := r.made("e1-s2")
	token := "ghp" + "_" + "aB3dE6fG7hJ8kL9mN0pQ1rS2tU4vW5xY6zA7"
	r.write(agentservertest.Conversation{Events: []agentservertest.Event{{Text: "see\n" + token + "\nthere"}}})
	why := fails(r, box.ClassFailedPrecondition, r.boxes.Export, activities.ExportInput{Target: target, Secrets: box.SecretsBlock})
	if !strings.Contains(why.Message, "exports/"+workspace+"/0001/e1-s2/secrets.json") || strings.Contains(why.Message, token) {
		t.Errorf("it says %q", why.Message)
	}
	for _, entry := range r.ledger() {
		if strings.HasPrefix(entry, string(exports.KindExported)) {
			t.Errorf("the ledger has %s", entry)
		}
	}
	receipt := do(r, r.boxes.Export, activities.ExportInput{Target: target}).Receipt
	report, err := r.store.Secrets(t.Context(), receipt.Key)
	if err != nil || report.Findings != 1 {
		t.Errorf("%v, %d found", err, report.Findings)
	}
}

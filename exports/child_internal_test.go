package exports

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/box"
)

// childVariable makes this test binary a process that does one export and says
// what it took; see exportingChild.
const childVariable = "EXPORTS_TEST_CHILD"

// childReport is what an exporting child says on its standard output.
type childReport struct {
	IdleKB    int        `json:"idle_kb"` // before the export
	Export    childPhase `json:"export"`
	Verify    childPhase `json:"verify"`
	Receipt   box.Receipt
	Heard     int   `json:"heard"`      // reports of progress
	SilenceMS int64 `json:"silence_ms"` // the longest time between two of them
}

// childPhase is what one phase took.
type childPhase struct {
	PeakKB    int    `json:"peak_kb"`    // as the kernel says
	SampledKB int    `json:"sampled_kb"` // as it was seen every 50 ms
	At        string `json:"at"`         // what went on then
	Samples   int    `json:"samples"`
	MS        int64  `json:"ms"`
}

// exportingChild exports the box at the address in [childVariable] below the
// working directory, and verifies the export. Alone in a process, so that what it
// takes is what an export takes.
func exportingChild() int {
	report, err := exportAlone(context.Background(), os.Getenv(childVariable)) //nolint:forbidigo // a process of its own
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(report)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func exportAlone(ctx context.Context, address string) (report childReport, err error) {
	dir, err := os.Getwd()
	if err != nil {
		return report, err
	}
	spool := filepath.Join(dir, "spool")
	if err := os.MkdirAll(spool, 0o700); err != nil {
		return report, err
	}
	client, err := agentserver.New(agentserver.Options{URL: address})
	if err != nil {
		return report, err
	}
	defer client.Close()
	s, err := OpenWith(ctx, "file://"+filepath.Join(dir, "store"), Options{SpoolDir: spool})
	if err != nil {
		return report, err
	}
	defer s.Close() //nolint:errcheck // nothing is written after the export
	debug.FreeOSMemory()
	if report.IdleKB, err = memoryOf("VmRSS"); err != nil {
		return report, err
	}
	var stage atomic.Pointer[string]
	stage.Store(new(string))
	heard := time.Now()
	var silence time.Duration
	progress := func(p Progress) {
		now := time.Now()
		silence, heard = max(silence, now.Sub(heard)), now
		report.Heard++
		if what := string(p.Stage) + " " + p.Conversation; *stage.Load() != what {
			stage.Store(&what)
		}
	}
	report.Export, err = measured(&stage, func() (err error) {
		report.Receipt, err = s.Export(ctx, Request{Workspace: "ws", Epoch: 1, Attempt: "a"}, agentserver.History{Client: client}, progress)
		return err
	})
	report.SilenceMS = silence.Milliseconds()
	if err != nil {
		return report, err
	}
	debug.FreeOSMemory()
	verify := "verify"
	stage.Store(&verify)
	report.Verify, err = measured(&stage, func() error {
		_, err := s.Verify(ctx, "ws", report.Receipt)
		return err
	})
	return report, err
}

// measured runs f and watches the resident memory of this process.
func measured(stage *atomic.Pointer[string], f func() error) (out childPhase, err error) {
	// The kernel forgets its peak.
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		return out, err
	}
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			now, err := memoryOf("VmRSS")
			if err != nil {
				done <- err
				return
			}
			if out.Samples++; now > out.SampledKB {
				out.SampledKB, out.At = now, *stage.Load()
			}
			select {
			case <-stop:
				done <- nil
				return
			case <-tick.C:
			}
		}
	}()
	began := time.Now()
	err = f()
	took := time.Since(began)
	close(stop)
	err = errors.Join(err, <-done)
	if err != nil {
		return out, err
	}
	out.MS = took.Milliseconds()
	out.PeakKB, err = memoryOf("VmHWM")
	return out, err
}

// memoryOf reads a line of /proc/self/status, in kB.
func memoryOf(name string) (int, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(text) {
		if fields := bytes.Fields(line); len(fields) == 3 && string(fields[0]) == name+":" {
			return strconv.Atoi(string(fields[1]))
		}
	}
	return 0, errors.New("no " + name)
}

package drivertest_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/drivertest"
)

// harness is a place of the sample service, with drivers that have a flaw.
type harness struct {
	service *service
	line    *drivertest.Line
	url     string
	flaw    string
	via     http.RoundTripper // nil for a plain one
}

func newHarness(t *testing.T, flaw string) drivertest.Harness {
	t.Helper()
	s := newService()
	line := drivertest.NewLine(s)
	server := httptest.NewServer(line)
	t.Cleanup(server.Close)
	return &harness{service: s, line: line, url: server.URL, flaw: flaw}
}

// viaTransport is a place whose service is reached by a transport only.
func viaTransport(t *testing.T, flaw string) drivertest.Harness {
	t.Helper()
	s := newService()
	line, via := drivertest.NewLineVia(t, s)
	return &harness{service: s, line: line, url: "https://service.example", flaw: flaw, via: via}
}

func (h *harness) Driver(t *testing.T, installation string) driver.Driver {
	t.Helper()
	via := h.via
	if via == nil {
		own := &http.Transport{}
		t.Cleanup(own.CloseIdleConnections)
		via = own
	}
	return newSample(h.url, installation, h.flaw, via)
}

func (h *harness) Row() box.Capabilities               { return (&sample{}).Capabilities() }
func (h *harness) Line() *drivertest.Line              { return h.line }
func (h *harness) Boxes(_ *testing.T, name string) int { return len(h.service.named(name)) }
func (h *harness) StateFields() []string               { return []string{"state"} }
func (h *harness) PageSize() int                       { return samplePage }
func (h *harness) Plant(_ *testing.T, name string)     { h.service.plant(name) }
func (h *harness) Kill(t *testing.T, ref box.Ref)      { t.Helper(); h.service.kill(t, ref) }
func (h *harness) Left(_ *testing.T, ref box.Ref) []string {
	var out []string
	for _, b := range h.service.named(ref.Name) {
		out = append(out, b.ID)
	}
	return out
}

func (h *harness) Untouched(_ *testing.T, name string) bool {
	found := h.service.named(name)
	return len(found) == 1 && found[0].State == "RUNNING" && found[0].Labels["theirs"] == "yes" && found[0].starts == 1
}

func (h *harness) Life(_ *testing.T, ref box.Ref) string {
	for _, b := range h.service.named(ref.Name) {
		return fmt.Sprint(b.ID, b.starts)
	}
	return ""
}

func (h *harness) Move(*testing.T) (back func()) {
	before := h.service.move("acc-2")
	return func() { h.service.move(before) }
}

// TestConformance shows that what finds the mutants passes a driver without a
// flaw, the one below them.
func TestConformance(t *testing.T) {
	t.Parallel()
	makers := map[string]func(t *testing.T, flaw string) drivertest.Harness{"sample": newHarness, "fake": newFake, "by a transport": viaTransport}
	for name, newHarness := range makers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			drivertest.RunConformance(t, func(t *testing.T) drivertest.Harness {
				t.Helper()
				return newHarness(t, "")
			})
		})
	}
}

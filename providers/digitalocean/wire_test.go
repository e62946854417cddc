package digitalocean_test

import (
	"hash/crc32"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/openhands/boxkeeper/providers/digitalocean/digitaloceantest"
	"github.com/openhands/boxkeeper/providers/drivertest"
)

// page is how many sessions and environments the service puts on a page: so few
// that the suite makes several, and enough that most cases are quick.
const page = 8

// wired is a harness whose drivers talk over a line that the suite can break.
type wired struct {
	harness
	line *drivertest.Line
}

// newWired takes one kind of the service for half of the cases and the other for
// the rest, always the same for one case: both kinds for all would take too long.
func newWired(t *testing.T) wired {
	t.Helper()
	var opts digitaloceantest.Options
	if crc32.ChecksumIEEE([]byte(t.Name()))%2 == 0 {
		opts = forgetful
	}
	h := newHarness(t, opts)
	w := wired{harness: h}
	w.line, w.via = drivertest.NewLineVia(t, short{h.service})
	return w
}

func (w wired) Line() *drivertest.Line { return w.line }
func (w wired) PageSize() int          { return page }
func (w wired) StateFields() []string  { return []string{"status"} }

// Detour is the tunnel, which is taken where the ingress is refused.
func (wired) Detour(url string) bool { return strings.HasPrefix(url, "http://127.0.0.1:") }

func (w wired) Boxes(_ *testing.T, name string) int {
	n := 0
	for _, s := range w.service.Bill() {
		if s.Name == name && s.Status != "DESTROYED" && s.Status != "DESTROYING" {
			n++
		}
	}
	return n
}

// short cuts pages shorter than they are asked for, as the service does with those
// above 200.
type short struct{ service http.Handler }

func (s short) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if query := r.URL.Query(); query.Has("page_size") {
		query.Set("page_size", strconv.Itoa(page))
		r.URL.RawQuery = query.Encode()
	}
	s.service.ServeHTTP(w, r)
}

package docker_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/docker"
)

// A 404 that is not in the words of an engine says nothing about a box.
func TestA404OfSomethingInBetweenProvesNothing(t *testing.T) {
	t.Parallel()
	for kind, body := range map[string]string{"": "", "text/plain": "404 page not found\n", "text/html": "<html>404</html>"} {
		for _, at := range []string{"/_ping", "/info", "/networks/none", "/containers/json", "/volumes", "/json", "/archive"} {
			t.Run(kind+at, func(t *testing.T) {
				t.Parallel()
				p := newFake(t, docker.SuspendStop)
				d := p.driver(t, installation)
				ref := made(t, d, "foreign")
				_, err := d.Suspend(t.Context(), ref)
				require.NoError(t, err)
				gate(t, p, func(r *http.Request) http.HandlerFunc {
					if !strings.HasSuffix(r.URL.Path, at) {
						return nil
					}
					return func(w http.ResponseWriter, _ *http.Request) {
						w.Header().Set("Content-Type", kind)
						w.WriteHeader(http.StatusNotFound)
						_, _ = w.Write([]byte(body))
					}
				})
				d = p.driver(t, installation)
				_, err = d.Observe(t.Context(), ref)
				wantClass(t, err, box.ClassUnavailable)
				_, err = d.Delete(t.Context(), ref)
				if at != "/archive" { // what a box did to its files is not in the way
					wantClass(t, err, box.ClassUnavailable)
				}
			})
		}
	}
}

// A list that is not of what was asked for is no proof that a box is gone.
func TestAListWithoutItsLabelsProvesNothing(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"/containers/json", "/volumes"} {
		p := newFake(t, docker.SuspendStop)
		d := p.driver(t, installation)
		ref := made(t, d, "labels")
		gate(t, p, func(r *http.Request) http.HandlerFunc {
			if !strings.HasSuffix(r.URL.Path, at) {
				return nil
			}
			return func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				body := `[{"Id":"` + ref.ID + `","Names":["/` + ref.Name + `"]}]`
				if at == "/volumes" {
					body = `{"Volumes":[{"Name":"` + ref.Name + `"}]}`
				}
				_, _ = w.Write([]byte(body))
			}
		})
		blind := p.driver(t, installation)
		_, err := blind.Observe(t.Context(), ref)
		wantClass(t, err, box.ClassUnknown)
		_, err = blind.Delete(t.Context(), ref)
		wantClass(t, err, box.ClassUnknown)
		require.Equal(t, box.PhaseRunning, phase(t, d, ref))
	}
}

// An id that is no id reaches no box, though its name would.
func TestAnIDThatIsNone(t *testing.T) {
	t.Parallel()
	p := newFake(t, docker.SuspendStop)
	d := p.driver(t, installation)
	ref := made(t, d, "id")
	for _, id := range []string{"", ".", "../" + ref.ID, ref.ID + "/", strings.Repeat("g", 64)} {
		odd := ref
		odd.ID = id
		_, err := d.Observe(t.Context(), odd)
		wantClass(t, err, box.ClassFailedPrecondition)
		_, err = d.Delete(t.Context(), odd)
		wantClass(t, err, box.ClassFailedPrecondition)
	}
	require.Equal(t, box.PhaseRunning, phase(t, d, ref))
}

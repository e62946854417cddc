package docker_test

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/docker"
	"github.com/openhands/boxkeeper/providers/docker/dockertest"
)

var noProgram = dockertest.Fault{Status: http.StatusBadRequest, Message: "OCI runtime create failed: exec: no such file or directory"}

// A create that is killed at any of its requests, before or after the engine carried
// that out, is made whole or undone by the next one, whether the engine refuses the
// box for good or takes it by then.
func TestACreateThatIsKilledAnywhere(t *testing.T) {
	t.Parallel()
	first := freePorts(t) // chosen before anything listens, and apart
	for name, row := range map[string]struct {
		refused string // the request that the engine refuses in the first call
		always  bool   // and in the next one
	}{
		"and nothing is refused":      {},
		"its start refused":           {refused: "/start$", always: true},
		"its start refused once":      {refused: "/start$"},
		"its container refused":       {refused: "/containers/create$", always: true},
		"its container refused, once": {refused: "/containers/create$"},
	} {
		for _, carriedOut := range []bool{false, true} {
			first += 40
			ports := docker.Ports{First: first, Last: first + 20}
			t.Run(name+map[bool]string{true: ", killed after", false: ", killed before"}[carriedOut], func(t *testing.T) {
				t.Parallel()
				for last := int64(1); ; last++ {
					p := newFake(t, docker.SuspendStop)
					p.opts.Ports = ports
					behind := p.opts.Host
					var count atomic.Int64
					gate(t, p, func(*http.Request) http.HandlerFunc {
						n := count.Add(1)
						if n < last {
							return nil
						}
						return func(_ http.ResponseWriter, r *http.Request) {
							if n == last && carriedOut {
								p.fake.ServeHTTP(httptest.NewRecorder(), r)
							}
							panic(http.ErrAbortHandler)
						}
					})
					if row.refused != "" {
						p.fake.Next(http.MethodPost, row.refused, noProgram)
					}
					_, err := p.driver(t, installation).Create(t.Context(), request("killed"))
					if count.Load() < last {
						require.Greater(t, last, int64(10), "it was never killed")
						return
					}
					wantClass(t, err, box.ClassUnavailable)

					p.opts.Host = behind
					d := p.driver(t, installation)
					p.fake.Forget()
					if row.always {
						p.fake.Next(http.MethodPost, row.refused, noProgram)
					}
					ref := box.Ref{ID: "x", Name: request("killed").Identity.Name(), Epoch: 1}
					seen, err := d.Create(t.Context(), request("killed"))
					switch {
					case !row.always:
						require.NoError(t, err, "killed at request %d", last)
						require.Equal(t, box.PhaseRunning, seen.Phase)
						require.Len(t, p.left(t, ref), 3, "a container, its volume and its port")
						_, err = d.Delete(t.Context(), seen.Ref) // its port is for the next one
						require.NoError(t, err)
					case err == nil: // the last life had started it
						t.Fatalf("killed at request %d: created, and it is refused for good", last)
					default:
						require.Equal(t, box.ClassInvalid, box.ClassOf(err), "killed at request %d: %v", last, err)
						require.Empty(t, p.left(t, ref), "killed at request %d", last)
					}
				}
			})
		}
	}
}

// What may hold work is never undone: neither a container that ran nor a volume with
// anything in it.
func TestARefusalUndoesNoWork(t *testing.T) {
	t.Parallel()
	for name, refused := range map[string]string{"start": "/start$", "container": "/containers/create$"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newFake(t, docker.SuspendStop)
			d := p.driver(t, installation)
			ref := made(t, d, "work")
			p.fake.Do(ref.Name, func(_ *container.State, files map[string][]byte) { files["/box/workspace/work"] = []byte("of a day") })
			p.removeContainer(t, ref)
			for range 2 {
				p.fake.Next(http.MethodPost, refused, noProgram)
				_, err := d.Create(t.Context(), request("work"))
				wantClass(t, err, box.ClassUnavailable)
				require.Contains(t, p.left(t, ref), "volume "+ref.Name)
			}
			// Nor one of which the engine does not say what it holds.
			p.fake.Next(http.MethodPost, refused, noProgram)
			p.fake.Next(http.MethodGet, "/system/df$", fault500)
			_, err := d.Create(t.Context(), request("work"))
			wantClass(t, err, box.ClassUnavailable)
			_, err = d.Resume(t.Context(), ref, start())
			require.NoError(t, err)
			content, _, _, _ := p.fake.File(ref.Name, "/box/workspace/work")
			require.Equal(t, "of a day", string(content))
		})
	}
}

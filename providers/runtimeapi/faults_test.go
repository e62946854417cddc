package runtimeapi_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/runtimeapi"
	"github.com/openhands/boxkeeper/providers/runtimeapi/runtimeapitest"
)

var html = http.Header{"Content-Type": {"text/html; charset=utf-8"}}

func TestACreateWhoseAnswerIsLostIsLookedUp(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]runtimeapitest.Fault{
		"the connection breaks":    {Lost: true},
		"a gateway gives up":       {Done: true, Status: http.StatusGatewayTimeout, Body: "<html>", Header: html},
		"a page comes instead":     {Done: true, Status: http.StatusOK, Body: "<html>", Header: html},
		"it names nothing":         {Edit: func(o map[string]any) { clear(o) }},
		"it is about another box":  {Edit: func(o map[string]any) { o["session_id"] = "another" }},
		"its fields have no sense": {Edit: func(o map[string]any) { o["runtime_id"] = 7 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := serve(t, runtimeapitest.Options{})
			d := p.open(t)
			fault.Op = runtimeapitest.OpStart
			p.Inject(fault)
			seen, err := create(t, d, "lost")
			require.NoError(t, err)
			require.Equal(t, seen.Ref, made(t, d, "lost"))
			require.Len(t, p.Boxes(), 1)
			require.Equal(t, 1, p.ops(runtimeapitest.OpStart))
		})
	}
	t.Run("and it can't be looked up at once either", func(t *testing.T) {
		t.Parallel()
		p := serve(t, runtimeapitest.Options{})
		d := p.open(t)
		p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpStart, Lost: true})
		p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpSession, Skip: 2, Status: http.StatusBadGateway})
		_, err := create(t, d, "lost")
		wantClass(t, "create", err, box.ClassUnavailable)
		ref := made(t, d, "lost")
		require.Equal(t, p.Boxes()[0].RuntimeID, ref.ID)
		require.Equal(t, 1, p.ops(runtimeapitest.OpStart))
		require.Len(t, p.Boxes(), 1)
	})
}

func TestAnUnclearCreateIsNotSentAgainAtOnce(t *testing.T) {
	t.Parallel()
	p := serve(t, runtimeapitest.Options{})
	d := p.open(t)
	p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpStart, Drop: true})
	_, err := create(t, d, "unclear")
	wantClass(t, "create", err, box.ClassUnavailable)
	_, err = create(t, d, "unclear")
	wantClass(t, "create again", err, box.ClassUnavailable)
	_, wait := d.ErrorClass(err)
	require.Positive(t, wait)
	require.LessOrEqual(t, wait, 30*time.Second)
	require.Equal(t, 1, p.ops(runtimeapitest.OpStart))
	made(t, d, "another") // of another name nothing is unclear
	// A refusal is clear, so the next create is sent.
	p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpStart, Status: http.StatusTooManyRequests, Body: `{"error":"slow down"}`})
	_, err = create(t, d, "refused")
	wantClass(t, "create", err, box.ClassExhausted)
	made(t, d, "refused")
}

func TestADeleteThatIsAnswered5xxAndDone(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]runtimeapitest.Fault{
		"500":         {Done: true, Status: http.StatusInternalServerError, Body: `{"detail":"Internal Server Error"}`},
		"502 as HTML": {Done: true, Status: http.StatusBadGateway, Body: "<html>", Header: html},
		"lost":        {Lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := serve(t, runtimeapitest.Options{})
			d := p.open(t)
			ref := made(t, d, "gone")
			fault.Op = runtimeapitest.OpStop
			p.Inject(fault)
			_, err := d.Delete(t.Context(), ref)
			wantClass(t, "delete", err, box.ClassUnavailable)
			seen, err := d.Delete(t.Context(), ref)
			require.NoError(t, err)
			require.Equal(t, box.PhaseGone, seen.Phase)
			require.Equal(t, 1, p.ops(runtimeapitest.OpStop), "what is gone is not stopped again")
		})
	}
}

func TestAStopThatIsAcceptedAndNotDoneIsNoProof(t *testing.T) {
	t.Parallel()
	p := serve(t, runtimeapitest.Options{})
	d := p.open(t)
	ref := made(t, d, "lazy")
	nothing := runtimeapitest.Fault{Op: runtimeapitest.OpStop, Status: http.StatusOK, Body: `{}`}
	p.Inject(nothing)
	_, err := d.Delete(t.Context(), ref)
	wantClass(t, "delete", err, box.ClassUnavailable)
	// Nor is one reading that it is gone.
	p.Inject(nothing)
	p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpSession, Skip: 1, Status: http.StatusNotFound, Body: `{"error":"Runtime not found"}`})
	p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpList, Times: -1, Edit: func(o map[string]any) { o["runtimes"], o["total"] = []any{}, 0 }})
	_, err = d.Delete(t.Context(), ref)
	wantClass(t, "delete", err, box.ClassUnavailable)
	require.Len(t, p.Living(ref.Name), 1)
}

func TestABoxOfAnotherSessionIsLeftAlone(t *testing.T) {
	t.Parallel()
	p := serve(t, runtimeapitest.Options{})
	d := p.open(t)
	theirs := p.Plant("of-another-program")
	wrong := made(t, d, "mine")
	// A ref of ours whose id is somebody else's, with and without a session.
	wrong.ID = theirs.RuntimeID
	absent := wrong
	absent.Name = box.Identity{Installation: installation, Workspace: "never", Epoch: 1}.Name()
	for _, ref := range []box.Ref{wrong, absent} {
		_, err := d.Delete(t.Context(), ref)
		wantClass(t, "delete", err, box.ClassFailedPrecondition)
		_, err = d.Suspend(t.Context(), ref)
		wantClass(t, "suspend", err, box.ClassUnknown)
	}
	require.Zero(t, p.ops(runtimeapitest.OpStop)+p.ops(runtimeapitest.OpPause))
	require.Equal(t, runtimeapitest.StatusRunning, p.box(t, theirs.RuntimeID).Status)
}

func TestANameThatWasUsedAndStoppedIsGone(t *testing.T) {
	t.Parallel()
	p := serve(t, runtimeapitest.Options{ShowStopped: true})
	d := p.open(t)
	ref := made(t, d, "used")
	p.Stop(ref.ID)
	seen, err := create(t, d, "used")
	require.NoError(t, err)
	require.Equal(t, box.PhaseGone, seen.Phase)
	require.Equal(t, ref, seen.Ref)
	require.Equal(t, 1, p.ops(runtimeapitest.OpStart))
}

func TestARedirectIsNeverFollowed(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	login := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<html>log in"))
	}))
	t.Cleanup(login.Close)
	p := serve(t, runtimeapitest.Options{})
	p.opts.Transport = nil // the driver's own
	d := p.open(t)
	ref := made(t, d, "login")
	for _, status := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		for _, op := range []runtimeapitest.Op{runtimeapitest.OpSession, runtimeapitest.OpStop} {
			p.Inject(runtimeapitest.Fault{Op: op, Status: status, Header: http.Header{"Location": {login.URL}}})
			_, err := d.Delete(t.Context(), ref)
			wantClass(t, "delete", err, box.ClassUnknown)
		}
	}
	require.Zero(t, asked.Load())
	require.Len(t, p.Living(ref.Name), 1)
}

func TestErrorsTellNoSecret(t *testing.T) {
	t.Parallel()
	p := serve(t, runtimeapitest.Options{})
	d := p.open(t)
	ref := made(t, d, "quiet")
	require.NotContains(t, ref.Fingerprint, apiKey)
	// What a framework says of a request that it refuses holds the request.
	for _, body := range []string{
		`{"detail":"no: canary-token-4711 and canary-encryption-4711 for runtime-api-key"}`,
		`{"detail":[{"msg":"bad","input":{"TOKEN":"canary-token-4711"}}]}`,
		`canary-token-4711 runtime-api-key`,
	} {
		p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpStart, Status: http.StatusUnprocessableEntity, Body: body})
		_, err := create(t, d, "refused")
		wantClass(t, "create", err, box.ClassInvalid)
		require.NotContains(t, err.Error(), "4711")
		require.NotContains(t, err.Error(), apiKey)
	}
	key, err := d.Endpoint(t.Context(), ref)
	require.NoError(t, err)
	p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpSession, Edit: func(o map[string]any) { o["restart_count"], o["status"] = 3, 7 }})
	_, err = d.Observe(t.Context(), ref)
	require.NotContains(t, err.Error(), key.SessionKey.Reveal())
	seen, err := d.Observe(t.Context(), ref)
	require.NoError(t, err)
	require.NotContains(t, seen.Evidence, key.SessionKey.Reveal())
	for _, call := range p.Calls() {
		require.NotContains(t, call.Path, apiKey)
		if call.Op == runtimeapitest.OpStart {
			require.NotContains(t, call.Fields["environment"], "SESSION_API_KEY")
			require.NotContains(t, call.Fields["environment"], "OH_SESSION_API_KEYS_0")
		}
	}
}

// endless is a body that goes on for longer than anybody should read.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) {
	if e.read > 64<<20 {
		return 0, io.EOF // a driver that reads on must not take all memory
	}
	for i := range p {
		p[i] = ' '
	}
	e.read += len(p)
	return len(p), nil
}
func (*endless) Close() error { return nil }

type answering func(*http.Request) (*http.Response, error)

func (f answering) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestAnEndlessAnswerIsGivenUp(t *testing.T) {
	t.Parallel()
	body := &endless{}
	d, err := runtimeapi.New(installation, runtimeapi.Options{
		URL: "https://runtime.example", APIKey: apiKey, PausedLife: box.Never,
		Transport: answering(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: body}, nil
		}),
	})
	require.NoError(t, err)
	place, err := d.Fingerprint(t.Context())
	require.NoError(t, err)
	name := box.Identity{Installation: installation, Workspace: "a", Epoch: 1}.Name()
	_, err = d.Observe(t.Context(), box.Ref{ID: "x", Name: name, Epoch: 1, Fingerprint: place})
	wantClass(t, "observe", err, box.ClassUnavailable)
	require.Contains(t, err.Error(), "longer than")
	require.Less(t, body.read, 16<<20)
}

// TestA404OfSomebodyElseIsNoAbsence takes the list away too, which else speaks
// against an absence.
func TestA404OfSomebodyElseIsNoAbsence(t *testing.T) {
	t.Parallel()
	for name, odd := range oddAnswers() {
		if odd.fault.Status != http.StatusNotFound && odd.fault.Status != http.StatusGone {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := serve(t, runtimeapitest.Options{})
			d := p.open(t)
			ref := made(t, d, "there")
			_, err := d.Suspend(t.Context(), ref)
			require.NoError(t, err)
			fault := odd.fault
			fault.Op, fault.Times = runtimeapitest.OpSession, -1
			p.Inject(fault)
			p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpList, Times: -1, Edit: func(o map[string]any) { o["runtimes"], o["total"] = []any{}, 0 }})
			_, err = d.Observe(t.Context(), ref)
			wantClass(t, "observe", err, box.ClassUnknown)
			_, err = d.Resume(t.Context(), ref, driver.Start{})
			wantClass(t, "resume", err, box.ClassUnknown)
			_, err = d.Delete(t.Context(), ref)
			wantClass(t, "delete", err, box.ClassUnknown)
			_, err = create(t, d, "there")
			wantClass(t, "create", err, box.ClassUnknown)
			require.Equal(t, 1, p.ops(runtimeapitest.OpStart))
			// Of a change it is no word that the box is gone either.
			p.Heal()
			for _, op := range []runtimeapitest.Op{runtimeapitest.OpResume, runtimeapitest.OpStop} {
				fault.Op = op
				p.Inject(fault)
			}
			_, err = d.Resume(t.Context(), ref, driver.Start{})
			wantClass(t, "resume", err, box.ClassUnknown)
			_, err = d.Delete(t.Context(), ref)
			wantClass(t, "delete", err, box.ClassUnknown)
			require.Len(t, p.Living(ref.Name), 1)
		})
	}
}

func TestAnotherKeyProvesNothing(t *testing.T) {
	t.Parallel()
	p := serve(t, runtimeapitest.Options{Keys: []string{apiKey, "key-of-another-account"}})
	ref := made(t, p.open(t), "mine")
	before := len(p.Calls())
	p.opts.APIKey = "key-of-another-account"
	d := p.open(t)
	_, err := d.Observe(t.Context(), ref)
	wantClass(t, "observe", err, box.ClassFailedPrecondition)
	_, err = d.Delete(t.Context(), ref)
	wantClass(t, "delete", err, box.ClassFailedPrecondition)
	require.Len(t, p.Calls(), before, "nothing was sent")
	// A key that is refused says nothing of any box.
	p.opts.APIKey = "key-that-was-revoked"
	d = p.open(t)
	place, err := d.Fingerprint(t.Context())
	require.NoError(t, err)
	ref.Fingerprint = place
	_, err = d.Observe(t.Context(), ref)
	wantClass(t, "observe", err, box.ClassUnauthorized)
	_, err = d.Delete(t.Context(), ref)
	wantClass(t, "delete", err, box.ClassUnauthorized)
	require.Len(t, p.Living(ref.Name), 1)
}

package runtimeapi_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/runtimeapi/runtimeapitest"
)

func TestAnAbsenceThatTheListContradictsIsNotBelieved(t *testing.T) {
	t.Parallel()
	p := serve(t, runtimeapitest.Options{})
	d := p.open(t)
	ref := made(t, d, "there")
	lie := runtimeapitest.Fault{Op: runtimeapitest.OpSession, Times: 2, Status: http.StatusNotFound, Body: `{"error":"Runtime not found"}`}
	p.Inject(lie)
	_, err := d.Observe(t.Context(), ref)
	wantClass(t, "observe", err, box.ClassUnknown)
	p.Heal()
	p.Inject(lie)
	_, err = create(t, d, "there")
	wantClass(t, "create", err, box.ClassUnknown)
	require.Equal(t, 1, p.ops(runtimeapitest.OpStart))
	p.Heal()
	// A delete believes the list, and stops what it shows as ours.
	lie.Times = 1
	p.Inject(lie)
	_, err = d.Delete(t.Context(), ref)
	require.NoError(t, err)
	require.Empty(t, p.Living(ref.Name))
}

func TestAListWithoutTheBoxProvesNothing(t *testing.T) {
	t.Parallel()
	p := serve(t, runtimeapitest.Options{ListFailed: true})
	d := p.open(t)
	ref := made(t, d, "unlisted")
	p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpList, Times: -1, Edit: func(o map[string]any) { o["runtimes"], o["total"] = []any{}, 0 }})
	seen, err := d.Observe(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, box.PhaseRunning, seen.Phase)
	require.Equal(t, ref, made(t, d, "unlisted"))
	_, err = d.Delete(t.Context(), ref)
	require.NoError(t, err)
	require.Empty(t, p.Living(ref.Name))
}

func TestAPartialListIsAnError(t *testing.T) {
	t.Parallel()
	p := serve(t, runtimeapitest.Options{ListFailed: true})
	d := p.open(t)
	made(t, d, "one")
	p.Plant("of-another-program")
	p.Plant("bk-ffee0011-theirs-1")
	listed, err := d.List(t.Context(), installation)
	require.NoError(t, err)
	require.Len(t, listed, 1)
	for name, edit := range map[string]func(map[string]any){
		"more than there are rows": func(o map[string]any) { o["total"] = 4 },
		"no total":                 func(o map[string]any) { delete(o, "total") },
		"no rows":                  func(o map[string]any) { o["runtimes"] = nil },
		"a row without a name":     func(o map[string]any) { o["runtimes"], o["total"] = []any{map[string]any{"runtime_id": "x"}}, 1 },
		"rows of another kind":     func(o map[string]any) { o["runtimes"] = "none" },
	} {
		p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpList, Edit: edit})
		_, err := d.List(t.Context(), installation)
		wantClass(t, name, err, box.ClassUnknown)
	}
}

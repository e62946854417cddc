package box_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

func TestDecodeNamesTheFieldAtFault(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		into        any
		text        string
		field, says string
	}{
		"a bare number as a duration":        {new(box.ConnectRequest), `{"request_id":"1","holder_id":"a","lease":120}`, "lease", `120 is not a duration`},
		"words as a duration":                {new(box.ConnectRequest), `{"request_id":"1","holder_id":"a","lease":"2 minutes"}`, "lease", `"2 minutes" is not a duration`},
		"a duration deep inside":             {new(box.SetPolicyAsk), `{"request_id":"1","policy":{"idle":"15m","max_run":"-1h"}}`, "policy.max_run", `"-1h" is not a duration`},
		"a number as a text":                 {new(box.ReleaseRequest), `{"request_id":"1","holder_id":7}`, "holder_id", `number was sent where a text belongs`},
		"a text as an embedded field":        {new(box.ReclaimAsk), `{"request_id":1}`, "request_id", `number was sent where a text belongs`},
		"a text as a switch":                 {new(box.SwitchAsk), `{"request_id":"1","on":"yes"}`, "on", `string was sent where true or false belongs`},
		"a text as a list":                   {new(box.ReclaimAsk), `{"request_id":"1","tiers":"caches"}`, "tiers", `string was sent where a list belongs`},
		"a number in a list":                 {new(box.ReclaimAsk), `{"request_id":"1","tiers":["caches",2]}`, "tiers[1]", `number was sent where a text belongs`},
		"a text as a whole number":           {new(box.Input), `{"spec":{"version":"1"}}`, "spec.version", `string was sent where a whole number belongs`},
		"a fraction as a whole number":       {new(box.Input), `{"spec":{"version":1.5}}`, "spec.version", `number 1.5 was sent where a whole number belongs`},
		"a list as the whole":                {new(box.Request), `["1"]`, "", `array was sent where an object belongs`},
		"a text as an object":                {new(box.SetPolicyAsk), `{"request_id":"1","policy":"default"}`, "policy", `string was sent where an object belongs`},
		"half a text":                        {new(box.Request), `{"request_id":`, "", `not JSON of the right form`},
		"a duration in a field of a pointer": {new(box.Input), `{"spec":{},"carried":{"policy":{"idle":5}}}`, "carried.policy.idle", `5 is not a duration`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := box.Decode([]byte(row.text), row.into)
			require.Equal(t, box.ClassInvalid, box.ClassOf(err), "%v", err)
			var refusal *box.Error
			require.ErrorAs(t, err, &refusal)
			require.Equal(t, row.field, refusal.Field)
			require.Contains(t, refusal.Message, row.says)
		})
	}
}

func TestDecodeTakesWhatFits(t *testing.T) {
	t.Parallel()
	var r box.ConnectRequest
	require.NoError(t, box.Decode([]byte(`{"request_id":"1","holder_id":"a","lease":"2m","not_a_field":{"x":[1]}}`), &r), "an older worker takes what a newer caller sends")
	require.Equal(t, box.ConnectRequest{Request: box.Request{ID: "1"}, HolderID: "a", Lease: box.Duration(2 * time.Minute)}, r)

	var none box.Request
	require.NoError(t, box.Decode(nil, &none))
	require.Zero(t, none)
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{`{}`, `{"policy":{"idle":1}}`, `[[`, `{"policy":{"idle":"15m"}}`, `{"request_id":{"":[null]}}`, `null`, `"x"`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var r box.SetPolicyAsk
		err := box.Decode(data, &r)
		switch {
		case err != nil && box.ClassOf(err) != box.ClassInvalid:
			t.Fatalf("%q is refused as %s: %v", data, box.ClassOf(err), err)
		case err == nil && len(data) > 0 && !json.Valid(data):
			t.Fatalf("%q was taken", data)
		}
	})
}

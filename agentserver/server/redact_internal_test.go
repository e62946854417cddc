package server

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/internal/race"
)

const fernet = "gAAAAABrDFNcEdCYtMHQJeEfgqYI-phGbuKP8AZvBBJVZjPv2PEBTIvWvb5hs8-JwDzjIxnQPgRLOyLm0HtzpvDsrKs_N1xVHA=="

func TestRedactJSON(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{"api_key":"s"}`:                          `{"api_key":"**********"}`,
		`{ "api_key" : "s" , "a" : "b" }`:          `{ "api_key" : "**********" , "a" : "b" }`,
		`{"api_key":""}`:                           `{"api_key":""}`,
		`{"api_key":null,"x":"s"}`:                 `{"api_key":null,"x":"s"}`,
		`{"api_key":["s"]}`:                        `{"api_key":["s"]}`,
		`{"api_key":{"a":"b"}}`:                    `{"api_key":{"a":"b"}}`,
		`{"api\u005fkey":"s"}`:                     `{"api\u005fkey":"**********"}`,
		`{"aws_session_token":"a\"b\\"}`:           `{"aws_session_token":"**********"}`,
		`["api_key","s"]`:                          `["api_key","s"]`,
		`{"x":"api_key","y":"s"}`:                  `{"x":"api_key","y":"s"}`,
		`{"x":"\"api_key\": \"s\""}`:               `{"x":"\"api_key\": \"s\""}`,
		`{"x":"gAAAAAshort"}`:                      `{"x":"**********"}`,
		`{"x":"\u0067AAAAAshort"}`:                 `{"x":"**********"}`,
		`{"x":"a gAAAAshort b"}`:                   `{"x":"a gAAAAshort b"}`,
		`{"x":"a ` + fernet + ` b"}`:               `{"x":"a ********** b"}`,
		`{"x":"a` + fernet + `"}`:                  `{"x":"a**********"}`,
		`{"` + "x" + fernet + `":1}`:               `{"x**********":1}`,
		`{"x":"ggAAAgAAAA"}`:                       `{"x":"ggAAAgAAAA"}`,
		`{"x":1.50,"y":"ü\n\u0000","z":[true,{}]}`: `{"x":1.50,"y":"ü\n\u0000","z":[true,{}]}`,
	} {
		var out bytes.Buffer
		require.NoError(t, redactJSON(&out, strings.NewReader(in)))
		require.Equal(t, want, out.String())
		out.Reset()
		require.NoError(t, redactJSON(&out, iotest.OneByteReader(strings.NewReader(in))))
		require.Equal(t, want, out.String(), "byte by byte")
	}
}

func TestRedactText(t *testing.T) {
	t.Parallel()
	for i, in := range []string{
		`{"api_key": "SECRET`, `{'api_key': 'SECRET'}`, `api_key=SECRET`, `API_KEY: SECRET`, `{\"api_key\": \"SECRET\"`, `"api\u005fkey":"SECRET`,
		`{"llm_api_key":"SECRET", broken`, `aws_secret_access_key = SECRET`,
		`" {"api_key": "SECRET"`,
	} {
		for pad := range 2 {
			if pad > 0 && i%race.Slowness != 0 {
				continue
			}
			// Across the edge of a window as well.
			text := strings.Repeat("x ", (window-10)/2*pad) + in + " and the rest " + fernet + strings.Repeat(" y", 100_000*pad)
			var out bytes.Buffer
			require.NoError(t, redactText(&out, strings.NewReader(text)))
			require.NotContains(t, out.String(), "SECRET", in)
			require.NotContains(t, out.String(), "gAAAA", in)
			require.NotContains(t, out.String(), fernet[40:60], in)
		}
	}
}

func FuzzRedaction(f *testing.F) {
	for _, seed := range []string{`{"api_key":"s"}`, `{"a":["gAAAAAx",{"b":"` + fernet + `"}]}`, `"\ud800"`, `{"api_key":"a\\"}`, ` [1,2] `} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		var out bytes.Buffer
		require.NoError(t, redactText(&out, strings.NewReader(in)))
		if !json.Valid([]byte(in)) {
			return
		}
		out.Reset()
		require.NoError(t, redactJSON(&out, strings.NewReader(in)))
		require.True(t, json.Valid(out.Bytes()), "%s", out.String())
		var value any
		require.NoError(t, json.Unmarshal(out.Bytes(), &value))
		var look func(key string, v any)
		look = func(key string, v any) {
			switch v := v.(type) {
			case string:
				require.False(t, strings.HasPrefix(v, valueStart), "%q", v)
				if secretFields[key] {
					require.Contains(t, []string{"", mask}, v)
				}
			case []any:
				for _, e := range v {
					look("", e)
				}
			case map[string]any:
				for k, e := range v {
					look(k, e)
				}
			}
		}
		look("", value)
	})
}

func TestSpliceCapabilities(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{"a":1,"capabilities":[],"b":2}`:  `{"a":1,"capabilities":["x","y"],"b":2}`,
		`{"capabilities": [ "z" ] }`:       `{"capabilities": [ "z" ,"x","y"] }`,
		`{"capabilities":["x"]}`:           `{"capabilities":["x","y"]}`,
		`{"capabilities":["y","x"]}`:       `{"capabilities":["y","x"]}`,
		`{"capabilities":null}`:            `{"capabilities":["x","y"]}`,
		`{"a":{"capabilities":["q"]}}`:     `{"a":{"capabilities":["q"]},"capabilities":["x","y"]}`,
		`{}`:                               `{"capabilities":["x","y"]}`,
		`{"capabilities":"no"}`:            `{"capabilities":"no"}`,
		`[1]`:                              `[1]`,
		`<html>`:                           `<html>`,
		`null`:                             `null`,
		"{\"a\":1,\"capabilities\":[1]}\n": "{\"a\":1,\"capabilities\":[1,\"x\",\"y\"]}\n",
		`{"capabilities":["a"],"capabilities":[]}`: `{"capabilities":["a"],"capabilities":["x","y"]}`,
	} {
		require.Equal(t, want, string(spliceCapabilities([]byte(in), []string{"x", "y"})))
	}
}

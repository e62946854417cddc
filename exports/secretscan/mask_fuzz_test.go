package secretscan_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/openhands/boxkeeper/exports/secretscan"
)

// FuzzMask masks any part of any text: JSON stays JSON, and what was inside a
// string of it or anywhere else in a span is not copied.
func FuzzMask(f *testing.F) {
	for _, text := range []string{
		`{"a":"b\"c\u0041","n":-12.5e3,"t":[true,false,null]}`, `["x","\\","\\\""]`, `"\ud83d\ude00"`, `{"a" : 1}`, `tru`, `"\u12`, `"\`, ``,
	} {
		f.Add([]byte(text), uint16(2), uint16(9), uint16(1), uint16(30), false)
	}
	f.Fuzz(func(t *testing.T, text []byte, a, b, c, d uint16, open bool) {
		start, size, gap, second := int64(a), int64(b%64)+1, int64(c%64), int64(d%64)+1
		spans := []secretscan.Span{
			{Start: start, End: start + size, Open: open},
			{Start: start + size + gap, End: start + size + gap + second},
		}
		var out, plain bytes.Buffer
		if err := secretscan.MaskEntry(t.Context(), &out, bytes.NewReader(text), "a.json", spans); err != nil {
			t.Fatal(err)
		}
		if json.Valid(text) && !json.Valid(out.Bytes()) {
			t.Fatalf("%q is JSON, and %q is not (spans %v)", text, out.Bytes(), spans)
		}
		if err := secretscan.MaskEntry(t.Context(), &plain, bytes.NewReader(text), "a.txt", spans); err != nil {
			t.Fatal(err)
		}
		want := append([]byte{}, text[:min(start, int64(len(text)))]...)
		for i, s := range spans {
			if s.Start < int64(len(text)) {
				want = append(want, secretscan.Mask...)
			}
			end := int64(len(text))
			if i == 0 {
				end = min(end, spans[1].Start)
			}
			if s.End < end {
				want = append(want, text[s.End:end]...)
			}
		}
		if !bytes.Equal(plain.Bytes(), want) {
			t.Fatalf("%q masked is %q, want %q", text, plain.Bytes(), want)
		}
	})
}

// FuzzScan scans any bytes, in writes of any size: what it finds is in order
// and inside, the same whatever the writes, and masked it is not found again
// where it was promised to be masked.
func FuzzScan(f *testing.F) {
	for _, p := range plants(21) {
		for _, form := range forms {
			f.Add([]byte(form.put(p.text)), uint16(7))
		}
	}
	f.Add([]byte(`{"api_key":"x`), uint16(1))
	f.Fuzz(func(t *testing.T, content []byte, write uint16) {
		const name = "x.json"
		all := found(t, name, content, int(write)+1)
		last := int64(0)
		for _, f := range all {
			if f.Offset < last || f.End <= f.Offset || f.End > int64(len(content)) || f.Line < 1 || f.Rule == "" {
				t.Fatalf("a find from %d to %d after one to %d, of %d bytes", f.Offset, f.End, last, len(content))
			}
			last = f.End
		}
		whole := found(t, name, content, len(content)+1)
		if len(whole) != len(all) {
			t.Fatalf("%d finds in writes of %d, %d in one", len(all), write, len(whole))
		}
		out := masked(t, name, content, all)
		if json.Valid(content) && !json.Valid(out) {
			t.Fatalf("%q is JSON, and %q is not", content, out)
		}
	})
}

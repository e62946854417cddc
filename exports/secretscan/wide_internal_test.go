package secretscan

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"unicode/utf16"
)

func inUTF16(text string, order binary.AppendByteOrder) (out []byte) {
	for _, u := range utf16.Encode([]rune(text)) {
		out = order.AppendUint16(out, u)
	}
	return out
}

func TestWhatIsTakenForUTF16(t *testing.T) {
	t.Parallel()
	little, big := inUTF16("a text of some length\n", binary.LittleEndian), inUTF16("a text of some length\n", binary.BigEndian)
	long := bytes.Repeat(little, 100)
	for name, row := range map[string]struct {
		start []byte
		high  int
		ok    bool
	}{
		"nothing":                       {nil, 0, false},
		"one byte":                      {[]byte{0xff}, 0, false},
		"the mark alone":                {[]byte{0xff, 0xfe}, 1, true},
		"the other mark":                {[]byte{0xfe, 0xff, 0, 'a'}, 0, true},
		"no mark":                       {little, 1, true},
		"no mark, the other way":        {big, 0, true},
		"half of a unit at the end":     {append(bytes.Clone(little), 'x'), 1, true},
		"a text":                        {[]byte("a text of some length\n"), 0, false},
		"zeros":                         {make([]byte, 4096), 0, false},
		"a few zeros":                   {[]byte("a\x00b\x00c\x00"), 0, false},
		"not in all of the first KiB":   {append(bytes.Clone(long[:1000]), []byte(strings.Repeat("x", 100))...), 0, false},
		"something else after that KiB": {append(bytes.Clone(long[:1024]), []byte(strings.Repeat("x", 100))...), 1, true},
	} {
		if high, ok := wideOrder(row.start); high != row.high || ok != row.ok {
			t.Errorf("%s: %d, %v", name, high, ok)
		}
	}
}

// What is found in UTF-16 does not depend on how it is written, and one entry says
// nothing of the next.
func TestTextInUTF16IsLookedThrough(t *testing.T) {
	t.Parallel()
	s, err := New()
	if err != nil {
		t.Fatal(err)
	}
	value := "ghp" + "_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
	var got []Found
	stream := s.Files(Key{1}, func(f Found) { got = append(got, f) })
	plain := ""
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		for _, before := range []int{0, 1, 600, 60_000} {
			data := inUTF16(strings.Repeat("wörds\n", before)+" "+value+"\n", order)
			if before > 0 {
				data = append(order.AppendUint16(nil, 0xfeff), data...)
			}
			want := int64(bytes.Index(data, inUTF16(value, order)))
			for _, step := range []int{1, 3, 4096, len(data)} {
				got = nil
				stream.Reset("x")
				for rest := data; len(rest) > 0; rest = rest[min(step, len(rest)):] {
					_, _ = stream.Write(rest[:min(step, len(rest))])
				}
				_ = stream.Close()
				if len(got) != 1 || got[0].Offset != want || got[0].End != want+2*int64(len(value)) || got[0].Line != int64(before)+1 {
					t.Fatalf("%d words, %d bytes at a time: %d found, want one at %d: %+v", before, step, len(got), want, got)
				}
				if plain == "" {
					plain = got[0].Fingerprint
				}
				if got[0].Fingerprint != plain {
					t.Error("one value has two fingerprints")
				}
			}
		}
		got = nil
		stream.Reset("y")
		_, _ = stream.Write([]byte(value))
		_ = stream.Close()
		if len(got) != 1 || got[0].Offset != 0 || got[0].Fingerprint != plain {
			t.Errorf("the next entry: %+v", got)
		}
	}
	// A conversation's places are for masking, in the bytes as they are.
	got = nil
	talk := s.Stream(Key{1}, "x", nil, func(f Found) { got = append(got, f) })
	_, _ = talk.Write(inUTF16(value, binary.LittleEndian))
	_ = talk.Close()
	if len(got) != 0 {
		t.Errorf("in a conversation: %+v", got)
	}
}

// A name is bytes, whatever it begins with.
func TestANameThatBeginsLikeUTF16(t *testing.T) {
	t.Parallel()
	s, err := New()
	if err != nil {
		t.Fatal(err)
	}
	value := "ghp" + "_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
	n := 0
	if masked := s.Files(Key{1}, nil).Name("\xff\xfe"+value+" "+value, func(Found) { n++ }); n != 2 || strings.Contains(masked, value) {
		t.Errorf("%d found in %q", n, masked)
	}
}

// The rules that are for files of some name are for a text whose name nobody knows,
// but those that find what is in many examples.
func TestRulesForATextWithoutAName(t *testing.T) {
	t.Parallel()
	s, err := New()
	if err != nil {
		t.Fatal(err)
	}
	text := []byte("administrator_login_password = \"q7Zp2wXk\"\nsee https://me:q7Zp2wXk@example.com/\n" +
		"<add key=\"ClearTextPassword\" value=\"q7Zp2wXk\" />\n")
	for name, row := range map[string]struct {
		reset func(*Stream)
		want  []string
	}{
		"another name":   {func(t *Stream) { t.Reset("x.txt") }, nil},
		"that name":      {func(t *Stream) { t.Reset("x.tf") }, []string{"hashicorp-tf-password"}},
		"a third name":   {func(t *Stream) { t.Reset("nuget.config") }, []string{"nuget-config-password"}},
		"nobody knows":   {(*Stream).Unnamed, []string{"nuget-config-password"}},
		"of the remotes": {func(t *Stream) { t.Reset("manifest.json") }, []string{ruleURL}},
		"of a fetch":     {func(t *Stream) { t.Reset("repositories/0001/git/FETCH_HEAD") }, []string{ruleURL}},
		"of a log":       {func(t *Stream) { t.Reset("repositories/0001/git/logs/refs/heads/main") }, []string{ruleURL}},
		"of a file":      {func(t *Stream) { t.Reset("files/workspace/manifest.json") }, nil},
	} {
		var got []string
		stream := s.Files(Key{1}, func(f Found) { got = append(got, f.Rule) })
		row.reset(stream)
		_, _ = stream.Write(text)
		_ = stream.Close()
		if strings.Join(got, " ") != strings.Join(row.want, " ") {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
	}
}

package workspacetar

import (
	"cmp"
	"strings"
)

// Whole reports whether a name has no empty part and no "." or "..", so that it
// stays below where it is put. Anything else is a file's name somewhere.
func Whole(name string) bool {
	if name == "" || strings.ContainsRune(name, 0) {
		return false
	}
	for element := range strings.SplitSeq(name, "/") {
		switch element {
		case "", ".", "..":
			return false
		}
	}
	return true
}

// Order compares two names as a walk comes to them: a directory, what is in it,
// and then what sorts after it.
func Order(a, b string) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return cmp.Compare(rank(a[i]), rank(b[i]))
		}
	}
	return cmp.Compare(len(a), len(b))
}

// rank puts the slash before every other byte; no name holds a zero byte.
func rank(c byte) byte {
	if c == '/' {
		return 0
	}
	return c
}

// clip cuts what an archive says to what an error can hold.
func clip(text string) string {
	const most = 200
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}

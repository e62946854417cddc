package server

import (
	"errors"
	"io"
)

// errNotJSON is what a checkedJSON reader ends with when it read something else.
var errNotJSON = errors.New("not valid JSON")

// maxNesting is how deep JSON may be nested, as encoding/json has it.
const maxNesting = 10_000

// checkedJSON passes r on as long as it holds nothing but JSON documents, one
// after the other. A block with a fault in it is not passed on at all. It needs
// no memory for a value, however long that is.
type checkedJSON struct {
	r     io.Reader
	check jsonChecker
}

func (c *checkedJSON) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if !c.check.write(p[:n]) || errors.Is(err, io.EOF) && !c.check.complete() {
		return 0, errNotJSON
	}
	return n, err
}

// What a jsonChecker expects next.
type jsonState byte

const (
	wantValue   jsonState = iota // a value
	wantFirst                    // a value, or the end of an empty list
	wantKey                      // a key
	wantKeyEnd                   // a key, or the end of an empty object
	wantColon                    //
	afterValue                   // "," or the end of what it stands in
	inText                       // of a string
	inEscape                     // after a backslash
	inHex                        // of \uXXXX, left counts
	inWord                       // of true, false, null
	numSign                      // after "-"
	numZero                      // after a leading 0
	numDigits                    // of the whole part
	numPoint                     // after "."
	numFraction                  //
	numE                         // after "e"
	numESign                     // after its sign
	numExponent                  //
)

// jsonChecker follows JSON byte by byte. Its zero value is at the start.
type jsonChecker struct {
	state jsonState
	nest  []byte // '{' and '[' around here
	key   bool   // the string is a key
	left  int    // hexadecimal digits to come
	word  string // letters to come
}

// complete reports whether the end may be here.
func (c *jsonChecker) complete() bool {
	switch c.state { //nolint:exhaustive // all others are in the middle
	case wantValue, afterValue, numZero, numDigits, numFraction, numExponent:
		return len(c.nest) == 0
	}
	return false
}

// write takes the next bytes; it returns false when they cannot follow.
func (c *jsonChecker) write(p []byte) bool {
	for i := 0; i < len(p); i++ {
		if c.state == inText {
			// Most bytes are text.
			for i < len(p) && p[i] >= ' ' && p[i] != '"' && p[i] != '\\' {
				i++
			}
			if i == len(p) {
				return true
			}
		}
		if !c.next(p[i]) {
			return false
		}
	}
	return true
}

func (c *jsonChecker) next(b byte) bool {
	switch c.state {
	case inText:
		switch {
		case b == '"' && c.key:
			c.state = wantColon
		case b == '"':
			c.state = afterValue
		case b == '\\':
			c.state = inEscape
		case b < ' ':
			return false
		}
		return true
	case inEscape:
		switch b {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			c.state = inText
		case 'u':
			c.state, c.left = inHex, 4
		default:
			return false
		}
		return true
	case inHex:
		if c.left--; c.left == 0 {
			c.state = inText
		}
		return isDigit(b) || b >= 'a' && b <= 'f' || b >= 'A' && b <= 'F'
	case inWord:
		if b != c.word[0] {
			return false
		}
		if c.word = c.word[1:]; c.word == "" {
			c.state = afterValue
		}
		return true
	case numSign, numZero, numDigits, numPoint, numFraction, numE, numESign, numExponent:
		return c.number(b)
	case wantValue, wantFirst, wantKey, wantKeyEnd, wantColon, afterValue:
	}
	return b == ' ' || b == '\t' || b == '\n' || b == '\r' || c.structure(b)
}

// number takes one more byte of a number, or the one after it.
func (c *jsonChecker) number(b byte) bool {
	switch state := c.state; {
	case isDigit(b) && state == numSign:
		c.state = numDigits
		if b == '0' {
			c.state = numZero
		}
	case isDigit(b) && (state == numDigits || state == numFraction || state == numExponent):
	case isDigit(b) && state == numPoint:
		c.state = numFraction
	case isDigit(b) && (state == numE || state == numESign):
		c.state = numExponent
	case b == '.' && (state == numZero || state == numDigits):
		c.state = numPoint
	case (b == 'e' || b == 'E') && (state == numZero || state == numDigits || state == numFraction):
		c.state = numE
	case (b == '+' || b == '-') && state == numE:
		c.state = numESign
	case state == numSign, state == numPoint, state == numE, state == numESign:
		return false
	default:
		c.state = afterValue
		return c.next(b)
	}
	return true
}

// structure takes a byte that is no space outside of values.
func (c *jsonChecker) structure(b byte) bool {
	switch c.state { //nolint:exhaustive // next handles the rest
	case wantColon:
		c.state = wantValue
		return b == ':'
	case wantKey, wantKeyEnd:
		if b == '}' && c.state == wantKeyEnd {
			return c.leave('{')
		}
		c.state, c.key = inText, true
		return b == '"'
	case afterValue:
		switch {
		case len(c.nest) == 0:
			c.state = wantValue // another document
			return c.structure(b)
		case b == '}':
			return c.leave('{')
		case b == ']':
			return c.leave('[')
		case b != ',':
			return false
		case c.nest[len(c.nest)-1] == '{':
			c.state = wantKey
		default:
			c.state = wantValue
		}
		return true
	}
	return c.begin(b)
}

// begin takes the first byte of a value.
func (c *jsonChecker) begin(b byte) bool {
	switch {
	case b == '"':
		c.state, c.key = inText, false
	case b == '{', b == '[':
		if len(c.nest) == maxNesting {
			return false
		}
		c.nest = append(c.nest, b)
		c.state = wantKeyEnd
		if b == '[' {
			c.state = wantFirst
		}
	case b == ']' && c.state == wantFirst:
		return c.leave('[')
	case b == '-':
		c.state = numSign
	case b == '0':
		c.state = numZero
	case isDigit(b):
		c.state = numDigits
	case b == 't':
		c.state, c.word = inWord, "true"[1:]
	case b == 'f':
		c.state, c.word = inWord, "false"[1:]
	case b == 'n':
		c.state, c.word = inWord, "null"[1:]
	default:
		return false
	}
	return true
}

func (c *jsonChecker) leave(open byte) bool {
	last := len(c.nest) - 1
	if last < 0 || c.nest[last] != open {
		return false
	}
	c.nest, c.state = c.nest[:last], afterValue
	return true
}

func isDigit(b byte) bool { return b >= '0' && b <= '9' }

package exports

import (
	"bytes"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The second line of defence: specs are refused earlier when they carry values
// under secret names. Here values are refused by their shape, and by names
// that never carry anything else, so that "key" (a place in the store), "token"
// (a fingerprint) and "token_ttl" pass.
var (
	secretShape = regexp.MustCompile(`(?i)-----BEGIN [A-Z ]*PRIVATE KEY-----` +
		`|gAAAA[A-Za-z0-9_-]{60,}` +
		`|\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.` +
		`|\bA(KIA|SIA)[0-9A-Z]{16}\b` +
		`|\b(sk|rk|pk)-[A-Za-z0-9_-]{16,}` +
		`|\bgh[opsur]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}` +
		`|\bglpat-[A-Za-z0-9_-]{16,}|\bxox[abprs]-[A-Za-z0-9-]{10,}|\bdo[opr]_v1_[a-f0-9]{20,}` +
		`|\bbearer\s+[A-Za-z0-9._~+/=-]{12,}` +
		`|://[^/\s:@]*:[^/\s@]+@`)
	secretName = regexp.MustCompile(`(?i)(^|[_-])(api[_-]?key|session[_-]?key|private[_-]?key|secret[_-]?(access[_-]?)?key|` +
		`(access|refresh|auth|session|bearer|id|api)[_-]?token|password|passwd|passphrase|secret|client[_-]?secret|authorization|cookie)$`)
	secretReference = regexp.MustCompile(`^(env:[A-Za-z_][A-Za-z0-9_]*|file:/.+|credential:[A-Za-z0-9._-]+)$`)
)

// findSecret returns the path of the first value that looks like a secret.
func findSecret(data []byte) (where string, found bool) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return "", false
	}
	return findSecretIn("data", v)
}

func findSecretIn(at string, v any) (where string, found bool) {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if secretShape.MatchString(name) {
				return at, true // the name itself; it is not repeated in the error
			}
			inner := at + "." + name
			if text, ok := v[name].(string); ok && secretName.MatchString(name) && !harmless(text) {
				return inner, true
			}
			if where, found := findSecretIn(inner, v[name]); found {
				return where, true
			}
		}
	case []any:
		for i, e := range v {
			if where, found := findSecretIn(at+"["+strconv.Itoa(i)+"]", e); found {
				return where, true
			}
		}
	case string:
		return at, secretShape.MatchString(v) && !secretReference.MatchString(v)
	}
	return "", false
}

// harmless reports an empty value, a mask or a reference.
func harmless(text string) bool {
	return text == "" || text == "[redacted]" || strings.Trim(text, "*") == "" || secretReference.MatchString(text)
}

package notices_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Written from the text of Standard Webhooks, as a receiver would write it; the
// same lines are in docs/events.md.

// verify checks that a request comes from who knows the key, and is fresh. Key is
// the text that begins with whsec_. Read the body once, and give the same bytes.
func verify(key string, header http.Header, body []byte, now time.Time) error {
	secret, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(key, "whsec_"))
	if err != nil {
		return err
	}
	id, stamp := header.Get("webhook-id"), header.Get("webhook-timestamp")
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil || now.Sub(time.Unix(seconds, 0)).Abs() > 5*time.Minute {
		return errors.New("webhook-timestamp is too old, too new or missing")
	}
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(id + "." + stamp + "."))
	mac.Write(body)
	want := mac.Sum(nil)
	for one := range strings.FieldsSeq(header.Get("webhook-signature")) {
		text, ok := strings.CutPrefix(one, "v1,")
		have, err := base64.StdEncoding.DecodeString(text)
		if ok && err == nil && hmac.Equal(have, want) { // in constant time
			return nil
		}
	}
	return errors.New("webhook-signature does not match")
}

package notices

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"strconv"
	"strings"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// Names of the headers, as Standard Webhooks has them.
const (
	HeaderID        = "webhook-id"
	HeaderTimestamp = "webhook-timestamp"
	HeaderSignature = "webhook-signature"
)

const (
	keyPrefix = "whsec_"
	minKey    = 24
	maxKey    = 64
)

// decodeKey returns the bytes of a key. The error never repeats it.
func decodeKey(reference string, key box.Secret) ([]byte, error) {
	text, ok := strings.CutPrefix(key.Reveal(), keyPrefix)
	raw, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil || len(raw) < minKey || len(raw) > maxKey {
		return nil, box.Errorf(box.ClassFailedPrecondition,
			"the key of %s is not one of a webhook: it is %q and then %d to %d bytes in base64; make one with: echo \"whsec_$(openssl rand -base64 32)\"", reference, keyPrefix, minKey, maxKey)
	}
	return raw, nil
}

// signature is the value of the header: one signature for each key, so that a
// receiver that knows either of two accepts it.
func signature(keys [][]byte, id string, at time.Time, body []byte) string {
	out := make([]string, 0, len(keys))
	for _, key := range keys {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + strconv.FormatInt(at.Unix(), 10) + "."))
		mac.Write(body)
		out = append(out, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	return strings.Join(out, " ")
}

package notices

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// Bounds of one request and of what a receiver gets in one activity.
const (
	requestWithin  = 10 * time.Second
	batchWithin    = 20 * time.Second // no further event is begun after it
	maxAnswerBytes = 64 << 10
	maxHeaderBytes = 64 << 10
	longestAfter   = 12 * time.Hour
)

// Webhook is one configured receiver. Its URL was checked by internal/config.
type Webhook struct {
	Name string
	URL  string
	// Keys are references to one key, or two while they are changed over. They
	// are resolved at each request.
	Keys []string
	// Kinds are what it takes; all when empty.
	Kinds []box.EventKind
}

func (w Webhook) listener() box.Listener { return box.Listener{Name: w.Name, Only: w.Kinds} }

// answer is what became of one request.
type answer int

const (
	accepted answer = iota
	refused         // this event will not be taken, however often it is sent
	gone            // the receiver is not there any more
	failed          // try again
)

// String is the outcome as the metrics name it.
func (a answer) String() string {
	return [...]string{accepted: "ok", refused: "refused", gone: "gone", failed: "failed"}[a]
}

// result is an answer with its words, which never hold the URL.
type result struct {
	answer  answer
	after   time.Duration // what the receiver asked for
	problem string
}

func (r result) ok() bool { return r.answer == accepted }

// client never follows a redirect: what is signed for one host is for no other.
func client(roots *x509.CertPool, within time.Duration) *http.Client {
	transport := &http.Transport{
		DialContext:            (&net.Dialer{Timeout: within, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2:      true,
		TLSHandshakeTimeout:    within,
		ResponseHeaderTimeout:  within,
		MaxIdleConnsPerHost:    2,
		IdleConnTimeout:        time.Minute,
		MaxResponseHeaderBytes: maxHeaderBytes,
	}
	return &http.Client{
		Transport: transport, Timeout: within,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// send makes one request.
func (o *Outlet) send(ctx context.Context, w Webhook, id string, body []byte) (r result) {
	began := time.Now()
	defer func() {
		if o.record != nil {
			o.record(w.Name, r.answer.String(), time.Since(began))
		}
	}()
	var keys [][]byte
	for _, reference := range w.Keys {
		secret, err := o.secret(reference)
		if err != nil {
			return result{answer: failed, problem: "its key cannot be read: " + err.Error()}
		}
		key, err := decodeKey(reference, secret)
		if err != nil {
			return result{answer: failed, problem: err.Error()}
		}
		keys = append(keys, key)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL, bytes.NewReader(body))
	if err != nil {
		return result{answer: failed, problem: "its URL cannot be used; check it in the configuration"}
	}
	at := time.Now()
	request.Header = http.Header{
		"Content-Type": {ContentType}, "User-Agent": {"boxkeeper"},
		// As they are written in the standard; HTTP does not care for case.
		http.CanonicalHeaderKey(HeaderID):        {id},
		http.CanonicalHeaderKey(HeaderTimestamp): {strconv.FormatInt(at.Unix(), 10)},
		http.CanonicalHeaderKey(HeaderSignature): {signature(keys, id, at, body)},
	}
	response, err := o.client.Do(request)
	if err != nil {
		return result{answer: failed, problem: plain(err, o.within)}
	}
	defer response.Body.Close()
	// Read so that the connection can be used again, and no further.
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, maxAnswerBytes))
	return judge(response, at)
}

// judge says what a status means. Which refusals are of the event and which of
// the receiver decides whether it is sent again.
func judge(response *http.Response, now time.Time) result {
	status := response.StatusCode
	r := result{answer: failed, problem: fmt.Sprintf("it answered %d", status), after: retryAfter(response.Header.Get("Retry-After"), now)}
	switch {
	case status >= 200 && status < 300:
		return result{}
	case status >= 300 && status < 400:
		r.problem += ", a redirect, which is not followed; configure the URL that it leads to"
	case status == http.StatusGone:
		r.answer = gone
		r.problem += ": it is gone; take it out of the configuration"
	case slices.Contains([]int{http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity}, status):
		r.answer = refused
		r.problem += ": it does not take this event"
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		r.problem += ": it does not accept the signature; give both sides the same key"
	}
	return r
}

func retryAfter(text string, now time.Time) time.Duration {
	if text == "" {
		return 0
	}
	if seconds, err := strconv.Atoi(text); err == nil {
		most := int(longestAfter / time.Second)
		return time.Duration(min(max(seconds, 0), most)) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(now), 0), longestAfter)
}

// plain is an error of the client's without the URL.
func plain(err error, within time.Duration) string {
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return "it did not answer within " + within.String()
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	return "the request failed: " + err.Error()
}

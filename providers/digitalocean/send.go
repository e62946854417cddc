package digitalocean

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/digitalocean/godo"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/driver/httpdriver"
)

// bearer adds the token.
type bearer struct {
	token box.Secret
	next  http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token.Reveal())
	return b.next.RoundTrip(r)
}

// call is one request.
type call struct {
	what   string // for errors
	method string
	path   string
	body   any
	limit  time.Duration
	hide   []string // values that the service may repeat out of the body
}

// send makes one request and returns what the service says, if it says that all
// is well.
func (a *api) send(ctx context.Context, at *godo.Client, c call) (httpdriver.Answer, error) {
	if err := driver.Ended(ctx); err != nil {
		return httpdriver.Answer{}, box.Errorf(box.ClassOf(err), "%s: %w", c.what, err)
	}
	within, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	request, err := at.NewRequest(within, c.method, c.path, c.body)
	if err != nil {
		return httpdriver.Answer{}, box.Errorf(box.ClassInternal, "%s: the request cannot be written", c.what)
	}
	answer, err := httpdriver.Do(a.client, request.WithContext(within))
	switch {
	case err != nil:
		return httpdriver.Answer{}, box.Errorf(box.ClassOf(err), "%s: %w", c.what, err)
	case !answer.OK():
		return httpdriver.Answer{}, a.refusal(c, answer)
	}
	return answer, nil
}

// ask makes one request and decodes the answer.
func (a *api) ask(ctx context.Context, at *godo.Client, c call, into any) error {
	answer, err := a.send(ctx, at, c)
	if err == nil {
		if err = answer.Decode(into); err != nil {
			err = box.Errorf(box.ClassOf(err), "%s: %w", c.what, err)
		}
	}
	return err
}

// get decodes the answer to a GET.
func (a *api) get(ctx context.Context, what, path string, query url.Values, into any) error {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return a.ask(ctx, a.regional, call{what: what, method: http.MethodGet, path: path, limit: quickCall}, into)
}

// do makes a change that is answered by 204. Anything else that says all is well
// is not the service's, such as a page to log in: whether it was done is unknown.
func (a *api) do(ctx context.Context, c call) error {
	answer, err := a.send(ctx, a.regional, c)
	if err == nil && answer.Status != http.StatusNoContent {
		err = box.Errorf(box.ClassUnknown, "%s: the answer is %d and not the 204 that says it was done; look again", c.what, answer.Status)
	}
	return err
}

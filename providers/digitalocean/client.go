package digitalocean

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/digitalocean/godo"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/driver/httpdriver"
)

// How long one request may take. godo has no time-out of its own; these are what
// the service's own clients allow.
const (
	quickCall  = 15 * time.Second
	createCall = time.Minute
	pauseCall  = time.Minute
	resumeCall = 2 * time.Minute // it answers when the sandbox is ready
	deleteCall = time.Minute
)

const (
	// sessionsPath is where sessions are read with fields that godo does not know.
	sessionsPath     = "/v2/harness-runtime/sessions"
	environmentsPath = "/v2/harness-runtime/configs"
	// ingressPath is documented under the older prefix only [docs 13 Nov 2026].
	ingressPath = "/v2/agents/sessions"

	pageSize = 200 // what larger ones are cut down to
	// mostPages bounds a list that never ends.
	mostPages = 500
)

// api makes the requests, one for each call, none of them twice. godo writes
// them; their answers are read here, since godo takes any 2xx for done and any
// text for an answer [godo 1.240.0].
type api struct {
	token    box.Secret
	device   string
	carrier  http.RoundTripper // without the token
	client   *http.Client
	regional *godo.Client // of the region
	global   *godo.Client // the host without a region
}

// session is a session as it is sent: more than godo's own type, which lacks
// keep_warm and idle_timeout_seconds, and less, since it refuses a whole answer
// for a time that is null [godo 1.240.0].
type session struct {
	ID             string                             `json:"session_id"`
	Name           string                             `json:"name"`
	Status         godo.HostedAgentSessionStatus      `json:"status"`
	PauseReason    godo.HostedAgentSessionPauseReason `json:"pause_reason"`
	ConfigID       string                             `json:"config_id"`
	Region         string                             `json:"region"`
	KeepWarm       bool                               `json:"keep_warm"`
	IdleSeconds    *int64                             `json:"idle_timeout_seconds"`
	ResumeOnTopoff bool                               `json:"resume_on_topoff"`
	// Times as they came: none of them may spoil an answer.
	CreatedAt   json.RawMessage `json:"created_at"`
	LastEventAt json.RawMessage `json:"last_event_at"`
}

// environment is one of a list of environments.
type environment struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	CreatedAt string `json:"created_at"`
}

// ingress is the answer about the public address of port 8000.
type ingress struct {
	URL   string `json:"url"`
	State string `json:"state"`
}

func newAPI(installation string, o Options) (*api, error) {
	a := &api{token: o.Token, device: deviceOf(installation), carrier: o.Transport}
	if a.carrier == nil {
		a.carrier = &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
			TLSHandshakeTimeout:   10 * time.Second,
			ExpectContinueTimeout: time.Second,
			IdleConnTimeout:       time.Minute,
			MaxIdleConns:          16,
			ForceAttemptHTTP2:     true,
		}
	}
	atRegion, atGlobal := godo.HostedAgentsRegionalBaseURL(o.Region), godo.HostedAgentsRegionalBaseURL("")
	if o.BaseURL != "" {
		atRegion, atGlobal = o.BaseURL, o.BaseURL
	}
	a.client = httpdriver.NewClient(bearer{token: o.Token, next: a.carrier})
	var err error
	if a.regional, err = godo.New(nil, godo.SetBaseURL(atRegion), godo.SetUserAgent("boxkeeper")); err != nil {
		return nil, box.Invalidf("region", "%q makes no host: %s", o.Region, err)
	}
	if a.global, err = godo.New(nil, godo.SetBaseURL(atGlobal), godo.SetUserAgent("boxkeeper")); err != nil {
		return nil, box.Invalidf("base_url", "%q makes no host: %s", o.BaseURL, err)
	}
	return a, nil
}

// team returns the id of the team that the token belongs to.
func (a *api) team(ctx context.Context) (string, error) {
	const what = "read the account of the token"
	var out struct {
		Account struct {
			Team struct {
				UUID string `json:"uuid"`
			} `json:"team"`
		} `json:"account"`
	}
	err := a.ask(ctx, a.global, call{what: what, method: http.MethodGet, path: "/v2/account", limit: quickCall}, &out)
	switch status := statusOf(err); {
	case status == http.StatusForbidden:
		return "", box.Errorf(box.ClassUnauthorized, "%w; it needs the scope account:read, which tells the team", err)
	case err != nil:
		return "", err
	case out.Account.Team.UUID == "":
		// The account itself is no place: a person has the same one in every team.
		return "", box.Errorf(box.ClassUnknown, "%s: the answer names no team; look again", what)
	}
	return out.Account.Team.UUID, nil
}

// session reads one session. A 404 is only what the service says, no proof.
func (a *api) session(ctx context.Context, id string) (session, error) {
	what := "read session " + id
	var out struct {
		Session *session `json:"session"`
	}
	if err := a.get(ctx, what, sessionsPath+"/"+id, nil, &out); err != nil {
		return session{}, err
	}
	if out.Session == nil || out.Session.ID != id || out.Session.Name == "" {
		return session{}, box.Errorf(box.ClassUnknown, "%s: the answer is about another one, or says no name; look again", what)
	}
	return *out.Session, nil
}

// sessions reads all pages of a list, of one environment where one is named.
func (a *api) sessions(ctx context.Context, environment string, filter godo.HostedAgentSessionListOptions) ([]session, error) {
	return a.fewSessions(ctx, environment, filter, mostPages)
}

// fewSessions is sessions, and an error for a list of more than most pages.
func (a *api) fewSessions(ctx context.Context, environment string, filter godo.HostedAgentSessionListOptions, most int) ([]session, error) {
	path, what := sessionsPath, "list sessions"
	if environment != "" {
		path, what = environmentsPath+"/"+environment+"/sessions", "list the sessions of environment "+environment
	}
	query := url.Values{}
	if filter.Status != "" {
		query.Set("status", string(filter.Status))
	}
	if filter.Name != "" {
		query.Set("name", filter.Name)
	}
	return pages(ctx, what, query, most, func(query url.Values) ([]session, string, error) {
		var page struct {
			Sessions []session `json:"sessions"`
			Next     string    `json:"next_page_token"`
		}
		err := a.get(ctx, what, path, query, &page)
		switch {
		case err != nil:
		case page.Sessions == nil: // an empty list is [] [godo 1.240.0]
			err = box.Errorf(box.ClassUnknown, "%s: the answer holds no list; list again", what)
		case slices.ContainsFunc(page.Sessions, func(s session) bool { return s.ID == "" }):
			err = box.Errorf(box.ClassUnknown, "%s: one has no id; list again", what)
		}
		return page.Sessions, page.Next, err
	})
}

// environments reads all pages of the team's environments.
func (a *api) environments(ctx context.Context) ([]environment, error) {
	const what = "list environments"
	return pages(ctx, what, url.Values{}, mostPages, func(query url.Values) ([]environment, string, error) {
		var page struct {
			Configs []environment `json:"configs"`
			Next    string        `json:"next_page_token"`
		}
		err := a.get(ctx, what, environmentsPath, query, &page)
		switch {
		case err != nil:
		case page.Configs == nil:
			err = box.Errorf(box.ClassUnknown, "%s: the answer holds no list; list again", what)
		case slices.ContainsFunc(page.Configs, func(e environment) bool { return e.ID == "" || e.Name == "" }):
			err = box.Errorf(box.ClassUnknown, "%s: one has no id or no name; list again", what)
		}
		return page.Configs, page.Next, err
	})
}

// pages reads a list to its end. A page may be empty and not the last one. A
// token that comes again, or a list without an end, is an error: a part of a list
// is none.
func pages[T any](ctx context.Context, what string, query url.Values, most int, read func(url.Values) ([]T, string, error)) ([]T, error) {
	var out []T
	seen := map[string]bool{}
	query.Set("page_size", strconv.Itoa(pageSize))
	for range most {
		page, next, err := read(query)
		if err != nil {
			return nil, err
		}
		out = append(out, page...)
		if next == "" {
			return out, nil
		}
		if seen[next] {
			return nil, box.Errorf(box.ClassUnknown, "%s: the pages go round in a circle; list again", what)
		}
		seen[next] = true
		query.Set("page_token", next)
		if err := driver.Ended(ctx); err != nil {
			return nil, err
		}
	}
	return nil, box.Errorf(box.ClassUnknown, "%s: there is no end after %d pages", what, most)
}

// environmentName returns the name of an environment.
func (a *api) environmentName(ctx context.Context, id string) (string, error) {
	what := "read environment " + id
	var out struct {
		Config *environment `json:"config"`
	}
	if err := a.get(ctx, what, environmentsPath+"/"+id, nil, &out); err != nil {
		return "", err
	}
	if out.Config == nil || out.Config.ID != id || out.Config.Name == "" {
		return "", box.Errorf(box.ClassUnknown, "%s: the answer is about another one; look again", what)
	}
	return out.Config.Name, nil
}

// manifestOf returns the manifest of an environment, without its secrets.
func (a *api) manifestOf(ctx context.Context, id string) (json.RawMessage, error) {
	var out struct {
		Config struct {
			Manifest json.RawMessage `json:"manifest"`
		} `json:"config"`
	}
	err := a.get(ctx, "read environment "+id, environmentsPath+"/"+id, nil, &out)
	return out.Config.Manifest, err
}

// createEnvironment stores a manifest and returns its id.
func (a *api) createEnvironment(ctx context.Context, name string, manifest []byte, hide []string) (string, error) {
	what := "create environment " + name
	var out struct {
		Config *environment `json:"config"`
	}
	err := a.ask(ctx, a.regional, call{
		what: what, method: http.MethodPost, path: environmentsPath, limit: createCall, hide: hide,
		body: &godo.HostedEnvironmentCreateRequest{Name: name, ManifestYAML: string(manifest)},
	}, &out)
	if err != nil {
		return "", err
	}
	if out.Config == nil || !validID(out.Config.ID) || out.Config.Name != name {
		return "", box.Errorf(box.ClassUnknown, "%s: the answer is about another one; look again", what)
	}
	return out.Config.ID, nil
}

// createSession makes a session. ResumeOnTopoff stays off: the service would wake
// a box behind the workflow's back.
func (a *api) createSession(ctx context.Context, name, environment, region string) (session, error) {
	what := "create session " + name
	var out struct {
		Session *session `json:"session"`
	}
	err := a.ask(ctx, a.regional, call{
		what: what, method: http.MethodPost, path: sessionsPath, limit: createCall,
		body: &godo.HostedAgentSessionFromEnvironmentRequest{Name: name, ConfigID: environment, Region: region},
	}, &out)
	if err != nil {
		return session{}, err
	}
	if out.Session == nil || !validID(out.Session.ID) || out.Session.Name != name {
		return session{}, box.Errorf(box.ClassUnknown, "%s: the answer is about another one; look again", what)
	}
	return *out.Session, nil
}

func (a *api) pause(ctx context.Context, id string) error {
	return a.do(ctx, call{what: "pause session " + id, method: http.MethodPost, path: sessionsPath + "/" + id + "/pause", body: struct{}{}, limit: pauseCall})
}

func (a *api) resume(ctx context.Context, id string) error {
	return a.do(ctx, call{what: "resume session " + id, method: http.MethodPost, path: sessionsPath + "/" + id + "/resume", body: struct{}{}, limit: resumeCall})
}

func (a *api) destroy(ctx context.Context, id string) error {
	return a.do(ctx, call{what: "destroy session " + id, method: http.MethodDelete, path: sessionsPath + "/" + id, limit: deleteCall})
}

func (a *api) deleteEnvironment(ctx context.Context, id string) error {
	return a.do(ctx, call{what: "delete environment " + id, method: http.MethodDelete, path: environmentsPath + "/" + id, limit: deleteCall})
}

// keepOff takes back the consent to be resumed when the balance is restored. It is
// a setting and wakes nothing.
func (a *api) keepOff(ctx context.Context, s session) (session, error) {
	off := false
	what := "take back the consent of session " + s.ID
	var out struct {
		Session *session `json:"session"`
	}
	err := a.ask(ctx, a.regional, call{
		what: what, method: http.MethodPatch, path: sessionsPath + "/" + s.ID, limit: quickCall,
		body: &godo.HostedAgentSessionUpdateRequest{ResumeOnTopoff: &off},
	}, &out)
	switch {
	case err != nil:
		return session{}, err
	case out.Session == nil || out.Session.ID != s.ID:
		return session{}, box.Errorf(box.ClassUnknown, "%s: the answer is about another one; look again", what)
	case out.Session.ResumeOnTopoff:
		return session{}, box.Errorf(box.ClassUnavailable, "%s: the service did not take it; try again", what)
	}
	s.ResumeOnTopoff = false
	return s, nil
}

// ingressOf asks for the public address of a running session, which publishes it.
func (a *api) ingressOf(ctx context.Context, id string) (ingress, error) {
	var out struct {
		URL *ingress `json:"ingress_url"`
	}
	what := "read the ingress of session " + id
	if err := a.get(ctx, what, ingressPath+"/"+id+"/ingress", nil, &out); err != nil {
		return ingress{}, err
	}
	if out.URL == nil {
		return ingress{}, box.Errorf(box.ClassUnknown, "%s: the answer names none; look again", what)
	}
	return *out.URL, nil
}

// validID reports whether an id may be put into a path. It is opaque else: the
// docs show sess_... in one place and UUIDs in another.
func validID(id string) bool {
	const most = 128
	return id != "" && len(id) <= most && !slices.ContainsFunc([]byte(id), func(c byte) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_'
	})
}

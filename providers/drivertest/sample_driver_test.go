package drivertest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/driver/httpdriver"
)

// sample is a driver of the sample service, and how drivers of HTTP services
// are written. A flaw makes it do one thing wrong.
type sample struct {
	base, installation string
	client             *http.Client
	flaw               string
}

func newSample(base, installation, flaw string, via http.RoundTripper) *sample {
	client := httpdriver.NewClient(via)
	switch flaw {
	case "follows redirects":
		client.CheckRedirect = nil
	case "reads unbounded bodies":
		client.Transport = via
	}
	return &sample{base: base, installation: installation, client: client, flaw: flaw}
}

func (d *sample) Capabilities() box.Capabilities {
	row := box.Capabilities{
		Driver: "sample", Suspend: box.Yes, MemoryKept: box.No, SameIdentity: box.Yes, URLStable: box.Yes, KeyStable: box.Yes,
		LookingIsUse: box.No, List: box.Yes, Watch: box.No, ExportNeedsRunning: box.Yes, Fence: box.No, NativeIdle: box.No,
		NativeAdjust: box.No, Deepen: box.No, Adopt: box.No, Lead: box.LeadOurs,
		SuspendProof: "state SUSPENDED", DeleteProof: "the service's own 404 in the same account",
	}
	return row
}

// said is a box as the service shows it.
type said struct {
	ID      string            `json:"id"`
	Name    string            `json:"name"`
	Account string            `json:"account"`
	State   string            `json:"state"`
	URL     string            `json:"url"`
	Labels  map[string]string `json:"labels"`
	Since   string            `json:"since"`

	date string // of the answer, by the same clock
}

// send makes one request. The path is made of parts that were checked.
func (d *sample) send(ctx context.Context, method, path, key string, body any) (httpdriver.Answer, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return httpdriver.Answer{}, box.Errorf(box.ClassInternal, "encode a request: %w", err)
	}
	if err := driver.Ended(ctx); err != nil && method != http.MethodGet && d.flaw != "never asks its context" {
		return httpdriver.Answer{}, err
	}
	if d.flaw == "does not end with its context" {
		ctx = context.WithoutCancel(ctx)
	}
	req, err := http.NewRequestWithContext(ctx, method, d.base+"/v1/"+path, bytes.NewReader(raw))
	if err != nil {
		return httpdriver.Answer{}, box.Errorf(box.ClassInternal, "make a request")
	}
	req.Header.Set("X-Api-Key", sampleKey)
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	answer, err := httpdriver.Do(d.client, req)
	if err == nil && answer.Status >= 500 && d.flaw == "sends again what was refused" {
		req.Body = io.NopCloser(bytes.NewReader(raw))
		answer, err = httpdriver.Do(d.client, req)
	}
	if err != nil && d.flaw == "puts the request into errors" {
		err = box.Errorf(box.ClassOf(err), "%w: %v", err, req.Header)
	}
	if err == nil && d.flaw == "takes what is not JSON for JSON" {
		answer.Header.Set("Content-Type", "application/json")
		if !json.Valid(answer.Body) {
			answer.Body = []byte("{}")
		}
	}
	return answer, err
}

func (d *sample) Fingerprint(ctx context.Context) (string, error) {
	answer, err := d.send(ctx, http.MethodGet, "account", "", nil)
	if err == nil {
		err = d.check(answer, box.Ref{})
	}
	var in struct{ Account string }
	if err == nil {
		err = answer.Decode(&in)
	}
	if err == nil && in.Account == "" {
		err = box.Errorf(box.ClassUnknown, "the service does not say which account this is; look again")
	}
	return in.Account, err
}

// read returns the box behind a ref.
func (d *sample) read(ctx context.Context, ref box.Ref) (said, error) {
	identity, ok := driver.IdentityOf(ref)
	switch {
	case !ok || identity.Installation != d.installation:
		return said{}, box.Errorf(box.ClassFailedPrecondition, "box %q is not of installation %s", ref.Name, d.installation)
	case !httpdriver.PathSafe(ref.ID) && d.flaw != "puts any id into a path":
		return said{}, box.Errorf(box.ClassFailedPrecondition, "%q is no id of this service", ref.ID)
	}
	if d.flaw == "observes by the list" {
		return d.readByList(ctx, ref)
	}
	answer, err := d.send(ctx, http.MethodGet, "boxes/"+ref.ID, "", nil)
	if err == nil {
		err = d.check(answer, ref)
	}
	var in said
	if err == nil {
		err = answer.Decode(&in)
	}
	if err != nil {
		return said{}, err
	}
	in.date = answer.Header.Get("Date")
	return in, d.same(in, ref, identity)
}

func (d *sample) readByList(ctx context.Context, ref box.Ref) (said, error) {
	found, err := d.pages(ctx, "")
	for _, in := range found {
		if in.ID == ref.ID {
			return in, err
		}
	}
	if err == nil {
		err = box.Errorf(box.ClassNotFound, "not listed")
	}
	return said{}, err
}

// same refuses an answer that is not about this box of ours.
func (d *sample) same(in said, ref box.Ref, identity box.Identity) error {
	switch {
	case d.flaw == "does not look whom an answer is about" || d.flaw == "puts any id into a path":
		return nil
	case in.ID == "" || in.Name == "" || in.Account == "" || in.Labels == nil:
		return box.Errorf(box.ClassUnknown, "the answer lacks the id, the name, the account or the labels of a box; look again")
	case in.Account != ref.Fingerprint:
		return box.Errorf(box.ClassFailedPrecondition, "the box was made in %q, this is %q; point the instance back", ref.Fingerprint, in.Account)
	case in.ID != ref.ID || in.Name != ref.Name:
		return box.Errorf(box.ClassUnknown, "the answer is about box %q, not %q; look again", in.Name, ref.Name)
	case !marked(in, identity):
		return box.Errorf(box.ClassFailedPrecondition, "%s does not carry our labels, so it is not touched", in.Name)
	}
	return nil
}

func labels(id box.Identity) map[string]string {
	return map[string]string{"installation": id.Installation, "workspace": id.Workspace, "epoch": strconv.Itoa(id.Epoch)}
}

func marked(in said, id box.Identity) bool {
	for name, value := range labels(id) {
		if in.Labels[name] != value {
			return false
		}
	}
	return true
}

func (d *sample) seen(in said, ref box.Ref) box.Observation {
	out := box.Observation{Ref: ref, Age: d.age(in), Evidence: "state " + strconv.Quote(in.State[:min(len(in.State), 40)])}
	switch in.State {
	case "STARTING":
		out.Phase = box.PhaseStarting
	case "RUNNING":
		out.Phase = box.PhaseRunning
	case "SUSPENDED":
		out.Phase, out.MemoryKept = box.PhaseSuspended, box.No
	case "FAILED":
		out.Phase = box.PhaseFailed
	default:
		out.Phase = box.PhaseUnknown
		switch d.flaw {
		case "takes an unknown state for suspended":
			out.Phase = box.PhaseSuspended
		case "takes an unknown state for running":
			out.Phase = box.PhaseRunning
		case "takes an unknown state for gone":
			out.Phase = box.PhaseGone
		}
	}
	return out
}

func (d *sample) Create(ctx context.Context, req driver.CreateRequest) (box.Observation, error) {
	if req.Identity.Installation != d.installation {
		return box.Observation{}, box.Errorf(box.ClassFailedPrecondition, "box %s is of another installation", req.Identity.Name())
	}
	if _, err := req.Start.Variables(nil); err != nil {
		return box.Observation{}, err
	}
	print, err := d.Fingerprint(ctx)
	if err != nil {
		return box.Observation{}, err
	}
	ref := box.Ref{Name: req.Identity.Name(), Epoch: req.Identity.Epoch, Fingerprint: print}
	look, key := true, ref.Name
	switch d.flaw {
	case "creates without a look or a key":
		look, key = false, ""
	case "relies on its look before a create":
		key = ""
	}
	var found []said
	if look {
		if found, err = d.pages(ctx, ref.Name); err != nil {
			return box.Observation{}, err
		}
	}
	if len(found) > 0 {
		in := found[0]
		ref.ID = in.ID
		if d.same(in, ref, req.Identity) != nil && d.flaw != "takes over what has our name" {
			return box.Observation{}, box.Errorf(box.ClassAlreadyExists, "%s exists and is not ours; it was left alone", ref.Name)
		}
		return d.seen(in, ref), nil
	}
	body := map[string]any{"name": ref.Name, "labels": labels(req.Identity), "env": req.Start.SecretEnv["SUITE_TOKEN"].Reveal()}
	answer, err := d.send(ctx, http.MethodPost, "boxes", key, body)
	if err == nil {
		err = d.check(answer, ref)
	}
	var in said
	if err == nil {
		if err = answer.Decode(&in); err == nil {
			ref.ID = in.ID
			err = driver.Unsettled(d.same(in, ref, req.Identity))
		}
	}
	if err != nil {
		return box.Observation{}, err
	}
	return d.seen(in, ref), nil
}

func (d *sample) Observe(ctx context.Context, ref box.Ref) (box.Observation, error) {
	in, err := d.read(ctx, ref)
	if box.ClassOf(err) == box.ClassNotFound {
		return box.Observation{Ref: ref, Phase: box.PhaseGone, Evidence: err.Error()}, nil
	}
	if err != nil {
		return box.Observation{}, err
	}
	return d.seen(in, ref), nil
}

func (d *sample) Suspend(ctx context.Context, ref box.Ref) (box.Observation, error) {
	return d.change(ctx, ref, "suspend", nil, func(p box.Phase) bool { return p == box.PhaseSuspended })
}

func (d *sample) Resume(ctx context.Context, ref box.Ref, start driver.Start) (box.Observation, error) {
	body := map[string]string{"key": start.SessionKey.Reveal()}
	return d.change(ctx, ref, "resume", body, func(p box.Phase) bool { return p == box.PhaseRunning || p == box.PhaseStarting })
}

// change brings a box to a phase: it looks, acts where that is needed, and looks
// again. A refusal for the state of the box is settled by the second look.
func (d *sample) change(ctx context.Context, ref box.Ref, verb string, body any, there func(box.Phase) bool) (box.Observation, error) {
	in, err := d.read(ctx, ref)
	if err != nil {
		return box.Observation{}, err
	}
	if seen := d.seen(in, ref); there(seen.Phase) {
		return seen, nil
	}
	answer, err := d.send(ctx, http.MethodPost, "boxes/"+ref.ID+"/"+verb, "", body)
	if err == nil {
		err = d.check(answer, ref)
	}
	if err != nil && box.ClassOf(err) != box.ClassConflict {
		return box.Observation{}, err
	}
	if d.flaw == "believes the first answer" {
		return box.Observation{Ref: ref, Phase: map[string]box.Phase{"suspend": box.PhaseSuspended, "resume": box.PhaseRunning}[verb]}, nil
	}
	if in, err = d.read(ctx, ref); err != nil {
		return box.Observation{}, d.unsettled(err)
	}
	if seen := d.seen(in, ref); there(seen.Phase) {
		return seen, nil
	}
	return box.Observation{}, box.Errorf(box.ClassUnavailable, "%s was asked for and the box is %q; look again", verb, d.seen(in, ref).Phase)
}

func (d *sample) unsettled(err error) error {
	if d.flaw == "says that nothing was done after it was" {
		return err
	}
	return driver.Unsettled(err)
}

func (d *sample) Delete(ctx context.Context, ref box.Ref) (box.Observation, error) {
	gone := box.Observation{Ref: ref, Phase: box.PhaseGone, Evidence: "the service knows no such box"}
	_, err := d.read(ctx, ref)
	if box.ClassOf(err) == box.ClassNotFound || d.flaw == "takes every error of a delete for gone" && err != nil ||
		d.flaw == "takes 401 of a delete for gone" && box.ClassOf(err) == box.ClassUnauthorized {
		return gone, nil //nolint:nilerr // gone, or the flaw
	}
	if err != nil {
		return box.Observation{}, err
	}
	answer, err := d.send(ctx, http.MethodDelete, "boxes/"+ref.ID, "", nil)
	if err == nil {
		err = d.check(answer, ref)
	}
	switch {
	case box.ClassOf(err) == box.ClassNotFound: // somebody else was faster
	case err != nil:
		return box.Observation{}, err
	case d.flaw == "believes the first answer":
		return gone, nil
	}
	if _, err = d.read(ctx, ref); box.ClassOf(err) == box.ClassNotFound {
		return gone, nil
	}
	if err == nil {
		err = box.Errorf(box.ClassUnavailable, "the box is still there; look again")
	}
	return box.Observation{}, d.unsettled(err)
}

func (d *sample) Endpoint(ctx context.Context, ref box.Ref) (driver.Endpoint, error) {
	in, err := d.read(ctx, ref)
	if err != nil {
		return driver.Endpoint{}, err
	}
	switch phase := d.seen(in, ref).Phase; {
	case phase == box.PhaseUnknown:
		return driver.Endpoint{}, box.Errorf(box.ClassUnknown, "the service calls the box %q, which this driver does not know; look again", in.State[:min(len(in.State), 40)])
	case phase == box.PhaseSuspended || phase == box.PhaseFailed:
		return driver.Endpoint{}, box.Errorf(box.ClassFailedPrecondition, "the box is %s; resume it first", phase)
	case in.URL == "" && d.flaw != "hands out an empty address":
		return driver.Endpoint{}, box.Errorf(box.ClassUnavailable, "the box has no address yet; ask again")
	}
	return driver.Endpoint{URL: in.URL}, nil
}

func (d *sample) ErrorClass(err error) (box.Class, time.Duration) {
	if e, ok := errors.AsType[*box.Error](err); ok {
		return e.Class, e.RetryAfter
	}
	return box.ClassUnknown, 0
}

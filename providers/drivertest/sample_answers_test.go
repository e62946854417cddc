package drivertest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/driver/httpdriver"
)

// check returns the error of an answer that is not OK.
func (d *sample) check(answer httpdriver.Answer, ref box.Ref) error {
	err := answer.Err()
	e, ok := errors.AsType[*box.Error](err)
	switch {
	case !ok:
		return err
	case d.flaw == "quotes the answer in errors":
		e.Message += fmt.Sprintf(": %s", answer.Body)
	case d.flaw == "ignores Retry-After":
		e.RetryAfter = 0
	case d.flaw == "knows waits in seconds only":
		if _, date := http.ParseTime(answer.Header.Get("Retry-After")); date == nil {
			e.RetryAfter = 0
		}
	case d.flaw == "says Internal of every fault of the service" && answer.Status >= 500:
		e.Class = box.ClassInternal
	case d.flaw == "takes 429 for Unavailable" && answer.Status == 429:
		e.Class = box.ClassUnavailable
	}
	if answer.Status == http.StatusNotFound {
		return d.absent(answer, ref, err)
	}
	return err
}

// absent says what a 404 proves: the service's own, under the ref's account,
// that the box is not there. Any other one proves nothing.
func (d *sample) absent(answer httpdriver.Answer, ref box.Ref, unproven error) error {
	notFound := box.Errorf(box.ClassNotFound, "the service knows no box %s in %s", ref.ID, ref.Fingerprint)
	if d.flaw == "believes any 404" {
		return notFound
	}
	var own struct {
		Error struct{ Code, Account string }
	}
	if answer.Decode(&own) != nil || own.Error.Code != "box_not_found" || own.Error.Account == "" {
		return unproven
	}
	if own.Error.Account != ref.Fingerprint && d.flaw != "believes a 404 of any account" {
		return box.Errorf(box.ClassFailedPrecondition, "the box was made in %q, this is %q; point the instance back", ref.Fingerprint, own.Error.Account)
	}
	return notFound
}

// age is how long ago the phase began by the service's own clock, zero when
// that is not known.
func (d *sample) age(in said) box.Span {
	since, err := time.Parse(time.RFC3339, in.Since)
	now, odd := http.ParseTime(in.date)
	switch {
	case err != nil || odd != nil:
		return 0
	case d.flaw == "believes any time":
		return box.Span(now.Sub(since))
	}
	return box.Span(max(0, now.Sub(since)))
}

// pages reads all pages of the boxes of a name, or of all.
func (d *sample) pages(ctx context.Context, name string) ([]said, error) {
	var out []said
	var known []string
	for page := ""; ; {
		answer, err := d.send(ctx, http.MethodGet, "boxes?"+url.Values{"name": {name}, "page": {page}}.Encode(), "", nil)
		if err == nil {
			err = d.check(answer, box.Ref{})
		}
		var in struct {
			Boxes *[]said
			Next  *string
		}
		if err == nil {
			err = answer.Decode(&in)
		}
		switch {
		case err != nil && page != "" && d.flaw == "returns the pages that it got":
			return out, nil
		case err != nil:
			return nil, err
		case (in.Boxes == nil || in.Next == nil) && (d.flaw == "takes a list that is not there for an empty one" || d.flaw == "takes what is not JSON for JSON"):
			return out, nil
		case in.Boxes == nil || in.Next == nil:
			return nil, box.Errorf(box.ClassUnknown, "the list lacks its boxes or its end; list again")
		}
		out = append(out, *in.Boxes...)
		if page = *in.Next; page == "" || d.flaw == "reads the first page only" {
			return out, nil
		}
		if slices.Contains(known, page) && d.flaw != "reads pages without end" {
			return nil, box.Errorf(box.ClassUnknown, "the list repeats page %q; list again", page)
		}
		known = append(known, page)
	}
}

func (d *sample) List(ctx context.Context, installation string) ([]driver.Listed, error) {
	print, err := d.Fingerprint(ctx)
	if err != nil {
		return nil, err
	}
	found, err := d.pages(ctx, "")
	if err != nil {
		return nil, err
	}
	var out []driver.Listed
	for _, in := range found {
		if in.Labels == nil || in.ID == "" || in.Name == "" || in.Account != print {
			return nil, box.Errorf(box.ClassUnknown, "the list holds a box without its id, name, labels or account; list again")
		}
		epoch, err := strconv.Atoi(in.Labels["epoch"])
		id := box.Identity{Installation: in.Labels["installation"], Workspace: in.Labels["workspace"], Epoch: epoch}
		if err != nil || id.Installation != installation || id.Name() != in.Name {
			continue
		}
		ref := box.Ref{ID: in.ID, Name: in.Name, Epoch: epoch, Fingerprint: in.Account}
		out = append(out, driver.Listed{Identity: id, Observation: d.seen(in, ref)})
	}
	return out, nil
}

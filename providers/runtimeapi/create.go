package runtimeapi

import (
	"context"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

const (
	// startGrace is how long after a create that ended unclear this process sends no
	// other one for the same name, while it is looked for: as long as a start may
	// take. One that was cut off early can still land late, and another start would
	// then make a second box. Another process knows of no doubt of this one.
	startGrace = changeWithin
	// lookAgain is the longest wait that is asked for meanwhile. What has landed is
	// found by a look, which is cheap, and somebody waits for the box.
	lookAgain = 30 * time.Second
)

// startRequest is the body of /start: the fields that public clients send
// [SDK, 22 Aug 2026].
type startRequest struct {
	Image          string            `json:"image"`
	Command        []string          `json:"command"`
	WorkingDir     string            `json:"working_dir"`
	Environment    map[string]string `json:"environment"`
	SessionID      string            `json:"session_id"`
	ResourceFactor int               `json:"resource_factor"`
	RuntimeClass   string            `json:"runtime_class,omitempty"`
	RunAsUser      int               `json:"run_as_user"`
	FSGroup        int               `json:"fs_group"`
}

// agentUser owns the files in the public image.
const agentUser = 10001

// Create starts the session of the box's name, or answers the one that is
// there. The service knows no labels, and makes the box's key itself.
func (d *Driver) Create(ctx context.Context, req driver.CreateRequest) (box.Observation, error) {
	if err := driver.Ended(ctx); err != nil {
		return box.Observation{}, err
	}
	name := req.Identity.Name()
	ref := box.Ref{Name: name, Epoch: req.Identity.Epoch, Fingerprint: d.place}
	if identity, ok := driver.IdentityOf(ref); !ok || identity.Installation != d.installation {
		return box.Observation{}, box.Errorf(box.ClassFailedPrecondition, "%q is not a box of installation %s", name, d.installation)
	}
	body, secrets, err := d.startRequest(name, req)
	if err != nil {
		return box.Observation{}, err
	}
	if body.Image == "" {
		return box.Observation{}, box.Invalidf("image", "the spec names none and the instance has no default; set one of them")
	}
	release, err := d.locks.Take(ctx, name)
	if err != nil {
		return box.Observation{}, err
	}
	defer release()
	s, err := d.existing(ctx, name)
	if err != nil {
		return box.Observation{}, err
	}
	if s == nil {
		if s, err = d.start(ctx, name, body, secrets); err != nil {
			return box.Observation{}, err
		}
	}
	d.settle(name)
	return d.observation(ref, s), nil
}

// startRequest is what /start is told, and the values in it that no error may
// repeat. The session key is not among it: the service makes one. Invalid: a variable
// is not to be had.
func (d *Driver) startRequest(name string, req driver.CreateRequest) (body startRequest, secrets []string, err error) {
	variables, err := req.Start.Variables(nil)
	if err != nil {
		return startRequest{}, nil, err
	}
	body = startRequest{
		Image: req.Image, Command: d.opts.Command, WorkingDir: d.opts.WorkingDir, Environment: variables,
		SessionID: name, ResourceFactor: d.opts.ResourceFactor, RuntimeClass: d.opts.RuntimeClass,
		RunAsUser: agentUser, FSGroup: agentUser,
	}
	if body.Image == "" {
		body.Image = d.opts.Image
	}
	for _, value := range req.Start.SecretEnv {
		secrets = append(secrets, value.Reveal())
	}
	return body, secrets, nil
}

// existing returns the session of a name, a stopped one too, and nil only when
// two looks and the list agree that there is none: a start of one that is there
// would wake it.
func (d *Driver) existing(ctx context.Context, name string) (*session, error) {
	var s *session
	for range 2 {
		var err error
		if s, err = d.look(ctx, name); err != nil || s != nil && s.phase() != box.PhaseGone {
			return s, err
		}
	}
	others, err := d.namesakes(ctx, name, "")
	switch {
	case err != nil:
		return nil, err
	case len(others) > 0:
		return nil, box.Errorf(box.ClassUnknown, "/sessions does not show session %s as one that is there, and /list shows its box %s (%s); look again", name, clean(others[0].RuntimeID), others[0].evidence())
	}
	if s != nil {
		return s, nil
	}
	return nil, d.mayStart(name)
}

// start sends /start once. Whatever becomes of the answer, the session is read
// again: what it shows is the box.
func (d *Driver) start(ctx context.Context, name string, body startRequest, secrets []string) (*session, error) {
	if err := driver.Ended(ctx); err != nil {
		return nil, err // not sent, so nothing is in doubt
	}
	d.doubt(name)
	var made session
	r, err := d.api.post(ctx, "/start", body, secrets)
	if err == nil && r.refused() {
		d.settle(name)
		return nil, r.refusal()
	}
	d.doubt(name) // from now on: it may have taken minutes
	if err == nil {
		err = r.read(&made)
	}
	if err == nil && made.SessionID == name && made.RuntimeID != "" {
		d.tellOfSecond(ctx, name)
	}
	if over := driver.Ended(ctx); over != nil {
		return nil, over
	}
	s, unread := d.look(ctx, name)
	switch {
	case s != nil: // also when the answer was lost, or is odd
		return s, nil
	case err != nil:
		return nil, driver.Unsettled(err)
	case unread != nil:
		return nil, driver.Unsettled(unread)
	}
	return nil, box.Errorf(box.ClassUnavailable, "session %s was started and is not shown yet; ask again", name)
}

// tellOfSecond logs that starts at once made several boxes of one name, as the
// service did before OpenHands PR 8564. None of them is stopped here, so of what
// was made at least one always lives, and no box that somebody was told of is
// ended, whatever the order of the calls and however late the list is:
//
//   - Two callers that both see two boxes can't agree which one stays: /sessions
//     may show each of them another one, and a box that stays can end meanwhile.
//   - That a box lost by some order (the lowest id stays) doesn't mean that nobody
//     has it: another worker may have read it in /sessions before that changed.
//   - The answer to /start doesn't say whether it made the box or found one that
//     another call made and has handed out.
//
// Every caller answers what /sessions shows. The other box is stopped with it by
// [Driver.Delete]; until then it costs what the install's idle reaper leaves.
func (d *Driver) tellOfSecond(ctx context.Context, name string) {
	found, err := d.namesakes(ctx, name, "")
	switch {
	case err != nil:
		d.opts.Logger.WarnContext(ctx, "a new box was not compared with the list", "box", name, "error", err)
	case len(found) > 1:
		d.opts.Logger.WarnContext(ctx, "starts at once made several boxes of one name; they are stopped when the box is deleted", "box", name, "boxes", len(found))
	}
}

// doubt notes that a start was sent, settle that its outcome is known.
func (d *Driver) doubt(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.doubts[name] = d.now()
}

func (d *Driver) settle(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.doubts, name)
}

// mayStart refuses a start soon after one whose outcome is not known: the
// service may still be at it.
func (d *Driver) mayStart(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	began, doubted := d.doubts[name]
	rest := d.grace - d.now().Sub(began)
	if !doubted || rest <= 0 {
		delete(d.doubts, name)
		return nil
	}
	return &box.Error{
		Class: box.ClassUnavailable, RetryAfter: min(rest, lookAgain),
		Message: "an earlier start of session " + name + " had no clear answer and it is not shown yet; it is looked for before another is sent",
	}
}

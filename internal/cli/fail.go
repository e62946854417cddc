package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/openhands/boxkeeper/box"
)

// The exit codes. They are part of the contract with scripts: a code never
// changes its meaning.
const (
	exitOK          = 0
	exitOther       = 1 // something else failed
	exitUsage       = 2 // a flag, an argument or a setting is wrong; nothing was sent
	exitNotFound    = 3 // there is no such workspace, hold, conversation or file
	exitRefused     = 4 // the state forbids it
	exitUnavailable = 5 // no Temporal, no worker, or no export store
	exitTimeout     = 6 // no answer in time: the outcome is unknown
	exitOtherState  = 7 // --wait ended in another state than the one waited for
	exitRemembered  = 8 // answered from the ledger: no workflow or no worker answers
)

const exitCodeHelp = `Exit codes:
  0  done
  1  something else failed
  2  a flag, an argument or a setting is wrong; nothing was sent
  3  there is no such workspace, hold, conversation or file
  4  refused: the state forbids it, or the id or a file is there already
  5  Temporal or the export store cannot be reached, or no worker is up; the message says whether anything was sent
  6  no answer in time: the outcome is unknown; the printed command repeats it safely
  7  --wait ended in another state than the one waited for
  8  answered from the ledger, as of the time that it says: no workflow or no worker answers`

// unknownOutcome is a request that may have arrived.
type unknownOutcome struct {
	what   string // verb phrase
	repeat string // the command that repeats it safely
	id     string // its request id; empty where the request is safe without
	err    error
}

func (e *unknownOutcome) Error() string {
	return fmt.Sprintf("no answer to %s in time, so its outcome is unknown: it may still be carried out; to ask again without doing it twice, run\n  %s", e.what, e.repeat)
}

func (e *unknownOutcome) Unwrap() error { return e.err }

// stillWaiting is a wait whose time ran out.
type stillWaiting struct {
	want, got string
	took      string
	why       string
}

func (e *stillWaiting) Error() string {
	return fmt.Sprintf("not %s after %s: it is %s%s; the request stands, so look again with show or why, or wait longer with --timeout", e.want, e.took, e.got, ifText(": ", e.why))
}

// otherState is a wait that can never succeed any more.
type otherState struct {
	want string
	got  box.State
	why  string
}

func (e *otherState) Error() string {
	text := fmt.Sprintf("waited for %s, and it is %s", e.want, e.got)
	if e.why != "" {
		text += ": " + e.why
	}
	return text
}

// silent ends with a code and says nothing more: all was said.
type silent struct{ code int }

func (e *silent) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// flagError makes what is wrong with a flag an Invalid error that names it.
func flagError(_ *cobra.Command, err error) error {
	if e, ok := errors.AsType[*box.Error](err); ok {
		return e
	}
	if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		what := map[string]string{
			"int": "a whole number", "bool": "true or false", "duration": "a duration like 90s or 1h30m",
		}[e.GetFlag().Value.Type()]
		if what != "" {
			return box.Invalidf("--"+e.GetFlag().Name, "%q is not %s", printable(e.GetValue()), what)
		}
	}
	return box.Invalidf("flags", "%s", printable(err.Error()))
}

// exitCode returns the code of an error.
func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	if e, ok := errors.AsType[*silent](err); ok {
		return e.code
	}
	if _, ok := errors.AsType[*unknownOutcome](err); ok {
		return exitTimeout
	}
	if _, ok := errors.AsType[*stillWaiting](err); ok {
		return exitTimeout
	}
	if _, ok := errors.AsType[*otherState](err); ok {
		return exitOtherState
	}
	switch box.ClassOf(err) {
	case box.ClassInvalid:
		return exitUsage
	case box.ClassNotFound:
		return exitNotFound
	case box.ClassFailedPrecondition, box.ClassConflict, box.ClassAlreadyExists, box.ClassUnsupported, box.ClassExhausted:
		return exitRefused
	case box.ClassUnavailable:
		return exitUnavailable
	case box.ClassDeadlineExceeded:
		return exitTimeout
	case box.ClassUnauthorized, box.ClassCanceled, box.ClassInternal, box.ClassUnknown:
	}
	return exitOther
}

// Execute runs a root command that [Root] or [Adopt] prepared, says what went
// wrong on its standard error, and returns the exit code.
func Execute(ctx context.Context, root *cobra.Command) int {
	cmd, err := root.ExecuteContextC(ctx)
	code := exitCode(err)
	if err == nil {
		return code
	}
	if _, quiet := errors.AsType[*silent](err); quiet {
		return code
	}
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, os.ErrClosed) {
		return exitOther // whoever read us is gone: nobody hears the rest
	}
	if flag := root.PersistentFlags().Lookup("output"); flag != nil && flag.Value.String() == string(formatJSON) {
		_ = writeJSON(root.ErrOrStderr(), errorView(err, code))
		return code
	}
	text := "Error: " + multiline(err.Error())
	if code == exitUsage && cmd != nil && !strings.Contains(text, "--help") {
		text += "\nSee " + cmd.CommandPath() + " --help."
	}
	_, _ = fmt.Fprintln(root.ErrOrStderr(), text) // nowhere left to say it
	return code
}

// failureView is an error for programs.
type failureView struct {
	Error struct {
		Class     string `json:"class"`
		Field     string `json:"field,omitzero"`
		Message   string `json:"message"`
		ExitCode  int    `json:"exit_code"`
		RequestID string `json:"request_id,omitzero"`
		Repeat    string `json:"repeat,omitzero"`
	} `json:"error"`
}

func errorView(err error, code int) failureView {
	var view failureView
	view.Error.Class = string(box.ClassOf(err))
	view.Error.Message, view.Error.ExitCode = err.Error(), code
	if e, ok := errors.AsType[*box.Error](err); ok {
		view.Error.Field = e.Field
	}
	if e, ok := errors.AsType[*unknownOutcome](err); ok {
		view.Error.Class = string(box.ClassDeadlineExceeded)
		view.Error.RequestID, view.Error.Repeat = e.id, e.repeat
	}
	if _, ok := errors.AsType[*stillWaiting](err); ok {
		view.Error.Class = string(box.ClassDeadlineExceeded)
	}
	if _, ok := errors.AsType[*otherState](err); ok {
		view.Error.Class = string(box.ClassFailedPrecondition)
	}
	return view
}

package box

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ExportLife is how long the exports of a workspace stay, as its ledger says.
type ExportLife struct {
	// Ended is when the workspace was closed, on the clock of the worker that
	// wrote it; zero while it is open.
	Ended time.Time `json:"ended,omitzero"`
	// Due is from when on its exports may be deleted; zero for never.
	Due    time.Time `json:"due,omitzero"`
	Reason string    `json:"reason"` // a sentence, for people
}

// ExportLifeOf reads it from a whole ledger. Exports end only with a box that
// was destroyed: of an abandoned one they may be all that is left. Unknown: the
// ledger is damaged or does not make sense, so nothing may be deleted.
func ExportLifeOf(workspace string, entries []LedgerEntry) (ExportLife, error) {
	facts, _, err := Rebuild(workspace, entries)
	if err != nil {
		return ExportLife{}, err
	}
	var life ExportLife
	for _, e := range entries {
		if e.Kind.Closes() {
			life.Ended = e.At
			break
		}
	}
	last := facts.Policy.ExportLife
	if last == 0 { // of a release that wrote no policy
		last = DefaultPolicy().ExportLife
	}
	switch {
	case facts.State == StateAbandoned:
		life.Reason = "it was abandoned, so its box may still exist, and its exports stay until a person deletes them"
	case facts.State != StateBoxArchived || life.Ended.IsZero():
		life.Ended = time.Time{}
		life.Reason = "it is not box-archived"
	case last.IsNever():
		life.Reason = "its policy keeps exports for ever (export_life is never)"
	default:
		life.Due = life.Ended.Add(last.Std())
		life.Reason = fmt.Sprintf("it is box-archived, and its policy keeps exports for %s (export_life)", last)
	}
	return life, nil
}

// Over reports whether the exports may be deleted at a time; equal counts as
// due.
func (l ExportLife) Over(now time.Time) bool { return !l.Due.IsZero() && !now.Before(l.Due) }

// Stays reports whether the workspace was closed at a time and its exports have
// no end: then what belongs to none of them can go.
func (l ExportLife) Stays(at time.Time) bool {
	return l.Due.IsZero() && !l.Ended.IsZero() && !at.Before(l.Ended)
}

// ExportTokenLife is how long a token for the deletion of an export is good for.
const ExportTokenLife = Duration(day)

// ExportToken returns the token that the deletion of an export must repeat: a
// fingerprint of what was shown and when, not a secret.
func ExportToken(shown string, at time.Time) string {
	issued := strconv.FormatInt(at.Unix(), 36)
	sum := sha256.Sum256([]byte(issued + "\n" + shown))
	return issued + "-" + hex.EncodeToString(sum[:10])
}

// CheckExportToken refuses a token that was given for something else, or too
// long ago. FailedPrecondition: ask again what would be deleted.
func CheckExportToken(token, shown string, now time.Time) error {
	issued, _, _ := strings.Cut(token, "-")
	seconds, err := strconv.ParseInt(issued, 36, 64)
	at := time.Unix(seconds, 0)
	switch {
	case err != nil || seconds < 0:
		return Invalidf("token", "is not one that was answered; ask without it first")
	case token != ExportToken(shown, at):
		return Errorf(ClassFailedPrecondition, "what would be deleted is not what was shown any more; look again, and use the new token")
	case now.Sub(at) > ExportTokenLife.Std() || at.Sub(now) > ExportTokenLife.Std():
		return Errorf(ClassFailedPrecondition, "the token is older than %s; look again, and use the new token", ExportTokenLife)
	}
	return nil
}

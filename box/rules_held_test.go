package box_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

var (
	held   = box.ArchiveReceipt{Bytes: 2048, SHA256: "t", Files: 3}
	unable = box.ArchiveReceipt{None: "its agent-server cannot give them out"}
	// withheld is of an export whose policy keeps files with secrets out.
	withheld = box.ArchiveReceipt{None: "they hold 2 possible secrets", Withheld: true}
)

func missing(n int64) box.ArchiveReceipt {
	a := held
	a.Missing = n
	return a
}

// lacking says what an export lacks of the files, as a deletion must have shown
// it.
func lacking(a box.ArchiveReceipt) string {
	switch {
	case a.None != "":
		return "none"
	case a.Missing > 0:
		return fmt.Sprintf("missing %d", a.Missing)
	}
	return ""
}

func TestWhatNoExportHoldsIsShown(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		archive box.ArchiveReceipt
		want    []string
	}{
		"all is held":                     {held, []string{}},
		"one thing is missing":            {missing(1), []string{"1 thing in the workspace that could not be read and cannot be made again, so push or copy what you need"}},
		"things are missing":              {missing(3), []string{"3 things in the workspace that could not be read and cannot be made again, so push or copy what you need"}},
		"the box cannot give its files":   {unable, []string{"files in the workspace: its agent-server cannot give them out, so push or copy what you need"}},
		"files with secrets in them":      {withheld, []string{"files in the workspace: they hold 2 possible secrets, so push or copy what you need"}},
		"an export of an earlier version": {box.ArchiveReceipt{}, []string{"files in the workspace: the newest export holds the conversations only, so push or copy what you need"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, spec())
			w.archive = row.archive
			w.toSuspended()
			loss := w.requestDelete()
			require.Equal(t, row.want, loss.NotExported)
			require.NotNil(t, loss.NotExported)
			require.True(t, loss.Covered)
			require.Equal(t, row.archive, loss.Export.Archive)
			w.confirm(loss.Token)
			w.pass(day)
			w.state(box.StateBoxArchived)
		})
	}
	w := awake(t)
	require.Contains(t, w.requestDelete().NotExported, "files in the workspace: no export of this box was taken yet; one is, before anything is destroyed, or the deletion waits")
}

// The token is of what was shown: with another count it is another one.
func TestATokenIsOfWhatIsMissing(t *testing.T) {
	t.Parallel()
	token := func(a box.ArchiveReceipt) string {
		w := newWorld(t, spec())
		w.archive = a
		w.toSuspended()
		return w.requestDelete().Token
	}
	tokens := []string{token(held), token(missing(1)), token(missing(2)), token(unable)}
	slices.Sort(tokens)
	require.Len(t, slices.Compact(tokens), 4)
	require.Equal(t, token(held), token(box.ArchiveReceipt{}), "tokens of earlier releases must stay good")
}

func TestADeletionThatLosesMoreThanWasShownIsOff(t *testing.T) {
	t.Parallel()
	t.Run("found by the export that comes first", func(t *testing.T) {
		t.Parallel()
		for _, archive := range []box.ArchiveReceipt{missing(3), unable} {
			w := awake(t)
			w.archive = archive
			w.confirm(w.requestDelete().Token)
			w.pass(time.Hour)
			require.True(t, w.exists)
			w.refusedWith(box.ReasonHistoryChanged)
			w.confirm(w.requestDelete().Token) // now it is shown
			w.pass(day)
			w.state(box.StateBoxArchived)
		}
	})
	t.Run("found between the request and the confirmation", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		loss := w.requestDelete()
		w.archive = missing(3)
		w.toSuspended()
		w.confirm(loss.Token)
		w.refusedWith(box.ReasonHistoryChanged)
		w.pass(time.Hour)
		require.True(t, w.exists)
	})
	t.Run("a person accepts the loss, whatever it is", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.archive = missing(3)
		w.waive(w.requestDelete().Token)
		w.pass(day)
		w.state(box.StateBoxArchived)
	})
	t.Run("an export that holds more than was shown is welcome", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.archive = missing(3)
		w.toSuspended()
		w.connect("tab")
		w.settle()
		loss := w.requestDelete()
		w.archive = held
		w.confirm(loss.Token)
		w.pass(day)
		w.state(box.StateBoxArchived)
	})
}

// Nobody is there to be shown what a policy alone would destroy.
func TestAPolicyThatDeletesWaitsForAPersonWhenSomethingIsMissing(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		archive box.ArchiveReceipt
		lacks   string // empty where the policy deletes
	}{
		"all is held":                     {held, ""},
		"an export of an earlier version": {box.ArchiveReceipt{}, ""},
		"one thing is missing":            {missing(1), "lacks 1 thing in the workspace"},
		"the box cannot give its files":   {unable, "lacks the files in the workspace,"},
		"its files are kept out":          {withheld, "lacks the files in the workspace,"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := awake(t, deletes)
			w.archive = row.archive
			w.toSuspended()
			w.pass(400 * day)
			if row.lacks == "" {
				w.state(box.StateBoxArchived)
				return
			}
			w.state(box.StateAwaitingConfirm)
			require.True(t, w.exists)
			why := w.facts.StatusAt(w.now).Reason.Text
			require.Contains(t, why, row.lacks)
			require.Contains(t, why, "a person must decide")
			w.confirm(w.requestDelete().Token)
			w.pass(2 * day)
			w.state(box.StateBoxArchived)
		})
		t.Run(name+", and the export that comes first finds it", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func() box.Spec { s := spec(); deletes(&s); return s }())
			w.blind() // no export covers the last use
			w.archive = row.archive
			w.pass(400 * day)
			if row.lacks == "" {
				w.state(box.StateBoxArchived)
				return
			}
			w.state(box.StateAwaitingConfirm)
			require.True(t, w.exists)
		})
	}
}

// Files change without a word being said, so what was said says nothing of them.
func TestASuspendTakesTheFilesAgain(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		archive box.ArchiveReceipt
		exports int
	}{
		"the export holds files":      {held, 2},
		"it lacks some":               {missing(1), 2},
		"the box gives none":          {unable, 1},
		"they were kept out":          {withheld, 2}, // they may have lost their secrets meanwhile
		"it is of an earlier version": {box.ArchiveReceipt{}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := awake(t)
			w.archive = row.archive
			w.toSuspended()
			w.facts.Resume(box.Request{ID: "r"}, w.now)
			w.settle()
			w.toSuspended()
			require.Equal(t, row.exports, w.did(box.StepExport))
			require.True(t, w.facts.StatusAt(w.now).ExportCovers)
		})
	}
	t.Run("and where that fails the export does not cover them", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.archive = held
		w.toSuspended()
		w.facts.Resume(box.Request{ID: "r"}, w.now)
		w.settle()
		w.fail[box.StepExport] = box.ClassUnavailable
		w.pass(2 * time.Hour)
		w.state(box.StateSuspended)
		require.False(t, w.facts.StatusAt(w.now).ExportCovers)
		delete(w.fail, box.StepExport)
		exports := w.did(box.StepExport)
		w.confirm(w.requestDelete().Token)
		w.pass(day)
		w.state(box.StateBoxArchived)
		require.Greater(t, w.did(box.StepExport), exports, "it was woken for one")
	})
}

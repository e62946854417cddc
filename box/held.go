package box

import "fmt"

// Held reports whether the export holds the workspace's files, or what of them
// could be read.
func (a ArchiveReceipt) Held() bool { return a.Bytes > 0 }

// unheld sums up what of the workspace the newest export of this box lacks;
// empty when it lacks nothing, or when no export says. A deletion is agreed for
// what was shown of it, and a policy alone never deletes what no export holds.
func (f *Facts) unheld() string {
	a := f.Receipt.Archive
	switch {
	case f.Receipt.Epoch != f.Epoch:
		return ""
	case a.None != "":
		return "none"
	case a.Missing > 0:
		return fmt.Sprintf("missing %d", a.Missing)
	}
	return ""
}

// newlyUnheld reports whether the newest export lacks something of the workspace
// that the deletion was not shown to lack.
func (f *Facts) newlyUnheld() bool {
	lacks := f.unheld()
	return lacks != "" && lacks != f.Deletion.Unheld
}

// shownAll is what a confirmation token is bound to: the history, and what of the
// workspace no export holds.
func (f *Facts) shownAll() string {
	if lacks := f.unheld(); lacks != "" {
		return f.shown() + " " + lacks
	}
	return f.shown()
}

// unheldText says what of the workspace no export holds, for people; empty when
// the newest one holds all of it.
func (f *Facts) unheldText() string {
	const advice = ", so push or copy what you need"
	a := f.Receipt.Archive
	switch {
	case f.Receipt.IsZero() && !f.NeverReady(), !f.Receipt.IsZero() && f.Receipt.Epoch != f.Epoch:
		return "files in the workspace: no export of this box was taken yet; one is, before anything is destroyed, or the deletion waits"
	case f.Receipt.IsZero():
		return ""
	case a == ArchiveReceipt{}:
		return "files in the workspace: the newest export holds the conversations only" + advice
	case a.None != "":
		return "files in the workspace: " + a.None + advice
	case a.Missing > 0:
		return missingText(a.Missing) + advice
	}
	return ""
}

// lackText says the same for the middle of a sentence.
func (f *Facts) lackText() string {
	if f.Receipt.Archive.None != "" {
		return "the files in the workspace"
	}
	return missingText(f.Receipt.Archive.Missing)
}

func missingText(n int64) string {
	if n == 1 {
		return "1 thing in the workspace that could not be read and cannot be made again"
	}
	return fmt.Sprintf("%d things in the workspace that could not be read and cannot be made again", n)
}

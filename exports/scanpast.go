package exports

import (
	"context"
	"iter"

	"github.com/openhands/boxkeeper/workspacetar"
)

// pastArchive is the workspace of another export, all finds in which are known.
type pastArchive struct {
	archive WorkspaceArchive
	object  ScannedObject
}

// pastFiles goes through the files of that one beside those of a new archive: both
// come in the order of a walk, so neither is held in memory. It is used by one
// goroutine; stop it.
type pastFiles struct {
	next  func() (workspacetar.Entry, error, bool)
	stop  func()
	none  bool // there is nothing (more) to compare with
	at    workspacetar.Entry
	finds map[string][]SecretFinding // in the content, by entry
	// named are entries with a find in the name, or those whose masked names look
	// like that.
	named map[string]bool
}

// pastFiles opens the index of the archive that was looked through before. What
// cannot be read of it only costs another look.
func (e *exporter) pastFiles(ctx context.Context) *pastFiles {
	past := e.scan.past
	// A policy that withholds must see everything before it is stored.
	if past == nil || e.scan.policy.Withholds() {
		return &pastFiles{none: true, stop: func() {}}
	}
	p := &pastFiles{finds: map[string][]SecretFinding{}, named: map[string]bool{}}
	for _, one := range past.object.List {
		if one.InName {
			p.named[one.Entry] = true
			continue
		}
		p.finds[one.Entry] = append(p.finds[one.Entry], one)
	}
	p.next, p.stop = iter.Pull2(func(yield func(workspacetar.Entry, error) bool) {
		x, err := e.store.openIndex(ctx, e.req.Workspace, past.archive)
		if err == nil {
			err = x.entries(ctx, pieceFiles, "", func(one workspacetar.Entry) bool { return yield(one, nil) })
		}
		if err != nil {
			yield(workspacetar.Entry{}, err)
		}
	})
	return p
}

// of returns the sum that a file had, if it was there with this length and is not
// one of those whose name tells of a secret.
func (p *pastFiles) of(e workspacetar.Entry) (sum string, same bool) {
	if e.Type != "file" {
		return "", false
	}
	for !p.none && (p.at.Name == "" || workspacetar.Order(p.at.Name, e.Name) < 0) {
		var more bool
		var err error
		if p.at, err, more = p.next(); !more || err != nil {
			p.none = true
		}
	}
	if p.none || p.at.Name != e.Name || p.at.Type != "file" || p.at.Bytes != e.Bytes || p.named[e.Name] {
		return "", false
	}
	return p.at.SHA256, true
}

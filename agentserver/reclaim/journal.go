package reclaim

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// The steps of a plan in the journal.
const (
	planned  = "planned"
	applying = "applying" // something may have been moved already
	done     = "done"     // Report holds the answer
)

// maxPlans is how many plans the journal keeps; the oldest go first.
const maxPlans = 100

// record is one plan in the journal.
type record struct {
	ID           string `json:"id"`
	State        string `json:"state"`
	Items        []item `json:"items"`
	PlannedBytes int64  `json:"planned_bytes"`
	// PlannedInodes, LowerBound and Errors are as in the report.
	PlannedInodes int64              `json:"planned_inodes,omitzero"`
	LowerBound    bool               `json:"lower_bound,omitzero"`
	Errors        []string           `json:"errors,omitzero"`
	Accept        bool               `json:"accept,omitzero"` // what a person gave up
	Report        *box.ReclaimReport `json:"report,omitzero"`
	// OwnBytes came free with what a [Remover] moved into the trash.
	OwnBytes  int64         `json:"own_bytes,omitzero"`
	before    int64         // free bytes before the pass
	ended     chan struct{} // closed when the pass of this process has ended
	again     bool          // an earlier process began it
	uncounted int64         // bytes that the journal has not got yet
}

// item is one directory, with the identity that it had when it was chosen.
type item struct {
	box.ReclaimItem
	Dev     uint64 `json:"dev,omitzero"`
	Ino     uint64 `json:"ino,omitzero"`
	MtimeNS int64  `json:"mtime_ns,omitzero"`
	// Own says that it goes by the own rule of its layout, see [Remover].
	Own bool `json:"own,omitzero"`
}

var (
	planForm = regexp.MustCompile(`^[0-9a-f]{32}$`)
	// entryForm is the name in the trash of an item of a plan.
	entryForm = regexp.MustCompile(`^([0-9a-f]{32})-([0-9]+)$`)
)

func newRecord() *record {
	var raw [16]byte
	rand.Read(raw[:])
	return &record{ID: hex.EncodeToString(raw[:]), State: planned}
}

// maxErrors bounds what a plan tells of what could not be read.
const maxErrors = 50

// told bounds a list of errors.
func told(lines []string) []string {
	if more := len(lines) - maxErrors; more > 0 {
		return append(slices.Clone(lines[:maxErrors-1]), fmt.Sprintf("and %d more", more+1))
	}
	return lines
}

// report returns the items and sums that plan and report share.
func (p *record) report() box.ReclaimReport {
	out := box.ReclaimReport{
		PlanID: p.ID, PlannedBytes: p.PlannedBytes, PlannedInodes: p.PlannedInodes, LowerBound: p.LowerBound, Errors: p.Errors,
		Items: make([]box.ReclaimItem, 0, len(p.Items)), RemovedBytes: p.OwnBytes, RemovedLowerBound: p.again,
	}
	for _, entry := range p.Items {
		out.Items = append(out.Items, entry.ReclaimItem)
		out.RemovedBytes += entry.RemovedBytes
	}
	return out
}

func (p *record) planned() box.ReclaimReport {
	out := p.report()
	out.DryRun = true
	return out
}

// remember keeps a plan in memory and in the journal. A journal that cannot be
// written (a full disk is why people reclaim) costs only the memory of it
// across a restart.
func (r *Reclaimer) remember(plan *record) {
	r.writing.Lock()
	defer r.writing.Unlock()
	r.mu.Lock()
	r.plans[plan.ID] = plan
	for id, old := range r.plans {
		if len(r.plans) <= maxPlans {
			break
		}
		if id != plan.ID && old.State != applying {
			delete(r.plans, id) // the journal still has it
		}
	}
	text, err := json.Marshal(plan)
	r.mu.Unlock()
	if err == nil {
		err = r.WriteFile(filepath.Join(journalName, plan.ID+".json"), text)
	}
	if err != nil {
		r.opts.Log.Warn("keep the reclaim plan in the journal", "plan", plan.ID, "error", err)
	}
	r.prune()
}

// recall finds a plan by id, NotFound when there is none.
func (r *Reclaimer) recall(id string) (*record, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if plan := r.plans[id]; plan != nil {
		return plan, nil
	}
	text, err := os.ReadFile(filepath.Join(r.root, journalName, id+".json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, &box.Error{Class: box.ClassNotFound, Field: "plan_id", Message: "no plan has this id (any more); make a new one with a dry run"}
	}
	var plan record
	if err == nil {
		err = json.Unmarshal(text, &plan)
	}
	if err != nil || plan.ID != id {
		return nil, &box.Error{Class: box.ClassNotFound, Field: "plan_id", Message: "the plan of this id cannot be read; make a new one with a dry run"}
	}
	r.plans[id] = &plan
	return &plan, nil
}

// underWay returns the plans in the journal that were not carried out to their
// end, when something of a [Remover] is left in the trash.
func (r *Reclaimer) underWay() (ids []string) {
	trash, err := os.ReadDir(filepath.Join(r.root, trashName))
	ofRemover := func(entry os.DirEntry) bool { return strings.HasPrefix(entry.Name(), RemovedPrefix) }
	if err != nil || !slices.ContainsFunc(trash, ofRemover) {
		return nil
	}
	entries, err := os.ReadDir(filepath.Join(r.root, journalName))
	if err != nil {
		return nil
	}
	for _, entry := range entries {
		id, ok := strings.CutSuffix(entry.Name(), ".json")
		if !ok || !planForm.MatchString(id) || !entry.Type().IsRegular() {
			continue
		}
		text, err := os.ReadFile(filepath.Join(r.root, journalName, entry.Name()))
		var plan struct {
			State string `json:"state"`
		}
		if err == nil && json.Unmarshal(text, &plan) == nil && plan.State == applying {
			ids = append(ids, id)
		}
	}
	return ids
}

// prune drops the oldest plans from the journal.
func (r *Reclaimer) prune() {
	dir := filepath.Join(r.root, journalName)
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) <= maxPlans {
		return
	}
	type aged struct {
		name string
		at   time.Time
	}
	var all []aged
	for _, entry := range entries {
		// Whatever else may lie here is not ours.
		id, ok := strings.CutSuffix(entry.Name(), ".json")
		if info, err := entry.Info(); err == nil && ok && planForm.MatchString(id) && info.Mode().IsRegular() {
			all = append(all, aged{entry.Name(), info.ModTime()})
		}
	}
	slices.SortFunc(all, func(a, b aged) int { return b.at.Compare(a.at) })
	for _, old := range all[min(maxPlans, len(all)):] {
		os.Remove(filepath.Join(dir, old.name))
	}
}

// reserveBytes is set aside so that a full disk still has room for an address
// and a journal.
const reserveBytes = 64 << 10

// keepReserve sets the reserve aside when it is not there. Best effort.
func (r *Reclaimer) keepReserve() {
	place := filepath.Join(r.root, reserveName)
	if info, err := os.Lstat(place); err == nil && info.Size() == reserveBytes {
		return
	}
	// Whatever took its name goes: writing through a planted link would not do.
	os.Remove(place)
	file, err := os.OpenFile(place, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return
	}
	_, err = file.Write(make([]byte, reserveBytes))
	if err = errors.Join(err, file.Close()); err != nil {
		os.Remove(place)
	}
}

// WriteFile replaces the file name below the root atomically and durably. On a
// full disk it gives up the reserve and tries once more.
func (r *Reclaimer) WriteFile(name string, content []byte) error {
	err := r.writeFile(name, content)
	if errors.Is(err, syscall.ENOSPC) {
		os.Remove(filepath.Join(r.root, reserveName))
		err = r.writeFile(name, content)
	}
	return err
}

func (r *Reclaimer) writeFile(name string, content []byte) (err error) {
	place := filepath.Join(r.root, name)
	file, err := os.CreateTemp(filepath.Dir(place), ".new-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	defer func() {
		if err != nil {
			os.Remove(file.Name())
			err = fmt.Errorf("write %s: %w", name, err)
		}
	}()
	if _, err := file.Write(content); err != nil {
		file.Close()
		return err
	}
	if err := file.Sync(); err != nil {
		file.Close()
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), place); err != nil {
		return err
	}
	return syncDir(filepath.Dir(place))
}

func syncDir(dir string) error {
	file, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer file.Close()
	return file.Sync()
}

package retention

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/openhands/boxkeeper/agentserver/storage"
	"github.com/openhands/boxkeeper/box"
)

// Where rules lie below a box's root: beside the histories, since a file among
// them would count as use and go into exports.
const (
	rulesDir  = "run/retention"
	clockFile = "run/retention-clock.json"
)

// maxDays is the most that a rule may say, a hundred years.
const maxDays = 36500

// Check refuses a rule that means nothing: ClassInvalid names the field.
func Check(rule box.Retention) error {
	switch rule.Mode {
	case box.RetentionDefault, box.RetentionOnStop:
		if rule.Days != 0 {
			return box.Invalidf("days", "goes with the mode \"days\" only")
		}
	case box.RetentionDays:
		if !(rule.Days > 0) || rule.Days > maxDays || math.IsInf(rule.Days, 0) {
			return box.Invalidf("days", "must be more than 0 and at most %d", maxDays)
		}
	default:
		return box.Invalidf("mode", "must be \"default\", \"days\" or \"on_stop\"")
	}
	return nil
}

// Rules keeps the rules of conversations on the disk of a box. It is safe for
// concurrent use; of two writers of one rule the later wins.
type Rules struct {
	root  string
	write storage.Writer
}

// NewRules returns the rules of the box at root; write puts them there.
func NewRules(root string, write storage.Writer) *Rules {
	return &Rules{root: root, write: write}
}

// Of returns the rule of a conversation, and whether it has one. An error means
// that this can't be told.
func (r *Rules) Of(id string) (rule box.Retention, set bool, err error) {
	if !storage.IsID(id) {
		return box.Retention{Mode: box.RetentionDefault}, false, nil
	}
	root, err := os.OpenRoot(r.root)
	if err != nil {
		return box.Retention{}, false, fmt.Errorf("open the box: %w", err)
	}
	defer root.Close()
	return read(root, id)
}

func read(root *os.Root, id string) (rule box.Retention, set bool, err error) {
	text, err := storage.ReadFile(root, path.Join(rulesDir, id+".json"), 64<<10)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return box.Retention{Mode: box.RetentionDefault}, false, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &rule)
	}
	if err == nil {
		err = Check(rule)
	}
	if err != nil {
		return box.Retention{}, false, fmt.Errorf("read the retention of conversation %s: %w", id, err)
	}
	return rule, true, nil
}

// Set keeps a rule, on the disk before it returns; the default is no rule. It
// may be repeated. ClassInvalid names the field at fault, ClassExhausted means
// that the disk is full: then nothing changed.
func (r *Rules) Set(id string, rule box.Retention) error {
	if err := Check(rule); err != nil {
		return err
	}
	if !storage.IsID(id) {
		return box.Invalidf("conversation_id", "is no conversation id")
	}
	if rule.Mode == box.RetentionDefault {
		return r.Drop(id)
	}
	root, err := os.OpenRoot(r.root)
	if err != nil {
		return fmt.Errorf("open the box: %w", err)
	}
	defer root.Close()
	if err := root.MkdirAll(rulesDir, 0o700); err != nil {
		return fault(err)
	}
	if ok, err := storage.IsDir(root, rulesDir); err != nil || !ok {
		return box.Errorf(box.ClassFailedPrecondition, "%s is a link, or lies behind one; put a directory in its place", rulesDir)
	}
	text, err := json.Marshal(rule)
	if err != nil {
		return err
	}
	return fault(r.write(path.Join(rulesDir, id+".json"), append(text, '\n')))
}

// Drop forgets the rule of a conversation. It may be repeated.
func (r *Rules) Drop(id string) error {
	if !storage.IsID(id) {
		return nil
	}
	root, err := os.OpenRoot(r.root)
	if err != nil {
		return fmt.Errorf("open the box: %w", err)
	}
	defer root.Close()
	if err := root.Remove(path.Join(rulesDir, id+".json")); !errors.Is(err, fs.ErrNotExist) {
		return fault(err)
	}
	return nil
}

// all lists the rules by conversation; broken ones that do not read, whose
// conversations are left as they are.
func (r *Rules) all(now time.Time) (rules map[string]box.Retention, broken map[string]error, err error) {
	root, err := os.OpenRoot(r.root)
	if err != nil {
		return nil, nil, fmt.Errorf("open the box: %w", err)
	}
	defer root.Close()
	entries, err := storage.List(root, rulesDir)
	if err != nil {
		return nil, nil, fmt.Errorf("list the rules: %w", err)
	}
	rules, broken = map[string]box.Retention{}, map[string]error{}
	for _, entry := range entries {
		id, isRule := strings.CutSuffix(entry.Name(), ".json")
		if !isRule || !storage.IsID(id) {
			continue
		}
		rule, set, err := read(root, id)
		switch {
		case err != nil:
			broken[id] = err
		case set && !left(root, id, entry, now):
			rules[id] = rule
		}
	}
	return rules, broken, nil
}

// left drops the rule of a conversation that is not there, when it is old enough
// not to be the rule of one that is being made.
func left(root *os.Root, id string, entry fs.DirEntry, now time.Time) bool {
	if there, err := storage.Exists(root, id); err != nil || there {
		return false
	}
	info, err := entry.Info()
	if err != nil || now.Sub(info.ModTime()) < time.Hour {
		return false
	}
	return root.Remove(path.Join(rulesDir, entry.Name())) == nil
}

// any reports whether a conversation has a rule.
func (r *Rules) any() bool {
	entries, err := os.ReadDir(path.Join(r.root, rulesDir))
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	for _, entry := range entries {
		if strings.HasSuffix(entry.Name(), ".json") {
			return true
		}
	}
	return false
}

// fault gives an error of the disk its class.
func fault(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return box.Errorf(box.ClassExhausted, "the disk of the box is full, and the retention was not kept; free room first: %w", err)
	}
	return box.Errorf(box.ClassInternal, "keep the retention: %w", err)
}

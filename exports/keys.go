package exports

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/openhands/boxkeeper/box"
)

const (
	maxEpoch      = 9999
	maxSequence   = 99_999_999
	maxAlternates = 64 // names tried for one object before giving up
)

var (
	// Lower case only: two keys never meet on a file system that folds case.
	attemptForm      = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,79}$`)
	conversationForm = regexp.MustCompile(`^[0-9a-f]{32}$`)
	sumForm          = regexp.MustCompile(`^[0-9a-f]{64}$`)
	manifestKeyForm  = regexp.MustCompile(`^exports/([a-z0-9-]{1,40})/([0-9]{4})/([a-z0-9][a-z0-9_-]{0,99})/manifest\.json$`)
	objectKeyForm    = regexp.MustCompile(`^exports/([a-z0-9-]{1,40})/[0-9]{4}/[a-z0-9][a-z0-9_-]{0,99}/conversations/([0-9a-f]{32})(-[0-9]{1,3})?\.zip$`)
	indexKeyForm     = regexp.MustCompile(`^exports/([a-z0-9-]{1,40})/[0-9]{4}/[a-z0-9][a-z0-9_-]{0,99}/workspace(-[0-9]{1,3})?\.json\.zst$`)
	secretsKeyForm   = regexp.MustCompile(`^secrets(-[0-9]{1,3})?\.json$`)
	reportKeyForm    = regexp.MustCompile(`^exports/([a-z0-9-]{1,40})/([0-9]{4})/([a-z0-9][a-z0-9_-]{0,99})/secrets(-[0-9]{1,3})?\.json$`)
	attemptKeyForm   = regexp.MustCompile(`^exports/[a-z0-9-]{1,40}/[0-9]{4}/[a-z0-9][a-z0-9_-]{0,99}/[a-z0-9._/-]+$`)
	chunkKeyForm     = regexp.MustCompile(`^chunks/[a-z0-9-]{1,40}/[0-9a-f]{2}/[0-9a-f]{64}(-[0-9]{1,3})?$`)
	ledgerKeyForm    = regexp.MustCompile(`^ledger/[a-z0-9-]{1,40}/([0-9]{8})\.json$`)
)

func validateEpoch(epoch int) error {
	if epoch < 0 || epoch > maxEpoch {
		return box.Invalidf("epoch", "%d is not between 0 and %d", epoch, maxEpoch)
	}
	return nil
}

func validateConversation(id string) error {
	if !conversationForm.MatchString(id) {
		return box.Invalidf("conversation", "%.60q is not a conversation id; use 32 lower-case hex digits, without dashes", id)
	}
	return nil
}

// alternate returns name for n = 1 and name-n for the later ones.
func alternate(name string, n int) string {
	if n == 1 {
		return name
	}
	return name + "-" + strconv.Itoa(n)
}

func exportsPrefix(workspace string) string { return "exports/" + workspace + "/" }

func attemptPrefix(workspace string, epoch int, attempt string) string {
	return fmt.Sprintf("exports/%s/%04d/%s/", workspace, epoch, attempt)
}

func objectKey(prefix, id string, n int) string {
	return prefix + "conversations/" + alternate(id, n) + ".zip"
}

func manifestKey(prefix string) string { return prefix + "manifest.json" }

func secretsKey(prefix string, n int) string { return prefix + alternate("secrets", n) + ".json" }

// secretsOf reports whether key may hold the report of secrets of an attempt.
func secretsOf(key, workspace string, epoch int, attempt string) bool {
	name, ok := strings.CutPrefix(key, attemptPrefix(workspace, epoch, attempt))
	return ok && secretsKeyForm.MatchString(name)
}

// parseManifestKey returns what a manifest's key says, and false for any other
// key.
func parseManifestKey(key string) (workspace string, epoch int, attempt string, ok bool) {
	m := manifestKeyForm.FindStringSubmatch(key)
	if m == nil {
		return "", 0, "", false
	}
	epoch, err := strconv.Atoi(m[2])
	return m[1], epoch, m[3], err == nil
}

// objectOf reports whether key may hold the conversation of the workspace.
func objectOf(key, workspace, id string) bool {
	m := objectKeyForm.FindStringSubmatch(key)
	return m != nil && m[1] == workspace && m[2] == id
}

// indexKey is where the index of a workspace's archive goes.
func indexKey(prefix string, n int) string { return prefix + alternate("workspace", n) + ".json.zst" }

// indexOf reports whether key may hold an index of the workspace.
func indexOf(key, workspace string) bool {
	m := indexKeyForm.FindStringSubmatch(key)
	return m != nil && m[1] == workspace
}

// chunkKey is where a chunk goes, by the sum of what it holds; n counts the
// objects before it that hold something else.
func chunkKey(workspace, sum string, n int) string {
	return chunksPrefix(workspace) + sum[:2] + "/" + alternate(sum, n)
}

func chunksPrefix(workspace string) string { return "chunks/" + workspace + "/" }

func ledgerPrefix(workspace string) string { return "ledger/" + workspace + "/" }

func ledgerKey(workspace string, seq int) string {
	return fmt.Sprintf("ledger/%s/%08d.json", workspace, seq)
}

func parseLedgerKey(key string) (seq int, ok bool) {
	m := ledgerKeyForm.FindStringSubmatch(key)
	if m == nil {
		return 0, false
	}
	seq, err := strconv.Atoi(m[1])
	return seq, err == nil && seq > 0
}

// eventIndex reads the number of an event file from its name in a zip:
// <hex32>/events/event-<5 or more digits>-<id>.json.
func eventIndex(name, conversation string) (index int, id string, ok bool) {
	rest, found := strings.CutPrefix(name, conversation+"/events/event-")
	if !found {
		return 0, "", false
	}
	rest, found = strings.CutSuffix(rest, ".json")
	if !found {
		return 0, "", false
	}
	digits, id, found := strings.Cut(rest, "-")
	if !found || len(digits) < 5 || len(digits) > 9 || id == "" || strings.Contains(id, "/") ||
		strings.Trim(digits, "0123456789") != "" {
		return 0, "", false
	}
	index, err := strconv.Atoi(digits)
	return index, id, err == nil
}

package driver_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// The page for writers of drivers says of every class what the code does.
func TestWritingADriverKnowsTheClasses(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join("..", "..", "docs", "providers", "writing-a-driver.md"))
	if err != nil {
		t.Fatal(err)
	}
	told := map[box.Class][]string{}
	for line := range strings.Lines(string(raw)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if len(cells) == 7 {
			told[box.Class(cells[0])] = cells
		}
	}
	word := map[bool]string{true: "yes", false: "no"}
	for _, class := range []box.Class{
		box.ClassUnknown, box.ClassNotFound, box.ClassAlreadyExists, box.ClassInvalid, box.ClassFailedPrecondition, box.ClassConflict,
		box.ClassUnauthorized, box.ClassExhausted, box.ClassUnavailable, box.ClassUnsupported, box.ClassCanceled, box.ClassDeadlineExceeded,
		box.ClassInternal,
	} {
		cells := told[class]
		if len(cells) != 7 || cells[1] != word[class.Retryable()] || cells[2] != word[driver.Settled(class)] {
			t.Errorf("%s: the page says %q; retryable %t, nothing done %t", class, cells, class.Retryable(), driver.Settled(class))
		}
	}
}

package cli

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestWhatIsSaidInCommandsCanBeTyped(t *testing.T) {
	t.Parallel()
	root := Root(Env{})
	for said, want := range map[string]string{
		"the box is frozen; switch freeze off first":           "box freeze WORKSPACE --off",
		"a deletion is confirmed already; cancel-delete takes": "box cancel",
		"request-delete destroys it, and force abandons it":    "--force abandons it",
		"owner: restore, or request-delete, which closes it":   "box delete",
		"look again, then confirm-delete":                      "box confirm",
		"body.plan_id: is not known; make a new plan":          "--plan",
		"owner: freeze off, or cancel-delete":                  "box freeze WORKSPACE --off",
	} {
		got := inCommands(said)
		assert.Contains(t, got, want)
		for _, name := range []string{"request-delete", "confirm-delete", "cancel-delete", "plan_id", "freeze off"} {
			assert.NotContains(t, got, name)
		}
		if words := strings.Fields(want); words[0] == "box" {
			found, _, err := root.Find(words[:2])
			assert.NoError(t, err)
			assert.Equal(t, words[1], found.Name())
		}
	}
}

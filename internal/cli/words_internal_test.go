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
		"the box is frozen; switch freeze off first":                                       "box freeze WORKSPACE --off",
		"a deletion is confirmed already; cancel-delete takes":                             "box cancel",
		"request-delete destroys it, and force abandons it":                                "--force abandons it",
		"owner: restore, or request-delete, which closes it":                               "box delete",
		"look again, then confirm-delete":                                                  "box confirm",
		"body.plan_id: is not known; make a new plan":                                      "--plan",
		"owner: freeze off, or cancel-delete":                                              "box freeze WORKSPACE --off",
		"tiers: \"x\" is not known":                                                        "--tier: \"x\" is not known",
		"conversation_ids: names 300 conversations":                                        "--conversation: names 300",
		"conversation_ids[1]: \"x\" is not the id":                                         "--conversation: \"x\" is not the id",
		"reclaim: body.conversation_ids[0]: nothing on the disk belongs to a conversation": "reclaim: --conversation: nothing",
		"accept_unsaved: is for tier runtime":                                              "--accept-unsaved: is for tier",
	} {
		got := inCommands(said)
		assert.Contains(t, got, want)
		for _, name := range []string{"request-delete", "confirm-delete", "cancel-delete", "plan_id", "freeze off", "tiers", "conversation_ids", "accept_unsaved"} {
			assert.NotContains(t, got, name)
		}
		if words := strings.Fields(want); words[0] == "box" {
			found, _, err := root.Find(words[:2])
			assert.NoError(t, err)
			assert.Equal(t, words[1], found.Name())
		}
	}
}

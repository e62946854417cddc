package box_test

import (
	"strings"
	"testing"

	"github.com/openhands/boxkeeper/box"
)

func TestSecretsPolicy(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		policy        box.SecretsPolicy
		found, masked int
		masks         bool // what was found by a rule
		refused       bool
	}{
		{"", 3, 1, false, false},
		{box.SecretsKeep, 3, 1, false, false},
		{box.SecretsRedact, 3, 3, true, false},
		{box.SecretsBlock, 3, 1, false, true},
		{box.SecretsBlock, 1, 1, false, false}, // all of it is masked
		{box.SecretsBlock, 0, 0, false, false},
	} {
		if !row.policy.Masks(true) {
			t.Errorf("%q does not mask what the agent-server promised to", row.policy)
		}
		if got, want := row.policy.Withholds(), row.policy == box.SecretsRedact || row.policy == box.SecretsBlock; got != want {
			t.Errorf("%q keeps files with a find out: %v", row.policy, got)
		}
		if got := row.policy.Masks(false); got != row.masks {
			t.Errorf("%q masks: %v", row.policy, got)
		}
		err := row.policy.Refusal(row.found, row.masked, "ws", "exports/ws/x/secrets.json")
		if (err != nil) != row.refused {
			t.Errorf("%q with %d found and %d masked: %v", row.policy, row.found, row.masked, err)
		}
		if err != nil && (box.ClassOf(err) != box.ClassFailedPrecondition || !strings.Contains(err.Error(), "2 possible secrets") ||
			!strings.Contains(err.Error(), "exports/ws/x/secrets.json")) {
			t.Errorf("the refusal says %v", err)
		}
	}
	err := box.Policy{ExportSecrets: "hide"}.Validate()
	if box.ClassOf(err) != box.ClassInvalid || !strings.Contains(err.Error(), "policy.export_secrets") {
		t.Errorf("an unknown policy: %v", err)
	}
	merged := box.Policy{ExportSecrets: box.SecretsBlock}.Merged(box.Policy{})
	if merged.ExportSecrets != box.SecretsBlock || merged.Merged(box.Policy{ExportSecrets: box.SecretsKeep}).ExportSecrets != box.SecretsKeep {
		t.Error("a change of the policy does not keep or replace export_secrets")
	}
}

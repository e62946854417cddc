package cli

import (
	"strings"
	"testing"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

func TestPlacesInHistoriesAreTold(t *testing.T) {
	t.Parallel()
	const bundle = "repositories/0001/bundle"
	var p page
	p.secretsFound(secretsFound{Export: "the-export", Report: exports.SecretsReport{Policy: box.SecretsKeep, Findings: 4, Objects: []exports.ScannedObject{{
		Packed: 2048, Objects: 120, Partial: 1,
		List: []exports.SecretFinding{
			{Rule: "github-pat", Entry: bundle, Git: "blob", Object: "0a1b2c", At: 77, Line: 12, Offset: 300, Fingerprint: "f1"},
			{Rule: "github-pat", Entry: bundle, Git: "difference", At: 900, Offset: 31, Fingerprint: "f2"},
			{Rule: "github-pat", Entry: bundle, Git: "references", Line: 3, Offset: 40, Fingerprint: "f3"},
			{Rule: exports.NotLookedInto, Entry: bundle, At: 1_000, Why: "it ends in an object"},
		},
	}}}})
	for _, want := range []string{
		"github-pat repositories/0001/bundle, blob 0a1b2c 12 f1",
		"github-pat repositories/0001/bundle, difference at byte 900 byte 31 f2",
		"github-pat repositories/0001/bundle, references at byte 0 3 f3",
		"not-looked-into repositories/0001/bundle it ends in an object as it is",
		"Not looked into: 2.0 KiB that git has compressed.",
		"Looked into: 120 objects of git, and what 1 difference of large objects, or of some that are not there, add.",
	} {
		if !strings.Contains(strings.Join(strings.Fields(p.String()), " "), want) {
			t.Errorf("%q is not in\n%s", want, p.String())
		}
	}
}

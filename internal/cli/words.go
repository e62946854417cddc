package cli

import (
	"regexp"
	"strings"
)

// spoken names requests of the contract, as the sentences of the workers do, by
// what a person types. Longer forms stand before what they begin with.
var spoken = strings.NewReplacer( //nolint:gochecknoglobals // a constant
	"switch freeze off first", "run \"box freeze WORKSPACE --off\" first",
	"owner: freeze off", "owner: \"box freeze WORKSPACE --off\"",
	"request-delete", "\"box delete\"",
	"confirm-delete", "\"box confirm\"",
	"cancel-delete", "\"box cancel\"",
	"and force abandons", "and --force abandons",
	"body.plan_id", "--plan",
	"plan_id", "--plan",
)

// spokenFields names fields of the contract by the flags that fill them. Which of
// several values is at fault the sentence says itself.
var spokenFields = []struct { //nolint:gochecknoglobals // a constant
	field *regexp.Regexp
	flag  string
}{
	{regexp.MustCompile(`(\bbody\.)?\btiers(\[\d+\])?: `), "--tier: "},
	{regexp.MustCompile(`(\bbody\.)?\bconversation_ids(\[\d+\])?: `), "--conversation: "},
	{regexp.MustCompile(`(\bbody\.)?\baccept_unsaved: `), "--accept-unsaved: "},
}

// inCommands is a sentence of a worker as a person at the command line needs it.
// What programs read with -o json keeps the names of the contract.
func inCommands(text string) string {
	for _, one := range spokenFields {
		text = one.field.ReplaceAllString(text, one.flag)
	}
	return spoken.Replace(text)
}

package server

import (
	"fmt"
	"strings"

	"github.com/openhands/boxkeeper/box"
)

// inWords says what is unsaved in a sentence that a reason can hold.
func inWords(found *box.Unsaved) string {
	var out []string
	say := func(n int, one, many string) {
		switch {
		case n == 1:
			out = append(out, "1 "+one)
		case n > 1:
			out = append(out, fmt.Sprintf("%d %s", n, many))
		}
	}
	say(int(found.PlainFiles), "file in no repository", "files in no repository")
	for i := range found.Repositories {
		r, from := &found.Repositories[i], len(out)
		if r.Saved {
			continue
		}
		if r.Unknown != "" {
			out = append(out, "what cannot be told: "+r.Unknown)
		}
		say(r.UnpushedCommits, "commit on no remote", "commits on no remote")
		say(r.UnnamedCommits, "commit on no branch", "commits on no branch")
		say(len(r.Stashes), "stash", "stashes")
		say(r.Uncommitted.Count, "uncommitted change", "uncommitted changes")
		say(r.Untracked.Count, "untracked file", "untracked files")
		say(r.Hidden.Count, "change that git was told not to see", "changes that git was told not to see")
		say(r.Ignored.Count, "ignored file that cannot be made again", "ignored files that cannot be made again")
		for _, what := range r.InProgress {
			out = append(out, "a "+what+" in progress")
		}
		if len(out) > from {
			out[len(out)-1] += " in " + r.Path
		}
	}
	for _, what := range found.Unknown {
		out = append(out, "what cannot be told: "+what)
	}
	const most = 8
	if len(out) > most {
		out = append(out[:most], fmt.Sprintf("and %d more", len(out)-most))
	}
	return strings.Join(out, ", ")
}

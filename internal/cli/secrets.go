package cli

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

// secretsFound is what was found by the look for secrets in one export.
type secretsFound struct {
	Workspace string `json:"workspace"`
	Exports   string `json:"exports"` // URL of the store
	// Export is the key that was asked for, or that of the newest export.
	Export string `json:"export"`
	// CreatedAt is when it was taken; absent when the export was named.
	CreatedAt time.Time             `json:"created_at,omitzero"`
	Report    exports.SecretsReport `json:"report"`
}

func (a *Shared) exportsSecretsCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "secrets WORKSPACE [EXPORT]", Short: "Say where secrets stand in an export, never what they are", Args: args("a workspace", 1, 2),
		Long: "Prints the report that is stored beside each export: by which rule, in which file, on which line, and a fingerprint that is equal for equal values. No value is in it. " +
			"Without the key of an export it is that of the newest one. Of an export that export_secrets blocked there is nothing but the report: name that, as the error did.",
		Example: "  boxkeeper box exports secrets mine\n  boxkeeper box exports secrets mine exports/mine/0001/e1-s4/secrets.json -o json",
	}
	c.RunE = func(c *cobra.Command, given []string) error {
		if err := box.ValidateWorkspace(given[0]); err != nil {
			return err
		}
		store, where, err := a.readStore(c.Context())
		if err != nil {
			return err
		}
		defer store.Close() //nolint:errcheck // only read
		out := secretsFound{Workspace: given[0], Exports: where}
		if len(given) == 2 {
			if out.Export = given[1]; !strings.HasPrefix(out.Export, "exports/"+given[0]+"/") {
				return box.Invalidf("export", "%.120q is not the key of an export of workspace %s, or of its report; \"%s box exports list\" names them", out.Export, given[0], a.root.Name())
			}
		} else {
			all, err := store.List(c.Context(), given[0])
			if err != nil {
				return err
			}
			all = slices.DeleteFunc(all, func(s exports.Stored) bool { return s.Damage != "" })
			if len(all) == 0 {
				return box.Errorf(box.ClassNotFound, "the export store %s has no export of workspace %s that can be read; of one that was refused name the report", where, given[0])
			}
			newest := all[len(all)-1]
			out.Export, out.CreatedAt = newest.Receipt.Key, newest.CreatedAt
		}
		if out.Report, err = store.Secrets(c.Context(), out.Export); err != nil {
			return err
		}
		return a.show(c, out, func(p *page) { p.secretsFound(out) })
	}
	return c
}

func (p *page) secretsFound(out secretsFound) {
	r := out.Report
	rows := [][]string{{"RULE", "WHERE", "LINE", "FINGERPRINT", "IN THE STORE"}}
	var packed, objects, partial int64
	for _, o := range r.Objects {
		packed, objects, partial = packed+o.Packed, objects+o.Objects, partial+o.Partial
		for _, f := range o.List {
			line := stringOf(f.Line)
			switch {
			case f.InName:
				line = "its name"
			case f.Why != "":
				line = printable(f.Why)
			case f.Git != "" && f.Line == 0:
				line = "byte " + stringOf(f.Offset)
			}
			stored := "as it is"
			switch {
			case o.Withheld:
				stored = "no"
			case f.Masked:
				stored = "masked"
			}
			rows = append(rows, []string{f.Rule, secretPlace(f), line, f.Fingerprint, stored})
		}
	}
	if len(rows) > 1 {
		p.table(rows)
	}
	p.linef("%s: %s%s; the policy is %s.", out.Export, plural(r.Findings, "possible secret"), ifText(", ", maskedText(r.Masked)), r.Policy)
	if r.Unlisted > 0 {
		p.linef("Counted and not listed: %d.", r.Unlisted)
	}
	if packed > 0 {
		p.linef("Not looked into: %s that git has compressed.", size(packed))
	}
	if objects+partial > 0 {
		p.linef("Looked into: %s of git%s.", plural(objects, "object"), partialText(partial))
	}
}

// secretPlace is the entry, and the object of git in it.
func secretPlace(f exports.SecretFinding) string {
	switch {
	case f.Git == "":
		return printable(f.Entry)
	case f.Object == "":
		return printable(f.Entry+", "+f.Git) + " at byte " + stringOf(f.At)
	}
	return printable(f.Entry + ", " + f.Git + " " + f.Object)
}

func partialText(n int64) string {
	if n == 0 {
		return ""
	}
	return ", and what " + plural(n, "difference") + " of large objects, or of some that are not there, add"
}

func maskedText(masked int) string {
	if masked == 0 {
		return ""
	}
	return strconv.Itoa(masked) + " of them masked"
}

// secretsText says what was found in the newest export of a workspace, and how to
// read more; empty when nobody looked at all of it.
func (a *Shared) secretsText(workspace string, r box.SecretsReceipt) string {
	switch {
	case r.Found == 0 && !r.Scanned:
		return ""
	case r.Found == 0:
		return "none found"
	}
	return plural(r.Found, "possible secret") + ifText(", ", maskedText(r.Masked)) + "; see \"" + a.root.Name() + " box exports secrets " + workspace + "\""
}

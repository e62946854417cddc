package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/cli"
	"github.com/openhands/boxkeeper/internal/config"
	"github.com/openhands/boxkeeper/internal/daemon/backup"
	"github.com/openhands/boxkeeper/internal/engine"
)

// backupResult is what backup and restore answer.
type backupResult struct {
	backup.Summary
	Seconds float64 `json:"seconds"`
	// Next says what to do, and what to know before.
	Next []string `json:"next"`
}

func backupCommand(shared *cli.Shared) *cobra.Command {
	var noBoxes bool
	c := &cobra.Command{
		Use: "backup FILE", Short: "Write the data directory into one file, also while it is in use", Args: oneFile("the backup is written to"),
		Long: "Writes a checked copy of the engine's data file, the exports, the installation key, the configuration, the credentials and the boxes of " +
			"local instances into one compressed file (tar in zstd), reads it back, and only then gives it its name. It never overwrites a file. " +
			"What lies outside of the data directory is not in it, and is listed. Files of boxes that run are read while they change: suspend a box first for an exact copy of it.",
		Example: "  boxkeeperd backup /mnt/backups/boxkeeper-2026-11-29.tar.zst\n  boxkeeperd backup --no-boxes /mnt/backups/small.tar.zst",
	}
	c.Flags().BoolVar(&noBoxes, "no-boxes", false, "leave the directories of local boxes out; the records about them are kept")
	c.RunE = func(c *cobra.Command, args []string) error {
		began := time.Now()
		cfg, err := shared.Config()
		if err != nil {
			return err
		}
		o := backup.Options{DataDir: cfg.DataDir, NoBoxes: noBoxes, Exports: exportsDir(cfg), Outside: outside(cfg), Progress: progressLines(c.ErrOrStderr(), "backup")}
		for _, p := range cfg.Providers {
			if p.Dir != "" {
				o.Instances = append(o.Instances, p.Dir)
			}
		}
		here, err := cfg.ReadInstallation()
		if err != nil && box.ClassOf(err) != box.ClassNotFound {
			// What is damaged needs a backup more than what is not.
			_, _ = fmt.Fprintf(c.ErrOrStderr(), "backup: going on although the installation cannot be used as it is: %s\n", err)
		}
		o.Installation = here.ID
		summary, err := backup.Create(c.Context(), args[0], o)
		if err != nil {
			return err
		}
		return answer(c, "backed up", began, backupResult{Summary: summary, Next: afterBackup(summary)})
	}
	return c
}

func restoreCommand(shared *cli.Shared) *cobra.Command {
	return &cobra.Command{
		Use: "restore FILE", Short: "Make the data directory from a backup; nothing is overwritten", Args: oneFile("a backup was written to"),
		Long: "Checks the whole backup, makes a data directory from it, has the engine check its data file, and puts it in place. " +
			"The data directory must not exist or be empty: move an old one aside. After an error everything is as it was.",
		Example: "  mv .boxkeeper .boxkeeper.old\n  boxkeeperd restore /mnt/backups/boxkeeper-2026-11-29.tar.zst",
		RunE: func(c *cobra.Command, args []string) error {
			began := time.Now()
			cfg, err := shared.Config()
			if err != nil {
				return err
			}
			summary, err := backup.Restore(c.Context(), args[0], backup.Target{
				DataDir: cfg.DataDir, PutDataFile: putDataFile, Progress: progressLines(c.ErrOrStderr(), "restore"),
			})
			if err != nil {
				return err
			}
			return answer(c, "restored", began, backupResult{Summary: summary, Next: afterRestore(shared, summary)})
		},
	}
}

// oneFile accepts exactly one argument.
func oneFile(what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch {
		case len(args) == 0 || args[0] == "":
			return box.Invalidf("file", "%s needs the name of the file that %s; see %s --help", c.CommandPath(), what, c.CommandPath())
		case len(args) > 1:
			return box.Invalidf("arguments", "%q is one too many; see %s --help", args[1], c.CommandPath())
		}
		return nil
	}
}

// putDataFile has the engine check a data file of a backup and take it over.
func putDataFile(ctx context.Context, src, dataDir string) error {
	err := engine.Restore(ctx, src, dataDir)
	if err == nil {
		return nil
	}
	return &box.Error{
		Class: box.ClassOf(err), Field: "file",
		Message: "the engine's data file in the backup was refused, so nothing was restored", Err: err,
	}
}

// exportsDir returns the directory of the export store, empty when it is none.
func exportsDir(cfg config.Config) string {
	u, err := url.Parse(cfg.Exports)
	if err != nil || u.Scheme != "file" {
		return ""
	}
	return u.Path
}

// outside lists what belongs to the installation and is not below its data
// directory, so that no backup has it.
func outside(cfg config.Config) []string {
	var out []string
	add := func(path, format string, args ...any) {
		if path == "" || !backup.Within(cfg.DataDir, path) {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	if cfg.File != "" {
		add(cfg.File, "the configuration file %s", cfg.File)
	}
	add(exportsDir(cfg), "the export store %s", cfg.Exports)
	secret := func(what, ref string) {
		switch kind, name, _ := strings.Cut(ref, ":"); kind {
		case "file":
			add(name, "%s %s", what, ref)
		case "env":
			add("", "%s %s", what, ref)
		}
	}
	secret("the installation secret", cfg.InstallationSecret)
	for _, ref := range cfg.Identities {
		secret("the identity of the encryption", ref)
	}
	for _, p := range cfg.Providers {
		if p.Dir != "" {
			add(p.Dir, "the boxes of instance %s in %s", p.Name, p.Dir)
		}
	}
	return out
}

func afterBackup(s backup.Summary) []string {
	next := []string{"The file holds the installation key and histories: keep it as safe as the data directory itself, and not on the same disk."}
	if s.Changed > 0 {
		next = append(next, fmt.Sprintf("Files that were written to while they were read: %d, such as %q. Suspend their boxes first for exact copies.", s.Changed, s.ChangedFirst))
	}
	if len(s.Outside) > 0 {
		next = append(next, "Back up what is not in it as well: "+strings.Join(s.Outside, "; ")+".")
	}
	return next
}

func afterRestore(shared *cli.Shared, s backup.Summary) []string {
	next := []string{
		"Never run it beside the installation that it was copied from: both would own the same boxes. Suspend its boxes and end it first; a local box that still runs must end before its directory is used here.",
		"Start it with: boxkeeperd --data " + s.Data,
		"The engine carries on where the backup was: timers that have passed since go off soon. The state of each box is read again before anything is destroyed.",
		"Boxes of local instances belong to the machine that they were made on. Elsewhere they count as unknown and are left alone; their exported histories can be read.",
	}
	if !s.Boxes {
		next = append(next, "The backup has no directories of boxes: a box of a local instance is seen as lost unless its directory is put back before the start.")
	}
	if len(s.Outside) > 0 {
		next = append(next, "These were not in the backup; put them where they were before the start: "+strings.Join(s.Outside, "; ")+".")
	}
	if cfg, err := shared.Config(); err != nil {
		next = append(next, "The restored configuration cannot be used as it is: "+err.Error())
	} else if away := outside(cfg); len(away) > 0 {
		next = append(next, "The configuration names places outside of the data directory; see that they are the right ones here: "+strings.Join(away, "; ")+".")
	}
	return next
}

// answer prints what was done: one object, or lines for people.
func answer(c *cobra.Command, did string, began time.Time, r backupResult) error {
	r.Seconds = time.Since(began).Round(time.Millisecond).Seconds()
	out := c.OutOrStdout()
	if c.Flag("output").Value.String() == "json" {
		if err := json.NewEncoder(out).Encode(r); err != nil {
			return fmt.Errorf("write the answer: %w", err)
		}
		return nil
	}
	var text strings.Builder
	if did == "restored" {
		fmt.Fprintf(&text, "%s %s\nfrom      %s, a backup of %s\n", did, r.Data, r.File, r.CreatedAt.UTC().Format("2006-01-02 15:04:05Z"))
	} else {
		fmt.Fprintf(&text, "%s %s\nto        %s\n", did, r.Data, r.File)
	}
	fmt.Fprintf(&text, "content   %d entries, %s, in a file of %s\nsha256    %s\n", r.Entries, size(r.Bytes), size(r.FileBytes), r.SHA256)
	for _, l := range r.LeftOut {
		fmt.Fprintf(&text, "left out  %d: %s\n", l.Count, l.What)
	}
	for _, o := range r.Outside {
		fmt.Fprintf(&text, "not in it %s\n", o)
	}
	text.WriteString("\n")
	for _, n := range r.Next {
		fmt.Fprintf(&text, "* %s\n", n)
	}
	if _, err := io.WriteString(out, text.String()); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

// progressEvery is how often a long backup or restore says where it is.
const progressEvery = 5 * time.Second

// progressLines writes a line about what takes long, none about what does not.
func progressLines(out io.Writer, command string) func(backup.Progress) {
	last := time.Now()
	return func(p backup.Progress) {
		if time.Since(last) < progressEvery {
			return
		}
		last = time.Now()
		_, _ = fmt.Fprintf(out, "%s: %s: %d entries, %s so far, at %s\n", command, p.Stage, p.Entries, size(p.Bytes), strings.Trim(strconv.Quote(p.Path), `"`))
	}
}

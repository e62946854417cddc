package cli

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.temporal.io/sdk/client"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/config"
)

// Env is what a program is started with. Everything outside of it stays out of
// the commands, so that tests hand in their own.
type Env struct {
	// Args are the arguments without the program's name.
	Args           []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Environ is the environment as os.Environ returns it.
	Environ []string
	// Now is the clock; nil means the wall clock.
	Now func() time.Time
	// Dial connects to Temporal; nil means the SDK's own way.
	Dial func(ctx context.Context, options client.Options) (client.Client, error)
}

// lookup finds an environment variable; the last of equal names counts.
func (e Env) lookup(name string) (string, bool) {
	for _, v := range slices.Backward(e.Environ) {
		if have, value, ok := strings.Cut(v, "="); ok && have == name {
			return value, true
		}
	}
	return "", false
}

// Shared is what the commands of one program have in common: the global flags
// and what follows from them.
type Shared struct {
	env  Env
	root *cobra.Command

	configFile, dataDir         string
	address, namespace, profile string
	output                      format
}

const (
	groupBoxes = "boxes"
	groupRun   = "run"
)

// Root returns the command tree of boxkeeper. Run it with [Execute].
func Root(env Env) *cobra.Command {
	root := &cobra.Command{
		Use:   "boxkeeper",
		Short: "Owns the life of agent sandboxes: suspends idle ones, keeps their history, deletes only when that is safe and agreed.",
		Long: `boxkeeper owns the life of agent sandboxes ("boxes"). Workers keep their timers in
Temporal; the other commands send requests to them and show what they answer.

` + exitCodeHelp,
	}
	Adopt(root, env)
	return root
}

// Adopt adds the global flags and the shared commands to a program's root
// command, and makes it run with env.
func Adopt(root *cobra.Command, env Env) *Shared {
	if env.Now == nil {
		env.Now = time.Now
	}
	if env.Dial == nil {
		env.Dial = client.DialContext
	}
	a := &Shared{env: env, root: root, output: formatText}
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetArgs(append([]string{}, env.Args...)) // never nil: cobra would read os.Args
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	root.SetFlagErrorFunc(flagError)
	root.PersistentPreRunE = a.checkGlobals
	flags := root.PersistentFlags()
	flags.StringVar(&a.configFile, "config", "", "configuration file (BOXKEEPER_CONFIG; default boxkeeper.toml in the data directory)")
	flags.StringVar(&a.dataDir, "data", "", "data directory (BOXKEEPER_DATA; default .boxkeeper)")
	flags.StringVar(&a.address, "address", "", "host:port of Temporal (TEMPORAL_ADDRESS; default 127.0.0.1:7233)")
	flags.StringVar(&a.namespace, "namespace", "", "namespace in Temporal (TEMPORAL_NAMESPACE; default \"default\")")
	flags.StringVar(&a.profile, "profile", "", "profile of Temporal's own configuration file (TEMPORAL_PROFILE)")
	flags.VarP(&a.output, "output", "o", "text, or json: one value on standard output and nothing else")
	if wantsJSON(env.Args) {
		a.output = formatJSON // also for an error in a flag before it
	}
	root.AddGroup(&cobra.Group{ID: groupBoxes, Title: "Boxes:"}, &cobra.Group{ID: groupRun, Title: "Operation:"})
	root.AddCommand(
		a.boxCommand(), a.fleetCommand(), a.workerCommand(), a.checkCommand(), a.configCommand(), a.versionCommand(), boxdCommand(env),
	)
	if root.Run == nil && root.RunE == nil {
		group(root)
	}
	return a
}

// checkGlobals refuses a directory or a file that was named and cannot be meant,
// also where the command would have done without: who names one relies on it.
func (a *Shared) checkGlobals(c *cobra.Command, _ []string) error {
	changed := func(name string) bool {
		f := c.Flags().Lookup(name)
		return f != nil && f.Changed
	}
	if changed("data") && a.dataDir == "" {
		return box.Invalidf("data", "is empty; name the data directory, or leave --data out for %s", config.DefaultDataDir)
	}
	if !changed("config") {
		return nil
	}
	if a.configFile == "" {
		return box.Invalidf("config", "is empty; name a configuration file, or leave --config out for %s in the data directory", config.FileName)
	}
	if _, err := os.Stat(a.configFile); err != nil {
		return box.Invalidf("config", "%s cannot be read: %v; name a file that is there, or leave --config out", printable(a.configFile), bare(err))
	}
	return nil
}

// bare takes the path out of an error whose message names it already.
func bare(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}

// wantsJSON looks for -o json before flags are read, so that an error in one of
// them has the form that was asked for.
func wantsJSON(args []string) bool {
	for i, arg := range args {
		switch {
		case arg == "--":
			return false
		case arg == "-ojson", arg == "-o=json", arg == "--output=json",
			(arg == "-o" || arg == "--output") && i+1 < len(args) && args[i+1] == "json":
			return true
		}
	}
	return false
}

// group makes a command without work of its own show its help, and refuse what
// is not one of its commands.
func group(c *cobra.Command) *cobra.Command {
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		hint := ""
		if near := c.SuggestionsFor(args[0]); len(near) > 0 {
			hint = "; did you mean " + strings.Join(near, " or ") + "?"
		}
		return box.Invalidf("command", "%q is not a command of %s%s", printable(args[0]), c.CommandPath(), hint)
	}
	c.SuggestionsMinimumDistance = 2
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	return c
}

// args accepts between least and most positional arguments, called by names.
func args(names string, least, most int) cobra.PositionalArgs {
	return func(c *cobra.Command, given []string) error {
		switch {
		case len(given) < least:
			return box.Invalidf("arguments", "%s needs %s; see %s --help", c.CommandPath(), names, c.CommandPath())
		case len(given) > most:
			return box.Invalidf("arguments", "%q is one too many; see %s --help", printable(given[most]), c.CommandPath())
		}
		return nil
	}
}

// Config returns the configuration in force: file, environment, flags. With
// instances it has only those; see [config.Load].
func (a *Shared) Config(instances ...string) (config.Config, error) {
	return config.Load(a.configFile, func(name string) (string, bool) {
		if name == "BOXKEEPER_DATA" && a.dataDir != "" {
			return a.dataDir, true
		}
		return a.env.lookup(name)
	}, instances...)
}

// BindProviders adds the flag that says which instances are served.
func BindProviders(c *cobra.Command, only *[]string) {
	c.Flags().StringArrayVar(only, "provider", nil, "serve only this configured instance, or this driver as its environment configures it: "+strings.Join(config.Drivers(), ", ")+" (repeat; default all that are configured)")
}

// boxCommand holds what is done with one workspace.
func (a *Shared) boxCommand() *cobra.Command {
	c := group(&cobra.Command{
		Use: "box", GroupID: groupBoxes, Short: "Create, look at and steer boxes by their workspace",
		Long: "Each command speaks to the workflow that owns the workspace, never to the box itself: looking does not keep a box awake.\n\n" + exitCodeHelp,
	})
	c.AddCommand(
		a.createCommand(), a.adoptCommand(), a.listCommand(), a.showCommand(), a.whyCommand(), a.watchCommand(),
		a.connectCommand(), a.renewCommand(), a.releaseCommand(),
		a.suspendCommand(), a.resumeCommand(), a.reclaimCommand(), a.exportCommand(),
		a.deleteCommand(), a.confirmCommand(), a.cancelCommand(),
		a.restoreCommand(), a.replaceCommand(), a.abandonCommand(), a.holdCommand(),
		a.policyCommand(), a.keepCommand(), a.freezeCommand(), a.historyCommand(), a.exportsCommand(),
	)
	return c
}

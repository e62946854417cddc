package server

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/storage/housekeeping"
	"github.com/openhands/boxkeeper/box"
)

// keyVariable holds the session key, ours and the agent-server's; more may
// follow under the next numbers.
const (
	keysVariable = "OH_SESSION_API_KEYS_"
	keyVariable  = keysVariable + "0"
	// oldKeyVariable is where the agent-server looks when there is none of these.
	oldKeyVariable = "SESSION_API_KEY"
	maxKeys        = 100
)

// The exit codes of Run.
const (
	exitOK    = 0
	exitFault = 1
	exitUsage = 2
)

// settings is the command line.
type settings struct {
	root, listen, basePath string
	insecure               bool
	retention              retentionSetting
	bashEventsDays         float64
	argv                   []string // the agent-server, empty for none
	key                    box.Secret
	catalogue              *reclaim.Catalogue
	budget                 reclaim.Budget
	ownPasses              bool
	more                   []box.Secret
}

// Run is the boxd program: it serves the box until ctx ends or a SIGTERM or
// SIGINT comes, and returns its exit code: 0 after an orderly end, 1 after a
// failure, 2 for a command line that it does not understand. Once it listens,
// its address is in run/address below the root.
func Run(ctx context.Context, args []string, env func(string) string, stdout, stderr io.Writer) int {
	given, err := takeEnvironment(args)
	if err != nil {
		fmt.Fprintln(stderr, "boxd:", err)
		return exitFault
	}
	env = given.over(env)
	set, err := parse(args, env, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		fmt.Fprintln(stderr, "boxd:", err)
		return exitUsage
	}
	if err := given.set(); err != nil {
		fmt.Fprintln(stderr, "boxd:", err)
		return exitFault
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	// A second signal takes its usual effect.
	context.AfterFunc(ctx, stop)
	log := slog.New(slog.NewTextHandler(stderr, nil))
	if err := serve(ctx, set, env, log, stderr); err != nil {
		fmt.Fprintln(stderr, "boxd:", err)
		return exitFault
	}
	return exitOK
}

func parse(args []string, env func(string) string, help io.Writer) (settings, error) {
	var set settings
	flags := flag.NewFlagSet("boxd", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&set.root, "root", "", "the box's `directory`; made when it is missing")
	flags.StringVar(&set.listen, "listen", "127.0.0.1:0", "the `address` to listen on; port 0 takes a free one")
	flags.StringVar(&set.basePath, "base-path", "", "a path `prefix` under which everything is served, such as /box-1")
	keep := flags.String("retention", "0", "archive conversations that are unused for so many `days`; with 0 only those with a rule of their own, with \"off\" none, as for a box that its provider suspends")
	records := flags.String("bash-events-days", "0", "remove records of bash commands that are older than so many `days`; 0 keeps them")
	flags.BoolVar(&set.insecure, "insecure", false, "let everybody in who reaches a loopback address, without a key")
	catalogue := flags.String("catalogue", "", "a `file` in JSON that adds to the table of what may be freed, or switches rows off")
	flags.Float64Var(&set.budget.High, "disk-high", 0, "the `part` of the filesystem, of its bytes or inodes, above which what can be made again is shed, such as 0.85; 0 for no limit")
	flags.Float64Var(&set.budget.Low, "disk-low", 0, "the `part` it is shed down to, such as 0.7; 0 for the same as --disk-high")
	flags.Int64Var(&set.budget.Bytes, "tree-bytes", 0, "the most `bytes` that may lie below the box's directory, for boxes that share a filesystem; 0 for no limit")
	flags.String(envFileFlag, "", "a `file` that holds the environment, NAME=value entries that each end with a NUL byte; it is removed when it was read, so each start needs a new one")
	flags.BoolVar(&set.ownPasses, "own-passes", true, "free space and archive without being asked, as the budget and the retention say; false where the provider suspends the box, since the owner then asks before each suspend")
	about := flags.Bool("version", false, "say what this program was built from, and end")
	err := flags.Parse(args)
	if *about {
		fmt.Fprintln(help, "boxd", version()+builtFrom())
		return set, flag.ErrHelp
	}
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(help, "boxd serves a box: in front of an agent-server, or its histories alone.\n\nUsage: boxd --root DIR [--listen HOST:PORT] [-- AGENT-SERVER ARG...]\n\nThe session key comes from the environment: %s.\nThe agent-server is started with --host and --port added.\n\n", keyVariable)
		flags.SetOutput(help)
		flags.PrintDefaults()
		return set, err
	}
	if err != nil {
		return set, err
	}
	if set.retention, err = parseRetention(*keep); err != nil {
		return set, err
	}
	if set.bashEventsDays, err = parseDays("bash-events-days", *records); err != nil {
		return set, err
	}
	set.argv = flags.Args()
	if len(set.argv) > 0 && strings.ContainsRune(set.argv[0], filepath.Separator) {
		// The agent-server starts in the box's directory, not in ours.
		if set.argv[0], err = filepath.Abs(set.argv[0]); err != nil {
			return set, fmt.Errorf("the agent-server's command: %w", err)
		}
	}
	set.key = box.Secret(cmp.Or(env(keyVariable), env(oldKeyVariable)))
	// The agent-server takes these from the same environment.
	for n := 1; n < maxKeys && env(keysVariable+strconv.Itoa(n)) != ""; n++ {
		set.more = append(set.more, box.Secret(env(keysVariable+strconv.Itoa(n))))
	}
	if set.root == "" {
		return set, errors.New("--root: name the box's directory")
	}
	if set.root, err = filepath.Abs(set.root); err != nil {
		return set, fmt.Errorf("--root: %w", err)
	}
	if err := set.budget.Check(); err != nil {
		return set, fmt.Errorf("--disk-high, --disk-low, --tree-bytes: %w", err)
	}
	if !set.ownPasses {
		// What a pass at the start does besides is to finish one that was cut off.
		if set.retention.days > 0 {
			return set, errors.New("--retention: a number of days needs passes of the box's own; leave --own-passes=false out, or say --retention off")
		}
		set.retention, set.budget = retentionSetting{off: true}, reclaim.Budget{}
	}
	if set.catalogue, err = readCatalogue(*catalogue); err != nil {
		return set, err
	}
	host, _, err := net.SplitHostPort(set.listen)
	if err != nil {
		return set, fmt.Errorf("--listen: %q is not an address; write it like 127.0.0.1:0", set.listen)
	}
	set.basePath = strings.TrimRight(set.basePath, "/")
	switch address := net.ParseIP(host); {
	case set.basePath != "" && set.basePath[0] != '/':
		return set, errors.New("--base-path: must begin with \"/\"")
	case len(args) > 0 && len(set.argv) > 0 && !dashed2(args, set.argv):
		return set, fmt.Errorf("%q is not understood; put the agent-server's command after \"--\"", set.argv[0])
	case set.key != "":
	case !set.insecure:
		return set, fmt.Errorf("no session key: set %s, or say --insecure on a loopback address", keyVariable)
	case host != "localhost" && (address == nil || !address.IsLoopback()):
		return set, errors.New("--insecure: only on a loopback address; set a session key for others")
	}
	return set, nil
}

// readCatalogue reads the file of --catalogue; no name means the built-in table.
func readCatalogue(name string) (*reclaim.Catalogue, error) {
	var text []byte
	if name != "" {
		var err error
		if text, err = os.ReadFile(name); err != nil {
			return nil, fmt.Errorf("--catalogue: %w", err)
		}
	}
	out, err := reclaim.LoadCatalogue(text)
	if err != nil {
		return nil, fmt.Errorf("--catalogue %s: %w", name, err)
	}
	return out, nil
}

// dashed2 reports whether rest stands behind a "--" in args.
func dashed2(args, rest []string) bool {
	at := len(args) - len(rest) - 1
	return at >= 0 && args[at] == "--"
}

func serve(ctx context.Context, set settings, env func(string) string, log *slog.Logger, output io.Writer) error {
	if err := makeLayout(set.root); err != nil {
		return err
	}
	lock, err := lockRoot(set.root)
	if err != nil {
		return err
	}
	defer lock.Close()
	root, err := os.Stat(set.root)
	if err != nil {
		return fmt.Errorf("look at the box's directory: %w", err)
	}
	address := filepath.Join(set.root, addressFile)
	// An old one would lead to whoever has its port now.
	if err := os.Remove(address); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the old address: %w", err)
	}
	sweep(set.root, log)
	dropStaged(set.root)
	continueRestore(set.root, log)
	in, err := assemble(set, env, log)
	if err != nil {
		return err
	}
	reclaimer := in.reclaimer
	defer reclaimer.Close()
	listener, err := net.Listen("tcp", set.listen) //nolint:noctx // local and instant
	if err != nil {
		return fmt.Errorf("listen on %s: %w; choose another address with --listen", set.listen, err)
	}
	defer listener.Close()

	opts := Options{Root: set.root, Key: set.key, MoreKeys: set.more, BasePath: set.basePath, Reclaim: reclaimer, Log: log, Version: version()}
	inner, end := context.WithCancel(ctx)
	defer end()
	var children sync.WaitGroup
	children.Go(func() { maintain(inner, reclaimer.Pass, set.budget.Set(), log) })
	opts.Keeping = newKeeping(set, in, log)
	opts.Git, opts.Recreatable = in.git, in.recreatable
	children.Go(func() { opts.Keeping.Keeper.Run(inner) })
	left := housekeeping.New(set.root, housekeeping.Options{BashEvents: time.Duration(set.bashEventsDays * float64(24*time.Hour)), Temp: socketTemps(set)})
	children.Go(func() { housekeep(inner, left, log) })
	opts.Forgotten = left.Items
	if in.worktrees != nil {
		if err := in.worktrees.Recover(ctx); err != nil {
			log.Warn("finish removals of worktrees that were cut off", "error", err)
		}
	}
	if len(set.argv) > 0 {
		dropPacked(set.root)
		server := &child{root: set.root, argv: set.argv, key: set.key, env: env, output: output, log: log}
		server.state.State = "starting"
		opts.Upstream = server
		if public, err := url.Parse(env("OH_WEB_URL")); err == nil {
			opts.RootPath = strings.TrimRight(public.Path, "/") // where the agent-server takes it from
		}
		children.Go(func() { server.keep(inner) })
	}
	defer children.Wait()
	defer end()
	web := &http.Server{
		Handler: New(opts),
		// "OPTIONS *" is the agent-server's to answer.
		DisableGeneralOptionsHandler: true,

		ReadHeaderTimeout: 30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	served := make(chan error, 1)
	go func() { served <- web.Serve(listener) }()
	if err := reclaimer.WriteFile(addressFile, []byte("http://"+listener.Addr().String()+set.basePath+"\n")); err != nil {
		web.Close()
		return err
	}
	defer os.Remove(address)
	log.Info("boxd serves", "address", listener.Addr().String(), "root", set.root, "agent_server", len(set.argv) > 0)
	gone := make(chan struct{})
	children.Go(func() { awaitGone(inner, set.root, root, gone) })
	var lostRoot error
	select {
	case err := <-served:
		return fmt.Errorf("serve: %w", err)
	case <-gone:
		lostRoot = fmt.Errorf("the box's directory %s is gone, so there is nothing to serve", set.root)
	case <-ctx.Done():
	}
	log.Info("boxd ends")
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := web.Shutdown(bound); err != nil {
		web.Close()
	}
	return lostRoot
}

// lookForRoot is how often boxd looks whether its directory is still there.
const lookForRoot = 2 * time.Second

// awaitGone closes gone when the root was removed, or another directory took
// its place: whoever did that forgot the box, and a process that serves what
// nobody can see any more would run for ever. What cannot be read is not gone, and
// one look proves nothing: a directory may be moved and put back.
func awaitGone(ctx context.Context, path string, first os.FileInfo, gone chan<- struct{}) {
	tick := time.NewTicker(lookForRoot)
	defer tick.Stop()
	for missing := 0; missing < 2; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		info, err := os.Stat(path)
		if errors.Is(err, os.ErrNotExist) || err == nil && !os.SameFile(first, info) {
			missing++
		} else {
			missing = 0
		}
	}
	close(gone)
}

// builtFrom is the commit, where the build knows it, and the toolchain.
func builtFrom() string {
	commit, changes := "", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				commit = ", commit " + s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				changes = " with changes"
			}
		}
	}
	return commit + changes + ", " + runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH
}

// version is that of the module we were built from.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

package cli

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/openhands/boxkeeper/box"
)

// version is what this program was built from.
type version struct {
	Program   string `json:"program"`
	Version   string `json:"version"`
	Commit    string `json:"commit,omitzero"`
	Modified  bool   `json:"modified,omitzero"`
	BuiltFrom string `json:"commit_time,omitzero"`
	Go        string `json:"go"`
	Platform  string `json:"platform"`
	Wire      int    `json:"wire_version"`
	// Modules are those whose versions must match for a build; the ones that a
	// program does not link are left out.
	Modules map[string]string `json:"modules"`
}

func readVersion(program string) version {
	v := version{
		Program: program, Version: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Wire: box.WireVersion, Modules: map[string]string{},
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.time":
			v.BuiltFrom = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	for _, m := range info.Deps {
		switch m.Path {
		case "go.temporal.io/sdk", "go.temporal.io/api", "go.temporal.io/server", "github.com/temporalio/ui-server/v2":
			v.Modules[m.Path] = m.Version
		}
	}
	return v
}

func (a *Shared) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", GroupID: groupRun, Short: "Say what this program was built from", Args: args("nothing", 0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			v := readVersion(a.root.Name())
			return a.show(c, v, func(p *page) {
				commit := v.Commit
				if v.Modified {
					commit += " with changes"
				}
				p.linef("%s %s", v.Program, v.Version)
				p.facts(
					[2]string{"commit", commit}, [2]string{"of", v.BuiltFrom}, [2]string{"go", v.Go}, [2]string{"platform", v.Platform},
					[2]string{"spec version", stringOf(int64(v.Wire))},
					[2]string{"temporal sdk", v.Modules["go.temporal.io/sdk"]}, [2]string{"temporal api", v.Modules["go.temporal.io/api"]},
					[2]string{"temporal server", v.Modules["go.temporal.io/server"]}, [2]string{"temporal ui", v.Modules["github.com/temporalio/ui-server/v2"]},
				)
			})
		},
	}
}

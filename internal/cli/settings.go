package cli

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/config"
)

// inForce is the configuration as it is, for programs. It holds references to
// secrets, never a secret.
type inForce struct {
	File               string     `json:"file,omitzero"`
	DataDir            string     `json:"data"`
	Exports            string     `json:"exports"`
	Transfers          int        `json:"transfers"`
	Recipients         []string   `json:"encryption_recipients,omitempty"`
	Identities         []string   `json:"encryption_identities,omitempty"`
	InstallationSecret string     `json:"installation_secret"`
	Listen             string     `json:"listen"`
	LogLevel           string     `json:"log_level"`
	LogFormat          string     `json:"log_format"`
	SpecEnv            []string   `json:"specs_env,omitempty"`
	SpecFiles          []string   `json:"specs_files,omitempty"`
	Providers          []instance `json:"providers"`
	Webhooks           []webhook  `json:"webhooks,omitempty"`
	Address            string     `json:"temporal_address"`
	Namespace          string     `json:"temporal_namespace"`
}

type instance struct {
	Name        string   `json:"name"`
	Driver      string   `json:"driver"`
	Dir         string   `json:"dir,omitzero"`
	Suspend     string   `json:"suspend,omitzero"`
	AgentServer []string `json:"agent_server,omitempty"`
	// Settings are the further ones that were given, by their names.
	Settings map[string]string `json:"settings,omitempty"`
}

// webhook is one receiver. Its URL is shown without the query, which may hold a
// token.
type webhook struct {
	Name      string          `json:"name"`
	Address   string          `json:"url"`
	Keys      []string        `json:"keys"`
	Events    []box.EventKind `json:"events,omitempty"`
	PlainHTTP string          `json:"plain_http"`
}

func (a *Shared) configCommand() *cobra.Command {
	var reference bool
	c := &cobra.Command{
		Use: "config", GroupID: groupRun, Short: "Print the configuration in force, or the reference of all settings", Args: args("nothing", 0, 0),
		Long: "Fails with the setting named where a worker would refuse to start over it: also over a secret, a file or a directory that cannot be used here. What a worker would only warn of is noted on standard error. It makes nothing and asks nobody anything; \"check\" does.",
	}
	c.Flags().BoolVar(&reference, "reference", false, "print every setting with its default, form and when to change it")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if reference {
			if a.output == formatJSON {
				return writeJSON(c.OutOrStdout(), map[string]any{"settings": config.Settings()})
			}
			return write(c.OutOrStdout(), config.Reference())
		}
		cfg, err := a.Config()
		if err != nil {
			return err
		}
		temporal, err := a.ClientOptions()
		if err != nil {
			return err
		}
		notes, err := checkStart(c.Context(), cfg)
		if err != nil {
			return err
		}
		for _, text := range notes {
			note(c, "Note: %s", text)
		}
		now := inForce{
			File: cfg.File, DataDir: cfg.DataDir, Exports: cfg.Exports, Transfers: cfg.Transfers, InstallationSecret: cfg.InstallationSecret, Listen: cfg.Listen,
			Recipients: cfg.Recipients, Identities: cfg.Identities,
			LogLevel: cfg.Log.Level, LogFormat: cfg.Log.Format, SpecEnv: cfg.SpecEnv, SpecFiles: cfg.SpecFiles,
			Address: temporal.HostPort, Namespace: temporal.Namespace,
		}
		for _, p := range cfg.Providers {
			now.Providers = append(now.Providers, instance{p.Name, p.Driver, p.Dir, p.Suspend, p.AgentServer, p.Set})
		}
		for _, w := range cfg.Webhooks {
			now.Webhooks = append(now.Webhooks, webhook{w.Name, w.Address(), w.Keys, w.Events, w.PlainHTTP})
		}
		return a.show(c, now, func(p *page) { p.inForce(now) })
	}
	return c
}

func (p *page) inForce(now inForce) {
	list := func(items []string) string {
		if items == nil {
			return ""
		}
		data, _ := json.Marshal(items) // texts always encode
		return string(data)
	}
	p.facts(
		[2]string{"file", orDash(now.File)}, [2]string{"data", now.DataDir}, [2]string{"exports", now.Exports}, [2]string{"transfers", strconv.Itoa(now.Transfers)},
		[2]string{"encryption.recipients", list(now.Recipients)}, [2]string{"encryption.identities", list(now.Identities)},
		[2]string{"installation_secret", now.InstallationSecret}, [2]string{"listen", now.Listen},
		[2]string{"log", now.LogLevel + ", " + now.LogFormat},
		[2]string{"specs.env", list(now.SpecEnv)}, [2]string{"specs.files", list(now.SpecFiles)},
		[2]string{"temporal", now.Address + ", namespace " + now.Namespace},
	)
	for _, w := range now.Webhooks {
		p.linef("webhook %s: %s, key %s%s", w.Name, printable(w.Address), printable(strings.Join(w.Keys, " and ")), ifText(", takes ", eventList(w.Events)))
	}
	for _, i := range now.Providers {
		var more strings.Builder
		for _, name := range slices.Sorted(maps.Keys(i.Settings)) {
			more.WriteString(", " + name + " " + printable(i.Settings[name]))
		}
		p.linef("provider %s: driver %s%s%s%s%s", i.Name, i.Driver, ifText(", suspend ", i.Suspend), ifText(", boxes in ", printable(i.Dir)),
			ifText(", agent-server ", printable(strings.Join(i.AgentServer, " "))), more.String())
	}
}

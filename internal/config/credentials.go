package config

import (
	"errors"
	"io/fs"
	"os"
	"strings"

	"github.com/openhands/boxkeeper/box"
)

// credential is the setting that leads to an instance's credentials, and where
// they are looked for without it: where the tools of that provider have them.
type credential struct {
	setting  string
	defaults []string
}

func credentialOf(driver string) (credential, bool) {
	switch driver {
	case DriverRuntimeAPI:
		return credential{SettingAPIKey, []string{"env:RUNTIME_API_KEY"}}, true
	case DriverDigitalOcean:
		return credential{SettingToken, []string{"env:DIGITALOCEAN_TOKEN", "env:DIGITALOCEAN_ACCESS_TOKEN"}}, true
	}
	return credential{}, false
}

// credentials are the references under which an instance's credentials may be.
func (p Provider) credentials() []string {
	known, ok := credentialOf(p.Driver)
	if !ok {
		return nil
	}
	if ref, given := p.Set[known.setting]; given {
		return []string{ref}
	}
	return known.defaults
}

// Credentials are what opens the account of an instance.
type Credentials struct {
	// Secret is empty for a driver that has none.
	Secret box.Secret
	// From says where they were found; empty where a setting or a variable led to them.
	From string
	// Warning is about a file that others may read; empty where there is none.
	Warning string
}

// ProviderCredentials resolves the credentials of an instance: by its setting, else
// its provider's variables, else the file of its provider's own tool. Only who serves
// the instance calls it. NotFound: there are none that can be used, so the instance
// can't be served.
func (c Config) ProviderCredentials(p Provider) (Credentials, error) {
	secret, err := c.referredSecret(p)
	file := c.toolFile(p)
	if box.ClassOf(err) != box.ClassNotFound || file == "" {
		return Credentials{Secret: secret}, err
	}
	found, fileErr := c.doctlCredentials(file, p.Field(SettingToken))
	if errors.Is(fileErr, fs.ErrNotExist) {
		return Credentials{}, box.Errorf(box.ClassNotFound, "%w; doctl has no configuration at %s either", err, file)
	}
	return found, fileErr
}

// LacksCredentials says why an instance has no credentials here; empty where it has
// some, or needs none. It leaves the files of other tools closed: what is in them is
// for who serves the instance.
func (c Config) LacksCredentials(p Provider) string {
	_, err := c.referredSecret(p)
	if box.ClassOf(err) != box.ClassNotFound {
		return "" // what else is wrong with them, the worker that is to use them says
	}
	if file := c.toolFile(p); file != "" {
		if _, there := os.Stat(file); there == nil {
			return ""
		}
	}
	return err.Error()
}

// toolFile is where the tool of an instance's provider has credentials that count;
// empty where a setting leads to others.
func (c Config) toolFile(p Provider) string {
	if _, given := p.Set[SettingToken]; given || p.Driver != DriverDigitalOcean {
		return ""
	}
	return c.doctlFile()
}

// referredSecret resolves credentials by the setting of an instance, else by the
// variables of its provider. NotFound: there are none.
func (c Config) referredSecret(p Provider) (box.Secret, error) {
	refs := p.credentials()
	if len(refs) == 0 {
		return "", nil
	}
	known, _ := credentialOf(p.Driver)
	_, given := p.Set[known.setting]
	for _, ref := range refs {
		if _, name, _ := splitRef(ref); !given {
			if value, _ := c.env(name); value == "" {
				continue // tools take an empty variable for one that is not set
			}
		}
		secret, err := c.ResolveSecret(ref)
		if box.ClassOf(err) != box.ClassNotFound {
			return secret, err
		}
	}
	return "", box.Errorf(box.ClassNotFound, "it has no credentials: nothing is at %s; set it, or %s to where they are", strings.Join(refs, " or "), p.Field(known.setting))
}

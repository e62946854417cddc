package config

import (
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

// ProviderSecret resolves the credentials of an instance; empty for a driver that
// has none. NotFound: there are none, so the instance can't be served.
func (c Config) ProviderSecret(p Provider) (box.Secret, error) {
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

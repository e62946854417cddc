package config

import (
	"errors"
	"io/fs"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/openhands/boxkeeper/box"
)

// Fields of doctl's configuration, and its name for the context whose token
// stands in the first one [doctl's source, 1 Dec 2026].
const (
	doctlToken    = "access-token"
	doctlContext  = "context"
	doctlContexts = "auth-contexts"
	doctlDefault  = "default"
)

// doctlDir is where doctl keeps its configuration on a system; empty where the
// environment names no home.
func (c Config) doctlDir(system string) string {
	if xdg, ok := c.env("XDG_CONFIG_HOME"); ok && filepath.IsAbs(xdg) && system != "darwin" {
		return filepath.Join(xdg, "doctl")
	}
	home := c.home()
	switch {
	case home == "":
		return ""
	case system == "darwin":
		return filepath.Join(home, "Library", "Application Support", "doctl")
	}
	return filepath.Join(home, ".config", "doctl")
}

func (c Config) doctlFile() string {
	if dir := c.doctlDir(runtime.GOOS); dir != "" {
		return filepath.Join(dir, "config.yaml")
	}
	return ""
}

// doctlCredentials are the token of doctl's current context. NotFound: there is
// none, or the file cannot be used.
func (c Config) doctlCredentials(path, setting string) (Credentials, error) {
	wayOut := "set DIGITALOCEAN_TOKEN or " + setting
	data, err := readToolFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Credentials{}, err
	}
	if err != nil {
		return Credentials{}, unusable(path, "", "it has no credentials, since doctl's configuration cannot be read: "+err.Error(), wayOut)
	}
	name, _ := c.env("DIGITALOCEAN_CONTEXT")
	name, token, field, problem := tokenOfDoctl(data, name)
	if problem != "" {
		return Credentials{}, unusable(path, field, "doctl's configuration gives no credentials: "+problem, wayOut)
	}
	return Credentials{Secret: token, From: "context " + strconv.Quote(name) + " of doctl in " + path, Warning: openToOthers(path)}, nil
}

// tokenOfDoctl reads the configuration. A problem is about a field, or the whole
// where that is empty, and never repeats what is in the file: a token may stand
// in any place of it.
func tokenOfDoctl(data []byte, context string) (name string, token box.Secret, field, problem string) {
	var root yaml.Node
	if err := yaml.Unmarshal(data, &root); err != nil {
		return "", "", "", "it is not YAML"
	}
	if root.Kind != yaml.DocumentNode || len(root.Content) != 1 || root.Content[0].Kind != yaml.MappingNode {
		return "", "", "", "it is no map of settings"
	}
	top := root.Content[0]
	if name = context; name == "" {
		if name, problem = scalar(top, doctlContext); problem != "" {
			return "", "", doctlContext, problem
		}
	}
	// doctl folds the case of names: the keys of its files are in lower case.
	if name = strings.ToLower(name); name == "" {
		name = doctlDefault
	}
	field, key, in := doctlToken, doctlToken, top
	if name != doctlDefault {
		field, key = doctlContexts, name
		if in, problem = child(top, doctlContexts); problem != "" {
			return name, "", field, problem
		}
		if in == nil {
			return name, "", field, "there are no contexts, and the current one is to be one of them (" + doctlContext + ", DIGITALOCEAN_CONTEXT)"
		}
		if in.Kind != yaml.MappingNode {
			return name, "", field, "it is not a map of names and tokens"
		}
	}
	text, problem := scalar(in, key)
	switch {
	case problem != "":
	case text == "" && name == doctlDefault:
		problem = "it is empty or missing (doctl auth init)"
	case text == "":
		problem = "it has no token for the current context (" + doctlContext + ", DIGITALOCEAN_CONTEXT)"
	case strings.IndexFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) >= 0:
		problem = "it holds a character that no token has"
	}
	if problem != "" {
		return name, "", field, problem
	}
	return name, box.Secret(text), "", ""
}

// child is the value of a key in a map, whatever the key's case; nil where it has none.
func child(in *yaml.Node, key string) (found *yaml.Node, problem string) {
	for i := 0; i+1 < len(in.Content); i += 2 {
		if k := in.Content[i]; k.Kind != yaml.ScalarNode || !strings.EqualFold(k.Value, key) {
			continue
		}
		if found != nil {
			return nil, "it is there twice"
		}
		if found = in.Content[i+1]; found.Kind == yaml.AliasNode {
			found = found.Alias
		}
	}
	return found, ""
}

// scalar is a text in a map; empty where there is none. Numbers are taken as they
// are written: old tokens may look like one.
func scalar(in *yaml.Node, key string) (text, problem string) {
	found, problem := child(in, key)
	switch {
	case problem != "" || found == nil:
		return "", problem
	case found.Kind != yaml.ScalarNode || found.ShortTag() == "!!bool":
		return "", "it is not a text"
	case found.ShortTag() == "!!null":
		return "", ""
	}
	return found.Value, ""
}

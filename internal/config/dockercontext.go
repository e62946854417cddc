package config

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/openhands/boxkeeper/box"
)

// Engine is the Docker engine of an instance.
type Engine struct {
	// Host is its address; empty is the usual socket.
	Host string
	// From says what named it.
	From string
	// OwnTLS tells that TLS is all that counts, and not what DOCKER_TLS_VERIFY and
	// DOCKER_CERT_PATH say. TLS is nil then where none is spoken.
	OwnTLS bool
	TLS    *tls.Config
	// Warning is about a key that others may read; empty where there is none.
	Warning string
}

// Shown is the address without what may be secret in it.
func (e Engine) Shown() string {
	if e.Host == "" {
		return "unix:///var/run/docker.sock"
	}
	u, err := url.Parse(e.Host)
	if err != nil {
		return "an address that cannot be read"
	}
	u.RawQuery, u.Fragment = "", ""
	return u.Redacted()
}

// dockerDefault is the context that stands in no file: the usual socket.
const dockerDefault = "default"

// DockerEngine returns the engine of an instance: that of its setting, else of
// DOCKER_HOST, else of the current context of the docker command, in the order
// in which that command looks [docker/cli's source, 1 Dec 2026]. It reads keys:
// only who serves the instance calls it. It asks the engine nothing.
//
// Invalid: DOCKER_HOST is of a kind that is not spoken. NotFound: the current
// context is, or its files cannot be used; the instance cannot be served.
func (c Config) DockerEngine(p Provider) (Engine, error) {
	setting := p.Field(SettingHost)
	if host := p.Set[SettingHost]; host != "" {
		return Engine{Host: host, From: setting}, nil
	}
	if host, _ := c.env("DOCKER_HOST"); host != "" {
		if overSSH(host) {
			return Engine{}, box.Invalidf(setting, "DOCKER_HOST is an ssh:// address; %s", insteadOfSSH(setting))
		}
		return Engine{Host: host, From: "DOCKER_HOST"}, nil
	}
	dir := c.dockerDir()
	wayOut := "set DOCKER_HOST or " + setting
	name, by := "", "DOCKER_CONTEXT"
	if name, _ = c.env("DOCKER_CONTEXT"); name == "" && dir != "" {
		by = filepath.Join(dir, "config.json")
		var file struct {
			CurrentContext string `json:"currentContext"`
		}
		problem, err := readJSON(by, &file)
		if err != nil || problem != "" {
			return Engine{}, unusable(by, "currentContext", "the docker context cannot be read: "+problem, wayOut)
		}
		name = file.CurrentContext
	}
	switch {
	case name == "":
		return Engine{From: "nothing else that is set: it is the usual socket"}, nil
	case name == dockerDefault:
		return Engine{From: "docker context \"default\" (" + by + ")"}, nil
	case dir == "":
		return Engine{}, box.Errorf(box.ClassNotFound, "DOCKER_CONTEXT names the docker context %q, and neither DOCKER_CONFIG nor HOME says where it is; set one of them, or %s", name, wayOut)
	}
	return dockerContext(dir, name, by, setting)
}

// dockerDir is where docker's command keeps its configuration; empty where the
// environment does not say.
func (c Config) dockerDir() string {
	if dir, _ := c.env("DOCKER_CONFIG"); dir != "" {
		if abs, err := filepath.Abs(dir); err == nil {
			return abs
		}
	}
	if home := c.home(); home != "" {
		return filepath.Join(home, ".docker")
	}
	return ""
}

// dockerContext reads one context of the store in dir.
func dockerContext(dir, name, by, setting string) (Engine, error) {
	wayOut := "set DOCKER_HOST or " + setting
	sum := sha256.Sum256([]byte(name))
	id := hex.EncodeToString(sum[:])
	path := filepath.Join(dir, "contexts", "meta", id, "meta.json")
	var meta struct {
		Endpoints map[string]struct {
			Host          string
			SkipTLSVerify bool
		}
	}
	problem, err := readJSON(path, &meta)
	if err != nil || problem != "" {
		return Engine{}, unusable(path, "Endpoints.docker", "the docker context "+strconv.Quote(name)+" ("+by+") cannot be read: "+problem, wayOut)
	}
	at, there := meta.Endpoints["docker"]
	problem = hostProblem(at.Host)
	switch {
	case meta.Endpoints == nil:
		problem = "there is no such context"
	case !there:
		problem = "it has no such endpoint"
	case overSSH(at.Host):
		return Engine{}, box.Errorf(box.ClassNotFound, "%s, Endpoints.docker.Host: the docker context %q (%s) is an ssh:// address; %s", path, name, by, insteadOfSSH(setting))
	}
	if problem != "" {
		return Engine{}, unusable(path, "Endpoints.docker.Host", "the docker context "+strconv.Quote(name)+" ("+by+") cannot be used: "+problem, wayOut)
	}
	out := Engine{Host: at.Host, From: "docker context " + strconv.Quote(name) + " (" + by + ")", OwnTLS: true}
	if strings.HasPrefix(at.Host, "unix:") {
		return out, nil // TLS is not spoken on a socket
	}
	keys := filepath.Join(dir, "contexts", "tls", id, "docker")
	var file string
	if out.TLS, file, problem = contextTLS(keys, at.SkipTLSVerify); problem != "" {
		return Engine{}, unusable(filepath.Join(keys, file), "", "the TLS of the docker context "+strconv.Quote(name)+" ("+by+") cannot be used: "+problem, wayOut)
	}
	if out.TLS != nil && len(out.TLS.Certificates) > 0 {
		out.Warning = openToOthers(filepath.Join(keys, "key.pem"))
	}
	return out, nil
}

// contextTLS is the TLS of a context; nil where it has none. A problem is with a
// file, and never repeats what is in it.
func contextTLS(dir string, skipVerify bool) (out *tls.Config, file, problem string) {
	pem := map[string][]byte{}
	for _, file := range []string{"ca.pem", "cert.pem", "key.pem"} {
		data, err := readToolFile(filepath.Join(dir, file))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, file, err.Error()
		}
		if err == nil {
			pem[file] = data
		}
	}
	if len(pem) == 0 && !skipVerify {
		return nil, "", ""
	}
	// Whether to verify is the word of the context, as it is for docker itself.
	out = &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: skipVerify} //nolint:gosec // see above
	if ca, ok := pem["ca.pem"]; ok {
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(ca) {
			return nil, "ca.pem", "it holds no certificate"
		}
	}
	cert, hasCert := pem["cert.pem"]
	key, hasKey := pem["key.pem"]
	switch {
	case hasCert && !hasKey:
		return nil, "key.pem", "it is missing, and cert.pem is there"
	case hasKey && !hasCert:
		return nil, "cert.pem", "it is missing, and key.pem is there"
	case hasCert:
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, "cert.pem", "it and key.pem are not a certificate and its unencrypted key"
		}
		out.Certificates = []tls.Certificate{pair}
	}
	return out, "", ""
}

func overSSH(host string) bool { return strings.HasPrefix(strings.ToLower(host), "ssh:") }

func insteadOfSSH(setting string) string {
	return "ssh is not spoken here: forward the socket (ssh -L /absolute/engine.sock:/var/run/docker.sock HOST) and set " + setting + " to unix:///absolute/engine.sock"
}

// hostProblem says what is wrong with the address of a context.
func hostProblem(host string) string {
	u, err := url.Parse(host)
	switch {
	case host == "":
		return "it is empty"
	case err != nil:
		return "it is not an address"
	case u.Scheme == "unix" && u.Host == "" && u.Path != "":
		return ""
	case (u.Scheme == "tcp" || u.Scheme == "http" || u.Scheme == "https") && u.Host != "":
		return ""
	}
	return "it is none of unix:///path, tcp://host:port and https://host:port"
}

// readJSON reads a file of docker's into out, which stays as it is where there is
// no such file. A problem never repeats what is in the file: logins of registries
// stand there.
func readJSON(path string, out any) (problem string, err error) {
	data, err := readToolFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return err.Error(), err
	}
	if err = json.Unmarshal(data, out); err == nil {
		return "", nil
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		if wrong.Field == "" {
			return "it is not an object", err
		}
		return wrong.Field + " is not a " + wrong.Type.Kind().String(), err
	}
	return "it is not JSON", err
}

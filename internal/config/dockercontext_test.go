package config_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/config"
)

// contexts is a configuration of docker's command.
type contexts struct{ dir string }

func (x contexts) current(t *testing.T, text string) {
	t.Helper()
	write(t, filepath.Join(x.dir, "config.json"), text)
}

func (x contexts) path(kind, name string, rest ...string) string {
	sum := sha256.Sum256([]byte(name))
	return filepath.Join(append([]string{x.dir, "contexts", kind, hex.EncodeToString(sum[:])}, rest...)...)
}

func (x contexts) put(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

func (x contexts) context(t *testing.T, name, host string, skip bool) {
	t.Helper()
	x.put(t, x.path("meta", name, "meta.json"), fmt.Sprintf(`{"Name":%q,"Metadata":{},"Endpoints":{"docker":{"Host":%q,"SkipTLSVerify":%v}}}`, name, host, skip))
}

// engineOf is the engine of an instance with these variables.
func engineOf(t *testing.T, settings string, env map[string]string) (config.Engine, error) {
	t.Helper()
	c, err := config.Load(write(t, filepath.Join(t.TempDir(), "x.toml"), "[providers.x]\ndriver = \"docker\"\n"+settings), lookup(env))
	require.NoError(t, err)
	p, _ := c.Provider("x")
	return c.DockerEngine(p)
}

func TestTheEngineIsThatOfDocker(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	x := contexts{filepath.Join(home, ".docker")}
	require.NoError(t, os.Mkdir(x.dir, 0o700))
	x.current(t, `{"auths":{"r":{"auth":"hunter2"}},"currentContext":"rootless"}`)
	x.context(t, "rootless", "unix:///run/user/1000/docker.sock", false)
	x.context(t, "far", "tcp://10.0.0.7:2375", false)
	other := contexts{t.TempDir()}
	other.current(t, `{"currentContext":"there"}`)
	other.context(t, "there", "unix:///there.sock", true)
	plain := contexts{t.TempDir()}
	plain.current(t, `{"credsStore":"x"}`)
	for what, row := range map[string]struct {
		settings   string
		env        map[string]string
		host, from string
		own        bool
	}{
		"the setting":            {`host = "unix:///mine.sock"`, map[string]string{"HOME": home, "DOCKER_HOST": "unix:///a.sock", "DOCKER_CONTEXT": "far"}, "unix:///mine.sock", "providers.x.host", false},
		"the variable":           {"", map[string]string{"HOME": home, "DOCKER_HOST": "unix:///a.sock", "DOCKER_CONTEXT": "far"}, "unix:///a.sock", "DOCKER_HOST", false},
		"the current context":    {"", map[string]string{"HOME": home, "DOCKER_HOST": "", "DOCKER_CONTEXT": ""}, "unix:///run/user/1000/docker.sock", `docker context "rootless" (` + x.dir + "/config.json)", true},
		"the context's variable": {"", map[string]string{"HOME": home, "DOCKER_CONTEXT": "far"}, "tcp://10.0.0.7:2375", `docker context "far" (DOCKER_CONTEXT)`, true},
		"another directory":      {"", map[string]string{"HOME": home, "DOCKER_CONFIG": other.dir}, "unix:///there.sock", `docker context "there"`, true},
		"default by name":        {"", map[string]string{"HOME": home, "DOCKER_CONTEXT": "default"}, "", `docker context "default"`, false},
		"no current context":     {"", map[string]string{"DOCKER_CONFIG": plain.dir}, "", "the usual socket", false},
		"no configuration":       {"", map[string]string{"HOME": t.TempDir()}, "", "the usual socket", false},
		"no home":                {"", nil, "", "the usual socket", false},
		"a home that is none":    {"", map[string]string{"HOME": "/dev/null"}, "", "the usual socket", false},
	} {
		got, err := engineOf(t, row.settings, row.env)
		require.NoError(t, err, what)
		assert.Equal(t, row.host, got.Host, what)
		assert.Contains(t, got.From, row.from, what)
		assert.Equal(t, row.own, got.OwnTLS, what)
		assert.Nil(t, got.TLS, what)
	}
	assert.Equal(t, "unix:///var/run/docker.sock", config.Engine{}.Shown())
	assert.NotContains(t, config.Engine{Host: "tcp://me:hunter2@10.0.0.7:2375"}.Shown(), "hunter2")
	assert.NotContains(t, config.Engine{Host: "tcp://me:hunter2@10.0.0.7:%zz"}.Shown(), "hunter2")
}

// pair is a certificate of itself and its key.
func pair(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
}

func TestAContextHasItsOwnTLS(t *testing.T) {
	t.Parallel()
	x := contexts{t.TempDir()}
	env := map[string]string{"DOCKER_CONFIG": x.dir, "DOCKER_CONTEXT": "far"}
	x.context(t, "far", "tcp://10.0.0.7:2376", false)
	cert, key := pair(t)
	file := func(name string) string { return x.path("tls", "far", "docker", name) }

	x.put(t, file("ca.pem"), cert)
	got, err := engineOf(t, "", env)
	require.NoError(t, err)
	assert.NotNil(t, got.TLS.RootCAs)
	assert.Empty(t, got.TLS.Certificates)
	assert.False(t, got.TLS.InsecureSkipVerify)

	x.put(t, file("cert.pem"), cert)
	_, err = engineOf(t, "", env)
	assert.Equal(t, box.ClassNotFound, box.ClassOf(err), "half a pair would connect as nobody")
	require.ErrorContains(t, err, file("key.pem"))

	x.put(t, file("key.pem"), key)
	got, err = engineOf(t, "", env)
	require.NoError(t, err)
	assert.Len(t, got.TLS.Certificates, 1)
	assert.Empty(t, got.Warning)
	require.NoError(t, os.Chmod(file("key.pem"), 0o644))
	got, err = engineOf(t, "", env)
	require.NoError(t, err)
	assert.Contains(t, got.Warning, "chmod 600 ")

	_, another := pair(t)
	x.put(t, file("key.pem"), another)
	_, err = engineOf(t, "", env)
	assert.Equal(t, box.ClassNotFound, box.ClassOf(err))
	require.ErrorContains(t, err, file("cert.pem"))
	assert.NotContains(t, err.Error(), another[30:60])

	x.put(t, file("ca.pem"), "no certificate")
	_, err = engineOf(t, "", env)
	require.ErrorContains(t, err, file("ca.pem"))

	x.context(t, "lax", "tcp://10.0.0.7:2376", true)
	got, err = engineOf(t, "", map[string]string{"DOCKER_CONFIG": x.dir, "DOCKER_CONTEXT": "lax"})
	require.NoError(t, err)
	assert.True(t, got.TLS.InsecureSkipVerify, "the context says so")
}

func TestAContextThatCannotBeUsedIsNamed(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	meta := func(text string) func(*testing.T, contexts) {
		return func(t *testing.T, x contexts) { t.Helper(); x.put(t, x.path("meta", "it", "meta.json"), text) }
	}
	host := func(text string) func(*testing.T, contexts) {
		return meta(`{"Endpoints":{"docker":{"Host":"` + text + `"}}}`)
	}
	current := func(text string) func(*testing.T, contexts) {
		return func(t *testing.T, x contexts) { t.Helper(); x.current(t, text) }
	}
	place := func(make func(path string) error) func(*testing.T, contexts) {
		return func(t *testing.T, x contexts) {
			t.Helper()
			path := x.path("meta", "it", "meta.json")
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
			require.NoError(t, make(path))
		}
	}
	for what, row := range map[string]struct {
		with func(*testing.T, contexts)
		says []string
	}{
		"not there":          {func(*testing.T, contexts) {}, []string{"meta.json, Endpoints.docker", "no such context"}},
		"no json":            {meta("{" + secret), []string{"meta.json, Endpoints.docker", "not JSON"}},
		"no object":          {meta(`"` + secret + `"`), []string{"meta.json", "not an object"}},
		"another type":       {host(`", "SkipTLSVerify": "` + secret), []string{"meta.json", "SkipTLSVerify is not a bool"}},
		"an address of type": {meta(`{"Endpoints":{"docker":{"Host":12345}}}`), []string{"Host is not a string"}},
		"no endpoint":        {meta(`{"Endpoints":{"kubernetes":{}}}`), []string{"no such endpoint"}},
		"an empty one":       {host(""), []string{"Endpoints.docker.Host", "empty"}},
		"no address":         {host("tcp://" + secret + ":%zz"), []string{"Endpoints.docker.Host", "not an address"}},
		"an odd one":         {host("npipe:////./pipe/" + secret), []string{"Endpoints.docker.Host", "none of unix:"}},
		"ssh":                {host("ssh://me:" + secret + "@far"), []string{"Endpoints.docker.Host", "ssh -L", "providers.x.host"}},
		"huge":               {meta(`{"x":"` + secret + strings.Repeat("y", 1<<20) + `"}`), []string{"larger than"}},
		"deep":               {meta(`{"x":` + strings.Repeat("[", 100000)), []string{"not JSON"}},
		"a loop":             {place(func(path string) error { return os.Symlink(path, path) }), []string{"meta.json"}},
		"a directory":        {place(func(path string) error { return os.Mkdir(path, 0o700) }), []string{"not a regular file"}},
		"a pipe":             {place(func(path string) error { return syscall.Mkfifo(path, 0o600) }), []string{"not a regular file"}},
		"a broken file":      {current("{" + secret), []string{"config.json, currentContext", "not JSON"}},
		"a name of a type":   {current(`{"currentContext":["` + secret + `"]}`), []string{"config.json, currentContext", "currentContext is not a string"}},
	} {
		x := contexts{t.TempDir()}
		x.current(t, `{"currentContext":"it"}`)
		row.with(t, x)
		_, err := engineOf(t, "", map[string]string{"DOCKER_CONFIG": x.dir})
		assert.Equal(t, box.ClassNotFound, box.ClassOf(err), "%s: %v", what, err)
		for _, text := range append(row.says, x.dir, "providers.x.host") {
			require.ErrorContains(t, err, text, what)
		}
		assert.NotContains(t, err.Error(), secret, what)
	}
	_, err := engineOf(t, "", map[string]string{"DOCKER_HOST": "ssh://me:hunter2@far"})
	assert.Equal(t, box.ClassInvalid, box.ClassOf(err))
	require.ErrorContains(t, err, "DOCKER_HOST is an ssh:// address")
	assert.NotContains(t, err.Error(), secret)
	_, err = engineOf(t, "", map[string]string{"DOCKER_CONTEXT": "../../etc"})
	assert.Equal(t, box.ClassNotFound, box.ClassOf(err), "nothing says where contexts are")
}

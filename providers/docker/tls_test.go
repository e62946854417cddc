package docker_test

import (
	"crypto/tls"
	"crypto/x509"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/docker"
)

// Its own TLS is all that counts: what the environment says is of another engine.
// It sets the environment, so it is not run beside other tests.
func TestTLSOfItsOwn(t *testing.T) {
	p := newFake(t, docker.SuspendStop)
	front := httptest.NewUnstartedServer(p.fake)
	front.TLS = &tls.Config{MinVersion: tls.VersionTLS12, ClientAuth: tls.RequireAnyClientCert}
	front.StartTLS()
	t.Cleanup(func() {
		front.CloseClientConnections()
		front.Close()
	})
	known := x509.NewCertPool()
	known.AddCert(front.Certificate())
	t.Setenv("DOCKER_CERT_PATH", t.TempDir()) // nothing is in it
	p.opts.Host = "tcp://" + front.Listener.Addr().String()
	_, err := docker.New(installation, p.opts)
	require.ErrorContains(t, err, "DOCKER_CERT_PATH", "the environment counts without TLS of its own")

	p.opts.OwnTLS, p.opts.TLS = true, &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: known, Certificates: front.TLS.Certificates}
	d, err := docker.New(installation, p.opts)
	require.NoError(t, err)
	_, err = d.Fingerprint(t.Context())
	require.NoError(t, err)

	for what, with := range map[string]*tls.Config{
		"another authority": {MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool(), Certificates: front.TLS.Certificates},
		"no certificate":    {MinVersion: tls.VersionTLS12, RootCAs: known},
		"none":              nil,
	} {
		p.opts.TLS = with
		d, err := docker.New(installation, p.opts)
		require.NoError(t, err, what)
		_, err = d.Fingerprint(t.Context())
		require.Error(t, err, what)
	}
}

func TestTLSIsOfAGivenHost(t *testing.T) {
	t.Parallel()
	opts := docker.Options{Boxd: []string{"/usr/local/bin/boxd"}, OwnTLS: true}
	_, err := docker.New(installation, opts)
	assert.Equal(t, box.ClassInvalid, box.ClassOf(err))
	opts = docker.Options{Boxd: []string{"/usr/local/bin/boxd"}, Host: "tcp://127.0.0.1:2376", TLS: &tls.Config{MinVersion: tls.VersionTLS12}}
	_, err = docker.New(installation, opts)
	assert.Equal(t, box.ClassInvalid, box.ClassOf(err))
}

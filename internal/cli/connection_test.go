package cli_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/openhands/boxkeeper/internal/cli"
)

// pair is a certificate with its key, in files.
type pair struct {
	cert      *x509.Certificate
	key       *ecdsa.PrivateKey
	crt, pems string // paths
}

// issue makes a certificate that by signed, or one that signs others.
func issue(t *testing.T, dir, name string, by *pair) *pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true, IsCA: by == nil,
	}
	p := &pair{key: key, crt: filepath.Join(dir, name+".crt"), pems: filepath.Join(dir, name+".key")}
	parent, signer := template, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	require.NoError(t, err)
	p.cert, err = x509.ParseCertificate(raw)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(p.crt, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}), 0o600))
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(p.pems, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	return p
}

// guarded is a Temporal that lets only callers in which have a certificate of its
// authority and a key. It repeats the key in its refusals, as some services do.
type guarded struct {
	*server
	ca, client *pair
}

const temporalKey = "a-key-of-temporal-37519"

func startGuarded(t *testing.T) guarded {
	t.Helper()
	dir := t.TempDir()
	ca := issue(t, dir, "authority", nil)
	own, client := issue(t, dir, "server", ca), issue(t, dir, "worker-of-ours", ca)
	mine, err := tls.LoadX509KeyPair(own.crt, own.pems)
	require.NoError(t, err)
	trusted := x509.NewCertPool()
	trusted.AddCert(ca.cert)
	look := func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		from, _ := peer.FromContext(ctx)
		var who string
		if shown, ok := from.AuthInfo.(credentials.TLSInfo); ok {
			who = shown.State.PeerCertificates[0].Subject.CommonName
		}
		if key := strings.Join(md["authorization"], ","); key != "Bearer "+temporalKey || who != client.cert.Subject.CommonName {
			return nil, status.Errorf(codes.PermissionDenied, "%s with %q", who, key)
		}
		if named, ok := request.(interface{ GetNamespace() string }); ok && named.GetNamespace() != "ours" {
			return nil, status.Errorf(codes.PermissionDenied, "%s came for namespace %q", info.FullMethod, named.GetNamespace())
		}
		if strings.HasSuffix(info.FullMethod, "PollActivityTaskQueue") {
			_, _ = handler(ctx, request)
			return nil, status.Errorf(codes.InvalidArgument, "not with %s", md["authorization"])
		}
		return handler(ctx, request)
	}
	return guarded{
		server: startServer(t, grpc.UnaryInterceptor(look), grpc.Creds(credentials.NewTLS(&tls.Config{
			Certificates: []tls.Certificate{mine}, ClientCAs: trusted, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13,
		}))),
		ca: ca, client: client,
	}
}

// profile is a section of Temporal's configuration file that reaches the server.
func (g guarded) profile(name string) string {
	return fmt.Sprintf("[profile.%s]\naddress = %q\nnamespace = \"ours\"\napi_key = %q\n[profile.%s.tls]\nserver_ca_cert_path = %q\nclient_cert_path = %q\nclient_key_path = %q\n",
		name, g.address, temporalKey, name, g.ca.crt, g.client.crt, g.client.pems)
}

// TestWorkersReachATemporalAsItsOwnConfigurationSays: profiles of Temporal's file
// and its environment variables, with certificates of both sides and an API key,
// against a server that refuses who lacks one of them.
func TestWorkersReachATemporalAsItsOwnConfigurationSays(t *testing.T) {
	t.Parallel()
	nowhere := "[profile.default]\naddress = \"127.0.0.1:1\"\n"
	for _, row := range []struct {
		name    string
		args    []string
		file    func(g guarded) string
		environ func(g guarded) []string
	}{
		{"a profile named by flag", []string{"--profile", "mine"}, func(g guarded) string { return nowhere + g.profile("mine") }, nil},
		{"a profile named by the environment", nil, func(g guarded) string { return nowhere + g.profile("mine") }, func(guarded) []string { return []string{"TEMPORAL_PROFILE=mine"} }},
		{"the default profile", nil, func(g guarded) string { return g.profile("default") }, nil},
		{"the environment alone", nil, nil, func(g guarded) []string {
			return []string{
				"TEMPORAL_ADDRESS=" + g.address, "TEMPORAL_NAMESPACE=ours", "TEMPORAL_API_KEY=" + temporalKey,
				"TEMPORAL_TLS_SERVER_CA_CERT_PATH=" + g.ca.crt, "TEMPORAL_TLS_CLIENT_CERT_PATH=" + g.client.crt, "TEMPORAL_TLS_CLIENT_KEY_PATH=" + g.client.pems,
			}
		}},
		{"the environment before the file", nil, func(g guarded) string {
			return strings.NewReplacer(g.address, "127.0.0.1:1", temporalKey, "an-older-key").Replace(g.profile("default"))
		}, func(g guarded) []string {
			return []string{"TEMPORAL_ADDRESS=" + g.address, "TEMPORAL_API_KEY=" + temporalKey}
		}},
		{"a key as a header", nil, func(g guarded) string {
			return strings.Replace(g.profile("default"), "api_key = ", "grpc_meta.authorization = ", 1)
		}, func(guarded) []string { return []string{"TEMPORAL_GRPC_META_AUTHORIZATION=Bearer " + temporalKey} }},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			g, data := startGuarded(t), t.TempDir()
			file := filepath.Join(t.TempDir(), "temporal.toml")
			if row.file != nil {
				require.NoError(t, os.WriteFile(file, []byte(row.file(g)), 0o600))
			}
			var stdout, stderr locked
			env := cli.Env{
				Args: append([]string{"worker"}, row.args...), Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr,
				Environ: []string{"BOXKEEPER_DATA=" + data, "BOXKEEPER_LISTEN=off", "TEMPORAL_CONFIG_FILE=" + file},
			}
			if row.environ != nil {
				env.Environ = append(env.Environ, row.environ(g)...)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			code := make(chan int, 1)
			go func() { code <- cli.Execute(ctx, cli.Root(env)) }()
			asked := map[string]bool{}
			limit := time.After(time.Minute)
			for !asked["boxkeeper"] || !asked["boxkeeper-local"] {
				select {
				case q := <-g.polled:
					asked[q] = true
				case got := <-code:
					t.Fatalf("it ended with %d:\n%s", got, stderr.String())
				case <-limit:
					t.Fatalf("no worker asked for work; it says:\n%s", stderr.String())
				}
			}
			g.end() // the refusals that repeat the key
			require.Eventually(t, func() bool { return strings.Contains(stderr.String(), "not with") }, time.Minute, 10*time.Millisecond, stderr.String())
			cancel()
			assert.Equal(t, 0, <-code, stderr.String())
			assert.NotContains(t, stderr.String(), temporalKey, "the log holds the key")
		})
	}
}

// TestWhatKeepsAConnectionFromTemporalIsSaid: a Temporal that is there and wants
// another kind of connection is not one that has to be started.
func TestWhatKeepsAConnectionFromTemporalIsSaid(t *testing.T) {
	t.Parallel()
	g, plain := startGuarded(t), startServer(t)
	repeats := startServer(t, grpc.UnaryInterceptor(func(ctx context.Context, _ any, _ *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		return nil, status.Errorf(codes.InvalidArgument, "not with %s", md["authorization"])
	}))
	for _, row := range []struct {
		name    string
		environ []string
		want    string
	}{
		{"nobody is there", []string{"TEMPORAL_ADDRESS=127.0.0.1:1"}, "connection refused"},
		{"a key brings TLS, and the server has none", []string{"TEMPORAL_ADDRESS=" + plain.address, "TEMPORAL_API_KEY=" + temporalKey}, "does not look like a TLS handshake"},
		{"a service that repeats the key", []string{"TEMPORAL_ADDRESS=" + repeats.address, "TEMPORAL_GRPC_META_AUTHORIZATION=Bearer " + temporalKey}, "not with"},
		{"the server wants TLS, and we speak without", []string{"TEMPORAL_ADDRESS=" + g.address}, "the server may want TLS: set TEMPORAL_TLS=true"},
		{"an authority that nobody trusts", []string{"TEMPORAL_ADDRESS=" + g.address, "TEMPORAL_TLS=true"}, "certificate signed by unknown authority"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr locked
			code := cli.Execute(t.Context(), cli.Root(cli.Env{
				Args: []string{"box", "list"}, Stdout: &stdout, Stderr: &stderr,
				Environ: append([]string{"BOXKEEPER_DATA=" + t.TempDir(), "TEMPORAL_CONFIG_FILE=" + filepath.Join(t.TempDir(), "none.toml")}, row.environ...),
			}))
			assert.Equal(t, 5, code)
			assert.Contains(t, stderr.String(), row.want)
			assert.Contains(t, stderr.String(), "TEMPORAL_TLS")
			assert.NotContains(t, stderr.String(), temporalKey)
		})
	}
}

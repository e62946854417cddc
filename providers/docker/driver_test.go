package docker_test

import (
	"debug/elf"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/docker"
	"github.com/openhands/boxkeeper/providers/docker/dockertest"
)

func TestNewRefusesBadOptions(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		field string
		spoil func(o *docker.Options)
	}{
		"no boxd":                          {"boxd", func(o *docker.Options) { o.Boxd = nil }},
		"a relative boxd":                  {"boxd", func(o *docker.Options) { o.Boxd = []string{"boxd"} }},
		"an unknown suspend":               {"suspend", func(o *docker.Options) { o.Suspend = "freeze" }},
		"an unknown pull":                  {"pull", func(o *docker.Options) { o.Pull = "sometimes" }},
		"a network without ports":          {"network", func(o *docker.Options) { o.Network = "host" }},
		"half a range":                     {"ports", func(o *docker.Options) { o.Ports.First = 9000 }},
		"a range that ends early":          {"ports", func(o *docker.Options) { o.Ports = docker.Ports{First: 9000, Last: 8000} }},
		"a negative limit":                 {"limits", func(o *docker.Options) { o.Limits.CPUs = -1 }},
		"a stop in less than a second":     {"stop_timeout", func(o *docker.Options) { o.StopTimeout = time.Millisecond }},
		"ssh":                              {"host", func(o *docker.Options) { o.Host = "ssh://somewhere" }},
		"no host at all":                   {"host", func(o *docker.Options) { o.Host = "somewhere" }},
		"an engine far away without a net": {"publish_on", func(o *docker.Options) { o.Host = "tcp://192.0.2.1:2376" }},
		"a name to publish on":             {"publish_on", func(o *docker.Options) { o.PublishOn = "localhost" }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := docker.Options{Host: "unix:///run/docker.sock", Boxd: []string{"/usr/local/bin/boxd"}}
			_, err := docker.New(installation, opts)
			require.NoError(t, err)
			row.spoil(&opts)
			_, err = docker.New(installation, opts)
			wantClass(t, err, box.ClassInvalid)
			require.True(t, strings.HasPrefix(err.Error(), row.field+": "), "%v", err)
		})
	}
	for _, host := range []string{"somewhere", "tcp://", "unix://", "npipe:////x"} {
		_, err := docker.New(installation, docker.Options{Host: host, Boxd: []string{"/boxd"}})
		require.ErrorContains(t, err, "write it like unix:///run/docker.sock or tcp://HOST:PORT", host)
		require.ErrorContains(t, err, "DOCKER_HOST", host)
	}
	_, err := docker.New("short", docker.Options{Boxd: []string{"/boxd"}})
	wantClass(t, err, box.ClassInvalid)
}

// Nothing is made for a boxd that could not run.
func TestBoxdMustRunInAnyImage(t *testing.T) {
	t.Parallel()
	text := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(text, []byte("#!/bin/sh\n"), 0o755))
	for name, row := range map[string]struct{ path, says string }{
		"another architecture":  {dockertest.Program(t, elf.EM_AARCH64), "is for amd64 and boxd"},
		"a dynamic program":     {dockertest.Program(t, elf.EM_X86_64, elf.PT_LOAD, elf.PT_INTERP), "linked dynamically"},
		"a script":              {text, "not a program for Linux"},
		"a directory":           {t.TempDir(), "not a file"},
		"nothing":               {filepath.Join(t.TempDir(), "nothing"), "no such file"},
		"an unknown machine":    {dockertest.Program(t, elf.EM_SPARC), "EM_SPARC"},
		"what is no executable": {relocatable(t), "ET_REL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newFake(t, docker.SuspendStop)
			p.opts.Boxd = []string{row.path}
			_, err := p.driver(t, installation).Create(t.Context(), request("static"))
			wantClass(t, err, box.ClassFailedPrecondition)
			require.ErrorContains(t, err, row.says)
			for _, call := range p.fake.Calls() {
				require.True(t, strings.HasPrefix(call, "GET "), "%s was sent", call)
			}
		})
	}
}

func relocatable(t *testing.T) string {
	t.Helper()
	path := dockertest.Program(t, elf.EM_X86_64)
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	content[16] = byte(elf.ET_REL)
	require.NoError(t, os.WriteFile(path, content, 0o755))
	return path
}

// A start gets its environment in a file that only the box's user may read, and
// the engine is told none of it; the next start has its own.
func TestSecretsAreInNoConfiguration(t *testing.T) {
	t.Parallel()
	p := newFake(t, docker.SuspendStop)
	p.fake.AddImage(fakeImage, dockertest.Image{Architecture: "amd64", User: "65532:7"})
	d := p.driver(t, installation)
	ref := made(t, d, "secrets")
	const file = "/.boxkeeper/start/env.read" // where the fake boxd moves it
	env, _, _, ok := p.fake.File(ref.Name, file)
	require.True(t, ok)
	require.ElementsMatch(t, []string{
		"BOXKEEPER_BOX=" + ref.Name, "HOME=/box/home", "TMPDIR=/box/tmp", "OH_SESSION_API_KEYS_0=secret-session-77aa", "PLAIN=as it is", "TOKEN=secret-token-5e1f", "",
	}, strings.Split(string(env), "\x00"))
	for _, path := range []string{"/.boxkeeper/start", "/.boxkeeper/start/env", "/box"} {
		_, uid, gid, _ := p.fake.File(ref.Name, path)
		require.Equal(t, []int{65532, 7}, []int{uid, gid}, path)
	}
	_, uid, _, _ := p.fake.File(ref.Name, "/.boxkeeper/boxd")
	require.Zero(t, uid, "the box's user may not change boxd")
	raw, err := json.Marshal(p.inspect(t, ref.Name))
	require.NoError(t, err)
	require.NotContains(t, string(raw), "secret-")

	_, err = d.Suspend(t.Context(), ref)
	require.NoError(t, err)
	next := start()
	next.SecretEnv = map[string]box.Secret{"TOKEN": "secret-other-01"}
	_, err = d.Resume(t.Context(), ref, next)
	require.NoError(t, err)
	env, _, _, _ = p.fake.File(ref.Name, file)
	require.Contains(t, string(env), "TOKEN=secret-other-01\x00")
	require.NotContains(t, string(env), "secret-token-5e1f")
}

func TestWhatABoxIsMadeWith(t *testing.T) {
	t.Parallel()
	p := newFake(t, docker.SuspendStop)
	p.opts.Boxd = append(p.opts.Boxd, "boxd")
	p.opts.AgentServer = []string{"agent-server", "--quiet"}
	p.opts.Limits = docker.Limits{MemoryBytes: 1 << 30, CPUs: 1.5, Processes: 100, LayerBytes: 1 << 20}
	p.opts.Network = "agents"
	d := p.driver(t, installation)
	asked := request("made")
	asked.Labels = map[string]string{"team": "blue", "ai.openhands.runtime-owner": "somebody"}
	_, err := d.Create(t.Context(), asked)
	require.NoError(t, err)
	c := p.inspect(t, asked.Identity.Name())
	require.Equal(t, []string{"/.boxkeeper/boxd", "boxd", "--root", "/box", "--listen", "0.0.0.0:8000", "--env-file", "/.boxkeeper/start/env", "--own-passes=false", "--", "agent-server", "--quiet"}, c.Config.Entrypoint)
	require.Equal(t, map[string]string{
		prefix + "installation": installation, prefix + "workspace": "made", prefix + "epoch": "1", prefix + "role": "box", prefix + "image": fakeImage,
		prefix + "label.team": "blue", prefix + "label.ai.openhands.runtime-owner": "somebody",
	}, c.Config.Labels, "nobody else takes it by its labels")
	require.Equal(t, container.RestartPolicyDisabled, c.HostConfig.RestartPolicy.Name)
	require.False(t, c.HostConfig.AutoRemove)
	require.Equal(t, int64(1<<30), c.HostConfig.Memory)
	require.Equal(t, int64(1_500_000_000), c.HostConfig.NanoCPUs)
	require.Equal(t, int64(100), *c.HostConfig.PidsLimit)
	require.Equal(t, map[string]string{"size": "1048576"}, c.HostConfig.StorageOpt)
	require.Equal(t, container.NetworkMode("agents"), c.HostConfig.NetworkMode)
	require.Equal(t, "127.0.0.1", c.HostConfig.PortBindings[inside][0].HostIP.String())
	require.Empty(t, c.HostConfig.PortBindings[inside][0].HostPort)
	require.Equal(t, "16m", c.HostConfig.LogConfig.Config["max-size"])
	require.Equal(t, []string{"LANG=C.UTF-8"}, c.Config.Env)
}

func TestImages(t *testing.T) {
	t.Parallel()
	p := newFake(t, docker.SuspendStop)
	p.fake.Offer("offered:1", dockertest.Image{Architecture: "amd64"})
	p.fake.AddImage("owned:1", dockertest.Image{Architecture: "amd64", Labels: map[string]string{"ai.openhands.runtime-owner": "x"}})
	create := func(pull docker.PullPolicy, workspace, image string) error {
		p.opts.Pull = pull
		asked := request(workspace)
		asked.Image = image
		_, err := p.driver(t, installation).Create(t.Context(), asked)
		return err
	}
	wantClass(t, create(docker.PullNever, "never", "offered:1"), box.ClassFailedPrecondition)
	wantClass(t, create(docker.PullMissing, "nowhere", "nowhere:1"), box.ClassInvalid)
	wantClass(t, create(docker.PullMissing, "owned", "owned:1"), box.ClassInvalid)
	p.fake.Next(http.MethodPost, "/images/create", dockertest.Fault{Status: http.StatusTooManyRequests, Message: "toomanyrequests", Header: map[string]string{"Retry-After": "90"}})
	err := create(docker.PullMissing, "limited", "offered:1")
	wantClass(t, err, box.ClassExhausted)
	_, wait := p.driver(t, installation).ErrorClass(err)
	require.Equal(t, 90*time.Second, wait)
	require.NoError(t, create(docker.PullMissing, "missing", "offered:1"))
	wantClass(t, create(docker.PullAlways, "always", fakeImage), box.ClassInvalid)
	p.opts.DefaultImage = ""
	wantClass(t, create(docker.PullMissing, "none", ""), box.ClassInvalid)
}

// Ports of a range belong to boxes, whoever else asks at once, and stay theirs.
func TestFixedPorts(t *testing.T) {
	t.Parallel()
	p := newFake(t, docker.SuspendStop)
	first := freePorts(t)
	p.opts.Ports = docker.Ports{First: first, Last: first + 2}
	require.Equal(t, box.Yes, docker.Row(p.opts).URLStable)
	ours, theirs := p.driver(t, installation), p.driver(t, "ffee0011")
	urls := map[string]box.Ref{}
	var mu sync.Mutex
	var group sync.WaitGroup
	for i, d := range []*docker.Driver{ours, theirs, ours} {
		group.Go(func() {
			asked := request("port-" + strconv.Itoa(i))
			if d == theirs {
				asked.Identity.Installation = "ffee0011"
			}
			seen, err := d.Create(t.Context(), asked)
			if err != nil {
				t.Errorf("create: %v", err)
				return
			}
			at, err := d.Endpoint(t.Context(), seen.Ref)
			if err != nil {
				t.Errorf("endpoint: %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			urls[at.URL] = seen.Ref
		})
	}
	group.Wait()
	require.Len(t, urls, 3, "each has its own")
	_, err := ours.Create(t.Context(), request("one-too-many"))
	wantClass(t, err, box.ClassExhausted)
	for url, ref := range urls {
		if !strings.Contains(ref.Name, installation) {
			continue
		}
		_, err := ours.Suspend(t.Context(), ref)
		require.NoError(t, err)
		_, err = p.api.ContainerRemove(t.Context(), ref.ID, client.ContainerRemoveOptions{})
		require.NoError(t, err)
		again, err := ours.Resume(t.Context(), ref, start())
		require.NoError(t, err)
		at, err := ours.Endpoint(t.Context(), again.Ref)
		require.NoError(t, err)
		require.Equal(t, url, at.URL, "also in a new container")
		_, err = ours.Delete(t.Context(), again.Ref)
		require.NoError(t, err)
		require.Empty(t, p.left(t, ref))
	}
	made(t, ours, "one-more")
}

// freePorts returns the first of three ports that nobody has.
func freePorts(t *testing.T) uint16 {
	t.Helper()
	for first := 21000 + os.Getpid()%10000; ; first += 3 {
		free := true
		for port := first; port < first+3; port++ {
			free = free && !answers(t.Context(), "http://127.0.0.1:"+strconv.Itoa(port))
		}
		if free {
			return uint16(first)
		}
	}
}

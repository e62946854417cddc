package local_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain lets this binary be the boxd of its own tests.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "fake-") {
		os.Exit(fake(os.Args[1], os.Args[2:]))
	}
	os.Exit(m.Run())
}

// fake behaves by its name: "fake-boxd" keeps the contract, the others break
// it in one way each.
func fake(kind string, args []string) int {
	switch kind {
	case "fake-exit":
		return 7
	case "fake-worker":
		return lateWorker(args)
	case "fake-child":
		time.Sleep(5 * time.Minute) // longer than any test
		return 0
	}
	at := slices.Index(args, "--root")
	if at < 0 || len(args) < at+4 || args[at+2] != "--listen" || args[at+3] != "127.0.0.1:0" {
		fmt.Fprintln(os.Stderr, "unexpected arguments:", args)
		return 2
	}
	if err := serve(kind, args[at+1], args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func serve(kind, root string, args []string) error {
	asked := make(chan os.Signal, 1)
	if kind == "fake-stubborn" {
		signal.Ignore(syscall.SIGTERM)
	} else {
		signal.Notify(asked, syscall.SIGTERM)
	}
	if kind == "fake-family" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		// One child in another session, one that also hides its marker.
		for _, env := range [][]string{nil, {"HIDDEN=1"}} {
			child := exec.Command(self, "fake-child", root) //nolint:noctx // ends with the box
			child.Env = env
			child.SysProcAttr = &syscall.SysProcAttr{Setsid: env == nil}
			if err := child.Start(); err != nil {
				return err
			}
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a test program
	if err != nil {
		return err
	}
	address := filepath.Join(root, "run", "address")
	if err := os.WriteFile(address+".new", fmt.Appendf(nil, "http://%s\n", listener.Addr()), 0o600); err != nil {
		return err
	}
	if err := os.Rename(address+".new", address); err != nil {
		return err
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Session-API-Key") != os.Getenv("OH_SESSION_API_KEYS_0") {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		wd, _ := os.Getwd()
		_ = json.NewEncoder(w).Encode(about{Pid: os.Getpid(), Env: os.Environ(), Args: args, Dir: wd})
	})
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(listener) }()
	fmt.Println("listening")
	<-asked
	return server.Close()
}

// about is what the fake boxd says of itself.
type about struct {
	Pid  int
	Env  []string
	Args []string
	Dir  string
}

func ask(t *testing.T, url, key string) about {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Session-API-Key", key)
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v: %s", resp.Status, err, body)
	}
	var out about
	if err := json.Unmarshal(body, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

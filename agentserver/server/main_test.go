package server_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/agentserver/server"
)

// The tests run their own binary as boxd and as an agent-server, as real
// processes.
func TestMain(m *testing.M) {
	switch os.Getenv("SERVER_TEST_ROLE") {
	case "boxd":
		// What boxd starts takes the other role.
		_ = os.Setenv("SERVER_TEST_ROLE", "upstream")
		os.Exit(server.Run(context.Background(), os.Args[1:], os.Getenv, os.Stdout, os.Stderr)) //nolint:forbidigo // a process of its own
	case "upstream":
		os.Exit(upstream(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// upstream is a small agent-server: it answers with what it was given.
func upstream(args []string) int {
	flags := flag.NewFlagSet("upstream", flag.ExitOnError)
	host := flags.String("host", "", "")
	port := flags.Int("port", 0, "")
	ignore := flags.Bool("ignore-term", false, "")
	leave := flags.Bool("leave-a-process", false, "")
	once := flags.String("fail-once", "", "a file: when it is missing, make it and end")
	_ = flags.Parse(args)
	if *once != "" {
		if _, err := os.Stat(*once); err != nil {
			_ = os.WriteFile(*once, nil, 0o600)
			return 7
		}
	}
	if *ignore {
		signal.Ignore(syscall.SIGTERM)
	}
	if *leave {
		left := exec.Command("sleep", "300") //nolint:noctx // it is to be left behind
		left.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := left.Start(); err != nil {
			fmt.Println(err)
			return 1
		}
		_ = os.WriteFile("left.pid", fmt.Appendf(nil, "%d", left.Process.Pid), 0o600)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/server_info", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"uptime": 5, "idle_time":  42, "capabilities": [ "a_v1" ], "odd":1.50}`)
	})
	mux.HandleFunc("/environment", func(w http.ResponseWriter, _ *http.Request) {
		dir, _ := os.Getwd()
		fmt.Fprintf(w, "pid=%d\ncwd=%s\n%s\n", os.Getpid(), dir, strings.Join(os.Environ(), "\n"))
	})
	mux.HandleFunc("/die", func(http.ResponseWriter, *http.Request) { os.Exit(3) })
	web := http.Server{Addr: fmt.Sprintf("%s:%d", *host, *port), Handler: mux, ReadHeaderTimeout: time.Minute}
	fmt.Println(web.ListenAndServe())
	return 1
}

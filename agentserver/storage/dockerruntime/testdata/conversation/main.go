// Command conversation stands in for the agent-server in the container of one
// conversation: it does what the outer agent-server waits for, and writes the
// history of a conversation that it is asked to start, in the agent-server's own
// form. It is built without libc, since it is all that its image holds.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
)

func main() {
	host := flag.String("host", "127.0.0.1", "where it listens")
	port := flag.String("port", "8000", "")
	flag.Parse()
	routes := http.NewServeMux()
	routes.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	routes.HandleFunc("POST /api/conversations", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Session-API-Key") != os.Getenv("OH_SESSION_API_KEYS_0") {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		var asked struct {
			ID        string `json:"conversation_id"`
			Workspace struct {
				Dir string `json:"working_dir"`
			} `json:"workspace"`
		}
		err := json.NewDecoder(r.Body).Decode(&asked)
		if err == nil {
			err = start(os.Getenv("OH_CONVERSATIONS_PATH"), asked.ID, asked.Workspace.Dir)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, `{"id":%q,"execution_status":"idle"}`, asked.ID)
	})
	web := http.Server{Addr: net.JoinHostPort(*host, *port), Handler: routes, ReadHeaderTimeout: time.Minute}
	log.Fatal(web.ListenAndServe())
}

// start writes a history into its directory, which is a mount and is there, so
// that it can't be moved there as a whole. Beside it, the conversation leaves a
// cache in its home and work in its workspace.
func start(conversations, id, workspace string) error {
	dir := filepath.Join(conversations, strings.ReplaceAll(id, "-", ""))
	written, err := agentservertest.WriteConversation(dir, agentservertest.Conversation{
		ID: id, WorkingDir: workspace, Events: []agentservertest.Event{{Text: "hello"}},
	})
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(dir, written))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := os.Rename(filepath.Join(dir, written, entry.Name()), filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}
	if err := os.Remove(filepath.Join(dir, written)); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(os.Getenv("HOME"), ".cache", "uv"), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(workspace, "work"), []byte("dear "+id), 0o600)
}

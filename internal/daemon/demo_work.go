package daemon

import (
	"crypto/rand"
	"encoding/base32"
	"fmt"
	"math/big"
	"os"
	"path/filepath"

	"github.com/google/uuid"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
)

// cacheDir is where the demo's agent leaves caches, as pip does.
const cacheDir = "home/.cache/pip"

const cacheFiles, cacheFileSize = 48, 2 << 20

// work is what the demo's agent left, to compare with later.
type work struct {
	// texts holds, by conversation and event id, what was said.
	texts      map[string]map[string]string
	cacheBytes int64
}

func (w work) events() int {
	n := 0
	for _, c := range w.texts {
		n += len(c)
	}
	return n
}

// doWork plays an agent in the box: conversations that are random in each run,
// a file in the workspace, and caches.
func doWork(boxDir string) (work, error) {
	w := work{texts: map[string]map[string]string{}}
	for range 3 + number(4) {
		c := agentservertest.Conversation{Title: "demo " + word(6)}
		texts := map[string]string{}
		for range 4 + number(20) {
			e := agentservertest.Event{ID: uuid.NewString(), Text: word(16)}
			c.Events = append(c.Events, e)
			texts[e.ID] = e.Text
		}
		id, err := agentservertest.WriteConversation(filepath.Join(boxDir, "conversations"), c)
		if err != nil {
			return w, fmt.Errorf("write a conversation: %w", err)
		}
		w.texts[id] = texts
	}
	if err := os.WriteFile(filepath.Join(boxDir, "workspace", "result.txt"), []byte(word(40)+"\n"), 0o600); err != nil {
		return w, err
	}
	inside := filepath.Join(boxDir, cacheDir, "http-v2")
	if err := os.MkdirAll(inside, 0o700); err != nil {
		return w, err
	}
	body := make([]byte, cacheFileSize)
	for i := range cacheFiles {
		_, _ = rand.Read(body) // never fails; documented
		if err := os.WriteFile(filepath.Join(inside, fmt.Sprintf("%03d.body", i)), body, 0o600); err != nil {
			return w, err
		}
		w.cacheBytes += cacheFileSize
	}
	return w, nil
}

func number(below int64) int {
	n, err := rand.Int(rand.Reader, big.NewInt(below))
	if err != nil { // the system's source never fails; documented
		return 0
	}
	return int(n.Int64())
}

func word(bytes int) string {
	raw := make([]byte, bytes)
	_, _ = rand.Read(raw)
	return base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(raw)
}

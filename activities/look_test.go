package activities_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/box"
)

func digest(id string, events int) string {
	return box.HistoryDigest([]box.ConversationMark{{ID: id, Events: events}})
}

// drainLeft asks boxd how long its door stays closed.
func drainLeft(t *testing.T, url string) time.Duration {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+usePath, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Client{Timeout: 10 * time.Second}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var use agentserver.Use
	if err := json.NewDecoder(response.Body).Decode(&use); err != nil {
		t.Fatal(err)
	}
	return time.Duration(use.DrainSeconds * float64(time.Second))
}

// await polls for a condition that another goroutine of the test brings about.
func await(t *testing.T, met func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !met(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Error("the condition was never met")
			return
		}
	}
}

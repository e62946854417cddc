package e2e_test

import (
	"archive/zip"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	commonpb "go.temporal.io/api/common/v1"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers"
)

// TestNoSecretLeavesTheBox runs a life with secrets in play and then looks for
// each of them everywhere that something is kept: histories with every payload
// decoded, memos, search attributes, failures, the engine's file, the logs, the
// metrics, the ledger and the exports, which are encrypted and are opened for it. A
// canary that is no secret must be found in each place first, so that the search
// itself is proven; the store must show one in a conversation, in a file of the
// workspace and in a ledger.
func TestNoSecretLeavesTheBox(t *testing.T) {
	t.Parallel()
	canary := "canary-" + uuid.NewString()[:8]
	llmKey := "sk-" + strings.ReplaceAll(uuid.NewString(), "-", "")
	metrics := freePort(t)
	storeKey, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	i := newInstallation(t, "DEMO_LLM_KEY="+llmKey, "DEMO_STORE_KEY="+storeKey.String(), fmt.Sprintf("BOXKEEPER_LISTEN=127.0.0.1:%d", metrics),
		`BOXKEEPER_ENCRYPTION_RECIPIENTS=["`+storeKey.Recipient().String()+`"]`, `BOXKEEPER_ENCRYPTION_IDENTITIES=["env:DEMO_STORE_KEY"]`)
	i.opens = []age.Identity{storeKey}

	_, code := i.run("box", "create", canary, "--secret", "LLM_API_KEY=env:DEMO_LLM_KEY", "--idle", "2s", "--paused-ttl", "6s", "--notice", "3s", "--undo", "1s", "--wait")
	require.Zero(t, code)
	answerOf[box.ConnectAnswer](i, "box", "connect", canary, "--holder", "agent", "--lease", "1h")
	s := i.await(canary, within, box.StateRunning)
	_, err = agentservertest.WriteConversation(filepath.Join(i.boxDir(s), "conversations"), agentservertest.Conversation{
		Title: canary, Events: []agentservertest.Event{{Text: "hello said " + canary}, {Raw: rawEvent(t, llmKey)}},
	})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(i.boxDir(s), "workspace", "note.txt"), []byte("written "+canary+"\n"), 0o600))
	sessionKey, encryptionKey := i.requireKeysInPlay(canary, llmKey)
	// A failure puts its words into the history: this one is about a secret that
	// cannot be resolved, in a box of its own.
	_, code = i.run("box", "create", canary+"-bad", "--secret", "LLM_API_KEY=env:NOT_SET_ANYWHERE")
	require.Zero(t, code)
	answerOf[box.ActionAnswer](i, "box", "release", canary, "--holder", "agent")
	i.await(canary, within, box.StateAwaitingConfirm)
	eventually(t, within, func() error { // a list is a little behind
		out, code := i.run("box", "list", "--state", string(box.StateAwaitingConfirm), "-o", "json")
		if code != 0 || !strings.Contains(out, `"`+canary+`"`) {
			return fmt.Errorf("exit code %d, list %s", code, out)
		}
		return nil
	})
	loss := answerOf[box.Loss](i, "box", "delete", canary)
	_, code = i.run("box", "confirm", canary, "--token", loss.Token)
	require.Zero(t, code)
	i.await(canary, within, box.StateBoxArchived)
	i.await(canary+"-bad", within, box.StateCreateFailed)

	i.golden(canary, "person-deletes")
	i.golden(canary, "files-exported") // the same of a later release: receipts have an archive, and count secrets
	i.golden(canary+"-bad", "create-refused")

	places := map[string]string{
		"histories":        i.histories(canary, canary+"-bad"),
		"log of worker":    i.worker.text(),
		"log of engine":    i.engine.text(),
		"metrics":          i.metrics(metrics),
		"the engine files": i.files("engine"),
		"the store":        i.files("exports"),
	}
	canaries := map[string]string{"metrics": "boxkeeper_steps_total", "log of engine": "boxkeeperd: ready"} // they name no workspace
	for what, sign := range map[string]string{"a conversation": "said " + canary, "a file": "written " + canary, "a ledger": `"workspace":"` + canary} {
		require.Contains(t, strings.ReplaceAll(places["the store"], `": "`, `":"`), sign, "%s in the store cannot be read, so nothing would be found there", what)
	}
	raw, err := os.ReadFile(i.anObject())
	require.NoError(t, err)
	require.True(t, sealed(raw), "the store is in the clear, so its key was not in play")
	installationKey, err := os.ReadFile(filepath.Join(i.dir, "installation.key"))
	require.NoError(t, err)
	secrets := map[string]string{
		"the LLM key": llmKey, "the session key": sessionKey, "the encryption key": encryptionKey,
		"the installation key": strings.TrimSpace(string(installationKey)),
		"the store's key":      storeKey.String(),
	}
	for place, text := range places {
		sign := canary
		if other, ok := canaries[place]; ok {
			sign = other
		}
		require.Contains(t, text, sign, "%s: the canary is not found, so nothing would be", place)
		for name, value := range secrets {
			for how, form := range map[string]string{
				"plain": value, "base64": base64.StdEncoding.EncodeToString([]byte(value)), "half": value[len(value)/2:],
			} {
				if strings.Contains(text, form) {
					t.Errorf("%s holds %s (%s)", place, name, how)
				}
			}
		}
	}
}

// rawEvent is an event with a key in a field that exports redact.
func rawEvent(t *testing.T, key string) json.RawMessage {
	t.Helper()
	raw, err := json.Marshal(map[string]any{"id": uuid.NewString(), "kind": "Probe", "source": "agent", "llm_api_key": key, "timestamp": time.Now().UTC()})
	require.NoError(t, err)
	return raw
}

// requireKeysInPlay proves that the box has the secrets, and returns its keys.
func (i *installation) requireKeysInPlay(ws, llmKey string) (session, encryption string) {
	t := i.t
	pids := i.boxPids()
	require.Len(t, pids, 1)
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pids[0]))
	require.NoError(t, err)
	require.Contains(t, string(environ), "LLM_API_KEY="+llmKey)
	raw, err := os.ReadFile(filepath.Join(i.dir, "installation.key"))
	require.NoError(t, err)
	keys, err := providers.NewKeySource(box.Secret(strings.TrimSpace(string(raw))))
	require.NoError(t, err)
	session, encryption = keys.SessionKey(ws, 1).Reveal(), keys.EncryptionKey(ws, 1).Reveal()
	require.Contains(t, string(environ), session)
	require.Contains(t, string(environ), encryption)
	return session, encryption
}

// histories returns everything the engine tells about workflows, with payloads
// decoded: as they are in JSON they are base64, in which nothing is found.
func (i *installation) histories(workspaces ...string) string {
	t := i.t
	c, err := client.DialContext(t.Context(), client.Options{HostPort: fmt.Sprintf("127.0.0.1:%d", i.port)})
	require.NoError(t, err)
	defer c.Close()
	var all strings.Builder
	for _, ws := range workspaces {
		it := c.GetWorkflowHistory(t.Context(), box.WorkflowID(ws), "", false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
		for it.HasNext() {
			event, err := it.Next()
			require.NoError(t, err)
			decodeInto(&all, event)
		}
		described, err := c.WorkflowService().DescribeWorkflowExecution(t.Context(), &workflowservice.DescribeWorkflowExecutionRequest{
			Namespace: "default", Execution: &commonpb.WorkflowExecution{WorkflowId: box.WorkflowID(ws)},
		})
		require.NoError(t, err)
		decodeInto(&all, described)
	}
	require.Greater(t, all.Len(), 10_000)
	return all.String()
}

// decodeInto writes a message as JSON, and the bytes of every payload in it.
func decodeInto(all *strings.Builder, m proto.Message) {
	text, err := protojson.Marshal(m)
	if err != nil {
		all.WriteString(err.Error())
		return
	}
	all.Write(text)
	var tree any
	if json.Unmarshal(text, &tree) != nil {
		return
	}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for _, inner := range v {
				walk(inner)
			}
		case []any:
			for _, inner := range v {
				walk(inner)
			}
		case string:
			if raw, err := base64.StdEncoding.DecodeString(v); err == nil {
				all.Write(raw)
				all.WriteByte('\n')
			}
		}
	}
	walk(tree)
}

func (i *installation) metrics(port int) string {
	request, err := http.NewRequestWithContext(i.t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/metrics", port), nil)
	require.NoError(i.t, err)
	answer, err := (&http.Client{Timeout: within}).Do(request)
	require.NoError(i.t, err)
	defer answer.Body.Close() //nolint:errcheck // read to its end
	body, err := io.ReadAll(answer.Body)
	require.NoError(i.t, err)
	return string(body)
}

// anObject is some object of the export store.
func (i *installation) anObject() (path string) {
	found, err := filepath.Glob(filepath.Join(i.dir, "exports", "ledger", "*", "*.json"))
	require.NoError(i.t, err)
	require.NotEmpty(i.t, found)
	return found[0]
}

// sealed reports whether a file is encrypted with age.
func sealed(data []byte) bool { return bytes.HasPrefix(data, []byte("age-encryption.org/v1\n")) }

// opened decrypts what is encrypted.
func (i *installation) opened(data []byte) []byte {
	if !sealed(data) || len(i.opens) == 0 {
		return data
	}
	plain, err := age.Decrypt(bytes.NewReader(data), i.opens...)
	require.NoError(i.t, err)
	data, err = io.ReadAll(plain)
	require.NoError(i.t, err)
	return data
}

// files returns all that is kept below a directory; what is encrypted, a zip or
// compressed is opened.
func (i *installation) files(name string) string {
	var all bytes.Buffer
	err := filepath.WalkDir(filepath.Join(i.dir, name), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		all.WriteString(path + "\n")
		all.Write(unpacked(i.t, path, i.opened(data)))
		return nil
	})
	require.NoError(i.t, err)
	return all.String()
}

// unpacked returns what a zip or a file compressed with zstd holds, and other files
// as they are.
func unpacked(t *testing.T, path string, data []byte) []byte {
	t.Helper()
	if bytes.HasPrefix(data, []byte{0x28, 0xb5, 0x2f, 0xfd}) {
		stream, err := zstd.NewReader(bytes.NewReader(data))
		require.NoError(t, err)
		defer stream.Close()
		plain, err := io.ReadAll(stream)
		require.NoError(t, err, path)
		return plain
	}
	if filepath.Ext(path) != ".zip" {
		return data
	}
	archive, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	require.NoError(t, err)
	var all bytes.Buffer
	for _, f := range archive.File {
		r, err := f.Open()
		require.NoError(t, err)
		_, err = io.Copy(&all, r)
		require.NoError(t, err)
		require.NoError(t, r.Close())
	}
	return all.Bytes()
}

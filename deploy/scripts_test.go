package deploy_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// temporal stands in for the program of that name: it writes down how it was
// called and answers from files named by the command, so that a test sets what
// the server says and reads what the script did.
const temporal = `#!/bin/sh
echo "$*" >>"$STATE/calls"
case "$*" in
*"cluster health"*) file=health ;;
*"namespace describe"*) file=describe ;;
*"search-attribute list"*) file=list ;;
*) exit 0 ;;
esac
cat "$STATE/$file" 2>/dev/null
[ ! -e "$STATE/$file.fails" ]
`

// sqlTool writes down its arguments and what it was told by environment.
const sqlTool = `#!/bin/sh
echo "$*" >>"$STATE/calls"
case "$*" in *"$FAIL_AT"*) [ -z "$FAIL_AT" ] || exit 1 ;; esac
`

// runScript runs one of our scripts with a program of that name and text first
// on the PATH, and answers its calls of that program, its output and exit code.
func runScript(t *testing.T, script, program, text string, state map[string]string, env ...string) (calls []string, output string, code int) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, program), []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range state {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "/bin/sh", script)
	cmd.Env = append([]string{"PATH=" + dir + ":/usr/bin:/bin", "STATE=" + dir}, env...)
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(log)), "\n"), string(out), code
}

const attributes = "BoxProvider Keyword\nBoxState Keyword\nBoxOwner Keyword\nBoxNextActionAt Datetime\nBoxSuspendedSince Datetime\nBoxEpoch Int\nBoxBlocked Keyword\n"

func TestCreateNamespace(t *testing.T) {
	t.Parallel()
	settings := []string{"TEMPORAL_ADDRESS=temporal:7233", "TEMPORAL_NAMESPACE=boxes", "TEMPORAL_RETENTION=2160h", "WAIT_SECONDS=0"}
	for _, tc := range []struct {
		name    string
		state   map[string]string
		env     []string
		code    int
		calls   []string // each must be made
		never   string   // part of a call that must not be
		message string
	}{
		{
			name:  "a new server gets the namespace and all attributes",
			state: map[string]string{"describe": "Error: Namespace boxes is not found.", "describe.fails": ""}, env: settings,
			calls: []string{
				"operator namespace create --namespace boxes --retention 2160h",
				"operator search-attribute create --namespace boxes --name BoxState --type Keyword",
				"operator search-attribute create --namespace boxes --name BoxNextActionAt --type Datetime",
				"operator search-attribute create --namespace boxes --name BoxEpoch --type Int",
				"operator search-attribute create --namespace boxes --name BoxBlocked --type Keyword",
			},
			never: "namespace update",
		},
		{
			name:  "a second run only sets the retention",
			state: map[string]string{"list": attributes}, env: settings,
			calls: []string{"operator namespace update --namespace boxes --retention 2160h"}, never: "create",
		},
		{
			name:  "a missing attribute is added, and a longer name is another one",
			state: map[string]string{"list": strings.Replace(attributes, "BoxEpoch Int", "BoxEpochOld Int", 1)}, env: settings,
			calls: []string{"operator search-attribute create --namespace boxes --name BoxEpoch --type Int"}, never: "BoxState",
		},
		{
			name:  "an attribute of another type is refused",
			state: map[string]string{"list": strings.Replace(attributes, "BoxEpoch Int", "BoxEpoch Text", 1)}, env: settings,
			code: 1, never: "--name BoxEpoch", message: "search attribute BoxEpoch has another type than Int",
		},
		{
			name:  "a list type is not its element's type",
			state: map[string]string{"list": strings.Replace(attributes, "BoxState Keyword", "BoxState KeywordList", 1)}, env: settings,
			code: 1, never: "--name BoxState", message: "search attribute BoxState has another type than Keyword",
		},
		{
			name:  "a refused look is not taken for a missing namespace",
			state: map[string]string{"describe": "Error: request unauthorized", "describe.fails": ""}, env: settings,
			code: 1, never: "create", message: "request unauthorized",
		},
		{
			name:  "a server that never answers ends the wait with its last words",
			state: map[string]string{"health": "connection refused", "health.fails": ""}, env: settings,
			code: 1, never: "namespace", message: "connection refused",
		},
		{name: "a missing setting is named", env: settings[:2], code: 2, never: "operator", message: "TEMPORAL_RETENTION"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			calls, output, code := runScript(t, "temporal/create-namespace.sh", "temporal", temporal, tc.state, tc.env...)
			// Shells differ in the code for an unset variable.
			if (code != 0) != (tc.code != 0) {
				t.Errorf("exit code %d, want %d\n%s", code, tc.code, output)
			}
			made := "\n" + strings.Join(calls, "\n") + "\n"
			for _, call := range tc.calls {
				if !strings.Contains(made, "\n"+call+"\n") {
					t.Errorf("calls %q without %q", calls, call)
				}
			}
			if tc.never != "" && strings.Contains(made, tc.never) {
				t.Errorf("calls %q with %q", calls, tc.never)
			}
			if !strings.Contains(output, tc.message) {
				t.Errorf("output %q without %q", output, tc.message)
			}
		})
	}
}

func TestSetupSchema(t *testing.T) {
	t.Parallel()
	settings := []string{"SQL_PLUGIN=postgres12_pgx", "SQL_HOST=postgresql", "SQL_PORT=5432", "SQL_USER=temporal", "SQL_PASSWORD=hunter2"}
	calls, output, code := runScript(t, "temporal/setup-schema.sh", "temporal-sql-tool", sqlTool, nil, settings...)
	want := []string{
		"--db temporal create", "--db temporal setup-schema -v 0.0", "--db temporal update-schema --schema-name postgresql/v12/temporal",
		"--db temporal_visibility create", "--db temporal_visibility setup-schema -v 0.0", "--db temporal_visibility update-schema --schema-name postgresql/v12/visibility",
	}
	if code != 0 || strings.Join(calls, "\n") != strings.Join(want, "\n") {
		t.Errorf("exit code %d, calls %q, want %q", code, calls, want)
	}
	if strings.Contains(output+strings.Join(calls, ""), "hunter2") {
		t.Error("the password is in the output or on a command line")
	}

	calls, _, code = runScript(t, "temporal/setup-schema.sh", "temporal-sql-tool", sqlTool, nil, append(settings, "FAIL_AT=setup-schema")...)
	if code == 0 || len(calls) != 2 {
		t.Errorf("exit code %d after %q, want it to stop at the first failure", code, calls)
	}

	if _, output, code = runScript(t, "temporal/setup-schema.sh", "temporal-sql-tool", sqlTool, nil, settings[:4]...); code == 0 || !strings.Contains(output, "SQL_PASSWORD is not set") {
		t.Errorf("exit code %d, output %q, want the missing setting named", code, output)
	}
}

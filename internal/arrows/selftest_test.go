package arrows_test

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// TestChecksCanFail adds one wrong import at a time to a small right tree and
// wants it found: a check of the tree at hand alone could pass for ever.
func TestChecksCanFail(t *testing.T) {
	t.Parallel()
	right := map[string]string{
		"box/a.go":                 `package box; import "time"`,
		"workflows/a.go":           `package workflows; import ("` + module + `/box"; "go.temporal.io/sdk/workflow")`,
		"workflows/a_test.go":      `package workflows_test; import "github.com/stretchr/testify/require"`,
		"internal/engine/a.go":     `package engine; import "go.temporal.io/server/temporal"`,
		"internal/e2e/a_test.go":   `package e2e_test; import "` + module + `/internal/engine"`,
		"internal/cli/a.go":        `package cli; import "` + module + `/box"`,
		"cmd/boxkeeper/main.go":    `package main; import "` + module + `/internal/cli"`,
		"cmd/boxkeeperd/main.go":   `package main; import "` + module + `/internal/daemon"`,
		"internal/daemon/a.go":     `package daemon; import "` + module + `/internal/engine"`,
		"cmd/boxd/main.go":         `package main; import "` + module + `/agentserver/server"`,
		"agentserver/server/a.go":  `package server; import "` + module + `/box"`,
		"tools/go.mod":             "module tools",
		"tools/tools.go":           `package tools; import "example.com/any"`,
		"box/testdata/bad/main.go": `package main; import "example.com/any"`,
	}
	for _, tc := range []struct{ name, file, text, want string }{
		{"the right tree", "box/b.go", `package box`, ""},
		{"the domain imports a driver", "box/b.go", `package box; import "` + module + `/providers/driver"`, "box/b.go: domain must not import driver"},
		{"the domain imports an outside module", "box/b.go", `package box; import "go.uber.org/zap"`, "box/b.go: domain must not import go.uber.org/zap"},
		{"an arrow in a file for another system", "box/b_darwin.go", `package box; import "` + module + `/exports"`, "domain must not import exports"},
		{"a workflow imports a provider", "workflows/b.go", `package workflows; import "` + module + `/providers"`, "workflows must not import portable"},
		{"a workflow imports the client", "workflows/b.go", `package workflows; import "go.temporal.io/sdk/client"`, "workflows must not import go.temporal.io/sdk/client"},
		{"a prefix that is not a path", "workflows/b.go", `package workflows; import "go.temporal.io/sdk/workflowx"`, "must not import go.temporal.io/sdk/workflowx"},
		{"a provider imports another", "providers/local/b.go", `package local; import "` + module + `/providers/fakebox"`, "provider must not import provider"},
		{"a package of no layer", "common/b.go", `package common`, "common belongs to no layer"},
		{"a test of no layer", "common/b_test.go", `package common_test`, "common belongs to no layer"},
		{"a test imports the engine", "workflows/b_test.go", `package workflows_test; import "` + module + `/internal/engine"`, "workflows/b_test.go: only internal/daemon"},
		{"a test imports the server", "workflows/b_test.go", `package workflows_test; import "go.temporal.io/server/temporaltest"`, "workflows/b_test.go: only internal/daemon"},
		{
			"the slim binary comes to the engine", "internal/cli/b.go", `package cli; import "` + module + `/internal/engine"`,
			"cmd/boxkeeper -> internal/cli comes to " + module + "/internal/engine",
		},
		{
			"boxd comes to Temporal", "agentserver/server/b.go", `package server; import "go.temporal.io/sdk/log"`,
			"cmd/boxd -> agentserver/server comes to go.temporal.io/sdk/log",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tree := fstest.MapFS{tc.file: {Data: []byte(tc.text)}}
			for name, text := range right {
				tree[name] = &fstest.MapFile{Data: []byte(text)}
			}
			files, err := parse(tree)
			if err != nil {
				t.Fatal(err)
			}
			problems := slices.Concat(checkLayers(files), checkEngine(files), checkReach(files))
			if tc.want == "" && len(problems) > 0 || tc.want != "" && !strings.Contains(strings.Join(problems, "\n"), tc.want) {
				t.Errorf("problems %q, want %q", problems, tc.want)
			}
		})
	}
}

func TestTableCheckCanFail(t *testing.T) {
	t.Parallel()
	problems := strings.Join(checkTable([]file{{name: "box/a.go", dir: "box"}}), "\n")
	if !strings.Contains(problems, "layer workflows for workflows, and no package is there") || strings.Contains(problems, "layer domain for box,") {
		t.Errorf("problems %q", problems)
	}
}

func TestPinsCanFail(t *testing.T) {
	t.Parallel()
	right := "module m\n\ngo 1.26\n\nrequire go.temporal.io/sdk v1.50.0\n\nrequire (\n\tgo.temporal.io/api v1.63.5 // indirect\n" +
		"\tgo.temporal.io/server v1.32.1\n\tgithub.com/temporalio/ui-server/v2 v2.55.0\n)\n"
	for _, tc := range []struct{ name, text, want string }{
		{"the right file", right, ""},
		{"a newer sdk", strings.Replace(right, "v1.50.0", "v1.51.0", 1), `go.temporal.io/sdk "v1.51.0", want v1.50.0`},
		{"no api", strings.Replace(right, "go.temporal.io/api v1.63.5", "", 1), `go.temporal.io/api "", want v1.63.5`},
		{"a replaced server", right + "replace go.temporal.io/server => ../server\n", "go.temporal.io/server must stay v1.32.1"},
		{"an excluded server", right + "exclude (\n\tgo.temporal.io/server v1.32.1\n)\n", "go.temporal.io/server must stay v1.32.1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			problems := strings.Join(checkPins(tc.text), "\n")
			if (tc.want == "") != (problems == "") || !strings.Contains(problems, tc.want) {
				t.Errorf("problems %q, want %q", problems, tc.want)
			}
		})
	}
}

package deploy_test

import (
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
)

// TestCheckCanFail breaks one thing at a time in the files as they are.
func TestCheckCanFail(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, file, old, text, want string }{
		{"a misspelled key", "docker-compose.yml", "depends_on:", "depend_on:", "field depend_on not found"},
		{"a service that is not there", "docker-compose.yml", "      temporal-schema:\n", "      temporal-scheme:\n", "temporal: depends on temporal-scheme, which is no service"},
		{"a circle", "docker-compose.yml", "  postgresql:\n    image: postgres:16\n", "  postgresql:\n    image: postgres:16\n    depends_on: {boxkeeper: {condition: service_healthy}}\n", "temporal: depends on itself"},
		{"no healthcheck to wait for", "docker-compose.yml", `test: ["CMD", "nc", "-z", "localhost", "7233"]`, "test: []", "temporal-ui: waits for temporal to be healthy"},
		{"a one-shot that never ends", "docker-compose.yml", "restart: on-failure:3", "restart: always", "temporal: waits for temporal-schema to end"},
		{"a wait for nothing", "docker-compose.yml", "condition: service_completed_successfully", "condition: service_started", "which waits for nothing"},
		{"a moving version", "docker-compose.yml", "temporalio/server:1.32.0", "temporalio/server:latest", "temporal: image \"temporalio/server:latest\" must have a fixed version"},
		{"an unknown stage", "docker-compose.yml", "target: boxkeeper", "target: worker", `boxkeeper: the Dockerfile has no stage "worker"`},
		{"a script that is not there", "docker-compose.yml", "/deploy/setup-schema.sh", "/deploy/setup.sh", "/deploy/setup.sh is not a file of deploy/temporal"},
		{"a setting file that is not there", "docker-compose.yml", "/deploy/dynamicconfig.yaml", "/deploy/dynamic.yaml", "/deploy/dynamic.yaml is not a file"},
		{"an undeclared volume", "docker-compose.yml", "- boxkeeper:/data", "- boxes:/data", "volume boxes is not declared"},
		{"a port open to the network", "docker-compose.yml", `"127.0.0.1:${TEMPORAL_PORT`, `"${TEMPORAL_PORT`, "open to the network"},
		{"a setting nobody lists", ".env.example", "TEMPORAL_NAMESPACE=default\n", "", ".env.example lacks TEMPORAL_NAMESPACE"},
		{"another default", ".env.example", "TEMPORAL_UI_PORT=8080", "TEMPORAL_UI_PORT=8081", `TEMPORAL_UI_PORT falls back to "8080"`},
		{"a setting nobody reads", ".env.example", "TEMPORAL_PORT=7233", "TEMPORAL_PORT=7233\nOTHER=1", ".env.example has OTHER"},
		{"a password to copy", ".env.example", "POSTGRES_PASSWORD=", "POSTGRES_PASSWORD=temporal", "POSTGRES_PASSWORD must be empty"},
		{"a bare variable", "docker-compose.yml", "${TEMPORAL_NAMESPACE:-default}", "$TEMPORAL_NAMESPACE", "write variables as"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tree := fstest.MapFS{}
			for _, name := range []string{
				"docker-compose.yml", ".env.example", "Dockerfile",
				"deploy/temporal/setup-schema.sh", "deploy/temporal/create-namespace.sh", "deploy/temporal/dynamicconfig.yaml",
			} {
				text, err := fs.ReadFile(root, name)
				if err != nil {
					t.Fatal(err)
				}
				tree[name] = &fstest.MapFile{Data: text}
			}
			before := string(tree[tc.file].Data)
			after := strings.ReplaceAll(before, tc.old, tc.text)
			if before == after {
				t.Fatalf("%s has no %q", tc.file, tc.old)
			}
			tree[tc.file] = &fstest.MapFile{Data: []byte(after)}
			if problems := strings.Join(check(tree), "\n"); !strings.Contains(problems, tc.want) {
				t.Errorf("problems %q, want %q", problems, tc.want)
			}
		})
	}
}

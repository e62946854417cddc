// Package deploy_test checks the files for running boxkeeper with Docker on
// machines that have no Docker: their structure, what they refer to, and that
// they agree with each other. .ci/run adds the compose specification's own
// parser, and "docker compose config" where that is installed.
package deploy_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// compose is the part of the format that docker-compose.yml uses. Decoding is
// strict, so a misspelled key is an error and not a setting that does nothing.
type compose struct {
	Name     string             `yaml:"name"`
	Services map[string]service `yaml:"services"`
	Volumes  map[string]any     `yaml:"volumes"`
}

type service struct {
	Build           *build                `yaml:"build"`
	Image           string                `yaml:"image"`
	Restart         string                `yaml:"restart"`
	DependsOn       map[string]dependency `yaml:"depends_on"`
	Entrypoint      []string              `yaml:"entrypoint"`
	Command         []string              `yaml:"command"`
	Environment     map[string]string     `yaml:"environment"`
	Volumes         []string              `yaml:"volumes"`
	Ports           []string              `yaml:"ports"`
	Healthcheck     *healthcheck          `yaml:"healthcheck"`
	StopGracePeriod string                `yaml:"stop_grace_period"`
}

type build struct {
	Context string `yaml:"context"`
	Target  string `yaml:"target"`
}

type dependency struct {
	Condition string `yaml:"condition"`
}

type healthcheck struct {
	Test        []string `yaml:"test"`
	Interval    string   `yaml:"interval"`
	Timeout     string   `yaml:"timeout"`
	Retries     int      `yaml:"retries"`
	StartPeriod string   `yaml:"start_period"`
}

var root = os.DirFS("..")

func TestCompose(t *testing.T) {
	t.Parallel()
	for _, p := range check(root) {
		t.Error(p)
	}
}

// check reads docker-compose.yml and what it refers to.
func check(root fs.FS) []string {
	text, err := fs.ReadFile(root, "docker-compose.yml")
	if err != nil {
		return []string{err.Error()}
	}
	var c compose
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	if err := dec.Decode(&c); err != nil {
		return []string{fmt.Sprintf("docker-compose.yml: %v", err)}
	}
	problems := checkVariables(root, string(text))
	for _, name := range slices.Sorted(maps.Keys(c.Services)) {
		for _, p := range slices.Concat(checkImage(root, c.Services[name]), checkDependencies(c, name), checkMounts(root, c, name), checkPorts(c.Services[name])) {
			problems = append(problems, name+": "+p)
		}
	}
	return problems
}

func checkImage(root fs.FS, s service) (problems []string) {
	if s.Build == nil {
		if name, tag, ok := strings.Cut(s.Image, ":"); !ok || tag == "latest" || name == "" {
			problems = append(problems, fmt.Sprintf("image %q must have a fixed version", s.Image))
		}
		return problems
	}
	dockerfile, err := fs.ReadFile(root, path.Join(s.Build.Context, "Dockerfile"))
	if err != nil {
		return append(problems, err.Error())
	}
	if !slices.Contains(stages(string(dockerfile)), s.Build.Target) {
		problems = append(problems, fmt.Sprintf("the Dockerfile has no stage %q", s.Build.Target))
	}
	return problems
}

// checkDependencies wants each awaited state to be one that can come about,
// and an order to start in.
func checkDependencies(c compose, name string) (problems []string) {
	for _, on := range slices.Sorted(maps.Keys(c.Services[name].DependsOn)) {
		other, ok := c.Services[on]
		if !ok {
			problems = append(problems, fmt.Sprintf("depends on %s, which is no service", on))
			continue
		}
		switch condition := c.Services[name].DependsOn[on].Condition; condition {
		case "service_healthy":
			if other.Healthcheck == nil || len(other.Healthcheck.Test) < 2 || other.Healthcheck.Retries == 0 {
				problems = append(problems, fmt.Sprintf("waits for %s to be healthy, which has no complete healthcheck", on))
			}
		case "service_completed_successfully":
			if other.Restart != "no" && !strings.HasPrefix(other.Restart, "on-failure:") {
				problems = append(problems, fmt.Sprintf("waits for %s to end, which restarts %q", on, other.Restart))
			}
		default:
			problems = append(problems, fmt.Sprintf("depends on %s with condition %q, which waits for nothing", on, condition))
		}
	}
	if reaches(c, name, name, map[string]bool{}) {
		problems = append(problems, "depends on itself, by way of others")
	}
	return problems
}

func reaches(c compose, from, to string, seen map[string]bool) bool {
	for on := range c.Services[from].DependsOn {
		if on == to {
			return true
		}
		if !seen[on] {
			seen[on] = true
			if reaches(c, on, to, seen) {
				return true
			}
		}
	}
	return false
}

// checkMounts wants every named volume declared, every file of ours there, and
// what is run or read below a mount to be in it.
func checkMounts(root fs.FS, c compose, name string) (problems []string) {
	s := c.Services[name]
	mounts := map[string]string{} // path in the container to ours
	for _, v := range s.Volumes {
		source, rest, ok := strings.Cut(v, ":")
		target, mode, _ := strings.Cut(rest, ":")
		switch {
		case !ok || !path.IsAbs(target):
			problems = append(problems, fmt.Sprintf("volume %q must be SOURCE:/target", v))
		case strings.HasPrefix(source, "./"):
			if mode != "ro" {
				problems = append(problems, fmt.Sprintf("volume %q must be read-only: it is part of the repository", v))
			}
			mounts[target] = path.Clean(source)
		default:
			if _, declared := c.Volumes[source]; !declared {
				problems = append(problems, fmt.Sprintf("volume %s is not declared", source))
			}
		}
	}
	named := slices.Concat(s.Entrypoint, s.Command, slices.Collect(maps.Values(s.Environment)))
	for target, source := range mounts {
		for _, word := range named {
			if rest, ok := strings.CutPrefix(word, target+"/"); ok {
				if info, err := fs.Stat(root, path.Join(source, rest)); err != nil || !info.Mode().IsRegular() {
					problems = append(problems, fmt.Sprintf("%s is not a file of %s", word, source))
				}
			}
		}
	}
	return problems
}

func checkPorts(s service) (problems []string) {
	for _, p := range s.Ports {
		if !strings.HasPrefix(p, "127.0.0.1:") {
			problems = append(problems, fmt.Sprintf("port %s is open to the network, and nothing behind it asks for a login", p))
		}
	}
	return problems
}

var (
	variable = regexp.MustCompile(`\$\{([A-Z][A-Z0-9_]*)(:[-?][^}]*)?\}`)
	dollar   = regexp.MustCompile(`\$[^{$]|\$\{[^}]*$`)
	setting  = regexp.MustCompile(`(?m)^([A-Z][A-Z0-9_]*)=(.*)$`)
)

// checkVariables holds the settings that the file reads against .env.example:
// each is there with the default that the file falls back to, and no other.
func checkVariables(root fs.FS, text string) (problems []string) {
	example, err := fs.ReadFile(root, ".env.example")
	if err != nil {
		return []string{err.Error()}
	}
	listed := map[string]string{}
	for _, m := range setting.FindAllStringSubmatch(string(example), -1) {
		listed[m[1]] = m[2]
	}
	used := map[string]bool{}
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, " #")
		if dollar.MatchString(line) {
			problems = append(problems, fmt.Sprintf("write variables as ${NAME:-default} or ${NAME:?message}: %s", strings.TrimSpace(line)))
		}
		for _, m := range variable.FindAllStringSubmatch(line, -1) {
			name, fallback := m[1], m[2]
			used[name] = true
			value, ok := listed[name]
			switch {
			case !ok:
				problems = append(problems, fmt.Sprintf(".env.example lacks %s", name))
			case fallback == "":
				problems = append(problems, fmt.Sprintf("%s has neither a default nor a message when it is missing", name))
			case strings.HasPrefix(fallback, ":-") && fallback[2:] != value:
				problems = append(problems, fmt.Sprintf("%s falls back to %q, and .env.example has %q", name, fallback[2:], value))
			case strings.HasPrefix(fallback, ":?") && value != "":
				problems = append(problems, fmt.Sprintf("%s must be empty in .env.example: people would keep what is there", name))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(listed)) {
		if !used[name] {
			problems = append(problems, fmt.Sprintf(".env.example has %s, which docker-compose.yml does not read", name))
		}
	}
	return problems
}

var stage = regexp.MustCompile(`(?mi)^FROM\s.*\sAS\s+(\S+)\s*$`)

func stages(dockerfile string) (names []string) {
	for _, m := range stage.FindAllStringSubmatch(dockerfile, -1) {
		names = append(names, m[1])
	}
	return names
}

// TestDockerfile wants each image to run as a user without rights, and the Go
// version of the build to be the module's.
func TestDockerfile(t *testing.T) {
	t.Parallel()
	text, err := fs.ReadFile(root, "Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	mod, err := fs.ReadFile(root, "go.mod")
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^go (\S+)$`).FindStringSubmatch(string(mod))
	if version == nil || !strings.Contains(string(text), "golang:"+version[1]+"-") {
		t.Errorf("the Dockerfile builds with another Go than go.mod asks for: %q", version)
	}
	for _, target := range []string{"boxkeeper", "boxd"} {
		_, body, ok := strings.Cut(string(text), "FROM scratch AS "+target+"\n")
		if !ok {
			t.Errorf("the Dockerfile has no stage %s from scratch", target)
			continue
		}
		body, _, _ = strings.Cut(body, "\nFROM ")
		if !regexp.MustCompile(`(?m)^USER [1-9]\d*:[1-9]\d*$`).MatchString(body) {
			t.Errorf("stage %s must run as a user other than root, by number", target)
		}
		if !strings.Contains(body, `ENTRYPOINT ["/`+target+`"]`) {
			t.Errorf("stage %s must run /%s", target, target)
		}
	}
	for _, m := range regexp.MustCompile(`\./cmd/\w+`).FindAllString(string(text), -1) {
		if _, err := os.Stat(filepath.Join("..", filepath.FromSlash(m), "main.go")); err != nil {
			t.Errorf("the Dockerfile builds %s: %v", m, err)
		}
	}
}

package server

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// envFileFlag names a file with the environment of a start. Where a provider
// shows and keeps the environment that a process was started with, as Docker
// does, a secret in it would be there for everybody, and for ever.
const envFileFlag = "env-file"

// environment is what the file said; empty without one.
type environment map[string]string

// takeEnvironment reads the file that args name, before anything else of them
// counts, and removes it: what starts later in the box must not find it.
func takeEnvironment(args []string) (environment, error) {
	name := ""
	for i, arg := range args {
		if arg == "--" {
			break
		}
		flag, value, joined := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-"), "=")
		switch {
		case flag != envFileFlag || !strings.HasPrefix(arg, "-"):
		case joined:
			name = value
		case i+1 < len(args):
			name = args[i+1]
		}
	}
	if name == "" {
		return environment{}, nil
	}
	raw, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("--%s: there is no %s: each start needs a new one, so let boxkeeper start the box", envFileFlag, name)
	}
	if err == nil {
		err = os.Remove(name)
	}
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", envFileFlag, err)
	}
	return parseEnvironment(string(raw))
}

// parseEnvironment refuses what is cut off. Its errors show no value.
func parseEnvironment(raw string) (environment, error) {
	out := environment{}
	for n, rest := 1, raw; rest != ""; n++ {
		entry, after, ended := strings.Cut(rest, "\x00")
		name, value, ok := strings.Cut(entry, "=")
		if !ended || !ok || name == "" {
			return nil, fmt.Errorf("--%s: entry %d is not NAME=value with a NUL byte at its end", envFileFlag, n)
		}
		out[name], rest = value, after
	}
	return out, nil
}

// over answers what the file says, and under it what env does.
func (e environment) over(env func(string) string) func(string) string {
	return func(name string) string {
		if value, ok := e[name]; ok {
			return value
		}
		return env(name)
	}
}

// set gives it to this process, and so to what it starts.
func (e environment) set() error {
	for name, value := range e {
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("--%s: set %s: %w", envFileFlag, name, err)
		}
	}
	return nil
}

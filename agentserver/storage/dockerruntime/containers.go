package dockerruntime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// The labels that agent-servers give their containers; the second one only newer
// ones.
const (
	ownerLabel        = "ai.openhands.runtime-owner"
	conversationLabel = "ai.openhands.conversation-id"
)

// askBound is how long an engine may take to list its containers.
const askBound = 10 * time.Second

// Containers returns an [Options].Containers that asks the engine through its
// command line, such as {"docker"}, the way the agent-server itself does. A
// container counts whatever its state, since one that was made may be started.
// It belongs to the conversation that its label names, or whose directories it
// has mounted; one of an agent-server that shows neither may be anybody's.
func Containers(command ...string) func(ctx context.Context) (Listed, error) {
	return containersWithin(askBound, command)
}

func containersWithin(bound time.Duration, command []string) func(ctx context.Context) (Listed, error) {
	return func(ctx context.Context) (Listed, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("no answer within %v", bound))
		defer cancel()
		if len(command) == 0 {
			return nil, errors.New("no command for the container engine")
		}
		columns := []string{".Names", ".State", `.Label "` + conversationLabel + `"`, `.Label "` + ownerLabel + `"`, ".Mounts"}
		args := append(slices.Clone(command[1:]), "ps", "--all", "--no-trunc", "--format", "{{"+strings.Join(columns, "}}\t{{")+"}}")
		ask := exec.CommandContext(ctx, command[0], args...) //nolint:gosec // the operator's command
		var out, faults bytes.Buffer
		ask.Stdout, ask.Stderr = &out, &faults
		ask.WaitDelay = time.Second
		if err := ask.Run(); err != nil {
			text, _, _ := strings.Cut(strings.TrimSpace(faults.String()), "\n")
			switch cause := context.Cause(ctx); {
			case cause != nil: // of the command it is said only that it was killed
				err = cause
			case text != "":
				err = fmt.Errorf("%w: %s", err, text)
			}
			return nil, fmt.Errorf("list the containers: %w", err)
		}
		return func(conversation string) (string, error) {
			return containerOf(out.String(), conversation, len(columns))
		}, nil
	}
}

// containerOf finds the container of a conversation in a list of all.
func containerOf(list, conversation string, columns int) (string, error) {
	for line := range strings.Lines(list) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(fields) != columns {
			return "", fmt.Errorf("the list of containers has a line of %d columns, not %d", len(fields), columns)
		}
		name, state, of, owner, mounts := fields[0], fields[1], fields[2], fields[3], fields[4]
		label := strings.ReplaceAll(strings.ToLower(of), "-", "")
		mounted := slices.ContainsFunc(strings.Split(mounts, ","), func(mount string) bool {
			return slices.Contains(strings.Split(mount, "/"), conversation)
		})
		switch {
		case label == conversation, mounted, strings.Contains(strings.ReplaceAll(name, "-", ""), conversation):
			return name + " (" + state + ")", nil
		case owner != "" && label == "" && !strings.Contains(mounts, "/"):
			return name + " (" + state + "), of which nothing says whose it is", nil
		}
	}
	return "", nil
}

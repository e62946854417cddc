package cli_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	failurepb "go.temporal.io/api/failure/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/openhands/boxkeeper/box"
)

// What a worker knows of a step that is under way is said before the step ends.
func TestAStepThatIsUnderWaySaysWhatIsKnown(t *testing.T) {
	t.Parallel()
	resume := func() *workflowpb.PendingActivityInfo {
		return &workflowpb.PendingActivityInfo{
			ActivityType: &commonpb.ActivityType{Name: "Resume"}, Attempt: 1, LastStartedTime: timestamppb.New(now.Add(-2 * time.Minute)),
		}
	}
	failed := resume()
	failed.LastFailure = &failurepb.Failure{Message: "resume: the engine at unix:///run/docker.sock does not answer\x1b"}
	failed.NextAttemptScheduleTime = timestamppb.New(now.Add(5 * time.Second))
	again := resume()
	again.LastFailure, again.Attempt = failed.LastFailure, 2
	waits := resume()
	waits.HeartbeatDetails = encode("its agent-server does not answer yet: connection refused")
	transfer := resume()
	transfer.HeartbeatDetails = encode(7)
	young := resume()
	young.LastStartedTime = timestamppb.New(now.Add(-2 * time.Second))
	inside := resume()
	inside.ActivityType.Name = "Export"
	queued := resume()
	queued.LastStartedTime = nil
	for name, tc := range map[string]struct {
		step *workflowpb.PendingActivityInfo
		says string
	}{
		"a try failed":                    {failed, "Note: a try of the step that is under way failed: resume: the engine at unix:///run/docker.sock does not answer\\x1b; it is tried again 2026-05-01 12:00:05Z (in 5s)\n"},
		"and the next one goes on":        {again, "does not answer\\x1b; it is being tried again\n"},
		"it waits for what is in the box": {waits, "Note: its agent-server does not answer yet: connection refused\n"},
		"nothing has answered":            {resume(), "Note: resume is under way since 2026-05-01 11:58:00Z (2m ago) and has not answered; by this machine's configuration local is at tcp://engine.example:2375\n"},
		"a transfer says how far it is":   {transfer, ""},
		"it has only just begun":          {young, ""},
		"what lasts long by its nature":   {inside, ""},
		"no worker took it yet":           {queued, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "boxkeeper.toml"), []byte("[providers.local]\ndriver = \"docker\"\nhost = \"tcp://engine.example:2375\"\nimage = \"x\"\n"), 0o600))
			fake := newFake()
			fake.add("mine", box.StateResuming)
			fake.pending = []*workflowpb.PendingActivityInfo{tc.step}
			for _, command := range []string{"show", "why"} {
				got := runIn(t, fake, dir, "", "box", command, "mine")
				require.Equal(t, 0, got.code, got.stderr)
				if tc.says == "" {
					assert.Empty(t, got.stderr)
					continue
				}
				assert.Contains(t, got.stderr, tc.says)
			}
		})
	}
}

package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"

	"github.com/openhands/boxkeeper/box"
)

func TestCreateStartsTheWorkflowOfTheContract(t *testing.T) {
	t.Parallel()
	fake := newFake()
	got := runWith(t, fake, "box", "create", "mine", "--owner", "ann", "--idle", "30m", "--env", "A=b=c", "--secret", "KEY=env:KEY", "-o", "json")
	require.Equal(t, 0, got.code, got.stderr)
	require.Len(t, fake.started, 1)
	o := fake.started[0]
	assert.Equal(t, "box/mine", o.ID)
	assert.Equal(t, "boxkeeper", o.TaskQueue)
	assert.Equal(t, enumspb.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE, o.WorkflowIDReusePolicy)
	assert.Equal(t, enumspb.WORKFLOW_ID_CONFLICT_POLICY_FAIL, o.WorkflowIDConflictPolicy)
	assert.Zero(t, o.WorkflowExecutionTimeout, "it would end the workflow of a living box")
	var attributes []string
	for key, value := range o.TypedSearchAttributes.GetUntypedValues() {
		attributes = append(attributes, key.GetName()+"="+fmtValue(value))
	}
	assert.ElementsMatch(t, []string{"BoxProvider=local", "BoxState=creating", "BoxOwner=ann", "BoxEpoch=1"}, attributes)
	spec := fake.facts["mine"].Spec
	assert.Equal(t, "b=c", spec.Env["A"])
	assert.Equal(t, "env:KEY", spec.Secrets["KEY"])
	assert.Equal(t, box.Duration(30*time.Minute), spec.Policy.Idle)
	assert.Equal(t, "local", fake.facts["mine"].Capabilities.Driver, "the row of the configured instance goes along")
	var out map[string]any
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &out))
	assert.Equal(t, "mine", out["workspace"])
	assert.Equal(t, false, out["existed"])
	plan, _ := out["plan"].(map[string]any)
	assert.NotEmpty(t, plan["watches"])
}

func fmtValue(v any) string {
	data, _ := json.Marshal(v)
	return strings.Trim(string(data), `"`)
}

func TestCreateTwiceIsOneWorkspace(t *testing.T) {
	t.Parallel()
	fake := newFake()
	require.Equal(t, 0, runWith(t, fake, "box", "create", "mine", "--owner", "ann").code)
	again := runWith(t, fake, "box", "create", "mine", "--owner", "ann", "--idle", "15m") // the default, said aloud
	require.Equal(t, 0, again.code, again.stderr)
	assert.Contains(t, again.stdout, "exists already, with the same spec")
	other := runWith(t, fake, "box", "create", "mine", "--owner", "bob", "--image", "x")
	assert.Equal(t, 4, other.code)
	assert.Contains(t, other.stderr, "exists with another image, owner")
	assert.NotContains(t, other.stderr, "bob", "values are not told")
	fake.closed["mine"] = enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED
	closed := runWith(t, fake, "box", "create", "mine", "--owner", "ann")
	assert.Equal(t, 4, closed.code)
	assert.Contains(t, closed.stderr, "closed for ever")
	fake.closed["mine"] = enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED
	assert.Contains(t, runWith(t, fake, "box", "create", "mine").stderr, "ended out of order (Terminated)")
	assert.Len(t, fake.started, 1)
}

func TestCreateOfACarriedWorkspaceComparesItsSpec(t *testing.T) {
	t.Parallel()
	fake := newFake()
	facts := fake.add("mine", box.StateRunning)
	fake.inputs["mine"] = encode(box.Input{Carried: facts})
	got := runWith(t, fake, "box", "create", "mine", "--owner", "ann")
	require.Equal(t, 0, got.code, got.stderr)
	assert.Contains(t, got.stdout, "exists already")
}

func TestALostAnswerToCreateIsUnknownAndSafeToRepeat(t *testing.T) {
	t.Parallel()
	fake := newFake()
	fake.lost["start"] = true
	got := runWith(t, fake, "box", "create", "mine", "--label", "a=it's here")
	assert.Equal(t, 6, got.code)
	assert.Contains(t, got.stderr, "outcome is unknown")
	assert.Contains(t, got.stderr, `boxkeeper box create mine --label 'a=it'\''s here'`)
	again := runWith(t, fake, "box", "create", "mine", "--label", "a=it's here")
	assert.Equal(t, 0, again.code)
	assert.Len(t, fake.started, 1)
}

func TestCreateRefusesWithTheFieldNamed(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		args []string
		want string
	}{
		"a duration without a unit":     {[]string{"x", "--idle", "15"}, "policy.idle: "},
		"a zero duration":               {[]string{"x", "--idle", "0s"}, "policy.idle: "},
		"a negative duration":           {[]string{"x", "--paused-ttl", "-1h"}, "policy.paused_ttl: "},
		"never where it means nothing":  {[]string{"x", "--grace", "never"}, "policy.grace: "},
		"an empty duration":             {[]string{"x", "--max-run", ""}, "policy.max_run: "},
		"a notice that comes too late":  {[]string{"x", "--notice", "31d"}, "policy.notice: "},
		"an expiry that is not known":   {[]string{"x", "--on-expiry", "burn"}, "policy.on_expiry: "},
		"secrets that are lost":         {[]string{"x", "--export-secrets", "burn"}, "policy.export_secrets: "},
		"a bad workspace id":            {[]string{"My_Box"}, "workspace: "},
		"no workspace id":               {nil, "workspace: "},
		"two workspace ids":             {[]string{"a", "b"}, `"b" is one too many`},
		"a secret among the settings":   {[]string{"x", "--env", "API_KEY=hunter2"}, "env.API_KEY: "},
		"a secret in place of its name": {[]string{"x", "--secret", "API_KEY=hunter2"}, "secrets.API_KEY: "},
		"a secret without a name":       {[]string{"x", "--secret", "hunter2"}, "secrets: "},
		"a setting that is there twice": {[]string{"x", "--env", "A=1", "--env", "A=2"}, "env.A: "},
		"an owner with spaces":          {[]string{"x", "--owner", "Ann B"}, "owner: "},
		"a provider that is no name":    {[]string{"x", "--provider", "Local!"}, "provider: "},
		"a flag that is not known":      {[]string{"x", "--idel", "15m"}, "--idel"},
		"an output that is not known":   {[]string{"x", "-o", "yaml"}, "output: "},
		"a time-out that is none":       {[]string{"x", "--timeout", "1"}, "timeout: "},
		"a spec beside a flag":          {[]string{"x", "--spec", "-", "--owner", "a"}, "owner: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := newFake()
			got := runWith(t, fake, append([]string{"box", "create"}, row.args...)...)
			assert.Equal(t, 2, got.code, got.stderr)
			assert.Contains(t, got.stderr, row.want)
			assert.NotContains(t, got.stderr, "hunter2")
			assert.Empty(t, got.stdout)
			assert.Empty(t, fake.started)
		})
	}
}

func TestSpecFilesAreReadStrictly(t *testing.T) {
	t.Parallel()
	const head = `{"version":1,"workspace":"x","provider":"local"`
	for name, row := range map[string]struct{ text, want string }{
		"a field that is not known":        {head + `,"colour":"red"}`, `unknown field "colour"`},
		"a field of the policy":            {head + `,"policy":{"idel":"1m"}}`, `unknown field "idel"`},
		"a number for a duration":          {head + `,"policy":{"idle":15}}`, "policy.idle: "},
		"a null for a duration":            {head + `,"policy":{"idle":null}}`, "policy.idle: "},
		"zero":                             {head + `,"policy":{"paused_ttl":"0s"}}`, "policy.paused_ttl: "},
		"a bad unit":                       {head + `,"policy":{"dead_man":"3w"}}`, "policy.dead_man: "},
		"a name that is there twice":       {head + `,"owner":"a","owner":"b"}`, "owner: is there twice"},
		"a duration that is there twice":   {head + `,"policy":{"idle":"1m","idle":"9d"}}`, "policy.idle: is there twice"},
		"other letters":                    {head + `,"Owner":"a"}`, "Owner: is not a field"},
		"something after the end":          {head + `} {}`, "follows the end"},
		"half a file":                      {head, "is not valid JSON"},
		"a list":                           {`[]`, "is not a JSON object"},
		"null":                             {`null`, "is not a JSON object"},
		"a wrong type":                     {head + `,"owner":5}`, "owner: has the wrong type"},
		"an older version":                 {`{"version":0,"workspace":"x","provider":"local"}`, "version: "},
		"another workspace":                {`{"version":1,"workspace":"y","provider":"local"}`, "workspace: "},
		"a secret in the clear":            {head + `,"secrets":{"API_KEY":"hunter2"}}`, "secrets.API_KEY: "},
		"a control character in a mistake": {head + `,"\u001b[2J":1}`, `\x1b[2j`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := runIn(t, newFake(), t.TempDir(), row.text, "box", "create", "x", "--spec", "-")
			assert.Equal(t, 2, got.code, got.stderr)
			assert.Contains(t, strings.ToLower(got.stderr), strings.ToLower(row.want))
			assert.NotContains(t, got.stderr, "hunter2")
			assert.NotContains(t, got.stderr, "\x1b")
		})
	}
	path := filepath.Join(t.TempDir(), "spec.json")
	require.NoError(t, os.WriteFile(path, []byte(head+`,"env":{"Mixed_Case":"v"},"policy":{"idle":"1h30m","on_expiry":"delete"}}`), 0o600))
	fake := newFake()
	got := runWith(t, fake, "box", "create", "--spec", path)
	require.Equal(t, 0, got.code, got.stderr)
	assert.Equal(t, box.Duration(90*time.Minute), fake.facts["x"].Spec.Policy.Idle)
	assert.Equal(t, "v", fake.facts["x"].Spec.Env["Mixed_Case"])
	assert.Equal(t, 2, runWith(t, fake, "box", "create", "--spec", path+".no").code)
}

func TestDryRunStartsNothingAndNeedsNoTemporal(t *testing.T) {
	t.Parallel()
	got := runWith(t, nil, "box", "create", "x", "--paused-ttl", "never", "--dry-run")
	require.Equal(t, 0, got.code, got.stderr)
	assert.Equal(t, `Nothing was started. Workspace x would be watched like this:

WATCH                    BY         AFTER  ACTION
idle                     boxkeeper  15m    reclaim, export, suspend
hard maximum awake time  boxkeeper  12h    reclaim, export, suspend
Risk: the provider has no idle timer: while boxkeeper is down an idle box stays awake.
Risk: paused_ttl is never: a forgotten box is paid for without end.
`, got.stdout)
}

func TestShowInText(t *testing.T) {
	t.Parallel()
	fake := newFake()
	f := fake.add("mine", box.StateSuspended)
	f.Receipt = box.Receipt{Workspace: "mine", Epoch: 1, Key: "k", SHA256: "s", Bytes: 2048, Conversations: 2, Events: 17, Digest: "d1"}
	f.ReceiptAt = now.Add(-5 * time.Minute)
	f.Transitions = append(f.Transitions, box.Transition{At: now.Add(-10 * time.Minute), To: box.StateSuspended, Reason: box.Reason{Code: box.ReasonIdle, Text: "idle\x1b[2J for 15m"}})
	f.Failure = &box.Failure{Step: box.StepExport, Class: box.ClassUnavailable, Message: "no\nanswer", Count: 2, At: now.Add(-time.Minute), RetryAt: now.Add(time.Minute)}
	got := runWith(t, fake, "box", "show", "mine")
	require.Equal(t, 0, got.code, got.stderr)
	golden(t, "show", got.stdout)
}

func TestWhereAPersonMustDecideNoNextTryIsTold(t *testing.T) {
	t.Parallel()
	fake := newFake()
	f := fake.add("mine", box.StateCreateFailed)
	f.Failure = &box.Failure{Step: box.StepAdopt, Class: box.ClassNotFound, Message: "there is no such box", Count: 1, At: now.Add(-time.Minute), RetryAt: now.Add(-time.Second)}
	for _, command := range []string{"show", "why"} {
		got := runWith(t, fake, "box", command, "mine")
		require.Equal(t, 0, got.code, got.stderr)
		assert.Contains(t, got.stdout, "Failing: adopt, 1 time, last 2026-05-01 11:59:00Z (1m ago): there is no such box\n")
		assert.NotContains(t, got.stdout, "It is tried again")
	}
}

func TestACommandForAnIDThatBeginsWithADashCanBeTyped(t *testing.T) {
	t.Parallel()
	fake := newFake()
	fake.add("-x", box.StateRunning)
	got := runWith(t, fake, "box", "connect", "--holder", "me", "--", "-x")
	require.Equal(t, 0, got.code, got.stderr)
	assert.Contains(t, got.stdout, "boxkeeper box release --holder me -- -x\n")
}

// What becomes of the memory of a suspended box is shown, and can be set.
func TestTheMemoryOfASuspendedBoxIsShown(t *testing.T) {
	t.Parallel()
	fake := newFake()
	f := fake.add("mine", box.StateSuspended)
	f.Capabilities.MemoryKept, f.Capabilities.Deepen = box.Yes, box.Yes
	f.SuspendedAt, f.SuspendedSince, f.PausedClock = now.Add(-time.Minute), now.Add(-time.Minute), now.Add(-time.Minute)
	f.Observed, f.ObservedAt = box.Observation{Phase: box.PhaseSuspended, MemoryKept: box.Yes}, now.Add(-time.Minute)
	for _, command := range []string{"show", "why"} {
		got := runWith(t, fake, "box", command, "mine")
		require.Equal(t, 0, got.code, got.stderr)
		assert.Contains(t, got.stdout, "Last seen at the provider: suspended with its memory kept, 1m ago.")
		assert.Contains(t, got.stdout, "2026-05-01 12:59:00Z (in 59m)")
	}
	assert.Contains(t, runWith(t, fake, "box", "why", "mine").stdout, "its memory is kept for 1h after a suspend; then it is suspended deeper")
	assert.Regexp(t, `memory of a suspended box +boxkeeper +1h +suspend it deeper`, runWith(t, fake, "box", "show", "mine").stdout)
	assert.Regexp(t, `deepen-after: +1h`, runWith(t, fake, "box", "policy", "mine").stdout)
	got := runWith(t, fake, "box", "policy", "mine", "--deepen-after", "never")
	require.Equal(t, 0, got.code, got.stderr)
	assert.Contains(t, got.stdout, "Risk: deepen_after is never")
	assert.Equal(t, box.Never, f.Policy.DeepenAfter)
	f.Observed.MemoryKept = box.No
	assert.Contains(t, runWith(t, fake, "box", "show", "mine").stdout, "Last seen at the provider: suspended, 1m ago.")
	assert.Equal(t, 2, runWith(t, fake, "box", "policy", "mine", "--deepen-after", "0s").code)
}

func TestWhatIsGoneIsNotWatched(t *testing.T) {
	t.Parallel()
	fake := newFake()
	fake.add("mine", box.StateBoxArchived)
	got := runWith(t, fake, "box", "show", "mine")
	require.Equal(t, 0, got.code, got.stderr)
	assert.NotContains(t, got.stdout, "WATCH")
	assert.NotContains(t, got.stdout, "Risk")
	assert.Contains(t, runWith(t, fake, "box", "show", "mine", "-o", "json").stdout, `"watches": []`)
}

func TestThePolicySaysWhichUndoItMeans(t *testing.T) {
	t.Parallel()
	fake := newFake()
	fake.add("mine", box.StateRunning)
	assert.Regexp(t, `undo \(at expiry\): +1d`, runWith(t, fake, "box", "policy", "mine").stdout)
}

func TestWhyInText(t *testing.T) {
	t.Parallel()
	fake := newFake()
	f := fake.add("mine", box.StateRunning)
	f.Holders = []box.Holder{{ID: "h1", Kind: box.HolderConnection, Origin: "laptop", Epoch: 1, Since: now.Add(-time.Minute), Renewed: now, Until: now.Add(time.Minute)}}
	f.Observed, f.ObservedAt = box.Observation{Phase: box.PhaseRunning, Evidence: "boxd\x1b answers"}, now.Add(-time.Hour)
	f.ToldBy = "watch-1-failed"
	got := runWith(t, fake, "box", "why", "mine")
	require.Equal(t, 0, got.code, got.stderr)
	golden(t, "why", got.stdout)
	f.ToldBy = "canvas-17"
	assert.Contains(t, runWith(t, fake, "box", "show", "mine").stdout, "looked at because a report from outside told of a change.")
	assert.Contains(t, runWith(t, fake, "box", "show", "mine", "-o", "json").stdout, `"told_by": "canvas-17"`)
}

func TestJSONIsTheTypesOfTheContractAndNothingElse(t *testing.T) {
	t.Parallel()
	fake := newFake()
	f := fake.add("mine", box.StateRunning)
	f.Transitions[0].Reason.Text = "c1 \u009b2J and \u202e bidi and \x1b"
	got := runWith(t, fake, "box", "show", "mine", "-o", "json")
	require.Equal(t, 0, got.code)
	var status box.Status
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &status))
	assert.Equal(t, through[box.Status](f.StatusAt(now)), status, "what is printed reads back as what was answered")
	assert.NotRegexp(t, "[\x1b\u009b\u202e]", got.stdout)
	assert.Empty(t, got.stderr)
}

func TestListPagesAndShowsTheNewestRun(t *testing.T) {
	t.Parallel()
	fake := newFake()
	fake.add("a", box.StateRunning)
	fake.add("b", box.StateSuspended).Spec.Owner = "x\u202ey"
	got := runWith(t, fake, "box", "list", "--state", "running", "--owner", "ann", "--provider", "local")
	require.Equal(t, 0, got.code, got.stderr)
	golden(t, "list", got.stdout)
	require.Len(t, fake.lists, 2)
	assert.Equal(t, "WorkflowType = 'Box' AND ExecutionStatus = 'Running' AND BoxState = 'running' AND BoxProvider = 'local' AND BoxOwner = 'ann'", fake.lists[0].Query)
	all := runWith(t, fake, "box", "list", "--all", "-o", "json")
	require.Equal(t, 0, all.code)
	assert.Contains(t, fake.lists[2].Query, "ExecutionStatus != 'ContinuedAsNew'")
	var out struct {
		Workspaces []map[string]any `json:"workspaces"`
		More       bool             `json:"more"`
	}
	require.NoError(t, json.Unmarshal([]byte(all.stdout), &out))
	require.Len(t, out.Workspaces, 2)
	assert.Equal(t, "suspended", out.Workspaces[1]["state"])
	require.Zero(t, runWith(t, fake, "box", "list", "--blocked", "quota").code)
	assert.Contains(t, fake.lists[len(fake.lists)-1].GetQuery(), "BoxBlocked = 'quota'")
	limited := runWith(t, fake, "box", "list", "--limit", "1")
	assert.Contains(t, limited.stderr, "There are more")
	for _, bad := range [][]string{{"--owner", "a' OR '1'='1"}, {"--state", "asleep"}, {"--blocked", "rate"}, {"--provider", `a\`}, {"--limit", "-1"}} {
		assert.Equal(t, 2, runWith(t, fake, append([]string{"box", "list"}, bad...)...).code, bad)
	}
}

func TestAnUpdateIsRefusedAsTheWorkerSays(t *testing.T) {
	t.Parallel()
	fake := newFake()
	fake.add("mine", box.StateRunning).Frozen = true
	got := runWith(t, fake, "box", "suspend", "mine", "-o", "json")
	assert.Equal(t, 4, got.code)
	assert.Empty(t, got.stdout)
	var out struct {
		Error struct {
			Class, Message string
			ExitCode       int `json:"exit_code"`
		}
	}
	require.NoError(t, json.Unmarshal([]byte(got.stderr), &out), got.stderr)
	assert.Equal(t, "FailedPrecondition", out.Error.Class)
	assert.Equal(t, 4, out.Error.ExitCode)
	assert.Contains(t, out.Error.Message, "frozen")
	assert.Equal(t, 3, runWith(t, fake, "box", "renew", "mine", "--holder", "none").code)
	assert.Equal(t, 2, runWith(t, fake, "box", "policy", "mine", "--on-expiry", "delete").code)
	unproven := runWith(t, fake, "box", "export", "mine")
	assert.Equal(t, 1, unproven.code)
	assert.Contains(t, unproven.stderr, "without a receipt")
}

func TestAWorkspaceThatIsNotThere(t *testing.T) {
	t.Parallel()
	fake := newFake()
	for _, args := range [][]string{{"show", "none"}, {"why", "none"}, {"suspend", "none"}, {"cancel", "none"}, {"connect", "none"}} {
		got := runWith(t, fake, append([]string{"box"}, args...)...)
		assert.Equal(t, 3, got.code, got.stderr)
		assert.Contains(t, got.stderr, "there is no workspace none")
	}
	fake.add("gone", box.StateBoxArchived)
	fake.closed["gone"] = enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED
	got := runWith(t, fake, "box", "suspend", "gone")
	assert.Equal(t, 4, got.code)
	assert.Contains(t, got.stderr, "boxkeeper box history gone")
	assert.Equal(t, 4, runWith(t, fake, "box", "cancel", "gone").code)
	assert.Equal(t, 2, runWith(t, fake, "box", "show", "Bad_Id").code)
}

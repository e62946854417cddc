package workflows_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	failurepb "go.temporal.io/api/failure/v1"
	historypb "go.temporal.io/api/history/v1"
	sdkpb "go.temporal.io/api/sdk/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/openhands/boxkeeper/exports/secretscan"
)

// The names that values of secrets have here and at an agent-server. Below
// "secrets" each name is a person's, and each value a reference.
var (
	secretName = regexp.MustCompile(`(?i)(^secrets$|secret_?key|api[-_]?keys?(_\d+)?$|password|passphrase|credential|authorization|bearer|installation[-_.]?key|private[-_]?key)`)
	reference  = regexp.MustCompile(`^(env|file):`)
	// confirmation is a token that a history must hold: whoever may read the one may
	// ask for the other.
	confirmation = regexp.MustCompile(`"(confirmation_)?token":"[0-9a-f]{20}"`)
)

// TestGoldenHistoriesHoldNoSecret looks into everything that a golden history
// holds: its texts, and every payload decoded, wherever it hangs.
func TestGoldenHistoriesHoldNoSecret(t *testing.T) {
	t.Parallel()
	scanner, err := secretscan.New()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range goldenFiles(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			history := readHistory(t, file)
			told, payloads := secretsIn(scanner, history)
			for _, line := range told {
				t.Error(line)
			}
			if payloads < len(history.GetEvents())/10 {
				t.Errorf("%d payloads in %d events: there are more", payloads, len(history.GetEvents()))
			}
		})
	}
}

// TestASecretInAHistoryIsFound plants one in each place that a history has.
func TestASecretInAHistoryIsFound(t *testing.T) {
	t.Parallel()
	scanner, err := secretscan.New()
	if err != nil {
		t.Fatal(err)
	}
	token := "ghp" + "_" + "x7Kq2mZ9vLw4Rt8Yb1Nc6Hd3Jf5Gs0PaQeUi" // in parts: no file holds one
	payload := func(value any) *commonpb.Payload {
		data, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		return &commonpb.Payload{Metadata: map[string][]byte{"encoding": []byte("json/plain")}, Data: data}
	}
	planted := payload(map[string]any{"note": "see " + token})
	started := func(a *historypb.WorkflowExecutionStartedEventAttributes) *historypb.HistoryEvent {
		return &historypb.HistoryEvent{Attributes: &historypb.HistoryEvent_WorkflowExecutionStartedEventAttributes{WorkflowExecutionStartedEventAttributes: a}}
	}
	failed := func(f *failurepb.Failure) *historypb.HistoryEvent {
		return &historypb.HistoryEvent{EventType: enumspb.EVENT_TYPE_ACTIVITY_TASK_FAILED, Attributes: &historypb.HistoryEvent_ActivityTaskFailedEventAttributes{
			ActivityTaskFailedEventAttributes: &historypb.ActivityTaskFailedEventAttributes{Failure: f},
		}}
	}
	input := func(p ...*commonpb.Payload) *historypb.HistoryEvent {
		return started(&historypb.WorkflowExecutionStartedEventAttributes{Input: &commonpb.Payloads{Payloads: p}})
	}
	unread := proto.CloneOf(payload(1))
	unread.Metadata["encoding"] = []byte("binary/encrypted")
	places := map[string]*historypb.HistoryEvent{
		"an input":             input(planted),
		"metadata":             input(&commonpb.Payload{Metadata: map[string][]byte{"encoding": []byte("json/plain"), "x": []byte(token)}, Data: []byte("1")}),
		"a memo":               started(&historypb.WorkflowExecutionStartedEventAttributes{Memo: &commonpb.Memo{Fields: map[string]*commonpb.Payload{"m": planted}}}),
		"a header":             started(&historypb.WorkflowExecutionStartedEventAttributes{Header: &commonpb.Header{Fields: map[string]*commonpb.Payload{"h": planted}}}),
		"a search attribute":   started(&historypb.WorkflowExecutionStartedEventAttributes{SearchAttributes: &commonpb.SearchAttributes{IndexedFields: map[string]*commonpb.Payload{"a": planted}}}),
		"a summary":            {UserMetadata: &sdkpb.UserMetadata{Summary: planted}},
		"a failure":            failed(&failurepb.Failure{Message: "create: " + token}),
		"the cause of one":     failed(&failurepb.Failure{Cause: &failurepb.Failure{StackTrace: token}}),
		"details of a failure": failed(&failurepb.Failure{FailureInfo: &failurepb.Failure_ApplicationFailureInfo{ApplicationFailureInfo: &failurepb.ApplicationFailureInfo{Details: &commonpb.Payloads{Payloads: []*commonpb.Payload{planted}}}}}),
		"the value of a key":   input(payload(map[string]any{"box": map[string]any{"session_api_key": "a b c"}})),
		"what is no reference": input(payload(map[string]any{"secrets": map[string]any{"MINE": "a b c"}})),
		"what cannot be read":  input(unread),
	}
	for name, event := range places {
		if told, _ := secretsIn(scanner, &historypb.History{Events: []*historypb.HistoryEvent{event}}); len(told) != 1 || strings.Contains(strings.Join(told, ""), token) {
			t.Errorf("%s: want one line without the value, got %q", name, told)
		}
	}
	fine := input(payload(map[string]any{"secrets": map[string]any{"LLM_API_KEY": "env:DEMO"}, "session_api_key": "", "token": "12fd2ee4a6dcb560fb98"}))
	if told, n := secretsIn(scanner, &historypb.History{Events: []*historypb.HistoryEvent{fine}}); len(told) != 0 || n != 1 {
		t.Errorf("a reference is no secret: %q in %d payloads", told, n)
	}
}

func goldenFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "histories", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < leastHistories {
		t.Fatalf("found %d golden histories, there are more", len(files))
	}
	return files
}

func readHistory(t *testing.T, file string) *historypb.History {
	t.Helper()
	r, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	history, err := client.HistoryFromJSON(r, client.HistoryJSONOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return history
}

// secretsIn says where in a history something looks like a secret, never what, and
// how many payloads it decoded. One that it cannot decode is told, too.
func secretsIn(scanner *secretscan.Scanner, history *historypb.History) (told []string, payloads int) {
	s := search{scanner: scanner}
	for i, event := range history.GetEvents() {
		s.message(fmt.Sprintf("event %d", i+1), event.ProtoReflect())
	}
	return s.told, s.payloads
}

type search struct {
	scanner  *secretscan.Scanner
	told     []string
	payloads int
}

// message walks through all that is set; a new kind of field needs nothing here.
func (s *search) message(at string, m protoreflect.Message) {
	if p, ok := m.Interface().(*commonpb.Payload); ok {
		s.payload(at, p)
		return
	}
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := at + "." + string(field.Name())
		switch {
		case field.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				s.value(at+"."+k.String(), field.MapValue(), v)
				return true
			})
		case field.IsList():
			for i := range v.List().Len() {
				s.value(fmt.Sprintf("%s[%d]", at, i), field, v.List().Get(i))
			}
		default:
			s.value(at, field, v)
		}
		return true
	})
}

func (s *search) value(at string, field protoreflect.FieldDescriptor, v protoreflect.Value) {
	switch field.Kind() { // numbers hold no secret
	case protoreflect.MessageKind:
		s.message(at, v.Message())
	case protoreflect.StringKind:
		s.text(at, []byte(v.String()))
	case protoreflect.BytesKind:
		s.text(at, v.Bytes())
	}
}

func (s *search) payload(at string, p *commonpb.Payload) {
	s.payloads++
	for _, key := range slices.Sorted(maps.Keys(p.GetMetadata())) {
		s.text(at+".metadata."+key, p.GetMetadata()[key])
	}
	switch encoding := string(p.GetMetadata()["encoding"]); encoding {
	case "binary/null":
	case "json/plain":
		var tree any
		if err := json.Unmarshal(p.GetData(), &tree); err != nil {
			s.told = append(s.told, at+" is not the JSON that it says it is")
		}
		if !s.text(at, confirmation.ReplaceAll(p.GetData(), []byte(`"$1token":""`))) {
			s.tree(at, tree, false)
		}
	default:
		s.told = append(s.told, fmt.Sprintf("%s: nothing is found in the encoding %q", at, encoding))
	}
}

// text tells what the rules for exports find in a text.
func (s *search) text(at string, text []byte) (found bool) {
	stream := s.scanner.Stream(secretscan.NewKey(nil, ""), "payload.json", nil, func(f secretscan.Found) {
		found = true
		s.told = append(s.told, fmt.Sprintf("%s holds what the rule %s finds", at, f.Rule))
	})
	_, _ = stream.Write(text) // never fails; documented
	_ = stream.Close()
	return found
}

// tree tells of values whose name says that they are secrets.
func (s *search) tree(at string, v any, secret bool) {
	switch v := v.(type) {
	case map[string]any:
		for key, inner := range v {
			s.tree(at+"."+key, inner, secret || secretName.MatchString(key))
		}
	case []any:
		for i, inner := range v {
			s.tree(fmt.Sprintf("%s[%d]", at, i), inner, secret)
		}
	case string:
		if secret && v != "" && !reference.MatchString(v) {
			s.told = append(s.told, at+" is named like a secret and holds no reference to one")
		}
	}
}

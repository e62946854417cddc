package digitaloceantest

import (
	"net/http"
	"slices"
	"strings"
)

// Op names one operation of the API, for faults and records.
type Op string

// The operations.
const (
	OpAccount     Op = "account"
	OpPrepayment  Op = "prepayment"
	OpRegions     Op = "regions"
	OpSizes       Op = "sizes"
	OpValidate    Op = "validate"
	OpCreate      Op = "create"
	OpGet         Op = "get"
	OpList        Op = "list"
	OpPatch       Op = "patch"
	OpPause       Op = "pause"
	OpResume      Op = "resume"
	OpDelete      Op = "delete"
	OpIngress     Op = "ingress"
	OpTunnel      Op = "port-forward"
	OpExec        Op = "exec"
	OpInput       Op = "input"
	OpResolve     Op = "hitl"
	OpDownload    Op = "download"
	OpTransfer    Op = "transfer"
	OpTransferGet Op = "transfer-get"

	OpCheckpoint       Op = "checkpoint"
	OpCheckpointGet    Op = "checkpoint-get"
	OpCheckpointList   Op = "checkpoint-list"
	OpCheckpointDelete Op = "checkpoint-delete"
	OpRollback         Op = "rollback"
	OpFork             Op = "fork"

	OpConfigCreate   Op = "config-create"
	OpConfigGet      Op = "config-get"
	OpConfigList     Op = "config-list"
	OpConfigDelete   Op = "config-delete"
	OpConfigClone    Op = "config-clone"
	OpConfigSessions Op = "config-sessions"

	OpWorkspaceCreate Op = "workspace-create"
	OpWorkspaceGet    Op = "workspace-get"
	OpWorkspaceList   Op = "workspace-list"
	OpWorkspaceDelete Op = "workspace-delete"

	OpTriggers Op = "triggers"
	// OpGuest is a request to an ingress URL.
	OpGuest Op = "guest"
	// OpUnknown is what the service has and the fake leaves out: 501.
	OpUnknown Op = "unknown"
)

// prefixes are equal in all [client v1.240.0, source].
var prefixes = []string{"/v2/harness-runtime", agentsPrefix} //nolint:gochecknoglobals // a constant list

const agentsPrefix = "/v2/agents"

type route struct {
	method, path string
	op           Op
	do           func(*call) answer
}

// routes are below a prefix; a star stands for one segment. The first that
// matches counts.
func routes() []route {
	return []route{
		{"GET", "/regions", OpRegions, (*call).regions},
		{"GET", "/sessions/sandbox/sizes", OpSizes, (*call).sizes},
		{"POST", "/sessions/policy/validate", OpValidate, (*call).validate},
		{"POST", "/sessions", OpCreate, (*call).create},
		{"GET", "/sessions", OpList, (*call).list},
		{"GET", "/sessions/*", OpGet, (*call).get},
		{"PATCH", "/sessions/*", OpPatch, (*call).patch},
		{"DELETE", "/sessions/*", OpDelete, (*call).destroy},
		{"POST", "/sessions/*/pause", OpPause, (*call).pause},
		{"POST", "/sessions/*/resume", OpResume, (*call).resume},
		{"GET", "/sessions/*/ingress", OpIngress, (*call).publish},
		{"GET", "/sessions/*/port-forward/*", OpTunnel, (*call).tunnel},
		{"POST", "/sessions/*/sandbox/exec", OpExec, (*call).exec},
		{"POST", "/sessions/*/input", OpInput, (*call).input},
		{"POST", "/sessions/*/hitl/*", OpResolve, (*call).resolve},
		{"GET", "/sessions/*/workspace/download", OpDownload, (*call).download},
		{"POST", "/sessions/*/workspace/transfers", OpTransfer, (*call).transfer},
		{"GET", "/sessions/*/workspace/transfers/*", OpTransferGet, (*call).transferGet},
		{"POST", "/sessions/*/checkpoints", OpCheckpoint, (*call).checkpoint},
		{"GET", "/sessions/*/checkpoints", OpCheckpointList, (*call).checkpointList},
		{"GET", "/sessions/*/checkpoints/*", OpCheckpointGet, (*call).checkpointGet},
		{"DELETE", "/sessions/*/checkpoints/*", OpCheckpointDelete, (*call).checkpointDelete},
		{"POST", "/sessions/*/checkpoints/*/rollback", OpRollback, (*call).rollback},
		{"POST", "/sessions/*/fork", OpFork, (*call).fork},
		{"POST", "/configs", OpConfigCreate, (*call).configCreate},
		{"GET", "/configs", OpConfigList, (*call).configList},
		{"GET", "/configs/*", OpConfigGet, (*call).configGet},
		{"DELETE", "/configs/*", OpConfigDelete, (*call).configDelete},
		{"POST", "/configs/*/clone", OpConfigClone, (*call).configClone},
		{"GET", "/configs/*/sessions", OpConfigSessions, (*call).list},
		{"POST", "/workspaces", OpWorkspaceCreate, (*call).workspaceCreate},
		{"GET", "/workspaces", OpWorkspaceList, (*call).workspaceList},
		{"GET", "/workspaces/*", OpWorkspaceGet, (*call).workspaceGet},
		{"DELETE", "/workspaces/*", OpWorkspaceDelete, (*call).workspaceDelete},
		{"GET", "/triggers", OpTriggers, (*call).triggerList},
	}
}

// leftOut are paths that the service has and the fake answers with 501.
func leftOut() []string {
	return []string{
		"/templates", "/triggers", "/webhook-providers", "/auth", "/image-messages",
		"/sessions/*/events", "/sessions/*/request", "/sessions/*/cancel", "/sessions/*/workspace",
	}
}

// find matches a request with a route.
func find(r *http.Request) (rt route, prefix string, ids []string, status int) {
	if r.Method == http.MethodGet {
		switch r.URL.Path {
		case "/v2/account":
			return route{op: OpAccount, do: (*call).account}, "", nil, 0
		case "/v2/customers/my/prepayment_status":
			return route{op: OpPrepayment, do: (*call).prepayment}, "", nil, 0
		}
	}
	for _, prefix = range prefixes {
		path, below := strings.CutPrefix(r.URL.Path, prefix)
		if !below {
			continue
		}
		status = http.StatusNotFound
		for _, rt := range routes() {
			ids, matches := match(rt.path, path)
			if matches && rt.method == r.Method {
				return rt, prefix, ids, 0
			}
			if matches {
				status = http.StatusMethodNotAllowed
			}
		}
		if status == http.StatusNotFound && slices.ContainsFunc(leftOut(), func(p string) bool { return covers(p, path) }) {
			status = http.StatusNotImplemented
		}
		return route{op: OpUnknown}, prefix, nil, status
	}
	return route{op: OpUnknown}, "", nil, http.StatusNotFound
}

// match compares a path with a pattern, segment by segment.
func match(pattern, path string) (ids []string, ok bool) {
	want, have := strings.Split(pattern, "/"), strings.Split(path, "/")
	if len(want) != len(have) {
		return nil, false
	}
	for i := range want {
		switch {
		case want[i] == "*" && have[i] != "":
			ids = append(ids, have[i])
		case want[i] != have[i]:
			return nil, false
		}
	}
	return ids, true
}

// covers says whether a path is at or below what a pattern stands for.
func covers(pattern, path string) bool {
	have := strings.Split(path, "/")
	n := len(strings.Split(pattern, "/"))
	if len(have) < n {
		return false
	}
	_, ok := match(pattern, strings.Join(have[:n], "/"))
	return ok
}
